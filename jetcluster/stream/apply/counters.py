"""Counters (ADR-49): a message carries an increment, and is stored with the total of its subject.

Numbers are integers of up to MAX_DIGITS digits, read, added and written in linear time. Python's own integers are
binary: reading and printing one of 4,000 digits takes 0.4 ms. Any client can make a counter that long, and every later
message would pay for it. So only short numbers are `int`, which is faster for them; others are `Decimal`. Both are
exact.

`Nats-Counter-Sources` has a counter's totals by source: {"stream": {"subject": "total"}}. Every message of a counter
fed by sources carries it, so that the newest one has the totals counted so far, and only the difference to a source's
next total is added. So lost, repeated or reordered messages do not change the sum.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import Final

from jetcluster import errors
from jetcluster.errors import ApiError
from jetcluster.records import NamedTuple
from jetcluster.store.block_store import BlockStore
from jetcluster.stream.fields import nats_fields, replaced
from jetcluster.stream.ports import SIDE_COUNTED, Message
from jetcluster.stream.rules import StreamRules

MAX_DIGITS: Final = 4096
"""Digits of an increment and a total. In nats-server only the header block bounds them; adding and printing numbers of
64 KB for every message is quadratic work that one client could cause."""

_INTEGER: Final = re.compile(rb"[+-]?[0-9]+")

SOURCES_FIELD: Final = b"Nats-Counter-Sources"
MAX_SOURCES_BYTES: Final = 32_768
"""Bytes of a Nats-Counter-Sources, all of which every message stores (nats-server bounds only the payload)."""
MAX_COMMAND_MESSAGES: Final = 64
"""Messages in a command for a stream whose messages may carry that header, as each may become long in apply."""

_MAX_SOURCES_DEPTH: Final = 2

Seen = Mapping[str, Mapping[str, str]]
NONE: Final[Seen] = {}


def parse(value: bytes) -> Seen | None:
    """The totals by stream and subject, which may be no numbers; None when `value` is no such object."""
    if len(value) > MAX_SOURCES_BYTES or not _is_flat(value):
        return None
    try:
        found = json.loads(value)
    except ValueError:
        return None
    if not isinstance(found, dict):
        return None
    seen: dict[str, Mapping[str, str]] = {}
    for stream, totals in found.items():
        totals = {} if totals is None else totals  # nats-server reads and writes null
        if not isinstance(totals, dict) or not all(isinstance(total, str) for total in totals.values()):
            return None
        seen[stream] = totals
    return seen


def encode(seen: Seen) -> bytes:
    """Encodes with sorted keys. Never fails: bytes of a subject that are not UTF-8 are escaped."""
    text = json.dumps(seen, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    try:
        return text.encode()
    except UnicodeEncodeError:
        return json.dumps(seen, sort_keys=True, separators=(",", ":")).encode()


def is_counted(seen: Seen) -> bool:
    """True when all totals are numbers."""
    return all(_number(total) is not None for totals in seen.values() for total in totals.values())


def total_of(seen: Seen, stream: bytes, subject: bytes) -> Number | None:
    """Total of a source; 0 for a new one, None when it is no number."""
    total = seen.get(_text(stream), {}).get(_text(subject))
    return 0 if total is None else _number(total)


def with_total(seen: Seen, stream: bytes, subject: bytes, total: Number) -> Seen:
    """A copy of `seen` with another total."""
    name = _text(stream)
    return {**seen, name: {**seen.get(name, {}), _text(subject): written(total).decode()}}


def origin(source: bytes, subject: bytes) -> tuple[bytes, bytes]:
    """Stream and subject in `Nats-Stream-Source`; `subject` if it has none, as from older nats-servers."""
    parts = source.split(b" ")
    return parts[0], parts[4] if len(parts) > 4 else subject


def _number(total: str) -> Number | None:
    return parse_increment(total.encode()) if total.isascii() else None


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def _is_flat(value: bytes) -> bool:
    """True when JSON nests no deeper than the header's. The depth that a decoder can take depends on its call stack,
    and so differs between replicas. Linear for any input."""
    outside = b"".join(value.replace(rb"\\", b"").replace(rb"\"", b"").split(b'"')[::2])
    if b"[" in outside:
        return False
    depth = 0
    for byte in outside.translate(None, _NO_BRACES):
        depth += 1 if byte == _OPEN else -1
        if depth > _MAX_SOURCES_DEPTH:
            return False
    return True


_OPEN: Final = ord("{")
_NO_BRACES: Final = bytes(byte for byte in range(256) if byte not in b"{}")


def parse_increment(value: bytes) -> Number | None:
    """The number in `Nats-Incr`; None when it is no number, or longer than MAX_DIGITS."""
    if _INTEGER.fullmatch(value) is None or len(value) > MAX_DIGITS + 1:
        return None
    return read(value)


MAX_INT_DIGITS: Final = 512
"""Characters of the longest number that is an `int`; printing it takes 10 us."""
_EXACT: Final = Context(prec=20_000, Emax=30_000, Emin=-30_000, traps=[Inexact, InvalidOperation])

Number = int | Decimal


def read(text: bytes) -> Number:
    """The number in `text`, which the caller has checked to be `[+-]?[0-9]+`."""
    return int(text) if len(text) <= MAX_INT_DIGITS else _EXACT.add(_EXACT.create_decimal(text.decode("ascii")), 0)


def add(a: Number, b: Number) -> Number:
    return a + b if isinstance(a, int) and isinstance(b, int) else _EXACT.add(a, b)


def subtract(a: Number, b: Number) -> Number:
    return a - b if isinstance(a, int) and isinstance(b, int) else _EXACT.subtract(a, b)


def written(number: Number) -> bytes:
    return b"%d" % number if isinstance(number, int) else format(number, "f").encode()


def has_more_bits(number: Number, bits: int) -> bool:
    """True when `abs(number).bit_length() > bits`."""
    if isinstance(number, int):
        return number.bit_length() > bits
    return number.copy_abs() >= _power(bits)


def _power(bits: int) -> Decimal:
    found = _powers.get(bits)
    if found is None:
        found = _powers[bits] = Decimal(1 << bits)
    return found


_powers: dict[int, Decimal] = {}
"""By exponent, of which there are few."""

_MAX_PAYLOAD_BYTES: Final = 2 * MAX_DIGITS
_MAX_PAYLOAD_BRACKETS: Final = 16
"""Bytes and opening brackets of a payload that is read as a stored total; ours have one object."""

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
    """Fault of `Nats-Incr`, or None, apart from the stream's content; `add` refuses a missing one, last."""
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
    """The same as in the header; b"" for none."""


Made = tuple[bytes, bytes, Tally]
"""Header block and payload as they are stored, and the counter with them."""
_NEW: Final = Tally(0, NONE, b"")


def tracks_sources(store: BlockStore, rules: StreamRules) -> bool:
    """True when messages of the stream carry the totals of its sources: from its first configuration with sources on,
    even after they are removed. Writes to `store`, so only apply may call it."""
    if not rules.allow_msg_counter:
        return False
    known = store.side_get(SIDE_COUNTED, b"") is not None
    if rules.links and not known:
        note_sources(store)
    return known or bool(rules.links)


def note_sources(store: BlockStore) -> None:
    """Notes that messages of the stream carry the totals of its sources. Only apply may call it."""
    store.side_put(SIDE_COUNTED, b"", b"")


class CounterTotals:
    """The totals of a command's subjects: those stored, and those of the command's earlier messages."""

    def __init__(self, store: BlockStore, *, tracks: bool) -> None:
        """`tracks`: as `tracks_sources` says."""
        self._store = store
        self.tracks = tracks
        self._staged: dict[bytes, Tally] = {}

    def add(self, message: Message, fields: Mapping[bytes, bytes], most: int, *, sourced: bool) -> Made | ApiError:
        """The message of a counter stream as stored, or an error. Changes nothing (`stage` does). `most`: max_msg_size
        or 0. `sourced`: the payload, the upstream's total, counts, not the increment. Raises DamagedError."""
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
        elif self.tracks and not seen and (given := fields.get(SOURCES_FIELD)):
            # nats-server stores a header that it cannot read, and the counter is broken from then on.
            found = parse(given)
            if found is None or not is_counted(found):
                return _BROKEN
            seen = found
        if text:
            headers = replaced(headers, SOURCES_FIELD, text)
        total = add(total, increment)
        if has_more_bits(total, 3 * MAX_DIGITS) or len(text) > MAX_SOURCES_BYTES:
            return _TOO_LARGE
        payload = payload_of(total)
        if most and len(headers) + len(payload) > most:
            return _TOO_LARGE
        return headers, payload, Tally(total, seen, text)

    def stage(self, subject: bytes, tally: Tally) -> None:
        self._staged[subject] = tally

    def clear(self) -> None:
        """Drops staged totals, once their messages are stored or dropped."""
        self._staged.clear()

    def _stored(self, subject: bytes) -> Tally | None:
        seq = self._store.last_seq_of(subject)
        message = self._store.get(seq) if seq else None
        if message is None:
            return _NEW
        total = value_of(message.payload)
        if total is None:
            return None
        text = nats_fields(message.headers).get(SOURCES_FIELD) if self.tracks and message.headers else None
        if not text:
            return Tally(total, NONE, b"")
        seen = parse(text)
        return Tally(total, seen, text) if seen is not None else None


def value_of(payload: bytes) -> Number | None:
    """The total in a stored payload; None when it is no counter's. nats-server goes on from 0 when "val" is not a
    number; here such a counter is broken, too, rather than silently reset."""
    if len(payload) > _MAX_PAYLOAD_BYTES or payload.count(b"[") + payload.count(b"{") > _MAX_PAYLOAD_BRACKETS:
        return None  # the depth that a decoder can take differs between replicas: see `_is_flat`
    try:
        stored = json.loads(payload)
    except ValueError:
        return None
    value = stored.get("val") if isinstance(stored, dict) else None
    return parse_increment(value.encode()) if isinstance(value, str) and value.isascii() else None


def payload_of(total: Number) -> bytes:
    return b'{"val":"%b"}' % written(total)
