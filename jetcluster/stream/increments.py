"""Whole numbers as counters write them: increments and totals (ADR-49)."""

from __future__ import annotations

import re
from typing import Final

MAX_DIGITS: Final = 4096
"""Longest increment and total. Upstream only the header block bounds them; adding and printing numbers of 64 KB for
every message is quadratic work that one client could order."""

_INTEGER: Final = re.compile(rb"[+-]?[0-9]+")


def parse_increment(value: bytes) -> int | None:
    """The number in `Nats-Incr`; None when it is none (or longer than MAX_DIGITS)."""
    if _INTEGER.fullmatch(value) is None or len(value) > MAX_DIGITS + 1:
        return None
    return int(value)
