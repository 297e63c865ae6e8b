"""`Nats-Counter-Sources` (ADR-49): what a counter has of its sources, {"stream": {"subject": "total"}}.

Every message of a counter that is fed by sources carries it, so that the newest one says what is counted already: of a
source's next total only the difference is added. What was lost on the way, or came twice, or in another order, makes no
difference to the sum.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Final

from jetcluster.stream.counters import Number, read, written

MAX_DIGITS: Final = 4096
"""Longest increment and total. Upstream only the header block bounds them; adding and printing numbers of 64 KB for
every message is quadratic work that one client could order."""

_INTEGER: Final = re.compile(rb"[+-]?[0-9]+")

KEY: Final = b"Nats-Counter-Sources"
MAX_BYTES: Final = 32_768
"""Longest value. Upstream only the largest payload bounds it; here all of it is stored with every message, and however
little a client sends may order that."""
COMMAND_MESSAGES: Final = 64
"""Messages in commands for streams whose messages may carry such a header: applying one makes at most so many long
ones."""

_DEPTH: Final = 2

Seen = Mapping[str, Mapping[str, str]]
NONE: Final[Seen] = {}


def parse(value: bytes) -> Seen | None:
    """The totals by stream and subject; None when it is no such object. Whether they are numbers is not looked at."""
    if len(value) > MAX_BYTES or not _is_flat(value):
        return None
    try:
        found = json.loads(value)
    except ValueError:
        return None
    if not isinstance(found, dict):
        return None
    seen: dict[str, Mapping[str, str]] = {}
    for stream, totals in found.items():
        totals = {} if totals is None else totals  # upstream reads and writes it
        if not isinstance(totals, dict) or not all(isinstance(total, str) for total in totals.values()):
            return None
        seen[stream] = totals
    return seen


def encode(seen: Seen) -> bytes:
    """Keys in order. Never fails: what is no UTF-8 in a subject is escaped."""
    text = json.dumps(seen, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    try:
        return text.encode()
    except UnicodeEncodeError:
        return json.dumps(seen, sort_keys=True, separators=(",", ":")).encode()


def is_counted(seen: Seen) -> bool:
    """All totals are numbers."""
    return all(_number(total) is not None for totals in seen.values() for total in totals.values())


def total_of(seen: Seen, stream: bytes, subject: bytes) -> Number | None:
    """0 for a source that is new; None when what is there is no number."""
    total = seen.get(_text(stream), {}).get(_text(subject))
    return 0 if total is None else _number(total)


def with_total(seen: Seen, stream: bytes, subject: bytes, total: Number) -> Seen:
    """A copy."""
    name = _text(stream)
    return {**seen, name: {**seen.get(name, {}), _text(subject): written(total).decode()}}


def origin(source: bytes, subject: bytes) -> tuple[bytes, bytes]:
    """Stream and subject that a message came from, by its `Nats-Stream-Source`: its own `subject` where that does not
    say, as of versions that wrote fewer fields."""
    parts = source.split(b" ")
    return parts[0], parts[4] if len(parts) > 4 else subject


def _number(total: str) -> Number | None:
    return parse_increment(total.encode()) if total.isascii() else None


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def _is_flat(value: bytes) -> bool:
    """No deeper than it has to be: how deep a decoder can go depends on the calls that it is in, and differs between
    replicas. Linear for any input."""
    outside = b"".join(value.replace(rb"\\", b"").replace(rb"\"", b"").split(b'"')[::2])
    if b"[" in outside:
        return False
    depth = 0
    for byte in outside.translate(None, _NO_BRACES):
        depth += 1 if byte == _OPEN else -1
        if depth > _DEPTH:
            return False
    return True


_OPEN: Final = ord("{")
_NO_BRACES: Final = bytes(byte for byte in range(256) if byte not in b"{}")


def parse_increment(value: bytes) -> Number | None:
    """The number in `Nats-Incr`; None when it is none (or longer than MAX_DIGITS)."""
    if _INTEGER.fullmatch(value) is None or len(value) > MAX_DIGITS + 1:
        return None
    return read(value)
