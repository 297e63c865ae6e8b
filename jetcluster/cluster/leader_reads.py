"""`LeaderReads`: answers of a leader to nodes that read elsewhere and wait until they have what it has."""

from __future__ import annotations

import struct
from collections.abc import Mapping

from jetcluster.cluster.meta_replica import MetaReplica
from jetcluster.mesh.api import MeshError
from jetcluster.mesh.core import MeshCore
from jetcluster.raft.api import META_GROUP, RaftError
from jetcluster.replica.proposals import OutcomeUnknownError
from jetcluster.replica.read_confirm import COMMIT_METHOD, LAST_METHOD
from jetcluster.replica.stream_replica import StreamReplica

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


class LeaderReads:
    """One per node; `replica.read_confirm` asks."""

    def __init__(self, mesh: MeshCore, meta: MetaReplica, replicas: Mapping[int, StreamReplica]) -> None:
        self._meta = meta
        self._replicas = replicas
        mesh.serve(COMMIT_METHOD, self._serve_commit)
        mesh.serve(LAST_METHOD, self._serve_last)

    async def _serve_commit(self, peer: str, payload: bytes) -> bytes:
        """The commit index of a group that this node leads, proven to be current."""
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
        """The last sequence of a stream that this node leads: nothing above it has been acknowledged."""
        (gid,) = _U32.unpack(payload)
        return _U64.pack((await self._confirmed_leader(gid)).store.last_seq)

    async def _confirmed_leader(self, gid: int) -> StreamReplica:
        """The replica, once it is proven to lead and has applied all that was committed before. Raises MeshError."""
        replica = self._replicas.get(gid)
        if replica is None or not await replica.confirm_leadership():
            raise MeshError(f"not the leader of group {gid}")
        return replica
