"""`Selection`: selects the next messages of one consumer, new ones and (`Redelivery`) those due again.

It is ahead of the replicated state by the messages in flight: taken messages count as delivered until `reset`. Both
kinds come in columns, whole batches at a time, without work per message.

The count of remaining messages (num_pending) adds only the new ones. After a removal it is an estimate until the next
recount, which follows at once when it is cheap. The end is always exact: the last message has 0 left.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from jetcluster.clock import Clock
from jetcluster.consumer.state.pending import NEVER, Pending
from jetcluster.consumer.state.state import ConsumerState
from jetcluster.consumer.state.turn import DELIVER, RELEASE
from jetcluster.store.api import Columns
from jetcluster.store.block_store import BlockStore

if TYPE_CHECKING:
    from jetcluster.consumer.owner.key_order import KeyOrder

_Entry = tuple[int, int, Sequence[int], int]
"""(when, counter, ascending sequences, their due time by the log)"""
_PRUNE_ABOVE_ENTRIES = 64

MAX_BATCH_MESSAGES: Final = 1024
TARGET_BATCH_BYTES: Final = 1 << 20
"""Limits of a batch, by the average size of the messages read so far; at least one message."""
FIRST_BATCH_MESSAGES: Final = 64
"""Messages in the first batch, before their size is known."""
NO_LIMIT: Final = 1 << 62

_RECOUNT_DIVISOR: Final = 20
"""Recounts take at most one part in this number of the time."""


class Redelivery:
    """Finds unacked messages that are due again, and keeps the order of their redelivery.

    The replicated state has each message's due time. The heap has one entry per op that set due times (a delivery of
    hundreds of messages is one entry), and is read only at its earliest time. An entry is valid for a message only
    while the message has exactly that due time; each change makes its own entry. Acked messages cost nothing.

    Order: messages that fall due join the end of the queue by stream sequence, as do NAKs without a delay."""

    __slots__ = ("_counter", "_due", "_heap", "_prune_above", "_state", "late", "order", "parked")

    def __init__(self, state: ConsumerState) -> None:
        self._state = state
        self.late = 0
        """Nanoseconds to add to the due times that come now: the log's time stands still, or has jumped."""
        self.reset()

    def reset(self) -> None:
        """Restart from the state: all pending messages wait for their due times."""
        self._heap: list[_Entry] = []
        self._counter = 0
        self._prune_above = _PRUNE_ABOVE_ENTRIES
        self.order: deque[int] = deque()
        """The queue of due sequences; some may have been acked."""
        self._due: dict[int, int] = {}
        """Sequence in `order`, or parked -> its due time when it was enqueued."""
        self.parked: dict[int, deque[int]] = {}
        """Member -> due sequences that wait for it (`members`), never empty; some may have been acked."""
        self._watch(self._state.unacked.entries.items())

    @property
    def next_due(self) -> int:
        """Time before which no message falls due; 0 when none will."""
        return self._heap[0][0] if self._heap else 0

    # -- due times ------------------------------------------------------------------------------------------------

    def delivered(self, seqs: Sequence[int]) -> None:
        """Watch the first deliveries of one op, which share a due time."""
        pending = self._state.unacked.entries
        first, last = pending.get(seqs[0]), pending.get(seqs[-1])
        if first is not None and last is not None and first.due == last.due:
            if seqs[-1] - seqs[0] + 1 == len(seqs):
                seqs = range(seqs[0], seqs[-1] + 1)
            self._push(first.due, seqs)
        else:  # changed again within the same turn
            self.changed(seqs)

    def changed(self, seqs: Iterable[int]) -> None:
        """Watch the new due times of those of `seqs` that are still pending."""
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
        heapq.heappush(self._heap, (due + self.late, self._counter, seqs, due))

    def _prune(self) -> None:
        """Remove entries whose messages are all settled: with a long ack_wait they would accumulate."""
        floor = self._state.floor_sseq
        self._heap = [entry for entry in self._heap if entry[2][-1] > floor]
        heapq.heapify(self._heap)
        self._prune_above = max(_PRUNE_ABOVE_ENTRIES, 2 * len(self._heap))

    def expire(self, now: int) -> list[int]:
        """Enqueue messages due by `now`; return those that reached max_deliver and must be given up instead."""
        heap = self._heap
        if not heap or heap[0][0] > now:
            return []
        pending = self._state.unacked.entries
        found: list[int] = []
        while heap and heap[0][0] <= now:
            _, _, seqs, due = heapq.heappop(heap)
            for seq in seqs:
                entry = pending.get(seq)
                if entry is not None and entry.due == due:
                    found.append(seq)
        found.sort()
        return self.enqueue(found)

    # -- queue ----------------------------------------------------------------------------------------------------

    def enqueue(self, seqs: Sequence[int]) -> list[int]:
        """Enqueue `seqs`, which keep their place if queued already; return those to be given up (max_deliver)."""
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
        """Take at most `want` from the front that are still due."""
        return self._take(self.order, want)

    def _take(self, order: deque[int], want: int) -> list[int]:
        taken: list[int] = []
        pending = self._state.unacked.entries
        while order and len(taken) < want:
            seq = order.popleft()
            entry = pending.get(seq)
            if entry is not None and entry.due == self._due[seq]:
                taken.append(seq)
            del self._due[seq]
        return taken

    def give_back(self, seqs: Sequence[int]) -> None:
        """Return unused sequences to the front, in their order."""
        self._give_back(self.order, seqs)

    def _give_back(self, order: deque[int], seqs: Sequence[int]) -> None:
        pending = self._state.unacked.entries
        for seq in reversed(seqs):
            if seq in pending and seq not in self._due:
                order.appendleft(seq)
                self._due[seq] = pending[seq].due

    # -- members ----------------------------------------------------------------------------------------------------

    @property
    def queued(self) -> int:
        """Number of sequences in the queue, and of those that wait for members."""
        return len(self._due)

    def park(self, most: int, route: Callable[[int], int]) -> None:
        """Let at most `most` of the front wait for the members that `route` returns."""
        for _ in range(min(most, len(self.order))):
            seq = self.order.popleft()
            self.parked.setdefault(route(seq), deque()).append(seq)

    def unpark(self, member: int) -> None:
        """Return what waits for a member to the front."""
        self.order.extendleft(reversed(self.parked.pop(member, deque())))

    def waits_for(self, member: int) -> bool:
        """Return True while due messages wait for a member."""
        waiting, pending = self.parked.get(member), self._state.unacked.entries
        while waiting:
            entry = pending.get(waiting[0])
            if entry is not None and entry.due == self._due[waiting[0]]:
                return True
            del self._due[waiting.popleft()]
        self.parked.pop(member, None)
        return False

    def take_parked(self, member: int, want: int) -> list[int]:
        """Take at most `want` of those that wait for a member and are still due."""
        waiting = self.parked.get(member, deque())
        taken = self._take(waiting, want)
        if not waiting:
            self.parked.pop(member, None)
        return taken

    def park_again(self, member: int, seqs: Sequence[int]) -> None:
        """Return unused sequences of `take_parked`, in their order."""
        waiting = self.parked.get(member, deque())
        self._give_back(waiting, seqs)
        if waiting:
            self.parked[member] = waiting


class Selection:
    """The next messages of one consumer."""

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
        "cursor",
        "in_flight",
        "keys",
        "ops_in_flight",
        "redelivery",
        "state",
        "vanished",
    )

    def __init__(self, state: ConsumerState, messages: BlockStore, clock: Clock) -> None:
        self.state = state
        self._messages = messages
        self._clock = clock
        self._average = 0.0
        self._recount_at = 0.0
        self.redelivery = Redelivery(state)
        self.vanished: list[int] = []
        """Due messages that are no longer stored: the owner logs them (GONE)."""
        self.keys: KeyOrder | None = None
        """Order per key, also while messages wait for an order that was switched off; None without it."""
        self.rewind()

    def reset(self, *, again: bool) -> None:
        """Forget all in flight. `again`: no other owner has been there, so who has what is out is still known. Raises
        DamagedError."""
        self.redelivery.reset()
        self.vanished.clear()
        if not again:
            self.keys = None
        self.rewind()

    def configured(self) -> None:
        """Continue from the cursor with filters, and an order per key, that may be new."""
        wish = self.state.rules.keys
        if wish != (None if self.keys is None else self.keys.wish):
            self.renew_keys()
        self._end = -1
        self._stale = True
        self._recount_at = 0.0

    def rewind(self) -> None:
        """Set the cursor back to the state's. Raises DamagedError."""
        state = self.state
        self.cursor = state.delivered_sseq
        """Highest sequence taken, or known to be unwanted."""
        self.in_flight = 0
        """Number of first deliveries submitted and not yet applied, counted by the owner."""
        self.ops_in_flight = 0
        """Number of their ops, and of those that only pass messages."""
        if state.rules.keys is not None or state.unacked.held > 0:
            self.renew_keys()
        else:
            self.keys = None
        self._last_of: list[int] = []
        """Deliver policy last_per_subject: the wanted ones of the messages stored at the creation, ascending."""
        upto = state.last_per_subject_upto
        if upto > self.cursor:
            found = self._messages.last_seqs_any(state.rules.filters, upto)
            self._last_of = found[bisect_right(found, self.cursor) :]
        self._end = -1
        self._left = self._counted_to = self._removals = 0
        self._stale = True
        self._recount_at = 0.0

    # -- counts -----------------------------------------------------------------------------------------------------

    @property
    def at_end(self) -> bool:
        """True when no stored message is left to take."""
        return self._end == self._messages.last_seq

    @property
    def idle(self) -> bool:
        """True when nothing can be sent: no message is left, or due, or all wait for others of their keys."""
        return self.at_end and not self.redelivery.order and not (self.keys is not None and self.keys.pressing)

    @property
    def room(self) -> int:
        """Number of new messages that max_ack_pending permits."""
        rules = self.state.rules
        if not rules.acks or not rules.max_ack_pending:
            return NO_LIMIT
        unacked = self.state.unacked
        return max(0, rules.max_ack_pending - len(unacked.entries) + unacked.held - self.in_flight)

    @property
    def left(self) -> int:
        """Number of matching messages not taken yet. Raises DamagedError."""
        self._count()
        return self.left_at_last_count

    @property
    def left_at_last_count(self) -> int:
        """The same without a new count: what was taken since is subtracted."""
        return self._left + (0 if self.keys is None else self.keys.waiting)

    def _count(self) -> None:
        messages = self._messages
        if self._stale or messages.removals != self._removals:
            self._stale = True
            now = self._clock.monotonic()
            if now >= self._recount_at:
                self._recount(now)
                return
        if messages.last_seq > self._counted_to:
            self._left += messages.queries.count_any(self.state.rules.filters, max(self._counted_to, self.cursor) + 1)
            self._counted_to = messages.last_seq

    def _recount(self, now: float) -> None:
        messages = self._messages
        start = max(self.cursor, self.state.last_per_subject_upto if self._last_of else 0) + 1
        self._left = len(self._last_of) - bisect_right(self._last_of, self.cursor)
        self._left += messages.queries.count_any(self.state.rules.filters, start)
        self._counted_to = messages.last_seq
        self._removals = messages.removals
        self._stale = False
        done = self._clock.monotonic()
        self._recount_at = done + _RECOUNT_DIVISOR * (done - now)

    # -- new messages -----------------------------------------------------------------------------------------------

    def take(self, want: int) -> tuple[Columns, range]:
        """Return the next new messages, at most `want` and one batch, and for each the number left after it. Empty at
        the end (`at_end`). Raises DamagedError and changes nothing then."""
        want = min(want, self.batch_limit())
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
        """Return (sequences, True when none follow)."""
        at = bisect_right(self._last_of, self.cursor)
        seqs = self._last_of[at : at + want + 1]
        if len(seqs) <= want:
            start = max(self.cursor, self.state.last_per_subject_upto if self._last_of else 0) + 1
            seqs += self._messages.next_seqs(self.state.rules.filters, start, want + 1 - len(seqs))
        ended = len(seqs) <= want
        del seqs[want:]
        return seqs, ended

    def give_back(self, columns: Columns, used: int) -> None:
        """Return all but the first `used` messages of the last `take`."""
        back = len(columns.seqs) - used
        if back:
            self.cursor = columns.seqs[used] - 1
            self._left += back
            self._end = -1

    def batch_limit(self) -> int:
        """Return how many messages to read at a time, by their average size."""
        if not self._average:
            return FIRST_BATCH_MESSAGES
        return max(1, min(MAX_BATCH_MESSAGES, int(TARGET_BATCH_BYTES / self._average)))

    def _learn(self, columns: Columns) -> None:
        count = len(columns.seqs)
        if count:
            average = (sum(map(len, columns.payloads)) + sum(map(len, columns.headers))) / count + 64
            self._average = average if average > self._average else (self._average * 3 + average) / 4

    # -- order per key ----------------------------------------------------------------------------------------------

    def take_by_key(self, keys: KeyOrder, want: int) -> tuple[int, Columns, range]:
        """Return (kind of op, messages, for each the number left after it): what waited for others of its key first,
        then new ones. Empty when nothing can be sent now. Raises DamagedError and changes nothing then."""
        want = min(want, self.batch_limit())
        if keys.queues.ready:
            self._count()
            kind, columns = RELEASE, keys.release(want)
        else:
            kind, columns = DELIVER, keys.take(want)
        left = self._left + keys.queues.waiting
        return kind, columns, range(left + len(columns.seqs) - 1, left - 1, -1)

    def renew_keys(self) -> None:
        """Read all keys again, by the present rules."""
        from jetcluster.consumer.owner.key_order import KeyOrder  # late: few consumers have one

        former = None if self.keys is None else self.keys.queues
        self.keys = KeyOrder(self, self.state.rules.keys, former)

    def settle_keys(self, seqs: Sequence[int]) -> None:
        """Free the keys of messages that are no longer stored."""
        if self.keys is not None and not self.keys.settle_removed(seqs):
            self.renew_keys()

    def load_keys(self, keys: KeyOrder) -> bool:
        """Do a step of `KeyOrder.load`."""
        return keys.load(self.batch_limit())

    def read(self, seqs: Sequence[int]) -> Columns:
        """Return the stored ones of ascending `seqs`. Raises DamagedError."""
        columns = self._messages.read_columns(seqs)
        self._learn(columns)
        return columns

    # -- redelivery -------------------------------------------------------------------------------------------------

    def take_due(self, want: int) -> Columns:
        """Return at most `want` due messages, in the order of their redelivery."""
        return self.read_due(self.redelivery.take(min(want, self.batch_limit())))

    def read_due(self, seqs: list[int]) -> Columns:
        """Return messages that were taken from `redelivery`, in their order, without those that are not stored."""
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
    return columns.pick([at[seq] for seq in seqs])


def head(columns: Columns, count: int) -> Columns:
    """Return the first `count` messages."""
    seqs, times, subjects, blocks, payloads = columns
    if count >= len(seqs):
        return columns
    return Columns(seqs[:count], times[:count], subjects[:count], blocks[:count], payloads[:count])
