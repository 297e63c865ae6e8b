"""`Freshness`: what a request asks of the age of its answer, as fields of its object or as headers.

| field | header | value |
|---|---|---|
| `min_last_seq` | `Nats-Min-Last-Sequence` | a sequence |
| `max_staleness` | `Nats-Max-Staleness` | a duration: nanoseconds, or as Go writes it (`500ms`) |
| `consistency` | `Nats-Read-Consistency` | `eventual`, `session` or `linearizable` |
| `read_info` | `Nats-Read-Info` | `true`: the answer says how fresh it is |

`min_last_seq` is the upstream proposal's (ADR-53). Where both forms are given the stricter value holds.
"""

from __future__ import annotations

import json
from typing import Any, Final

from jetcluster.errors import CallerError
from jetcluster.model import durations
from jetcluster.protocol import headers as header_block
from jetcluster.records import NamedTuple

EVENTUAL: Final = "eventual"
SESSION: Final = "session"
LINEARIZABLE: Final = "linearizable"
_ORDER: Final = ("", EVENTUAL, SESSION, LINEARIZABLE)
"""From the weakest on; "" stands for what the stream's `read_consistency` says."""

FIELDS: Final = ("min_last_seq", "max_staleness", "consistency", "read_info")
_KEYS: Final = tuple(name.encode() for name in FIELDS)
_MIN_LAST: Final = b"Nats-Min-Last-Sequence"
_MAX_STALENESS: Final = b"Nats-Max-Staleness"
_CONSISTENCY: Final = b"Nats-Read-Consistency"
_INFO: Final = b"Nats-Read-Info"
_STARTS: Final = (b"\nNats-M", b"\nNats-Read-")
_MAX_SEQ: Final = (1 << 64) - 1


class FreshnessError(CallerError, ValueError):
    """A field or header has a value that it cannot have; the text names it and what it may be."""


class Freshness(NamedTuple):
    """The least that an answer must have; the defaults ask for nothing."""

    min_last_seq: int = 0
    """The last sequence that the replica must have reached."""
    max_staleness: int = -1
    """Nanoseconds for which newer data may be missing; -1: any time."""
    consistency: str = ""
    info: bool = False
    """The answer says how fresh it is."""

    @property
    def replaces_default(self) -> bool:
        """True for a request that says itself how old its answer may be, whatever its stream asks for."""
        return bool(self.consistency) or self.max_staleness >= 0

    def stricter(self, other: Freshness) -> Freshness:
        """Both at once."""
        if self is ANY or other is ANY:
            return other if self is ANY else self
        bounds = [bound for bound in (self.max_staleness, other.max_staleness) if bound >= 0]
        return Freshness(
            max(self.min_last_seq, other.min_last_seq),
            min(bounds, default=-1),
            max(self.consistency, other.consistency, key=_ORDER.index),
            self.info or other.info,
        )


ANY: Final = Freshness()


def of(headers: bytes, payload: bytes) -> Freshness | None:
    """The wishes of a request; None when it has none. Raises FreshnessError. A payload that is no object has
    none: whoever reads the request says what is wrong with it."""
    found = of_headers(headers) if headers else ANY
    if payload and any(key in payload.lower() for key in _KEYS):
        found = found.stricter(_of_body(payload))
    return None if found == ANY else found


def of_headers(block: bytes) -> Freshness:
    """The wishes of a header block. Raises FreshnessError."""
    if not any(start in block for start in _STARTS):
        return ANY
    seq, staleness = header_block.get(block, _MIN_LAST), header_block.get(block, _MAX_STALENESS)
    consistency, info = header_block.get(block, _CONSISTENCY), header_block.get(block, _INFO)
    bound = -1
    if staleness is not None:
        parsed = durations.parse(staleness)
        if parsed is None or parsed < 0:
            raise FreshnessError(f"{_MAX_STALENESS.decode()} must be a duration such as 500ms")
        bound = parsed
    if seq is not None and not (seq.isdigit() and len(seq) <= 20 and int(seq) <= _MAX_SEQ):
        raise FreshnessError(f"{_MIN_LAST.decode()} must be a sequence")
    if info not in (None, b"true", b"false"):
        raise FreshnessError(f"{_INFO.decode()} must be true or false")
    named = "" if consistency is None else _level(consistency.decode("utf-8", "replace"), _CONSISTENCY.decode())
    return Freshness(int(seq or b"0"), bound, named, info == b"true")


def of_field(name: str, value: Any) -> Freshness:
    """The wish of one of FIELDS of a request's object. Raises FreshnessError."""
    if name == "min_last_seq":
        if type(value) is not int or not 0 <= value <= _MAX_SEQ:
            raise FreshnessError("min_last_seq must be a sequence")
        return Freshness(min_last_seq=value)
    if name == "max_staleness":
        if type(value) is not int or not 0 <= value <= durations.MAX_NS:
            raise FreshnessError("max_staleness must be nanoseconds, and not negative")
        return Freshness(max_staleness=value)
    if name == "consistency":
        return Freshness(consistency=_level(value, name))
    if type(value) is not bool:
        raise FreshnessError("read_info must be true or false")
    return Freshness(info=value)


def _level(value: Any, name: str) -> str:
    if value not in _ORDER[1:]:
        raise FreshnessError(f"{name} must be eventual, session or linearizable")
    return str(value)


def _of_body(payload: bytes) -> Freshness:
    try:
        fields = json.loads(payload.decode("utf-8", "surrogateescape"))
    except (ValueError, RecursionError):
        return ANY
    found = ANY
    for key, value in fields.items() if isinstance(fields, dict) else ():
        if value is not None and key.lower() in FIELDS:
            found = found.stricter(of_field(key.lower(), value))
    return found
