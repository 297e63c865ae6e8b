"""Reads that wait until this replica has applied the commit index that it knows, or the leader's.

A leader sends its followers the commit index before it acks, on the same ordered link. So when a client that was acked
through this node reads here, the node already knows that index, though its own fsync of the entry may be in progress.
Waiting for it (a millisecond) gives every connection read-your-writes and monotonic reads without asking the leader.
nats-server's followers answer with the state before the write.

This holds whoever leads now: an index that any leader reported as committed stays committed, also after this replica
has left that term, campaigns, has just taken over, or cannot take the leader's entries (`Receiver.hear`,
`RaftGroup.told_index`). No client of this node can have been acked more. So a replica without a known leader answers
once it has applied that index; until then its readers wait, and after MAX_WAIT_SECONDS another replica is asked. A
replica joins the group only after its leader confirmed the commit index, or when it leads (`Membership`): what it knew
before a restart is forgotten.

Two kinds of replicas may know less than the client was acked. They ask a leader first, once for all waiting requests,
and a majority confirms that it leads. This costs a round trip, which a read on a node with a replica does not pay.

- A replica on another node than the client's, whose link to the leader may be slower, asks the stream's leader for the
  commit index (`stream.commit`). Clients whose node has no current replica meet such replicas.
- A mirror that answers for its upstream in the same cluster asks the upstream's leader for its last sequence
  (`stream.last`). While the upstream has no leader it answers only requests for a message by sequence that it has:
  later messages never change that answer.
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
    from jetcluster.replica.services import Network

MAX_WAITING = 8192
MAX_WAIT_SECONDS = 0.25
"""After this time another replica is asked: this one's disk does not keep up."""

Call = Callable[[], None]


class ReadWaits:
    """Reads that wait for an index."""

    def __init__(self, clock: Clock, timers: Timers) -> None:
        self._clock = clock
        self._timers = timers
        self.waiting: deque[tuple[int, float, Call, Call]] = deque()
        self._timer: TimerHandle | None = None

    def hold(self, index: int, answer: Call, give_up: Call) -> None:
        """Call `answer` once `applied` has reached `index`, or `give_up` if that takes too long or too many reads wait.
        Indexes must not go down between calls."""
        if len(self.waiting) >= MAX_WAITING:
            give_up()
            return
        self.waiting.append((index, self._clock.monotonic() + MAX_WAIT_SECONDS, answer, give_up))
        if self._timer is None:
            self._timer = self._timers.call_later(MAX_WAIT_SECONDS, self._expire)

    def applied(self, index: int) -> None:
        waiting = self.waiting
        while waiting and waiting[0][0] <= index:
            waiting.popleft()[2]()

    def clear(self) -> None:
        """Give up on all reads now."""
        for _ in range(len(self.waiting)):
            self.waiting.popleft()[3]()
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
"""Longest wait of a request for a leader's answer: longer than most elections."""
RETRY_SECONDS = 0.05
ASK_SECONDS = 2.0

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_Waiting = tuple[float, Call, Call, Call]
"""Deadline and the three calls of `ReadConfirmations.hold`."""


async def confirmed_commit(network: Network, group: RaftGroup) -> int | None:
    """The leader's commit index, proven to be current after this call began; None when no leader can prove it now."""
    return await _ask(network, group.leader, COMMIT_METHOD, group.gid)


async def confirmed_last(network: Network, gid: int) -> int | None:
    """The last sequence of a stream at its proven leader; None when no leader can prove it now."""
    if network.leaders.get(gid) is None:
        await network.leaders.wait(gid, RETRY_SECONDS)
    return await _ask(network, network.leaders.get(gid), LAST_METHOD, gid)


async def _ask(network: Network, leader: str | None, method: str, gid: int) -> int | None:
    if leader is None:
        return None
    try:
        (found,) = _U64.unpack(await network.mesh.call(leader, method, _U32.pack(gid), ASK_SECONDS))
    except (MeshError, struct.error):
        return None
    return int(found)


class ReadConfirmations:
    """Reads that wait for a leader's confirmation."""

    def __init__(
        self, clock: Clock, timers: Timers, ask: Callable[[], Awaitable[int | None]], reached: Callable[[], int]
    ) -> None:
        """`ask` returns the index that this replica must reach before it answers, None when no leader says; `reached`
        returns the index that it has reached."""
        self._clock = clock
        self._timers = timers
        self._ask = ask
        self._reached = reached
        self.waits = ReadWaits(clock, timers)
        self._coming: list[_Waiting] = []
        self._asked: list[_Waiting] = []
        """The reads for which the question in progress was asked; later reads need a newer answer."""
        self._task: asyncio.Task[None] | None = None
        self._timer: TimerHandle | None = None

    def hold(self, answer: Call, give_up: Call, refuse: Call) -> None:
        """Call `answer` once this replica has all that is committed by now, `give_up` when that takes too long, or
        `refuse` when no leader has answered for MAX_SECONDS or too many reads wait."""
        if len(self._coming) + len(self._asked) >= MAX_WAITING:
            refuse()
            return
        self._coming.append((self._clock.monotonic() + MAX_SECONDS, answer, give_up, refuse))
        if self._timer is None:
            self._timer = self._timers.call_later(MAX_SECONDS, self._expire)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def advanced(self) -> None:
        """Note that the replica has advanced."""
        self.waits.applied(self._reached())

    def clear(self) -> None:
        """Refuse or give up on all reads now."""
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
        """Refuse reads that have waited too long, also while a question is in progress: it may never be answered."""
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
