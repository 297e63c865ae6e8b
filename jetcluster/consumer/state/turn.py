"""CONSUMER_TURN: the ops of one node's consumer owners in one turn of its event loop, as log bytes.

    8s owner peer | u64 session | u64 serial | u8 first | ops...        (little-endian, after the command's head)
    op: u32 consumer id | u32 epoch | u8 kind | u32 length | body

An owner's turns apply in order and without a gap (`serial` counts up by one), or not at all: a delivery decided after
a lost one would skip messages. `first` begins a session, with any serial and a number higher than that of the owner's
previous session. A turn of another session than the owner's current one, or out of order, is void; so is an op whose
`epoch` is not the consumer's (it got another owner, or was reset).

Sequence lists are u64 each. The codec is strict: it raises UnknownCommandError for ops and flags of newer versions, and
CommandError for malformed bodies.

An applied CONSUMER_TURN gives a `TurnResult`, which a `TableObserver` receives. Its `outcomes` has one element per op,
in order:

| op | outcome |
|---|---|
| DELIVER, REDELIVER, DELIVER_SOME, RELEASE | `SentMessages` |
| ACK, TERM, EXHAUSTED, GONE, BURY | `SettledMessages`, the entries as they were |
| BURIED | `SettledMessages`; of the entries only the deliveries count |
| NAK, PROGRESS | `SettledMessages`, the new entries |
| ADVANCE, SKIP, WAIT, UNWAIT, PIN | 1 when it changed something, else 0 |
| any void op | None: the consumer is gone, has another epoch, or the op does not fit it |
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Final, Protocol

from jetcluster.consumer.state.letters import MAX_TEXT_BYTES, REASONS
from jetcluster.consumer.state.rules import ConsumerRules
from jetcluster.consumer.state.state import ConsumerState, Pending
from jetcluster.records import NamedTuple
from jetcluster.stream.log.commands import CommandError, UnknownCommandError
from jetcluster.stream.log.levels import DEAD_LETTER_LEVEL, ORDER_PER_KEY_LEVEL

DELIVER: Final = 1
"""Body: sequences of first deliveries, ascending and above all delivered so far."""
REDELIVER: Final = 2
"""Body: sequences in the order of redelivery. Those no longer pending are ignored and take no number."""
ACK: Final = 3
"""Body: sequences. Policy `all` includes all at or below the highest."""
NAK: Final = 4
"""Body: (u64 sequence, u64 delay in nanoseconds) pairs: due again at the command's time + delay."""
TERM: Final = 5
"""Body: sequences that are never delivered again."""
PROGRESS: Final = 6
"""Body: sequences whose wait for an ack begins again."""
ADVANCE: Final = 7
"""Body: u64 sequence, u64 count: a consumer without acks delivered `count` more messages, the last at `sequence`."""
WAIT: Final = 8
"""Body: reply subject of a pull that now waits; the next owner sends it `409 Leadership Change`."""
UNWAIT: Final = 9
"""Body: reply subject of a pull that no longer waits."""
PIN: Final = 10
"""Body: u8 length of the group, group, pinned id (empty to unpin)."""
EXHAUSTED: Final = 11
"""Body: sequences no longer pending, since their last permitted delivery was not acked in time (max_deliver)."""
GONE: Final = 12
"""Body: pending sequences whose message is no longer stored."""
SKIP: Final = 13
"""Body: u64 sequence up to which no message is for this consumer; the next delivery starts above it."""

DELIVER_SOME: Final = 14
"""Body: u64 number n, n sequences of first deliveries, then those of messages that wait for others of their key; each
list ascending, and all above what was delivered or waits so far."""
RELEASE: Final = 15
"""Body: sequences of messages that waited for others of their key, and are delivered for the first time now."""

BURY: Final = 16
"""Body: (u64 sequence, u8 reason, u16 length, text) of messages that are given up and become dead letters
(`letters.Letter`). Policy `all` with reason TERMINATED: all below count as acked, too."""
BURIED: Final = 17
"""Body: sequences whose dead letter is confirmed: stored by another stream."""

FIRST: Final = frozenset((DELIVER, DELIVER_SOME, RELEASE))
"""Kinds of first deliveries that wait for an ack."""
LEVELS: Final = {
    DELIVER_SOME: ORDER_PER_KEY_LEVEL, RELEASE: ORDER_PER_KEY_LEVEL, BURY: DEAD_LETTER_LEVEL, BURIED: DEAD_LETTER_LEVEL,
}  # fmt: skip
"""Kind -> lowest level of a server that understands it (`stream.log.levels`); absent: all do."""

_SEQS: Final = frozenset((DELIVER, REDELIVER, ACK, TERM, PROGRESS, EXHAUSTED, GONE, RELEASE, BURIED))
_STEPS: Final = dict.fromkeys(_SEQS, 8) | {
    NAK: 16, ADVANCE: 16, SKIP: 8, WAIT: 1, UNWAIT: 1, PIN: 1, DELIVER_SOME: 8, BURY: 1,
}  # fmt: skip
"""Kind -> divisor of a body's length."""
_ONE: Final = frozenset((ADVANCE, SKIP))
_TURN: Final = struct.Struct("<8sQQB")
_OP: Final = struct.Struct("<IIBI")
_PAIR: Final = struct.Struct("<QQ")
_U64: Final = struct.Struct("<Q")
_ITEM: Final = struct.Struct("<QBH")

Value = (
    Sequence[int]
    | Sequence[tuple[int, int]]
    | Sequence[tuple[int, int, bytes]]
    | tuple[int, int]
    | int
    | bytes
    | tuple[bytes, bytes]
    | tuple[list[int], list[int]]
)
"""The value of an op, by kind: sequences; NAK: pairs; ADVANCE: (sequence, count); SKIP: int; WAIT, UNWAIT: bytes; PIN:
(group, id); DELIVER_SOME: (delivered, waiting); BURY: (sequence, reason, text)."""


class Op(NamedTuple):
    """One change of one consumer."""

    cid: int
    epoch: int
    kind: int
    value: Value


class Turn(NamedTuple):
    """A decoded CONSUMER_TURN."""

    owner: bytes
    """Peer id, 8 bytes."""
    session: int
    serial: int
    first: bool
    ops: list[Op]


def delivered_by(kind: int, value: Value) -> list[int]:
    """Return the sequences that an op of `FIRST` delivers."""
    found = value[0] if kind == DELIVER_SOME else value  # type: ignore[index]
    assert isinstance(found, list), kind
    return found


def encode(owner: bytes, session: int, serial: int, ops: Iterable[Op], *, first: bool = False) -> bytes:
    """Return the body of a CONSUMER_TURN (`stream.log.commands` adds the head)."""
    parts = [_TURN.pack(owner, session, serial, first)]
    for cid, epoch, kind, value in ops:
        body = struct.pack(f"<{len(value)}Q", *value) if kind in _SEQS else _body(kind, value)  # type: ignore[arg-type,misc]
        parts.append(_OP.pack(cid, epoch, kind, len(body)))
        parts.append(body)
    return b"".join(parts)


def decode(body: bytes) -> Turn:
    """Undo `encode`. Raises CommandError, and UnknownCommandError for newer ops or flags."""
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
    """Return True when `decode` accepts `body`. Must be checked for another node's turn before it is proposed: an
    entry that cannot be applied stops every replica. Reads heads and lengths only."""
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
        if kind == DELIVER_SOME and (not length or 8 + 8 * int(_U64.unpack_from(body, at)[0]) > length):
            return False
        if kind == BURY and not _are_items(body, at, at + length):
            return False
        at += length
    return True


def level_of(body: bytes) -> int:
    """Return the lowest level of a server that understands a sound `body`."""
    level, at = 0, _TURN.size
    while at < len(body):
        _, _, kind, length = _OP.unpack_from(body, at)
        level = max(level, LEVELS.get(kind, 0))
        at += _OP.size + length
    return level


def _are_items(body: bytes, at: int, end: int) -> bool:
    while at < end:
        if end - at < _ITEM.size:
            return False
        _, reason, length = _ITEM.unpack_from(body, at)
        if reason not in REASONS or length > MAX_TEXT_BYTES:
            return False
        at += _ITEM.size + length
    return at == end


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
    """Encode a value that is not a list of sequences."""
    if kind == NAK:
        return b"".join(_PAIR.pack(*pair) for pair in value)  # type: ignore[misc,union-attr]
    if kind == ADVANCE:
        return _PAIR.pack(*value)  # type: ignore[misc]
    if kind == SKIP:
        return _U64.pack(value)
    if kind == PIN:
        group, pin = value  # type: ignore[misc]
        return bytes((len(group),)) + group + pin  # type: ignore[operator,arg-type]
    if kind == DELIVER_SOME:
        delivered, held = value  # type: ignore[misc]
        return struct.pack(f"<{1 + len(delivered) + len(held)}Q", len(delivered), *delivered, *held)  # type: ignore[arg-type,misc]
    if kind == BURY:
        return b"".join(_ITEM.pack(seq, reason, len(text)) + text for seq, reason, text in value)  # type: ignore[misc,union-attr,arg-type,operator]
    assert kind in (WAIT, UNWAIT), kind
    assert isinstance(value, bytes)
    return value


def _value(kind: int, raw: bytes) -> Value:
    """Decode a value that is not a list of sequences."""
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
    if kind == DELIVER_SOME:
        count, *seqs = struct.unpack(f"<{len(raw) // 8}Q", raw)
        if count > len(seqs):
            raise ValueError("sequences cut off")
        return seqs[:count], seqs[count:]
    if kind == BURY:
        return _items(raw)
    raise UnknownCommandError(f"unknown op {kind}")


def _items(raw: bytes) -> list[tuple[int, int, bytes]]:
    if not _are_items(raw, 0, len(raw)):
        raise ValueError("not the items of dead letters")
    items: list[tuple[int, int, bytes]] = []
    at = 0
    while at < len(raw):
        seq, reason, length = _ITEM.unpack_from(raw, at)
        at += _ITEM.size + length
        items.append((seq, reason, raw[at - length : at]))
    return items


class SentMessages(NamedTuple):
    """Committed deliveries: the k-th of `seqs` has the consumer sequence `cseq + k`."""

    cseq: int
    """Consumer sequence of the first; the next one to be used when `seqs` is empty."""
    seqs: list[int]
    """Accepted stream sequences, in the op's order."""
    deliveries: list[int] | None
    """Number of deliveries of each, this one included; None: all of the op are first deliveries."""


class SettledMessages(NamedTuple):
    """The messages of the op that were pending (with policy `all`: all up to the highest)."""

    seqs: list[int]
    entries: list[Pending]
    """Parallel to `seqs`."""


Outcome = SentMessages | SettledMessages | int | None


class TurnResult:
    """The outcome of a turn. `accepted` is False when the whole turn was void: its session is not the owner's current
    one, or an earlier turn is missing. The owner then begins a new session, with a number above that of
    `ConsumerTable.session_of`, and continues from the replicated state."""

    __slots__ = ("accepted", "marks", "outcomes")

    def __init__(self, *, accepted: bool) -> None:
        self.accepted = accepted
        self.outcomes: list[Outcome] = []
        self.marks: list[int] = []
        """Numbers of the states after each op, for the rolling hash."""

    def digest_bytes(self) -> bytes:
        """Return short, unambiguous bytes for the stream's rolling hash."""
        return b"t" + struct.pack(f"<?{len(self.marks)}Q", self.accepted, *self.marks)


class TableObserver(Protocol):
    """Called for every change of the consumers, synchronously inside apply, on every replica. It must not raise, nor
    change the table, the store or the states, which are updated in place: references to them may be kept."""

    def created(self, state: ConsumerState) -> None: ...

    def updated(self, state: ConsumerState, old_rules: ConsumerRules) -> None:
        """Called when `state.rules` is new. The epoch is the same, so ops in flight stay valid."""

    def deleted(self, state: ConsumerState) -> None:
        """Called when the consumer has left the table."""

    def owner_changed(self, state: ConsumerState, old_owner: str) -> None:
        """Called when `state.owner` and `state.epoch` are new; ops of the old owner in flight become void."""

    def restored(self) -> None:
        """Called when the stream's restore from an archive is complete, right before the new rules are in force."""

    def paused(self, state: ConsumerState) -> None:
        """Called when `state.rules` has another `pause_until` (0: resumed)."""

    def reset(self, state: ConsumerState) -> None:
        """Called when the consumer restarts: nothing is pending, consumer sequences count from 1, and ops in flight are
        void by the new epoch. `state.pending` is another object."""

    def freed(self, state: ConsumerState, seqs: Sequence[int]) -> None:
        """Called when `seqs` of `state.pending` were removed without an op, as their messages are no longer stored."""

    def turn_applied(self, turn: Turn, result: TurnResult) -> None:
        """Called after all ops of a turn, also when it was not accepted."""

    def reloaded(self) -> None:
        """Called when all consumers were read from the store again (a snapshot was installed) into new objects."""


class Unobserved(TableObserver):
    """Nobody is told: the consumers of a store that is only read, or of a replica that is not started."""

    def created(self, state: ConsumerState) -> None:
        pass

    def updated(self, state: ConsumerState, old_rules: ConsumerRules) -> None:
        pass

    def deleted(self, state: ConsumerState) -> None:
        pass

    def owner_changed(self, state: ConsumerState, old_owner: str) -> None:
        pass

    def restored(self) -> None:
        pass

    def paused(self, state: ConsumerState) -> None:
        pass

    def reset(self, state: ConsumerState) -> None:
        pass

    def freed(self, state: ConsumerState, seqs: Sequence[int]) -> None:
        pass

    def turn_applied(self, turn: Turn, result: TurnResult) -> None:
        pass

    def reloaded(self) -> None:
        pass
