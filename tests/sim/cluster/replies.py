"""Requests to JetStream (`replies.toml`) with all that is answered, to the letter but for times, places and bytes of
stores."""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

from testkit.sim.session import Msg

TABLE: Final = Path(__file__).with_name("replies.toml")
PASSING_HEADERS: Final = frozenset(("Nats-Time-Stamp",))
PASSING_FIELDS: Final = frozenset(
    (
        "ts", "time", "created", "cluster", "config", "domain", "first_ts", "last_ts", "pinned_ts", "delivered",
        "ack_floor", "num_waiting", "limit",
    )
)  # fmt: skip
"""Fields that no table can know, another one has (`settings.toml`), or small limits change."""
EMPTY: Final = "empty"


@dataclass(slots=True, frozen=True)
class Read:
    """A request that changes nothing, or is refused."""

    subject: str
    """Behind `$JS.API.`."""
    body: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    says: tuple[str, ...] = ()
    """All that is answered, in order."""


@dataclass(slots=True, frozen=True)
class Step:
    """One message that is published."""

    token: str = ""
    """Behind the stream's first token."""
    payload: str = "x"
    headers: dict[str, str] = field(default_factory=dict)
    says: str = ""
    """The ack, or the error; "" where nothing is answered."""


@dataclass(slots=True, frozen=True)
class Dialogue:
    """A new stream, what is published into it one after the other, and what it has in the end."""

    stream: dict[str, Any]
    steps: tuple[Step, ...]
    has: tuple[str, ...] = ()
    """Sequence, subject and size of each message."""
    last: int = 0
    """Last sequence."""


def _rows(kind: str) -> Any:
    with TABLE.open("rb") as file:
        return tomllib.load(file)[kind]


@cache
def reads() -> tuple[Read, ...]:
    return tuple(Read(**{**row, "says": tuple(row["says"])}) for row in _rows("reads"))


@cache
def dialogues() -> tuple[Dialogue, ...]:
    rows = _rows("dialogues")
    return tuple(
        Dialogue(row["stream"], tuple(Step(**step) for step in row["steps"]), tuple(row["has"]), row["last"])
        for row in rows
    )


def line(msg: Msg) -> str:
    """An answer in one line: its status, its headers by name, and its payload, all without what is passing."""
    headers = " ".join(f"{key}={value}" for key, value in sorted(msg.headers.items()) if key not in PASSING_HEADERS)
    payload = msg.payload.decode()
    if payload.startswith("{"):
        payload = json.dumps(_lasting(json.loads(payload)), sort_keys=True, separators=(",", ":"))
    return " | ".join(part for part in (msg.status, headers, payload) if part) or EMPTY


def _lasting(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _lasting(one) for key, one in value.items() if key not in PASSING_FIELDS}
    return [_lasting(one) for one in value] if isinstance(value, list) else value
