"""`Selection`: which messages come next for one consumer, new ones and (`Redelivery`) those that are due again.

It runs ahead of the replicated state by what is in flight: what was taken counts as delivered until `reset`. Both
kinds of messages come in columns, whole batches at a time; nothing here is done per message but in bulk.

Counting what is left (num_pending): messages that are new since the last look are counted alone; when messages were
removed somewhere the count is an estimate until it is made anew, which is done at once when it is cheap. The end is
always exact: the last message there is says 0.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

from jetcluster.clock import Clock
from jetcluster.consumer.state.pending import NEVER, Pending
from jetcluster.consumer.state.state import ConsumerState
from jetcluster.store.api import Columns
from jetcluster.store.block_store import BlockStore

_Entry = tuple[int, int, Sequence[int]]
"""(due, counter, ascending sequences)"""
_PRUNE_ABOVE = 64

MAX_MESSAGES: Final = 1024
TARGET_BYTES: Final = 1 << 20
"""Per batch, by the average size of the messages read so far; at least one message."""
FIRST_MESSAGES: Final = 64
"""Batch of a consumer whose messages' size is not known yet."""
NO_LIMIT: Final = 1 << 62

_RECOUNT_SHARE: Final = 20
"""Counting anew takes at most one part in so many of the time."""


class Redelivery:
    """Finds the messages that wait for their ack and are due again; holds the order in which they go out.

    The replicated state holds each message's due time. Here is a heap with one entry per op that gave due times (a
    delivery of hundreds of messages is one entry), looked at only when its earliest time has come. An entry counts for
    a message only while the message still has exactly that due time; what changed it since made its own entry.
    Acknowledged messages cost nothing.

    Order: what falls due joins the end of the queue, sorted by stream sequence; so does a NAK without a delay."""

    __slots__ = ("_counter", "_due", "_heap", "_prune_above", "_state", "order")

    def __init__(self, state: ConsumerState) -> None:
        self._state = state
        self.reset()

    def reset(self) -> None:
        """Begins again from the state: everything pending waits for its due time."""
        self._heap: list[_Entry] = []
        self._counter = 0
        self._prune_above = _PRUNE_ABOVE
        self.order: deque[int] = deque()
        """The queue of what is due; some of it may have been acknowledged."""
        self._due: dict[int, int] = {}
        """Due time with which a sequence came into the queue; its keys are those of `order`."""
        self._watch(self._state.unacked.entries.items())

    @property
    def next_due(self) -> int:
        """Nothing falls due before; 0 when nothing will."""
        return self._heap[0][0] if self._heap else 0

    # -- due times ------------------------------------------------------------------------------------------------

    def delivered(self, seqs: Sequence[int]) -> None:
        """First deliveries of one op: they share one due time."""
        pending = self._state.unacked.entries
        first, last = pending.get(seqs[0]), pending.get(seqs[-1])
        if first is not None and last is not None and first.due == last.due:
            if seqs[-1] - seqs[0] + 1 == len(seqs):
                seqs = range(seqs[0], seqs[-1] + 1)
            self._push(first.due, seqs)
        else:  # changed again within the same turn
            self.changed(seqs)

    def changed(self, seqs: Iterable[int]) -> None:
        """Takes over new due times, of the messages among `seqs` that are still pending."""
        pending = self._state.unacked.entries
        self._watch([(seq, pending[seq]) for seq in seqs if seq in pending])

    def _watch(self, entries: Iterable[tuple[int, Pending]]) -> None:
        by_due: dict[int, list[int]] = {}
        for seq, entry in entries:
            by_due.setdefault(entry.due, []).append(seq)
        for due, seqs in by_due.items():
            self._push(due, sorted(seqs))

    def _push(self, due: int, seqs: Sequence[int]) -> None:
        if due >= NEVER:
            return
        if len(self._heap) >= self._prune_above:
            self._prune()
        self._counter += 1
        heapq.heappush(self._heap, (due, self._counter, seqs))

    def _prune(self) -> None:
        """Lets go of entries whose messages are all settled: with a long ack_wait they would pile up."""
        floor = self._state.floor_sseq
        self._heap = [entry for entry in self._heap if entry[2][-1] > floor]
        heapq.heapify(self._heap)
        self._prune_above = max(_PRUNE_ABOVE, 2 * len(self._heap))

    def expire(self, now: int) -> list[int]:
        """Puts what is due by `now` into the queue; returns those that were delivered as often as is permitted and
        are to be given up instead."""
        heap = self._heap
        if not heap or heap[0][0] > now:
            return []
        pending = self._state.unacked.entries
        found: list[int] = []
        while heap and heap[0][0] <= now:
            due, _, seqs = heapq.heappop(heap)
            for seq in seqs:
                entry = pending.get(seq)
                if entry is not None and entry.due == due:
                    found.append(seq)
        found.sort()
        return self.enqueue(found)

    # -- queue ----------------------------------------------------------------------------------------------------

    def enqueue(self, seqs: Sequence[int]) -> list[int]:
        """`seqs` go out again, those in the queue keep their place; returns those to be given up (max_deliver)."""
        pending, most = self._state.unacked.entries, self._state.rules.max_deliver
        exhausted: list[int] = []
        for seq in seqs:
            entry = pending.get(seq)
            if entry is None:
                continue
            if most and entry.deliveries >= most:
                exhausted.append(seq)
            else:
                if seq not in self._due:
                    self.order.append(seq)
                self._due[seq] = entry.due
        return exhausted

    def take(self, want: int) -> list[int]:
        """At most `want` from the front, those that are still due."""
        taken: list[int] = []
        order, pending = self.order, self._state.unacked.entries
        while order and len(taken) < want:
            seq = order.popleft()
            entry = pending.get(seq)
            if entry is not None and entry.due == self._due[seq]:
                taken.append(seq)
            del self._due[seq]
        return taken

    def give_back(self, seqs: Sequence[int]) -> None:
        """To the front again, in their order: nobody wanted them after all."""
        pending = self._state.unacked.entries
        for seq in reversed(seqs):
            if seq in pending and seq not in self._due:
                self.order.appendleft(seq)
                self._due[seq] = pending[seq].due


class Selection:
    __slots__ = (
        "_average",
        "_clock",
        "_counted_to",
        "_end",
        "_last_of",
        "_left",
        "_messages",
        "_recount_at",
        "_removals",
        "_stale",
        "_state",
        "cursor",
        "in_flight",
        "redelivery",
        "vanished",
    )

    def __init__(self, state: ConsumerState, messages: BlockStore, clock: Clock) -> None:
        self._state = state
        self._messages = messages
        self._clock = clock
        self._average = 0.0
        self._recount_at = 0.0
        self.redelivery = Redelivery(state)
        self.vanished: list[int] = []
        """Messages to be delivered again that are no longer stored: the owner reports them (GONE)."""
        self.rewind()

    def reset(self) -> None:
        """Forgets everything in flight; may raise DamagedError."""
        self.redelivery.reset()
        self.vanished.clear()
        self.rewind()

    def configured(self) -> None:
        """The filters may be others; it goes on from where it is."""
        self._end = -1
        self._stale = True
        self._recount_at = 0.0

    def rewind(self) -> None:
        """New messages are taken from where the state stands; may raise DamagedError."""
        state = self._state
        self.cursor = state.delivered_sseq
        """Highest sequence taken, or known not to be wanted."""
        self.in_flight = 0
        """First deliveries on their way into the log, that are not applied yet; counted by the owner."""
        self._last_of: list[int] = []
        """Deliver policy last_per_subject: what is wanted of the messages there were at the creation, ascending."""
        upto = state.last_per_subject_upto
        if upto > self.cursor:
            found = self._messages.last_seqs_any(state.rules.filters, upto)
            self._last_of = found[bisect_right(found, self.cursor) :]
        self._end = -1
        self._left = self._counted_to = self._removals = 0
        self._stale = True
        self._recount_at = 0.0

    # -- what is there ----------------------------------------------------------------------------------------------

    @property
    def at_end(self) -> bool:
        """Nothing new is there; what comes may be."""
        return self._end == self._messages.last_seq

    @property
    def room(self) -> int:
        """Number of new messages that max_ack_pending permits."""
        rules = self._state.rules
        if not rules.acks or not rules.max_ack_pending:
            return NO_LIMIT
        return max(0, rules.max_ack_pending - len(self._state.unacked.entries) - self.in_flight)

    @property
    def left(self) -> int:
        """Messages that match and are not taken yet."""
        self._count()
        return self._left

    def _count(self) -> None:
        messages = self._messages
        if self._stale or messages.removals != self._removals:
            self._stale = True
            now = self._clock.monotonic()
            if now >= self._recount_at:
                self._recount(now)
                return
        if messages.last_seq > self._counted_to:
            self._left += messages.queries.count_any(self._state.rules.filters, self._counted_to + 1)
            self._counted_to = messages.last_seq

    def _recount(self, now: float) -> None:
        messages = self._messages
        start = max(self.cursor, self._state.last_per_subject_upto if self._last_of else 0) + 1
        self._left = len(self._last_of) - bisect_right(self._last_of, self.cursor)
        self._left += messages.queries.count_any(self._state.rules.filters, start)
        self._counted_to = messages.last_seq
        self._removals = messages.removals
        self._stale = False
        done = self._clock.monotonic()
        self._recount_at = done + _RECOUNT_SHARE * (done - now)

    # -- new messages -----------------------------------------------------------------------------------------------

    def take(self, want: int) -> tuple[Columns, range]:
        """The next new messages, at most `want` and not too many at once, and for each how many are left after it.
        Empty when there are none (`at_end`). Raises DamagedError and has done nothing then."""
        want = min(want, self._batch())
        seqs, ended = self._next(want)
        columns = self._messages.read_columns(seqs)
        if ended:
            self._end = self._counted_to = self._messages.last_seq
            self._removals = self._messages.removals
            self._left, self._stale = 0, False
        else:
            self._count()
            self._left = max(1, self._left - len(seqs))
        if seqs:
            self.cursor = seqs[-1]
            self._learn(columns)
        return columns, range(self._left + len(columns.seqs) - 1, self._left - 1, -1)

    def _next(self, want: int) -> tuple[list[int], bool]:
        """(sequences, there is nothing after them)"""
        at = bisect_right(self._last_of, self.cursor)
        seqs = self._last_of[at : at + want + 1]
        if len(seqs) <= want:
            start = max(self.cursor, self._state.last_per_subject_upto if self._last_of else 0) + 1
            seqs += self._messages.next_seqs(self._state.rules.filters, start, want + 1 - len(seqs))
        ended = len(seqs) <= want
        del seqs[want:]
        return seqs, ended

    def give_back(self, columns: Columns, used: int) -> None:
        """Only the first `used` of what `take` gave last are delivered."""
        back = len(columns.seqs) - used
        if back:
            self.cursor = columns.seqs[used] - 1
            self._left += back
            self._end = -1

    def _batch(self) -> int:
        if not self._average:
            return FIRST_MESSAGES
        return max(1, min(MAX_MESSAGES, int(TARGET_BYTES / self._average)))

    def _learn(self, columns: Columns) -> None:
        count = len(columns.seqs)
        if count:
            average = (sum(map(len, columns.payloads)) + sum(map(len, columns.headers))) / count + 64
            self._average = average if average > self._average else (self._average * 3 + average) / 4

    # -- again ------------------------------------------------------------------------------------------------------

    def take_due(self, want: int) -> Columns:
        """Messages to be delivered again, in the order in which they go out."""
        seqs = self.redelivery.take(min(want, self._batch()))
        if not seqs:
            return Columns([], [], [], [], [])
        columns = self._messages.read_columns(sorted(seqs))
        self._learn(columns)
        if len(columns.seqs) < len(seqs):
            stored = set(columns.seqs)
            self.vanished += [seq for seq in seqs if seq not in stored]
            seqs = [seq for seq in seqs if seq in stored]
        return columns if columns.seqs == seqs else _in_order(columns, seqs)

    def give_back_due(self, columns: Columns, used: int) -> None:
        self.redelivery.give_back(columns.seqs[used:])


def _in_order(columns: Columns, seqs: Sequence[int]) -> Columns:
    at = {seq: i for i, seq in enumerate(columns.seqs)}
    return pick(columns, [at[seq] for seq in seqs])


def pick(columns: Columns, indices: Sequence[int]) -> Columns:
    """Some of the messages, in the order of `indices`."""
    seqs, times, subjects, blocks, payloads = columns
    return Columns(
        [seqs[i] for i in indices],
        [times[i] for i in indices],
        [subjects[i] for i in indices],
        [blocks[i] for i in indices],
        [payloads[i] for i in indices],
    )


def head(columns: Columns, count: int) -> Columns:
    """The first `count` messages."""
    seqs, times, subjects, blocks, payloads = columns
    if count >= len(seqs):
        return columns
    return Columns(seqs[:count], times[:count], subjects[:count], blocks[:count], payloads[:count])
