"""`FastOpen`: the open fast-ingest batches (ADR-50) of the stream whose leader is here, and how fast each may go.

A publisher sends so many messages as it was told before it waits for an ack: that number is the stream's say. It is
shared by all open batches, goes up and down by factors of two, and is never above what the publisher asked for. Big
messages make it small: two acks' worth of every batch fit into what the stream can have waiting (`Backlog.window`).

`FastMark`: what the reply subject of a message says about its place in a fast-ingest batch (ADR-50).

    <prefix>.<id>.<flow>.<ok or fail>.<sequence>.<operation>.$FI

The subject belongs to the publisher, who is told there how far the stream has come. It never names anything of the
server's: a batch is known to the one stream that took its first message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import field
from typing import Final, NamedTuple

from jetcluster.clock import Clock
from jetcluster.records import dataclass
from jetcluster.stream.answers import PER_MESSAGE, Backlog
from jetcluster.stream.atomic_stage import BatchQuota
from jetcluster.stream.fast_parts import FastRun

SUFFIX: Final = b".$FI"
START: Final = 0
APPEND: Final = 1
COMMIT: Final = 2
COMMIT_EOB: Final = 3
"""The batch ends, and this message is not stored."""
PING: Final = 4

DEFAULT_FLOW: Final = 10
MOST_FLOW: Final = 65_535
MAX_STEM: Final = 512
"""Ours: bytes. It is kept for every batch, in memory and beside the messages of every replica."""
_MOST_SEQ: Final = (1 << 64) - 2
_DIGITS: Final = 20
"""No number in the subject has more."""


class FastMark(NamedTuple):
    stem: bytes
    """The subject up to and with the gap mode: the same for all messages of most batches."""
    batch_id: bytes
    flow: int
    """Messages per ack at most, as the publisher wants it."""
    gap_ok: bool
    seq: int
    """1 for the first message of the batch."""
    operation: int


def parse(reply: bytes) -> FastMark | None:
    """The mark of a reply subject that ends with SUFFIX; None when it is malformed (10206)."""
    tokens = reply[: -len(SUFFIX)].rsplit(b".", 5)
    if len(tokens) != 6:
        return None
    _, batch_id, flow, gap, seq_text, operation_text = tokens
    operation, seq = _number(operation_text), _number(seq_text)
    if not batch_id or not START <= operation <= PING or not 1 <= seq <= _MOST_SEQ or gap not in (b"ok", b"fail"):
        return None
    if operation == START and seq != 1:
        return None
    if operation in (APPEND, COMMIT_EOB) and seq == 1:
        return None
    stem = reply[: -len(SUFFIX) - len(seq_text) - len(operation_text) - 2]
    if len(stem) > MAX_STEM:
        return None
    return FastMark(stem, batch_id, _flow(flow), gap == b"ok", seq, operation)


def _flow(text: bytes) -> int:
    if len(text) > _DIGITS and text.isdigit():
        return MOST_FLOW
    wanted = _number(text)
    return min(wanted, MOST_FLOW) if wanted > 0 else DEFAULT_FLOW


def _number(text: bytes) -> int:
    """-1 for what is no decimal number."""
    return int(text) if text.isdigit() and len(text) <= _DIGITS else -1


MOST_PER_ACK: Final = 500
"""Messages per ack of all open batches together, as in nats-server."""
FARTHEST_SHORT_CUT: Final = 1 << 62
"""Where only a gap can lead: sequences beyond it are looked at one by one, as they have an end."""
NOTHING: Final = b"."
"""No sequence is written like that."""
ACKS_AHEAD: Final = 2
"""Acks that a publisher has outstanding, as ADR-50 advises."""


@dataclass(slots=True, eq=False)
class FastBatch:
    batch_id: bytes
    stem: bytes
    flow: int
    """Messages per ack at most, the publisher's wish."""
    gap_ok: bool = field(kw_only=True)
    per_ack: int = 1
    seq: int = 0
    """Last sequence that came in, or is known to be lost."""
    expected: bytes = b"1"
    """The next one as it is written."""
    settled: int = 0
    """Last sequence of which the outcome is known, and of all before it."""
    told: int = 0
    """Sequence of the last ack."""
    stored: int = 0
    """Stream sequence of the last message stored, 0: none was."""
    pending: int = 0
    """Messages that are not applied yet."""
    committing: bool = False
    """Nothing more is taken: it ends when all that is pending is applied."""
    commit_seq: int = 0
    """Sequence of the message that commits, when that is stored; 0 as long as none came."""
    end_reply: bytes = b""
    """Reply subject of what ended it and is not stored: an end without a message, or what showed a gap."""
    closed: bool = False
    deadline: float = 0.0
    size: int = 0
    """Bytes of a payload, lately."""
    reply: bytes = b""
    """Reply subject of its last message in the open command."""
    runs: list[list[int]] | None = None
    """Its messages in the open command, as `FastRun`."""

    def came_to(self, seq: int) -> None:
        self.seq = seq
        self.expected = b"%d" % (seq + 1) if seq < FARTHEST_SHORT_CUT else NOTHING

    def place(self, place: int, seq: int) -> None:
        """Its message `seq` is the open command's number `place`."""
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
    def __init__(self, room: BatchQuota, backlog: Backlog, clock: Clock, opened: Callable[[], None]) -> None:
        """`opened` is called for each new batch: `expire` is wanted now and then until there is none."""
        self._room = room
        self._backlog = backlog
        self._clock = clock
        self._opened = opened
        self._by_id: dict[bytes, FastBatch] = {}
        self.by_stem: dict[bytes, FastBatch] = {}
        """By what the reply subjects of most of its messages begin with: a short way to the batch."""

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[FastBatch]:
        return iter(list(self._by_id.values()))

    @property
    def timeout(self) -> float:
        """Seconds."""
        return self._room.limits.timeout

    def get(self, batch_id: bytes) -> FastBatch | None:
        """None also when its time is over: it is closed then."""
        batch = self._by_id.get(batch_id)
        if batch is not None and self._is_late(batch, self._clock.monotonic()):
            self.close(batch)
            return None
        return batch

    def open(self, mark: FastMark, size: int) -> FastBatch | None:
        """A new batch whose first payload has `size` bytes; None when there are too many."""
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
        """Forgets it; once is enough."""
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
        """Abandons, without a word, what was silent for too long."""
        now = self._clock.monotonic()
        for batch in self:
            if self._is_late(batch, now):
                self.close(batch)

    def is_due(self, batch: FastBatch) -> bool:
        """True when an ack is due; it is counted as told, and how often the next ones come is decided anew."""
        ahead = batch.settled - batch.told
        if ahead < batch.per_ack:
            return False
        batch.told += ahead - ahead % batch.per_ack  # one for the last instead of one for each
        most = self._most(batch)
        if batch.per_ack < most:
            batch.per_ack = min(batch.per_ack * 2, most)
        elif batch.per_ack > most:
            batch.per_ack = max(batch.per_ack // 2, most)
        return True

    def _most(self, batch: FastBatch) -> int:
        count = len(self._by_id)
        room = self._backlog.window // (ACKS_AHEAD * count * (batch.size + PER_MESSAGE))
        return max(1, min(batch.flow, MOST_PER_ACK // count, room))

    @staticmethod
    def _is_late(batch: FastBatch, now: float) -> bool:
        """True when its time is over. What waits to be applied is answered, however long that takes."""
        return batch.deadline <= now and not batch.pending
