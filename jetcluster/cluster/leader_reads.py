"""Reads of a leader's state: `LeaderReads` answers nodes that wait until they have what the leader has; `MetaCatchUp`
makes a starting node learn of all streams before it serves any."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from jetcluster.cluster.meta_replica import MetaReplica
from jetcluster.mesh.api import MeshError
from jetcluster.mesh.core import MeshCore
from jetcluster.protocol.bus import Bus
from jetcluster.raft.api import META_GROUP, RaftError
from jetcluster.replica.proposals import OutcomeUnknownError
from jetcluster.replica.reads.confirm import (
    COMMIT_METHOD,
    LAST_METHOD,
    ORIGIN_METHOD,
    TOLD_METHOD,
    answer_origin,
    answer_told,
)
from jetcluster.replica.services import Knowledge, Network, Runtime
from jetcluster.replica.stream_replica import StreamReplica
from jetcluster.stream.read.msg_get import last_message

if TYPE_CHECKING:
    from jetcluster.cluster.meta_replica import MetaReplica

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


class LeaderReads:
    """The answers to `replica.reads.confirm`: the leader's, and those of the clients' nodes. One per node."""

    def __init__(
        self,
        mesh: MeshCore,
        meta: MetaReplica,
        replicas: Mapping[int, StreamReplica],
        bus: Callable[[str], Bus],
    ) -> None:
        """`bus`: account name -> its bus."""
        self._meta = meta
        self._replicas = replicas
        self._bus = bus
        mesh.serve(COMMIT_METHOD, self._serve_commit)
        mesh.serve(LAST_METHOD, self._serve_last)
        mesh.serve(TOLD_METHOD, self._serve_told)
        mesh.serve(ORIGIN_METHOD, self._serve_origin)

    async def _serve_commit(self, peer: str, payload: bytes) -> bytes:
        """Returns the commit index of a group that this node leads, proven to be current."""
        (gid,) = _U32.unpack(payload)
        if gid == META_GROUP:
            try:
                await self._meta.barrier()
            except (RaftError, OutcomeUnknownError) as error:
                raise MeshError(str(error)) from error
            assert self._meta.group is not None
            return _U64.pack(self._meta.group.commit_index)
        return _U64.pack((await self._confirmed_leader(gid)).group.commit_index)

    async def _serve_last(self, peer: str, payload: bytes) -> bytes:
        """Returns the last sequence that has a message, of a stream that this node leads: a mirror that has all up to
        it lacks nothing that was acknowledged and is still there."""
        (gid,) = _U32.unpack(payload)
        return _U64.pack(last_message((await self._confirmed_leader(gid)).store))

    async def _serve_told(self, peer: str, payload: bytes) -> bytes:
        """Returns what clients of this node were told of a stream."""
        return answer_told(self._bus, payload)

    async def _serve_origin(self, peer: str, payload: bytes) -> bytes:
        """Returns what the origin of a mirror says of its last sequence, by the link of the mirror's leader."""
        (gid,) = _U32.unpack(payload)
        replica = self._replicas.get(gid)
        if replica is None:
            raise MeshError(f"no replica of group {gid}")
        return await answer_origin(replica.mirrors.links)

    async def _confirmed_leader(self, gid: int) -> StreamReplica:
        """Returns the replica, once it is proven to lead and has applied all earlier commits. Raises MeshError."""
        replica = self._replicas.get(gid)
        if replica is None or not await replica.may_read():
            raise MeshError(f"not the leader of group {gid}")
        return replica


RETRY_SECONDS: Final = 0.02
ASK_SECONDS: Final = 2.0
ASK_AGAIN_SECONDS: Final = 2.0
"""Time until a meta leader is asked again for the index to reach: an earlier answer may never be reached."""
POLL_SECONDS: Final = 0.005


class MetaCatchUp:
    """Calls `current` once this node has applied what the meta leader had committed when it was asked, unless the node
    knows by itself that it has (`Knowledge.current`). One per node with JetStream."""

    def __init__(
        self, runtime: Runtime, network: Network, known: Knowledge, meta: MetaReplica, current: Callable[[], None]
    ) -> None:
        self._runtime, self._network, self._known = runtime, network, known
        self._meta = meta
        self._current = current

    async def run(self) -> None:
        """Runs until the node is current. Without the wait, streams that were deleted while this node's last meta state
        was not flushed would take publishes again, and lose them."""
        commit: int | None = None
        again = 0.0
        while not self._known.current:
            if commit is not None and (group := self._meta.group) is not None and group.applied_index >= commit:
                self._current()
            elif commit is None or self._runtime.clock.monotonic() >= again:
                told = await self.ask()
                commit = commit if told is None else told
                again = self._runtime.clock.monotonic() + ASK_AGAIN_SECONDS
            else:
                await asyncio.sleep(POLL_SECONDS)

    async def ask(self) -> int | None:
        """Returns the meta group's commit index, from its leader; None, after a pause, when it is unavailable."""
        leader = self._network.leaders.get(META_GROUP)
        if leader is None or leader == self._network.me:
            await self._network.leaders.wait(META_GROUP, RETRY_SECONDS)
            return None
        try:
            reply = await self._network.mesh.call(leader, COMMIT_METHOD, _U32.pack(META_GROUP), ASK_SECONDS)
            (commit,) = _U64.unpack(reply)
        except (MeshError, struct.error):
            await asyncio.sleep(RETRY_SECONDS)
            return None
        return int(commit)
