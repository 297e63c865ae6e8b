"""The members of the meta group, and the list of nodes that its leader keeps for placement.

A node without its store comes back under a new peer id (mesh/identity.py). The old id will never answer again, but it
counts: with two such ids of three there is no majority. Therefore a node with the name of a member that is gone takes
that member's place, by the steps of `replica/members.py`.
"""

from __future__ import annotations

import asyncio

from jetcluster.cluster.administration import Administration
from jetcluster.cluster.cluster_id import ClusterId, founded
from jetcluster.cluster.meta_replica import MetaReplica
from jetcluster.cluster.meta_service import MetaService
from jetcluster.cluster.meta_voters import MetaVoters
from jetcluster.errors import ApiError
from jetcluster.mesh.api import NodeInfo
from jetcluster.meta.state import Node
from jetcluster.model.advisory import stream_action
from jetcluster.ordered import OrderedSet
from jetcluster.raft.api import MembershipError, RaftError, RaftGroup
from jetcluster.raft.membership import NARROW_MEMBERS
from jetcluster.replica.members import learners, may_go
from jetcluster.replica.proposals import OutcomeUnknownError
from jetcluster.replica.services import Events, Network, Runtime
from jetcluster.stream.log.levels import MANY_MEMBERS_LEVEL

MAX_NAMES = 1024
TAKEN_AFTER_SECONDS = 5.0
"""Time that a member must be away before another node of its name takes its place: it may just be restarting, and data
that it alone has would be lost with its place."""
REMOVED = "this server was removed from the cluster; it can come back with an empty store"


class MetaMembers:
    """Admission of members by the meta leader; every node remembers names, because it may lead later."""

    def __init__(
        self, runtime: Runtime, network: Network, meta: MetaReplica, service: MetaService, voters: MetaVoters
    ) -> None:
        self._runtime, self._network = runtime, network
        self._meta = meta
        self._service = service
        self.voters = voters
        self._names: dict[str, str] = {}
        """By peer id, the name of each node ever connected, also of a member that left before it was registered."""
        self._started = runtime.clock.monotonic()
        self._lost: dict[str, float] = {}
        """By peer id, when its link was lost (monotonic)."""
        self._waiting: OrderedSet[str] = OrderedSet()
        """Peers that asked to be admitted while another change was under way."""

    def seen(self, info: NodeInfo) -> None:
        if len(self._names) >= MAX_NAMES:
            self._names.pop(next(iter(self._names)))
        self._names[info.peer_id] = info.name
        self._lost.pop(info.peer_id, None)

    def lost(self, info: NodeInfo) -> None:
        if len(self._lost) >= MAX_NAMES:
            self._lost.pop(next(iter(self._lost)))
        self._lost[info.peer_id] = self._runtime.clock.monotonic()

    def asked(self, peer: str) -> None:
        """Admits `peer`, which asks until it is a member, now or after the changes before. Raises as `admit` does."""
        try:
            self.admit(peer)
        except MembershipError:
            if len(self._waiting) < MAX_NAMES:
                self._waiting.add(peer)
            raise

    def admit_waiting(self) -> None:
        """Admits the next peer that waits, once a change is over: hundreds may join at the same time."""
        group = self._meta.group
        while self._waiting and group is not None:
            peer = next(iter(self._waiting))
            self._waiting.discard(peer)
            try:
                self.admit(peer)
            except RaftError:
                continue  # it asks again
            if peer in group.members:
                return

    def admit(self, peer: str) -> None:
        """Adds `peer`, which asks until it is a member, or removes the lost one that it replaces. Raises RaftError."""
        group = self._meta.group
        if group is None or not self._meta.leading or peer in group.peers:
            return
        if peer in self._meta.machine.removed:
            if peer in group.members_at(group.commit_index).members:
                return  # until that is decided its vote may be needed, and whoever hears this gives the store up
            raise MembershipError(REMOVED)
        if peer in self._network.mesh.peers and not self._network.mesh.peers[peer].jetstream:
            raise MembershipError("a server without JetStream is no member")
        learning = learners(group)
        if peer in learning:
            return
        name = self._network.mesh.peers[peer].name if peer in self._network.mesh.peers else ""
        for old in (*learning, *group.peers):
            # A member without a known name was lost before any leader. It may be the one that this node replaces; with
            # both the group would count too many servers. Should it come back, it asks too.
            if old != peer and self._name(old) in {name, None} and not self._online(old):
                if self.away(old) >= TAKEN_AFTER_SECONDS and (old in learning or may_go(group, old)):
                    self._runtime.log.warning("a node is back without its store", node=name, old=old, new=peer)
                    group.remove_peer(old)
                return
        self._check_levels(group)
        group.add_peer(peer)

    def _check_levels(self, group: RaftGroup) -> None:
        """Raises MembershipError when a member might not read the configuration with one member more: it would stop."""
        config = group.members_at(group.last_index)
        many = len(config.members) >= NARROW_MEMBERS
        if many and self._network.raft.levels.of(config) < MANY_MEMBERS_LEVEL:
            raise MembershipError(f"a member may be of a version that knows no more than {NARROW_MEMBERS} members")

    def away(self, peer: str) -> float:
        """Returns for how many seconds `peer` has no link; 0 for one that is connected."""
        return 0.0 if self._online(peer) else self._runtime.clock.monotonic() - self._lost.get(peer, self._started)

    async def replace_lost(self) -> None:
        """Gives the places of lost peers to their successors, and the votes of those that are away to others. Raises
        ApiError, RaftError, OutcomeUnknownError."""
        group = self._meta.group
        if group is not None:
            self.voters.replace(group, self.away)
        nodes = self._meta.machine.nodes
        for old, node in list(nodes.items()):
            if group is None or self._online(old) or old in group.members:
                continue
            new = next((p for p, info in self._network.mesh.peers.items() if info.name == node.name), None)
            if new is None and self._network.name == node.name:
                new = self._network.me
            if new is not None and new in group.members and new in nodes:
                request = self._runtime.rng.token(8).hex()
                result = await self._service.handle("node_replace", {"request": request, "peer": old, "by": new})
                self._runtime.log.info("a lost node is replaced", node=node.name, old=old, new=new, **result)

    def _name(self, peer: str) -> str | None:
        node = self._meta.machine.nodes.get(peer)
        return node.name if node is not None else self._names.get(peer)

    def _online(self, peer: str) -> bool:
        return peer == self._network.me or peer in self._network.mesh.peers


REGISTER_SECONDS = 0.5


class NodeRegistry:
    """The meta leader's upkeep of the list of nodes, and of work that depends on it."""

    def __init__(
        self, runtime: Runtime, network: Network, events: Events, meta: MetaReplica, service: MetaService,
        members: MetaMembers, cluster_id: ClusterId, administration: Administration,
    ) -> None:  # fmt: skip
        self._events, self._runtime, self._network = events, runtime, network
        self._meta = meta
        self._service = service
        self._members = members
        self._cluster_id = cluster_id
        self._administration = administration
        self._registering = asyncio.Lock()
        self._compared: dict[str, tuple[NodeInfo, Node | None, int]] = {}
        """By peer id, what was equal at the last look: each creation of a stream looks at all nodes."""

    async def keep(self, term: int) -> None:
        """Keeps the list current while this node leads the meta group in `term`."""
        while self._meta.group is not None and self._meta.leading and self._meta.group.term == term:
            try:
                await self.register_missing()
                await self._members.replace_lost()
                await self._give_up_restores(term)
                await self._administration.tend()
            except (ApiError, RaftError, OutcomeUnknownError) as error:
                self._runtime.log.debug("a node is not registered yet", error=str(error))
            await asyncio.sleep(REGISTER_SECONDS)

    async def register_missing(self) -> None:
        """Registers connected members of the meta group that are new, or whose facts have changed."""
        async with self._registering:
            if not self._meta.machine.cluster_id:
                await self._name_cluster()
            for info in (self._network.mesh.me, *self._network.mesh.peers.values()):
                known, level = self._meta.machine.nodes.get(info.peer_id), self._network.raft.levels.known(info.peer_id)
                last = self._compared.get(info.peer_id)
                if last is not None and last[0] is info and last[1] is known and last[2] == level:
                    continue
                draining, key = known is not None and known.draining, self._key(info, known)
                now = Node(info.peer_id, info.name, tuple(info.tags), info.jetstream, draining, level, key)
                if known == now:
                    if len(self._compared) >= MAX_NAMES:
                        self._compared.clear()
                    self._compared[info.peer_id] = info, known, level
                    continue
                if info.peer_id in self._meta.machine.removed:
                    continue
                if self._follows(info.peer_id, known):
                    await self._service.handle("node", {"request": self._request(), **now.to_dict()})

    def _follows(self, peer: str, known: Node | None) -> bool:
        """Returns True for a voter, and for another member that is known already, or has caught up."""
        group = self._meta.group
        if group is None or peer not in group.members:
            return False
        if peer in group.peers or known is not None:
            return True
        return any(one.caught_up for one in group.status().peers if one.peer == peer)

    def _key(self, info: NodeInfo, known: Node | None) -> str:
        """Returns the key with which the node first came."""
        return known.key if known is not None and known.key else info.key

    async def _name_cluster(self) -> None:
        assert self._meta.group is not None
        cluster_id = self._cluster_id.value or founded(self._network.cluster_name, self._meta.group.peers)
        await self._service.handle("cluster", {"request": self._request(), "id": cluster_id})

    async def _give_up_restores(self, term: int) -> None:
        for gone in await self._service.give_up_restores(term, self._request):
            self._runtime.log.warning("a restore was not continued; the stream is deleted", stream=gone.name)
            self._events.tell(gone.account, stream_action(gone.name, "delete"))

    def _request(self) -> str:
        return self._runtime.rng.token(8).hex()
