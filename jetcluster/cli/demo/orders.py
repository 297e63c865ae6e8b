"""The demo's data: orders of a small shop, the same in every run."""

from __future__ import annotations

import json
import random
from typing import Final, NamedTuple

STREAM: Final = "ORDERS"
ARTICLES: Final = ("bell", "bottle", "chain", "helmet", "light", "lock", "pedal", "pump", "saddle", "tyre")
CITIES: Final = ("amsterdam", "berlin", "copenhagen", "lisbon", "lyon", "turin")


class Order(NamedTuple):
    """One message."""

    subject: str
    payload: bytes
    """JSON; it begins with the order's number, so all differ."""


def make_orders(count: int) -> list[Order]:
    rng = random.Random(1)
    found = []
    for number in range(count):
        city, article = rng.choice(CITIES), rng.choice(ARTICLES)
        text = json.dumps({"order": number, "article": article, "pieces": rng.randint(1, 4), "city": city})
        found.append(Order(f"orders.{city}.{article}", text.encode()))
    return found
