"""`MemberDispatch`: gives messages to the requests of the members that have their keys (docs/consumers.md, "Order
per key"). Used for order per key while several members are there.

What has its turn while its member does not ask waits for it: new messages are passed, which the log has as held, due
ones are parked. Others go on. With too many that wait, what is next of keys with nothing out goes to whoever asks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Final

from jetcluster.consumer.owner import statuses
from jetcluster.consumer.owner.context import DeliveryContext
from jetcluster.consumer.owner.key_order import KeyOrder
from jetcluster.consumer.owner.key_queues import NO_KEY, SLOT_SHIFT
from jetcluster.consumer.owner.key_stocks import NOBODY
from jetcluster.consumer.owner.members import ADMITTED_AT_ONCE, KeyMembers
from jetcluster.consumer.owner.pull_queue import GONE, HELD, Handed, Line, PullQueue
from jetcluster.consumer.owner.pull_request import PullRequest
from jetcluster.consumer.state.turn import DELIVER, REDELIVER, RELEASE
from jetcluster.store.api import Columns

CHECK_NS: Final = 200_000_000
"""Time between two looks at members of which some do not ask."""
MAX_LOOKS: Final = 10_000
"""Requests examined in one turn."""
MAX_ROUTED: Final = 4096
"""Due messages for which members are looked up in one step."""
REQUESTS_COUNTED: Final = 64
"""Requests of a member that are counted for how much to take for it at a time."""


class MemberBatch:
    """Messages and the requests that get them."""

    __slots__ = ("columns", "handed", "kind", "left", "sizes")

    def __init__(self, kind: int) -> None:
        self.kind = kind
        self.columns = Columns([], [], [], [], [])
        self.left = 0
        """Number of messages left after the last one."""
        self.handed: Handed = {}
        self.sizes: list[int] = []

    @property
    def left_after(self) -> Sequence[int]:
        """For each message the number left after it."""
        count, left = len(self.columns.seqs), self.left
        return [left] * count if self.kind == REDELIVER else range(left + count - 1, left - 1, -1)


class MemberDispatch:
    """The members of one pull consumer, and what each gets."""

    def __init__(
        self,
        owner: DeliveryContext,
        queue: PullQueue,
        ready: Callable[[PullRequest], int],
        size_of: Callable[[Columns, int, int], int],
        end: Callable[[PullRequest, bytes], None],
    ) -> None:
        """`ready` returns READY, HELD or GONE of a request; `size_of` the bytes of a message by its columns, its index
        and the number left after it; `end` ends a request with a status."""
        self._owner = owner
        self._queue = queue
        self._ready = ready
        self._size_of = size_of
        self._end = end
        self._looks = 0
        self._dropped = 0
        """Members that went in this turn."""
        self._check_at = 0
        """Time of the next look at members of which some do not ask; 0: all do."""
        self.members = KeyMembers(owner.bus.has_interest)
        self.spilled = 0
        """Messages that went to another one than their key's member, as too many waited."""

    def asks(self, request: PullRequest, now: int) -> None:
        """Note that a member asks with a request."""
        request.member = self.members.asks(request.reply, now)

    def begin(self, keys: KeyOrder, now: int) -> bool:
        """Begin a turn; return True while several members are there. `keys` is loaded."""
        self._looks = 0
        members, queues = self.members, keys.queues
        if queues.heard:
            members.heard(queues.heard, now)
            queues.heard.clear()
        moved, gone = members.update(now, queues.busy, self._owner.selection.redelivery.waits_for)
        self._follow(keys, moved, gone)
        self._dropped = len(gone)
        if members.lags:
            self._owner.run_soon()
        queues.sole = members.sole
        queues.share(members.slots if members.several else None)
        if not members.several:
            self._unpark_all()
        self._check_at = now + CHECK_NS if members.unsettled else 0
        self.wake()
        return members.several

    def pause(self, keys: KeyOrder) -> None:
        """Let no member have keys of its own: the consumer is configured so now."""
        keys.queues.sole = NOBODY
        keys.queues.share(None)
        self._unpark_all()

    def _unpark_all(self) -> None:
        redelivery = self._owner.selection.redelivery
        for number in list(redelivery.parked):
            redelivery.unpark(number)

    @property
    def is_tired(self) -> bool:
        """True when enough requests were examined for a turn."""
        return self._looks >= MAX_LOOKS

    def tick(self, now: int) -> None:
        if 0 < self._check_at <= now:
            self._check_at = 0
            self._owner.run_soon()
        self.wake()

    def wake(self) -> None:
        if self._check_at:
            self._owner.wake_at(self._check_at)

    def _follow(self, keys: KeyOrder, moved: Iterable[int], gone: Iterable[int]) -> None:
        stocks = keys.queues.stocks
        if stocks is not None:
            stocks.moved(moved)
        for number in gone:
            if stocks is not None:
                stocks.forget(number)
            self._owner.selection.redelivery.unpark(number)

    # -- batches ----------------------------------------------------------------------------------------------------

    def due(self, keys: KeyOrder, want: int, now: int) -> MemberBatch | None:
        """Return due messages for the members that ask, at most `want`; None when there are none for them."""
        redelivery = self._owner.selection.redelivery
        if redelivery.order:
            redelivery.park(MAX_ROUTED, lambda seq: self._route(keys, seq, now))
            if redelivery.order:
                self._owner.run_soon()
        batch = MemberBatch(REDELIVER)
        batch.left = self._owner.selection.left
        want = min(want, self._owner.selection.batch_limit())
        for number in list(redelivery.parked):
            line = self._line(number)
            if line and (count := self._capacity(line, want)):
                self._redeliver(keys, batch, number, line, redelivery.take_parked(number, count))
                if batch.columns.seqs:
                    return batch
        return None

    def _redeliver(self, keys: KeyOrder, batch: MemberBatch, number: int, line: Line, seqs: list[int]) -> None:
        selection = self._owner.selection
        columns = selection.read_due(seqs)
        given = [at for at in range(len(columns.seqs)) if self._claim(batch, line, columns, at, batch.left)]
        kept = set(given)
        selection.redelivery.park_again(number, [seq for at, seq in enumerate(columns.seqs) if at not in kept])
        batch.columns = columns.pick(given)
        self._hold(keys, batch)

    def released(self, keys: KeyOrder, want: int) -> MemberBatch | None:
        """Return messages that waited and whose turn has come, for the members that ask; None when there are none."""
        queues, stocks = keys.queues, keys.queues.stocks
        assert stocks is not None
        left = self._owner.selection.left
        want = min(want, self._owner.selection.batch_limit())
        taken: dict[int, Line] = {}
        for number in stocks.members():
            line = self._line(number)
            if line and len(taken) < want:
                count = self._capacity(line, want - len(taken))
                taken |= dict.fromkeys(queues.take_of(number, count), line)
        if queues.ready and (line := self._queue.line) and len(taken) < want:
            taken |= dict.fromkeys(queues.take(self._capacity(line, want - len(taken))), line)
        spilled = self._spilled(keys, want - len(taken)) if keys.spills else {}
        taken |= spilled
        if not taken:
            return None
        batch = MemberBatch(RELEASE)
        columns = keys.read(sorted(taken))
        given = [at for at, seq in enumerate(columns.seqs) if self._claim(batch, taken[seq], columns, at, left)]
        batch.columns = columns.pick(given)
        batch.left = left - len(given)
        kept = set(given)
        keys.give_back((seq for at, seq in enumerate(columns.seqs) if at not in kept), new=False)
        if spilled:
            self.spilled += len(spilled.keys() & set(batch.columns.seqs))
            self._hold(keys, batch)
        return batch if given else None

    def _spilled(self, keys: KeyOrder, want: int) -> dict[int, Line]:
        """Take what waits for members that do not ask, of keys with nothing out, for whoever asks; at most `want`."""
        taken: dict[int, Line] = {}
        stocks, line = keys.queues.stocks, self._queue.line
        assert stocks is not None
        for number in stocks.members() if line else ():
            if len(taken) < want and not self._line(number):
                count = self._capacity(line, want - len(taken))
                taken |= dict.fromkeys(keys.queues.take_of(number, count, spilled=True), line)
        return taken

    def _hold(self, keys: KeyOrder, batch: MemberBatch) -> None:
        """Note who has the messages of a batch."""
        for request, indices in batch.handed.items():
            if request.member is not None:
                for at in indices:
                    keys.hold(batch.columns.seqs[at], request.member.number)

    def new(self, keys: KeyOrder, want: int) -> MemberBatch | None:
        """Return new messages for the members that ask, and pass others; None when none of those that were looked at
        goes to one who asks."""
        batch = MemberBatch(DELIVER)
        queues, slots, left = keys.queues, self.members.slots, self._owner.selection.left

        def claim(columns: Columns, at: int, key: int) -> bool:
            line: Line | None
            if key == NO_KEY:
                line = self._queue.line
            else:
                member = slots[key >> SLOT_SHIFT]
                if not queues.may_go(key, member):
                    return False
                line = self._line(member)
            request = self._claim(batch, line, columns, at, left) if line else None
            if request is None and keys.spills and key != NO_KEY and queues.may_go(key, NOBODY):
                request = self._claim(batch, self._queue.line, columns, at, left)
                self.spilled += request is not None
            if request is not None:
                queues.add(columns.seqs[at], key, NOBODY if request.member is None else request.member.number)
            return request is not None

        batch.columns = keys.take(want, claim)
        batch.left = self._owner.selection.left_at_last_count
        return batch if batch.columns.seqs else None

    # -- requests ---------------------------------------------------------------------------------------------------

    def _line(self, number: int) -> Line | None:
        """Return the requests of a member, for NOBODY those of all."""
        if number == NOBODY:
            return self._queue.line
        member = self.members.get(number)
        return None if member is None else member.line

    def _capacity(self, line: Line, want: int) -> int:
        """Return how many messages to take for these requests, at most `want`: their readers are not asked yet."""
        return min(want, sum(request.left for request in islice(line, REQUESTS_COUNTED)))

    def _claim(self, batch: MemberBatch, line: Line, columns: Columns, at: int, left: int) -> PullRequest | None:
        """Give a message to the next of these requests, as the next one of the batch; None when none can take it."""
        queue = self._queue
        while line and self._looks < MAX_LOOKS:
            request = next(iter(line))
            self._looks += 1
            ready = self._ready(request)
            if ready == GONE:
                queue.remove(request)
            elif ready == HELD:
                queue.put_aside(request)
            else:
                size = self._size_of(columns, at, left) if request.max_bytes else 0
                if size <= request.left_bytes:
                    self._give(batch, request, size)
                    return request
                self._end(request, statuses.TOO_LARGE)
        return None

    def _give(self, batch: MemberBatch, request: PullRequest, size: int) -> None:
        if request.max_bytes:
            request.left_bytes -= size
            if not request.left_bytes:
                request.cut = request.left - 1
                self._queue.shorten(request, 1)
        self._queue.take(request, 1)
        batch.handed.setdefault(request, []).append(len(batch.sizes))
        batch.sizes.append(size)

    # -- members ----------------------------------------------------------------------------------------------------

    def _route(self, keys: KeyOrder, seq: int, now: int) -> int:
        """Return the member that a due message waits for: who has it, if that one is still there, else whose its key
        is. Who let its ack wait end and does not ask is gone; of many such the next turns see to the rest."""
        key = keys.queues.key_of(seq)
        if key == NO_KEY:
            return NOBODY
        holder = self.members.get(keys.queues.holder(seq))
        if holder is not None and self._dropped < ADMITTED_AT_ONCE and self.members.is_silent(holder, now):
            self._dropped += 1
            self._follow(keys, self.members.drop(holder), (holder.number,))
            holder = None
        return self.members.slots[key >> SLOT_SHIFT] if holder is None else holder.number
