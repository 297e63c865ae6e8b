"""`FastOpen`: the open fast-ingest batches (ADR-50) of a stream whose leader is here, and the flow of each.

The stream sets the number of messages that a publisher sends before it waits for an ack. All open batches share a
total; the number changes by factors of two and never exceeds the publisher's wish. Big messages make it small: two
acks' worth of every batch fit into the stream's backlog (`Backlog.window`).

`FastMark`: a message's place in its batch, as its reply subject has it:

    <prefix>.<id>.<flow>.<ok or fail>.<sequence>.<operation>.$FI

The publisher listens there for answers. The subject names nothing of the server's: only the stream that took a batch's
first message knows the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import field
from typing import Final

from jetcluster.clock import Clock
from jetcluster.records import NamedTuple, dataclass
from jetcluster.store.keys import MAX_SEQ
from jetcluster.stream.lead.answers import MESSAGE_WEIGHT, Backlog
from jetcluster.stream.lead.atomic_stage import BatchQuota
from jetcluster.stream.log.fast_parts import FastRun

SUFFIX: Final = b".$FI"
START: Final = 0
APPEND: Final = 1
COMMIT: Final = 2
COMMIT_EOB: Final = 3
"""Ends the batch without storing this message."""
PING: Final = 4

DEFAULT_FLOW_MESSAGES: Final = 10
MAX_FLOW_MESSAGES: Final = 65_535
MAX_STEM_BYTES: Final = 512
"""Bytes of a stem (our own limit): each batch's is kept in memory and in every replica's store."""
MAX_BATCH_SEQ: Final = MAX_SEQ - 1
"""Highest sequence of a message in its batch: the next one has 64 bits, too."""
_MAX_DIGITS: Final = 20
"""Digits of a number in the subject."""


class FastMark(NamedTuple):
    """A parsed reply subject."""

    stem: bytes
    """The subject up to the gap mode, inclusive: the same for all messages of most batches."""
    batch_id: bytes
    flow: int
    """The publisher's limit of messages per ack."""
    gap_ok: bool
    seq: int
    """Sequence in the batch, from 1."""
    operation: int


def parse(reply: bytes) -> FastMark | None:
    """Parses a reply subject that ends with SUFFIX; None when it is malformed (10206)."""
    tokens = reply[: -len(SUFFIX)].rsplit(b".", 5)
    if len(tokens) != 6:
        return None
    _, batch_id, flow, gap, seq_text, operation_text = tokens
    operation, seq = _number(operation_text), _number(seq_text)
    if not batch_id or not START <= operation <= PING or not 1 <= seq <= MAX_BATCH_SEQ or gap not in (b"ok", b"fail"):
        return None
    if operation == START and seq != 1:
        return None
    if operation in (APPEND, COMMIT_EOB) and seq == 1:
        return None
    stem = reply[: -len(SUFFIX) - len(seq_text) - len(operation_text) - 2]
    if len(stem) > MAX_STEM_BYTES:
        return None
    return FastMark(stem, batch_id, _flow(flow), gap == b"ok", seq, operation)


def _flow(text: bytes) -> int:
    if len(text) > _MAX_DIGITS and text.isdigit():
        return MAX_FLOW_MESSAGES
    wanted = _number(text)
    return min(wanted, MAX_FLOW_MESSAGES) if wanted > 0 else DEFAULT_FLOW_MESSAGES


def _number(text: bytes) -> int:
    """The decimal number in `text`, or -1."""
    return int(text) if text.isdigit() and len(text) <= _MAX_DIGITS else -1


MESSAGES_PER_ACK: Final = 500
"""Messages per ack of all open batches together, as in nats-server."""
MAX_SHORT_CUT_SEQ: Final = 1 << 62
"""Sequence beyond which messages are parsed one by one; only a gap leads there."""
NO_SEQUENCE: Final = b"."
"""Equals no sequence's digits."""
ACKS_AHEAD: Final = 2
"""Outstanding acks of a publisher, as ADR-50 advises."""


@dataclass(slots=True, eq=False)
class FastBatch:
    """One open batch."""

    batch_id: bytes
    stem: bytes
    flow: int
    """The publisher's limit of messages per ack."""
    gap_ok: bool = field(kw_only=True)
    per_ack: int = 1
    seq: int = 0
    """Last sequence that came in, or is known to be lost."""
    expected: bytes = b"1"
    """The digits of the next one."""
    settled: int = 0
    """Sequence up to which all outcomes are known."""
    acked: int = 0
    """Sequence of the last ack."""
    stored: int = 0
    """Stream sequence of the last stored message, or 0."""
    pending: int = 0
    """Messages that are not applied yet."""
    committing: bool = False
    """No more messages are taken; it ends when the pending ones are applied."""
    commit_seq: int = 0
    """Sequence of the committing message, if it is stored; 0 until it came."""
    end_reply: bytes = b""
    """Reply subject of an unstored message that ended it: an end without a message, or one that showed a gap."""
    closed: bool = False
    deadline: float = 0.0
    size: int = 0
    """Bytes of a payload, a moving average."""
    reply: bytes = b""
    """Reply subject of its last message in the open command."""
    runs: list[list[int]] | None = None
    """Its messages in the open command, as in `FastRun`."""

    def came_to(self, seq: int) -> None:
        self.seq = seq
        self.expected = b"%d" % (seq + 1) if seq < MAX_SHORT_CUT_SEQ else NO_SEQUENCE

    def place(self, place: int, seq: int) -> None:
        """Notes that its message `seq` is number `place` of the open command."""
        runs = self.runs
        assert runs is not None
        self.pending += 1
        if runs:
            start, count, first = last = runs[-1]
            if start + count == place and first + count == seq:
                last[1] = count + 1
                return
        runs.append([place, 1, seq])

    def take_runs(self) -> list[FastRun]:
        runs, self.runs = self.runs or [], None
        return [FastRun(*run) for run in runs]


class FastOpen:
    """The open batches of one stream."""

    def __init__(self, room: BatchQuota, backlog: Backlog, clock: Clock, opened: Callable[[], None]) -> None:
        """`opened` is called for each new batch: `expire` must be called now and then while there are any."""
        self._room = room
        self._backlog = backlog
        self._clock = clock
        self._opened = opened
        self._by_id: dict[bytes, FastBatch] = {}
        self.by_stem: dict[bytes, FastBatch] = {}
        """By the stem of most of its messages, for a fast lookup."""

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[FastBatch]:
        return iter(list(self._by_id.values()))

    @property
    def timeout(self) -> float:
        """Seconds without a message after which a batch is dropped."""
        return self._room.limits.timeout

    def get(self, batch_id: bytes) -> FastBatch | None:
        """The open batch, or None. Closes one whose time is over."""
        batch = self._by_id.get(batch_id)
        if batch is not None and self._is_late(batch, self._clock.monotonic()):
            self.close(batch)
            return None
        return batch

    def open(self, mark: FastMark, size: int) -> FastBatch | None:
        """Opens a batch whose first payload has `size` bytes; None when there are too many."""
        limits = self._room.limits
        if len(self._by_id) >= limits.fast_per_stream or self._room.fast_open >= limits.fast_total:
            return None
        batch = FastBatch(mark.batch_id, mark.stem, mark.flow, gap_ok=mark.gap_ok)
        batch.size = size
        self.add(batch)
        return batch

    def add(self, batch: FastBatch) -> None:
        self._by_id[batch.batch_id] = self.by_stem[batch.stem] = batch
        self._room.fast_open += 1
        batch.per_ack = self._most(batch) if len(self._by_id) == 1 else 1
        self.touch(batch)
        self._opened()

    def touch(self, batch: FastBatch) -> None:
        batch.deadline = self._clock.monotonic() + self._room.limits.timeout

    def close(self, batch: FastBatch) -> None:
        """Removes the batch, unless it is closed."""
        if batch.closed:
            return
        batch.closed = True
        del self._by_id[batch.batch_id]
        if self.by_stem.get(batch.stem) is batch:
            del self.by_stem[batch.stem]
        self._room.fast_open -= 1

    def clear(self) -> None:
        for batch in self:
            self.close(batch)

    def expire(self) -> None:
        """Closes batches without a message for too long, without an answer."""
        now = self._clock.monotonic()
        for batch in self:
            if self._is_late(batch, now):
                self.close(batch)

    def is_due(self, batch: FastBatch) -> bool:
        """True when an ack is due. Counts it as sent, and adapts the number of messages per ack."""
        ahead = batch.settled - batch.acked
        if ahead < batch.per_ack:
            return False
        batch.acked += ahead - ahead % batch.per_ack  # only the last of several due acks
        most = self._most(batch)
        if batch.per_ack < most:
            batch.per_ack = min(batch.per_ack * 2, most)
        elif batch.per_ack > most:
            batch.per_ack = max(batch.per_ack // 2, most)
        return True

    def _most(self, batch: FastBatch) -> int:
        count = len(self._by_id)
        room = self._backlog.window // (ACKS_AHEAD * count * (batch.size + MESSAGE_WEIGHT))
        return max(1, min(batch.flow, MESSAGES_PER_ACK // count, room))

    @staticmethod
    def _is_late(batch: FastBatch, now: float) -> bool:
        """True when its time is over. Pending messages are answered, however long that takes."""
        return batch.deadline <= now and not batch.pending
