"""The list of nodes, which the meta leader keeps: placement works from it."""

from __future__ import annotations

import asyncio

from jetcluster.cluster.administration import Administration
from jetcluster.cluster.cluster_id import ClusterId, founded
from jetcluster.cluster.meta_members import MetaMembers
from jetcluster.cluster.meta_replica import MetaReplica
from jetcluster.cluster.meta_service import MetaService
from jetcluster.errors import ApiError
from jetcluster.mesh.api import NodeInfo
from jetcluster.meta.state import Node
from jetcluster.raft.api import RaftError
from jetcluster.replica.advisories import tell_stream_action
from jetcluster.replica.context import NodeContext
from jetcluster.replica.proposals import OutcomeUnknownError

REGISTER_RETRY = 0.5


class NodeRegistry:
    def __init__(
        self,
        context: NodeContext,
        meta: MetaReplica,
        service: MetaService,
        members: MetaMembers,
        cluster_id: ClusterId,
        administration: Administration,
    ) -> None:
        self._context = context
        self._meta = meta
        self._service = service
        self._members = members
        self._cluster_id = cluster_id
        self._administration = administration
        self._registering = asyncio.Lock()

    async def keep(self, term: int) -> None:
        """Keeps the list up to date while this node leads the meta group. Ends with its term."""
        while self._meta.group is not None and self._meta.leading and self._meta.group.term == term:
            try:
                await self.register_missing()
                await self._members.replace_lost()
                await self._give_up_restores(term)
                await self._administration.tend()
            except (ApiError, RaftError, OutcomeUnknownError) as error:
                self._context.log.debug("a node is not registered yet", error=str(error))
            await asyncio.sleep(REGISTER_RETRY)

    async def register_missing(self) -> None:
        """Puts connected members of the meta group that are new, or say something new of themselves, into the list."""
        async with self._registering:
            if not self._meta.machine.cluster_id:
                await self._name_cluster()
            for info in (self._context.mesh.me, *self._context.mesh.peers.values()):
                known = self._meta.machine.nodes.get(info.peer_id)
                draining = known is not None and known.draining
                level, key = self._level(info.peer_id), self._key(info, known)
                now = Node(info.peer_id, info.name, tuple(info.tags), info.jetstream, draining, level, key)
                if known == now or info.peer_id in self._meta.machine.removed:
                    continue
                if self._meta.group is not None and info.peer_id in self._meta.group.peers:
                    await self._service.handle("node", {"request": self._request(), **now.to_dict()})

    def _level(self, peer: str) -> int:
        """As it says itself; before it has, what is known of it."""
        levels = self._context.raft.levels
        told = levels.told(peer)
        return levels.recorded(peer) if told is None else told

    def _key(self, info: NodeInfo, known: Node | None) -> str:
        """That with which it came first."""
        return known.key if known is not None and known.key else info.key

    async def _name_cluster(self) -> None:
        assert self._meta.group is not None
        cluster_id = self._cluster_id.value or founded(self._context.cluster_name, self._meta.group.peers)
        await self._service.handle("cluster", {"request": self._request(), "id": cluster_id})

    async def _give_up_restores(self, term: int) -> None:
        for gone in await self._service.give_up_restores(term, self._request):
            self._context.log.warning("a restore was not continued; the stream is deleted", stream=gone.name)
            tell_stream_action(self._context, gone, "delete")

    def _request(self) -> str:
        return self._context.rng.token(8).hex()
