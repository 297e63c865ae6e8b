"""Reads that wait: until this replica has applied what it knows to be committed, or until it has what was there when
they came.

A leader tells its followers the commit index before it acknowledges, on the same ordered link. So a client that was
told "stored" through this node, and asks this node now, asks at a moment when the node already knows that index; its
own fsync of the entry may still be under way. Waiting for it (a millisecond) gives every client read-your-writes and
monotonic reads on its connection, without asking the leader. nats-server's followers answer from before the write.

That does not depend on who leads now, or on whether this replica knows it: what any leader said to be committed is, so
its word counts also after this replica has left its term, stands for election, has taken over and has not committed
anything yet, or cannot take its entries (`Receiver.hear`, `RaftGroup.told_index`). Nobody on this node can have been
told more. So a replica that knows no leader answers once it has applied that; if it has not, its readers wait, for the
next leader too, and after MAX_WAIT another replica is asked. A replica answers at all only once its leader has
confirmed to it what is committed, or it leads itself (`Membership`): what it heard before a restart is forgotten.

Two kinds of replicas may not have heard of what a client was told, and ask a leader first, once for all requests that
wait; a majority confirms that it leads. This costs a round trip; a read on a node with a replica of its own does not
pay it.

- A replica on another node than the client's: its own link to the leader may be slower. For a client whose node has no
  replica, or none that is current, the stream's leader is asked where the log stands (`stream.commit`).
- A mirror that answers for its upstream in the same cluster asks the upstream's leader for its last sequence
  (`stream.last`). While nobody leads the upstream it answers only what no later message can change: a message by its
  sequence that it has.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from jetcluster.clock import Clock, TimerHandle, Timers
from jetcluster.mesh.api import MeshError

if TYPE_CHECKING:
    from jetcluster.raft.api import RaftGroup
    from jetcluster.replica.context import NodeContext

MAX_WAITING = 8192
MAX_WAIT = 0.25
"""After so long somebody else is asked: this replica's disk is not keeping up."""

Call = Callable[[], None]


class ReadWaits:
    def __init__(self, clock: Clock, timers: Timers) -> None:
        self._clock = clock
        self._timers = timers
        self.waiting: deque[tuple[int, float, Call, Call]] = deque()
        self._timer: TimerHandle | None = None

    def hold(self, index: int, answer: Call, give_up: Call) -> None:
        """Calls `answer` once `applied(index)` or more was called, `give_up` if that takes too long or too many wait.
        Indexes must not go down between calls."""
        if len(self.waiting) >= MAX_WAITING:
            give_up()
            return
        self.waiting.append((index, self._clock.monotonic() + MAX_WAIT, answer, give_up))
        if self._timer is None:
            self._timer = self._timers.call_later(MAX_WAIT, self._expire)

    def applied(self, index: int) -> None:
        waiting = self.waiting
        while waiting and waiting[0][0] <= index:
            waiting.popleft()[2]()

    def clear(self) -> None:
        """Gives up on everything now."""
        waiting, self.waiting = self.waiting, deque()
        for _, _, _, give_up in waiting:
            give_up()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        self._timer = None
        now = self._clock.monotonic()
        overdue: list[Any] = []
        while self.waiting and self.waiting[0][1] <= now:
            overdue.append(self.waiting.popleft())
        if self.waiting:
            self._timer = self._timers.call_later(max(self.waiting[0][1] - now, 0.0), self._expire)
        for _, _, _, give_up in overdue:
            give_up()


COMMIT_METHOD = "stream.commit"
LAST_METHOD = "stream.last"
MAX_SECONDS = 2.5
"""Seconds that a request waits for a leader's word: longer than most elections."""
RETRY_SECONDS = 0.05
ASK_SECONDS = 2.0

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_Waiting = tuple[float, Call, Call, Call]
"""Deadline and the three calls of `ReadConfirmations.hold`."""


async def confirmed_commit(context: NodeContext, group: RaftGroup) -> int | None:
    """The leader's commit index, proven to be current after this call began; None when that cannot be had now."""
    return await _ask(context, group.leader, COMMIT_METHOD, group.gid)


async def confirmed_last(context: NodeContext, gid: int) -> int | None:
    """The last sequence of a stream as its leader, proven to lead, has it; None when that cannot be had now."""
    if context.leaders.get(gid) is None:
        await context.leaders.wait(gid, RETRY_SECONDS)
    return await _ask(context, context.leaders.get(gid), LAST_METHOD, gid)


async def _ask(context: NodeContext, leader: str | None, method: str, gid: int) -> int | None:
    if leader is None:
        return None
    try:
        (found,) = _U64.unpack(await context.mesh.call(leader, method, _U32.pack(gid), ASK_SECONDS))
    except (MeshError, struct.error):
        return None
    return int(found)


class ReadConfirmations:
    def __init__(
        self,
        clock: Clock,
        timers: Timers,
        ask: Callable[[], Awaitable[int | None]],
        reached: Callable[[], int],
    ) -> None:
        """`ask`: what must be here before an answer; None when nobody says. `reached`: how much is here."""
        self._clock = clock
        self._timers = timers
        self._ask = ask
        self._reached = reached
        self.waits = ReadWaits(clock, timers)
        self._coming: list[_Waiting] = []
        self._asked: list[_Waiting] = []
        """Those whom the question that is under way is for; who comes later needs a newer answer."""
        self._task: asyncio.Task[None] | None = None
        self._timer: TimerHandle | None = None

    def hold(self, answer: Call, give_up: Call, refuse: Call) -> None:
        """Calls `answer` once this replica has what was there by now, `give_up` when it does not get there soon,
        `refuse` when nobody has said for MAX_SECONDS what that is, or too many wait."""
        if len(self._coming) + len(self._asked) >= MAX_WAITING:
            refuse()
            return
        self._coming.append((self._clock.monotonic() + MAX_SECONDS, answer, give_up, refuse))
        if self._timer is None:
            self._timer = self._timers.call_later(MAX_SECONDS, self._expire)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def advanced(self) -> None:
        """More is here."""
        self.waits.applied(self._reached())

    def clear(self) -> None:
        """Refuses and gives up on everything now."""
        waiting = self._asked + self._coming
        self._asked, self._coming = [], []
        if self._task is not None:
            self._task.cancel()
            self._task = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for _, _, _, refuse in waiting:
            refuse()
        self.waits.clear()

    async def _run(self) -> None:
        me = self._task
        while self._coming and self._task is me:
            self._asked, self._coming = self._coming, []
            wanted = await self._ask()
            asked, self._asked = self._asked, []
            if wanted is None:
                self._coming[:0] = asked
                await asyncio.sleep(RETRY_SECONDS)
            else:
                self._confirmed(asked, wanted)
        if self._task is me:
            self._task = None

    def _confirmed(self, asked: list[_Waiting], wanted: int) -> None:
        for _, answer, give_up, _ in asked:
            if wanted <= self._reached():
                answer()
            else:
                self.waits.hold(wanted, answer, give_up)

    def _expire(self) -> None:
        """Refuses requests that have waited for too long, also while a question is under way: nobody may answer it."""
        self._timer = None
        now = self._clock.monotonic()
        late = [one for one in self._asked + self._coming if one[0] <= now]
        self._asked = [one for one in self._asked if one[0] > now]
        self._coming = [one for one in self._coming if one[0] > now]
        if left := self._asked + self._coming:
            first = min(deadline for deadline, _, _, _ in left)
            self._timer = self._timers.call_later(first - now, self._expire)
        for _, _, _, refuse in late:
            refuse()
