"""Counters (ADR-49): a message carries an increment, what is stored is the total of its subject so far."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Final

from jetcluster import errors
from jetcluster.errors import ApiError
from jetcluster.stream.ports import MachineStore

MAX_DIGITS: Final = 4096
"""Longest increment and total. Upstream only the header block bounds them; adding and printing numbers of 64 KB for
every message is quadratic work that one client could order."""

_MAX_PAYLOAD: Final = 2 * MAX_DIGITS
_MAX_DEPTH: Final = 16
"""Of what is taken for a stored total: one of ours has an object and a number in it."""

_INTEGER: Final = re.compile(rb"[+-]?[0-9]+")
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


def parse_increment(value: bytes) -> int | None:
    """The number in `Nats-Incr`; None when it is none (or longer than MAX_DIGITS)."""
    if _INTEGER.fullmatch(value) is None or len(value) > MAX_DIGITS + 1:
        return None
    return int(value)


def check_increment(fields: Mapping[bytes, bytes], payload: bytes, *, allowed: bool) -> ApiError | None:
    """What can be wrong with `Nats-Incr` whatever the stream holds. A missing one is told by `add`, after the other
    checks, as upstream."""
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


class Totals:
    """The totals of a command's subjects: what is stored, and what the command's earlier messages made of it."""

    __slots__ = ("_staged", "_store")

    def __init__(self, store: MachineStore) -> None:
        self._store = store
        self._staged: dict[bytes, int] = {}

    def add(self, subject: bytes, fields: Mapping[bytes, bytes], header_bytes: int, most: int) -> int | ApiError:
        """The new total of a message on a counter stream; remembers nothing. `most` is max_msg_size, 0 for none.
        Raises DamagedError."""
        value = fields.get(b"Nats-Incr")
        if not value:
            return _MISSING
        increment = parse_increment(value)
        if increment is None:
            return _INVALID
        total = self._staged.get(subject)
        if total is None:
            total = self._stored(subject)
            if total is None:
                return _BROKEN
        total += increment
        if total.bit_length() > 3 * MAX_DIGITS:
            return _TOO_LARGE
        if most and header_bytes + len(payload_of(total)) > most:
            return _TOO_LARGE
        return total

    def stage(self, subject: bytes, total: int) -> None:
        self._staged[subject] = total

    def clear(self) -> None:
        """What was staged is in the store now, or is not to be stored."""
        self._staged.clear()

    def _stored(self, subject: bytes) -> int | None:
        seq = self._store.last_seq_of(subject)
        message = self._store.get(seq) if seq else None
        return value_of(message.payload) if message is not None else 0


def value_of(payload: bytes) -> int | None:
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
    return parse_increment(value.encode()) if isinstance(value, str) else None


def payload_of(total: int) -> bytes:
    return b'{"val":"%d"}' % total
