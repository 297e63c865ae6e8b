"""The members of the meta group, after a node lost its store.

A node without its store comes back under a new peer id (mesh/identity.py). The old id will never answer again, but
it counts: two such ids of three and no majority is left. So a node that comes under the name of a member that is gone
takes that member's place, by the steps of `replica/members.py`.
"""

from __future__ import annotations

from jetcluster.cluster.meta_replica import MetaReplica
from jetcluster.cluster.meta_service import MetaService
from jetcluster.mesh.api import NodeInfo
from jetcluster.raft.api import MembershipError
from jetcluster.replica.context import NodeContext
from jetcluster.replica.members import learners, may_go

MAX_NAMES = 1024
TAKEN_AFTER = 5.0
"""Seconds that a member must have been away before another node of its name takes its place: it may just restart, and
what it alone has would be lost with its place."""
REMOVED = "this server was removed from the cluster; it can come back with an empty store"


class MetaMembers:
    """Used by the meta leader; every node remembers names, because it may lead one day."""

    def __init__(self, context: NodeContext, meta: MetaReplica, service: MetaService) -> None:
        self._context = context
        self._meta = meta
        self._service = service
        self._names: dict[str, str] = {}
        """Peer id -> name, of all that were ever connected: also of a member that went before it was registered."""
        self._started = context.clock.monotonic()
        self._lost: dict[str, float] = {}
        """Peer id -> when it went."""

    def seen(self, info: NodeInfo) -> None:
        if len(self._names) >= MAX_NAMES:
            self._names.pop(next(iter(self._names)))
        self._names[info.peer_id] = info.name
        self._lost.pop(info.peer_id, None)

    def lost(self, info: NodeInfo) -> None:
        if len(self._lost) >= MAX_NAMES:
            self._lost.pop(next(iter(self._lost)))
        self._lost[info.peer_id] = self._context.clock.monotonic()

    def admit(self, peer: str) -> None:
        """`peer` asks to be a member; it asks again until it is one. Raises RaftError."""
        group = self._meta.group
        if group is None or not self._meta.leading or peer in group.peers:
            return
        if peer in self._meta.machine.removed:
            raise MembershipError(REMOVED)
        if peer in self._context.mesh.peers and not self._context.mesh.peers[peer].jetstream:
            raise MembershipError("a server without JetStream is no member")
        learning = learners(group)
        if peer in learning:
            return
        name = self._context.mesh.peers[peer].name if peer in self._context.mesh.peers else ""
        for old in (*learning, *group.peers):
            # One without a name was lost before anybody led. It may be the one whose place this is; with both the group
            # would count more servers than there are. Should it come back it asks, too.
            if old != peer and self._name(old) in {name, None} and not self._online(old):
                away = self._context.clock.monotonic() - self._lost.get(old, self._started)
                if away >= TAKEN_AFTER and (old in learning or may_go(group, old)):
                    self._context.log.warning("a node is back without its store", node=name, old=old, new=peer)
                    group.remove_peer(old)
                return
        group.add_peer(peer)

    async def replace_lost(self) -> None:
        """Gives the places of lost peer ids in streams, and in the list of nodes, to their successors. Raises ApiError,
        RaftError, OutcomeUnknownError."""
        group = self._meta.group
        nodes = self._meta.machine.nodes
        for old, node in list(nodes.items()):
            if group is None or self._online(old) or old in group.peers:
                continue
            new = next((p for p, info in self._context.mesh.peers.items() if info.name == node.name), None)
            if new is None and self._context.name == node.name:
                new = self._context.me
            if new is not None and new in group.peers and new in nodes:
                request = self._context.rng.token(8).hex()
                result = await self._service.handle("node_replace", {"request": request, "peer": old, "by": new})
                self._context.log.info("a lost node is replaced", node=node.name, old=old, new=new, **result)

    def _name(self, peer: str) -> str | None:
        node = self._meta.machine.nodes.get(peer)
        return node.name if node is not None else self._names.get(peer)

    def _online(self, peer: str) -> bool:
        return peer == self._context.me or peer in self._context.mesh.peers
