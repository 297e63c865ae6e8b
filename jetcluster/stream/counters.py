"""Counters (ADR-49): a message carries an increment, what is stored is the total of its subject so far.

Whole numbers of any length up to some thousand digits, read, added and written in linear time.

Python's own integers are binary: reading and printing one of 4,000 digits takes 0.4 ms, for every message of a counter
that anybody may have made so long. Those with few digits are `int`, which is faster there; others are `Decimal`.
Results are exact, so it makes no difference which of them a replica used.

`Nats-Counter-Sources` (ADR-49): what a counter has of its sources, {"stream": {"subject": "total"}}.

Every message of a counter that is fed by sources carries it, so that the newest one says what is counted already: of a
source's next total only the difference is added. What was lost on the way, or came twice, or in another order, makes no
difference to the sum.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import Final, NamedTuple

from jetcluster import errors
from jetcluster.errors import ApiError
from jetcluster.store.block_store import BlockStore
from jetcluster.stream.fields import nats_fields, replaced
from jetcluster.stream.ports import SIDE_COUNTED, Message
from jetcluster.stream.rules import StreamRules

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


SHORT: Final = 512
"""Digits of the longest number that is an `int`: 10 us to print."""
_EXACT: Final = Context(prec=20_000, Emax=30_000, Emin=-30_000, traps=[Inexact, InvalidOperation])

Number = int | Decimal


def read(text: bytes) -> Number:
    """The number in `[+-]?[0-9]+`, which the caller has looked at."""
    return int(text) if len(text) <= SHORT else _EXACT.add(_EXACT.create_decimal(text.decode("ascii")), 0)


def add(a: Number, b: Number) -> Number:
    return a + b if isinstance(a, int) and isinstance(b, int) else _EXACT.add(a, b)


def subtract(a: Number, b: Number) -> Number:
    return a - b if isinstance(a, int) and isinstance(b, int) else _EXACT.subtract(a, b)


def written(number: Number) -> bytes:
    return b"%d" % number if isinstance(number, int) else format(number, "f").encode()


def has_more_bits(number: Number, bits: int) -> bool:
    """As `abs(number).bit_length() > bits`."""
    if isinstance(number, int):
        return number.bit_length() > bits
    return number.copy_abs() >= _power(bits)


def _power(bits: int) -> Decimal:
    found = _powers.get(bits)
    if found is None:
        found = _powers[bits] = Decimal(1 << bits)
    return found


_powers: dict[int, Decimal] = {}
"""By exponent, of which callers have few."""

_MAX_PAYLOAD: Final = 2 * MAX_DIGITS
_MAX_DEPTH: Final = 16
"""Bytes of what is taken for a stored total: one of ours has an object and a number in it."""

_INVALID: Final = errors.by_code(10171)
_DISABLED: Final = errors.by_code(10168)
_MISSING: Final = errors.by_code(10169)
_PAYLOAD: Final = errors.by_code(10170)
_BROKEN: Final = errors.by_code(10172)
_TOO_LARGE: Final = errors.by_code(10054)

_EXCLUDED: Final = (
    b"Nats-Rollup",
    b"Nats-Expected-Stream",
    b"Nats-Expected-Last-Msg-Id",
    b"Nats-Expected-Last-Subject-Sequence-Subject",
    b"Nats-Expected-Last-Sequence",
    b"Nats-Expected-Last-Subject-Sequence",
)


def check_increment(fields: Mapping[bytes, bytes], payload: bytes, *, allowed: bool) -> ApiError | None:
    """Fault of `Nats-Incr` that does not depend on the stream's content. A missing one is told by `add`, after the
    other checks, as upstream."""
    value = fields.get(b"Nats-Incr")
    if not value:
        return None
    if parse_increment(value) is None:
        return _INVALID
    if not allowed:
        return _DISABLED
    if payload:
        return _PAYLOAD
    if any(fields.get(key) for key in _EXCLUDED):
        return _INVALID
    return None


class Tally(NamedTuple):
    """Value of a counter."""

    total: Number
    seen: Seen
    """Totals of its sources."""
    text: bytes
    """The same as the header says it; b"" for none."""


Made = tuple[bytes, bytes, Tally]
"""Header block and payload as they are to be stored, and where the counter stands then."""
_NEW: Final = Tally(0, NONE, b"")


def tracks_sources(store: BlockStore, rules: StreamRules) -> bool:
    """Messages of the stream carry what is counted of its sources: from its first configuration with some on, also when
    it has none any more. Apply only."""
    if not rules.allow_msg_counter:
        return False
    known = store.side_get(SIDE_COUNTED, b"") is not None
    if rules.links and not known:
        store.side_put(SIDE_COUNTED, b"", b"")
    return known or bool(rules.links)


class CounterTotals:
    """The totals of a command's subjects: what is stored, and what the command's earlier messages made of it."""

    def __init__(self, store: BlockStore, *, tracks: bool) -> None:
        """`tracks`: as `tracks_sources` says."""
        self._store = store
        self.tracks = tracks
        self._staged: dict[bytes, Tally] = {}

    def add(self, message: Message, fields: Mapping[bytes, bytes], most: int, *, sourced: bool) -> Made | ApiError:
        """The message of a counter stream as it is to be stored; remembers nothing. `most` is max_msg_size, 0 for
        none. `sourced`: its payload is the total of the upstream, which counts, and not its increment. Raises
        DamagedError."""
        subject, headers, payload = message
        value = fields.get(b"Nats-Incr")
        if not value:
            return _MISSING
        increment = parse_increment(value)
        if increment is None:
            return _INVALID
        tally = self._staged.get(subject)
        if tally is None:
            tally = self._stored(subject)
            if tally is None:
                return _BROKEN
        total, seen, text = tally
        if self.tracks and sourced:
            upstream, source = value_of(payload), fields.get(b"Nats-Stream-Source")
            if upstream is None or not source:
                return _BROKEN
            counted_by = origin(source, subject)
            before = total_of(seen, *counted_by)
            if before is None:
                return _BROKEN
            increment = subtract(upstream, before)
            seen = with_total(seen, *counted_by, upstream)
            text = encode(seen)
            headers = replaced(headers, b"Nats-Incr", written(increment))
        elif self.tracks and not seen and (given := fields.get(KEY)):
            # Upstream takes in what it cannot read, and the counter is broken from then on.
            found = parse(given)
            if found is None or not is_counted(found):
                return _BROKEN
            seen = found
        if text:
            headers = replaced(headers, KEY, text)
        total = add(total, increment)
        if has_more_bits(total, 3 * MAX_DIGITS) or len(text) > MAX_BYTES:
            return _TOO_LARGE
        payload = payload_of(total)
        if most and len(headers) + len(payload) > most:
            return _TOO_LARGE
        return headers, payload, Tally(total, seen, text)

    def stage(self, subject: bytes, tally: Tally) -> None:
        self._staged[subject] = tally

    def clear(self) -> None:
        """Told when what was staged is in the store, or is not to be stored."""
        self._staged.clear()

    def _stored(self, subject: bytes) -> Tally | None:
        seq = self._store.last_seq_of(subject)
        message = self._store.get(seq) if seq else None
        if message is None:
            return _NEW
        total = value_of(message.payload)
        if total is None:
            return None
        text = nats_fields(message.headers).get(KEY) if self.tracks and message.headers else None
        if not text:
            return Tally(total, NONE, b"")
        seen = parse(text)
        return Tally(total, seen, text) if seen is not None else None


def value_of(payload: bytes) -> Number | None:
    """The total in a stored payload; None when it is no counter's. Upstream counts on from 0 where "val" is not a
    number; here such a counter is broken too, rather than silently set back."""
    if len(payload) > _MAX_PAYLOAD or payload.count(b"[") + payload.count(b"{") > _MAX_DEPTH:
        return (
            None  # unread: how deep a decoder can go depends on the calls that it is in, and differs between replicas
        )
    try:
        stored = json.loads(payload)
    except ValueError:
        return None
    value = stored.get("val") if isinstance(stored, dict) else None
    return parse_increment(value.encode()) if isinstance(value, str) and value.isascii() else None


def payload_of(total: Number) -> bytes:
    return b'{"val":"%b"}' % written(total)
