"""CONSUMER_TURN: what one node did for the consumers that it owns during one turn of its event loop, as log bytes.

    8s owner peer | u64 session | u64 serial | u8 first | ops...        (little-endian, after the command's head)
    op: u32 consumer id | u32 epoch | u8 kind | u32 length | body

An owner's turns apply in order and without a gap (`serial` counts up by one), or not at all: a delivery decided after
a lost one would skip messages. `first` begins a session: its serial may be any, its number is higher than that of the
owner's session before. A turn of another session than the owner's current one, or out of order, is void; so are single
ops whose `epoch` is not the consumer's (it has another owner by now, or was reset).

Sequence lists are u64 each. The codec is strict: UnknownCommandError for ops and flags of newer versions, CommandError
for bodies that make no sense.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from jetcluster.stream.commands import CommandError, UnknownCommandError

DELIVER: Final = 1
"""Body: sequences, ascending, above everything delivered so far: first deliveries, in that order."""
REDELIVER: Final = 2
"""Body: sequences, in the order they are delivered again. Those no longer pending are ignored and take no number."""
ACK: Final = 3
"""Body: sequences. With policy `all` everything at or below the highest."""
NAK: Final = 4
"""Body: (u64 sequence, u64 delay in nanoseconds) pairs: due again at the command's time + delay."""
TERM: Final = 5
"""Body: sequences: never delivered again."""
PROGRESS: Final = 6
"""Body: sequences: the wait for their ack begins again."""
ADVANCE: Final = 7
"""Body: u64 sequence, u64 count: a consumer without acks delivered `count` more messages, the last at `sequence`."""
WAIT: Final = 8
"""Body: reply subject of a pull that waits from now on: what the next owner tells `409 Leadership Change`."""
UNWAIT: Final = 9
"""Body: reply subject of one that no longer waits."""
PIN: Final = 10
"""Body: u8 length of the group, group, pinned id (empty: nobody is pinned)."""
EXHAUSTED: Final = 11
"""Body: sequences whose last permitted delivery was not acknowledged in time: no longer pending (max_deliver)."""
GONE: Final = 12
"""Body: pending sequences whose message is no longer stored."""
SKIP: Final = 13
"""Body: u64 sequence: nothing up to there is for this consumer, the next delivery starts above it."""

_SEQS: Final = frozenset((DELIVER, REDELIVER, ACK, TERM, PROGRESS, EXHAUSTED, GONE))
_STEPS: Final = dict.fromkeys(_SEQS, 8) | {NAK: 16, ADVANCE: 16, SKIP: 8, WAIT: 1, UNWAIT: 1, PIN: 1}
"""Kind -> what the length of a body is a multiple of."""
_ONE: Final = frozenset((ADVANCE, SKIP))
_TURN: Final = struct.Struct("<8sQQB")
_OP: Final = struct.Struct("<IIBI")
_PAIR: Final = struct.Struct("<QQ")
_U64: Final = struct.Struct("<Q")

Value = Sequence[int] | Sequence[tuple[int, int]] | tuple[int, int] | int | bytes | tuple[bytes, bytes]
"""By kind: sequences; NAK: pairs; ADVANCE: (sequence, count); SKIP: int; WAIT, UNWAIT: bytes; PIN: (group, id)."""


class Op(NamedTuple):
    cid: int
    epoch: int
    kind: int
    value: Value


class Turn(NamedTuple):
    owner: bytes
    """Peer id, 8 bytes."""
    session: int
    serial: int
    first: bool
    ops: list[Op]


def encode(owner: bytes, session: int, serial: int, ops: Iterable[Op], *, first: bool = False) -> bytes:
    """The body of a CONSUMER_TURN (`stream.commands` adds the head)."""
    parts = [_TURN.pack(owner, session, serial, first)]
    for cid, epoch, kind, value in ops:
        body = struct.pack(f"<{len(value)}Q", *value) if kind in _SEQS else _body(kind, value)  # type: ignore[arg-type,misc]
        parts.append(_OP.pack(cid, epoch, kind, len(body)))
        parts.append(body)
    return b"".join(parts)


def decode(body: bytes) -> Turn:
    """Raises CommandError."""
    if len(body) < _TURN.size:
        raise CommandError(f"a consumer turn of {len(body)} bytes")
    owner, session, serial, first = _TURN.unpack_from(body)
    if first > 1:
        raise UnknownCommandError(f"a consumer turn with flags {first:#x}")
    try:
        return Turn(owner, session, serial, bool(first), _ops(body))
    except (struct.error, ValueError, IndexError) as error:
        raise CommandError(f"consumer turn: {error}") from error


def is_sound(body: bytes) -> bool:
    """True when `decode` takes it: to be asked of what another node sends before it is put into the log, where bytes
    that nobody can apply stop every replica. Looks at heads and lengths only."""
    size, at = len(body), _TURN.size
    if size < at or body[at - 1] > 1:
        return False
    while at < size:
        if size - at < _OP.size:
            return False
        _, _, kind, length = _OP.unpack_from(body, at)
        at += _OP.size
        step = _STEPS.get(kind)
        if step is None or length % step or length > size - at:
            return False
        if kind in _ONE and length != step:
            return False
        if kind == PIN and (not length or body[at] >= length):
            return False
        at += length
    return True


def _ops(body: bytes) -> list[Op]:
    ops: list[Op] = []
    at = _TURN.size
    while at < len(body):
        cid, epoch, kind, length = _OP.unpack_from(body, at)
        at += _OP.size + length
        if at > len(body):
            raise ValueError("cut off")
        if kind in _SEQS:
            if length % 8:
                raise ValueError("sequences cut off")
            value: Value = struct.unpack_from(f"<{length // 8}Q", body, at - length)
            ops.append(Op(cid, epoch, kind, list(value)))  # type: ignore[arg-type]
        else:
            ops.append(Op(cid, epoch, kind, _value(kind, body[at - length : at])))
    return ops


def _body(kind: int, value: Value) -> bytes:
    """Bytes of a value that is not a list of sequences."""
    if kind == NAK:
        return b"".join(_PAIR.pack(*pair) for pair in value)  # type: ignore[misc,union-attr]
    if kind == ADVANCE:
        return _PAIR.pack(*value)  # type: ignore[misc]
    if kind == SKIP:
        return _U64.pack(value)
    if kind == PIN:
        group, pin = value  # type: ignore[misc]
        return bytes((len(group),)) + group + pin  # type: ignore[operator,arg-type]
    assert kind in (WAIT, UNWAIT), kind
    assert isinstance(value, bytes)
    return value


def _value(kind: int, raw: bytes) -> Value:
    """A value that is not a list of sequences, from its bytes."""
    if kind == NAK:
        return list(_PAIR.iter_unpack(raw))
    if kind == ADVANCE:
        pair: tuple[int, int] = _PAIR.unpack(raw)
        return pair
    if kind == SKIP:
        (seq,) = _U64.unpack(raw)
        return int(seq)
    if kind == PIN:
        size = raw[0]
        if len(raw) < 1 + size:
            raise ValueError("cut off")
        return raw[1 : 1 + size], raw[1 + size :]
    if kind in (WAIT, UNWAIT):
        return raw
    raise UnknownCommandError(f"unknown op {kind}")
