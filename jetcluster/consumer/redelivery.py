"""`Redelivery`: when messages that wait for their ack are due again, and in which order they go out.

The replicated state holds each message's due time. Here is what finds them: a heap with one entry per op that gave due
times (a delivery of hundreds of messages is one entry), looked at only when its earliest time has come. An entry
counts for a message only while the message still has exactly that due time; what changed it since made its own
entry. Acknowledged messages cost nothing.

Order: what falls due joins the end of the queue, sorted by stream sequence; so does a NAK without a delay.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Sequence

from jetcluster.consumer.pending import NEVER, Pending
from jetcluster.consumer.state import ConsumerState

_Entry = tuple[int, int, Sequence[int]]
"""(due, counter, ascending sequences)"""
_PRUNE_ABOVE = 64


class Redelivery:
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
        """Those still pending have other due times than before."""
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
