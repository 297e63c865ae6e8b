"""Reads for clients of other nodes: answered once this replica has all that was committed when they came.

What a client was told is stored came over the link between its own node and the leader. The replica on that node had
heard of it before (`read_waits`). A replica on another node may not have: its own link to the leader may be slower. So
for a client whose node has no replica, or none that is current, a replica asks the leader first where the log stands
(`stream.commit`: a majority confirms it), once for all requests that wait. This costs a round trip; a read on a node
with a replica of its own does not pay it.
"""

from __future__ import annotations

import asyncio
import struct
from typing import TYPE_CHECKING

from jetcluster.cluster.mesh_api import MeshError
from jetcluster.cluster.read_waits import MAX_WAITING, Call, ReadWaits

if TYPE_CHECKING:
    from jetcluster.cluster.context import NodeContext
    from jetcluster.cluster.stream_replica import StreamReplica
    from jetcluster.raft.api import RaftGroup

COMMIT_METHOD = "stream.commit"
MAX_SECONDS = 2.5
"""How long a request waits for a leader: longer than most elections."""
RETRY_SECONDS = 0.05

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_Waiting = tuple[float, Call, Call, Call]
"""Deadline and the three calls of `ReadConfirmations.hold`."""


async def confirmed_commit(context: NodeContext, group: RaftGroup) -> int | None:
    """The leader's commit index, proven to be current after this call began; None when that cannot be had now."""
    leader = group.leader
    if leader is None:
        return None
    try:
        (commit,) = _U64.unpack(await context.mesh.call(leader, COMMIT_METHOD, _U32.pack(group.gid), 2.0))
    except (MeshError, struct.error):
        return None
    return int(commit)


class ReadConfirmations:
    def __init__(self, context: NodeContext, replica: StreamReplica) -> None:
        self._context = context
        self._replica = replica
        self._waits = ReadWaits(context.clock, context.timers)
        self._coming: list[_Waiting] = []
        self._asked: list[_Waiting] = []
        """Those whom the question that is under way is for; who comes later needs a newer answer."""
        self._task: asyncio.Task[None] | None = None

    def hold(self, answer: Call, give_up: Call, refuse: Call) -> None:
        """Calls `answer` once this replica has what was committed by now, `give_up` when it does not get there soon,
        `refuse` when nobody says where that is, or too many wait."""
        if len(self._coming) + len(self._asked) >= MAX_WAITING:
            refuse()
            return
        self._coming.append((self._context.clock.monotonic() + MAX_SECONDS, answer, give_up, refuse))
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def applied(self, index: int) -> None:
        if len(self._waits):
            self._waits.applied(index)

    def clear(self) -> None:
        """Refuses and gives up on everything now."""
        waiting = self._asked + self._coming
        self._asked, self._coming = [], []
        if self._task is not None:
            self._task.cancel()
            self._task = None
        for _, _, _, refuse in waiting:
            refuse()
        self._waits.clear()

    async def _run(self) -> None:
        me = self._task
        while self._coming and self._task is me:
            self._asked, self._coming = self._coming, []
            commit = await confirmed_commit(self._context, self._replica.group)
            asked, self._asked = self._asked, []
            if commit is None:
                self._coming[:0] = self._in_time(asked)
                await asyncio.sleep(RETRY_SECONDS)
            else:
                self._confirmed(asked, commit)
        if self._task is me:
            self._task = None

    def _confirmed(self, asked: list[_Waiting], commit: int) -> None:
        for _, answer, give_up, _ in asked:
            if commit <= self._replica.group.applied_index:
                answer()
            else:
                self._waits.hold(commit, answer, give_up)

    def _in_time(self, asked: list[_Waiting]) -> list[_Waiting]:
        """The others are refused."""
        now = self._context.clock.monotonic()
        for deadline, _, _, refuse in asked:
            if deadline <= now:
                refuse()
        return [one for one in asked if one[0] > now]
