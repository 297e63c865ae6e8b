"""Reads that are answered once this replica has what was there when they came.

What a client was told is stored came over the link between its own node and the leader. The replica on that node had
heard of it before (`read_waits`). Two kinds of replicas may not have, and ask a leader first, once for all requests
that wait; a majority confirms that it leads. This costs a round trip; a read on a node with a replica of its own does
not pay it.

- A replica on another node than the client's: its own link to the leader may be slower. For a client whose node has no
  replica, or none that is current, the stream's leader is asked where the log stands (`stream.commit`).
- A mirror that answers for its upstream in the same cluster asks the upstream's leader for its last sequence
  (`stream.last`).
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from jetcluster.clock import Clock, Timers
from jetcluster.cluster.mesh_api import MeshError
from jetcluster.cluster.read_waits import MAX_WAITING, Call, ReadWaits

if TYPE_CHECKING:
    from jetcluster.cluster.context import NodeContext
    from jetcluster.raft.api import RaftGroup

COMMIT_METHOD = "stream.commit"
LAST_METHOD = "stream.last"
MAX_SECONDS = 2.5
"""How long a request waits for a leader: longer than most elections."""
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
        *,
        answers_anyway: bool = False,
    ) -> None:
        """`ask`: what must be here before an answer; None when nobody says. `reached`: how much is here.
        `answers_anyway`: where nobody has said for MAX_SECONDS, what is here is answered, until somebody says again;
        without it requests are refused."""
        self._clock = clock
        self._ask = ask
        self._reached = reached
        self._anyway = answers_anyway
        self._unasked = False
        """Nobody says, and has not for long: nothing is waited for."""
        self._waits = ReadWaits(clock, timers)
        self._coming: list[_Waiting] = []
        self._asked: list[_Waiting] = []
        """Those whom the question that is under way is for; who comes later needs a newer answer."""
        self._task: asyncio.Task[None] | None = None

    def hold(self, answer: Call, give_up: Call, refuse: Call) -> None:
        """Calls `answer` once this replica has what was there by now, `give_up` when it does not get there soon,
        `refuse` when nobody says what that is, or too many wait."""
        if self._unasked:
            answer()
            return
        if len(self._coming) + len(self._asked) >= MAX_WAITING:
            refuse()
            return
        self._coming.append((self._clock.monotonic() + MAX_SECONDS, answer, give_up, refuse))
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def advanced(self) -> None:
        """More is here."""
        if len(self._waits):
            self._waits.applied(self._reached())

    def clear(self) -> None:
        """Refuses and gives up on everything now."""
        waiting = self._asked + self._coming
        self._asked, self._coming = [], []
        if self._task is not None:
            self._task.cancel()
            self._task = None
        self._unasked = False
        for _, _, _, refuse in waiting:
            refuse()
        self._waits.clear()

    async def _run(self) -> None:
        me = self._task
        while (self._coming or self._unasked) and self._task is me:
            self._asked, self._coming = self._coming, []
            wanted = await self._ask()
            asked, self._asked = self._asked, []
            if wanted is None:
                self._coming[:0] = self._in_time(asked)
                await asyncio.sleep(RETRY_SECONDS)
            else:
                self._unasked = False
                self._confirmed(asked, wanted)
        if self._task is me:
            self._task = None

    def _confirmed(self, asked: list[_Waiting], wanted: int) -> None:
        for _, answer, give_up, _ in asked:
            if wanted <= self._reached():
                answer()
            else:
                self._waits.hold(wanted, answer, give_up)

    def _in_time(self, asked: list[_Waiting]) -> list[_Waiting]:
        """The others are refused, or answered with what is here: then those that are in time are, too."""
        now = self._clock.monotonic()
        if self._anyway and any(deadline <= now for deadline, _, _, _ in asked):
            self._unasked = True
            for _, answer, _, _ in asked:
                answer()
            return []
        for deadline, _, _, refuse in asked:
            if deadline <= now:
                refuse()
        return [one for one in asked if one[0] > now]
