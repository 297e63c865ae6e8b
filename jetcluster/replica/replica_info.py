"""A stream's replicas as its leader sees them, and the `cluster` objects of STREAM.INFO and CONSUMER.INFO.

A consumer's leader is its owner, and its group is the stream's. A consumer created with fewer replicas shows that
number, although every replica of the stream holds its state: clients compare the number with their configuration.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jetcluster.consumer.state.state import ConsumerState
from jetcluster.meta.state import MoveOrigin
from jetcluster.model import advisory as events
from jetcluster.model.cluster_info import DesiredOrigin, ReplicaInfo, cluster_wire, desired_wire, replica_wire
from jetcluster.raft.api import GroupStatus, PeerStatus
from jetcluster.replica.replica_state import ReplicaState, tell_both

ACTIVE_SECONDS = 10.0
"""A replica that was heard within this time, and lacks nothing, is current."""


class ReplicaInfos:
    """The replicas of one stream, as this node sees them."""

    def __init__(self, replica: ReplicaState, system_account: str) -> None:
        self._replica = replica
        self._system_account = system_account
        self._network = replica.network
        self._machine = replica.known.machine
        self._clock = replica.runtime.clock

    def cluster_object(self) -> dict[str, Any]:
        desired = self._desired()
        return cluster_wire(
            name=self._network.cluster_name,
            leader=self._network.name,
            gid=self._replica.assignment.gid,
            replicas=max(len(self._before()), len(self._replica.assignment.peers) if desired else 0),
            memory=self._replica.machine.rules.memory,
            leader_since_ns=self._replica.leader_since_ns,
            traffic_account=self._system_account,
            others=self.others(),
            desired=desired,
        )

    def _before(self) -> tuple[str, ...]:
        """The voters, without those that a change under way brings."""
        config = self._replica.group.members_at(self._replica.group.last_index)
        return config.outgoing or config.voters

    def _origin(self) -> MoveOrigin | None:
        """The state that a cancelled change goes back to: while the stream is moved, its number of replicas changes, or
        one of them leaves a server. A stream that is given replicas in place of lost ones has none."""
        assignment, before = self._replica.assignment, self._before()
        if set(before) == set(assignment.peers):
            return None
        if assignment.origin is not None:
            return assignment.origin
        if not assignment.may_return_to(len(before)):
            return None
        since_ns = self._replica.placed_ns
        if assignment.scaled is not None and len(before) != len(assignment.peers):
            since_ns = self._replica.scaled_ns or assignment.scaled.since_ns
        return MoveOrigin(before, assignment.config.get("placement"), since_ns)

    def _desired(self) -> dict[str, Any] | None:
        """The target while `_origin` is known."""
        origin = self._origin()
        if origin is None:
            return None
        peers = self._replica.assignment.peers
        return self._target(peers, origin.since_ns, DesiredOrigin(len(origin.peers), origin.placement))

    def _target(self, peers: Sequence[str], since_ns: int, origin: DesiredOrigin | None) -> dict[str, Any]:
        named = [
            (
                self._machine.nodes[peer].name if peer in self._machine.nodes else "",
                peer,
                peer != self._network.me and peer not in self._network.mesh.peers,
            )
            for peer in peers
        ]
        catching_up = not set(peers) <= set(self._replica.group.peers)
        name = self._network.cluster_name
        return desired_wire(name=name, since_ns=since_ns, peers=named, origin=origin, catching_up=catching_up)

    def _desired_consumer(self, state: ConsumerState) -> dict[str, Any] | None:
        """The target of a consumer that the change of its stream's replicas concerns: it gets another number of them,
        its owner, or all that the stream has. What it goes back to is the stream's."""
        origin, peers = self._origin(), self._replica.assignment.peers
        if origin is None:
            return None
        before, after = (_shown(state, len(those)) for those in (self._before(), peers))
        if before == after < len(peers) and state.owner in peers:
            return None
        owner_first = sorted(peers, key=lambda peer: peer != state.owner)
        return self._target(owner_first[:after], origin.since_ns, None)

    def others(self) -> list[ReplicaInfo]:
        """All peers of the group except this node."""
        now = self._clock.monotonic()
        status = self._replica.group.status()
        seen = {peer.peer: peer for peer in status.peers}
        found = []
        voters = self._replica.group.peers
        for peer in dict.fromkeys((*voters, *self._replica.assignment.peers)):
            if peer == self._network.me:
                continue
            known, node = seen.get(peer), self._machine.nodes.get(peer)
            online = peer in self._network.mesh.peers
            lag = self._lag(status, known, online) if known is not None else 0
            idle = now - known.last_seen if known is not None and known.last_seen else None
            found.append(
                ReplicaInfo(
                    name=node.name if node is not None else f"Server name unknown at this time (peerID: {peer})",
                    peer=peer,
                    current=peer in voters and online and lag == 0 and idle is not None and idle < ACTIVE_SECONDS,
                    active_ns=max(int(idle * 1e9), 0) if idle is not None else 0,  # a heartbeat may have come just now
                    offline=not online,
                    lag=lag,
                    pending=peer not in voters,
                )
            )
        return found

    def _lag(self, status: GroupStatus, peer: PeerStatus, online: bool) -> int:
        """Log entries that the peer lacks, as far as is known; messages while it has to fetch the whole state."""
        missing = self._network.catchup.missing(status.gid, peer.peer)
        if missing is not None:
            return max(missing, 1)
        match = peer.match_index if online else peer.acked_index
        if match + 1 < status.first_index:
            return max(self._replica.store.messages, 1)
        return max(status.commit_index - match, 0)

    def own(self) -> ReplicaInfo:
        return ReplicaInfo(name=self._network.name, peer=self._network.me, current=True, active_ns=0)

    def consumer_cluster(
        self, state: ConsumerState, peers: list[ReplicaInfo], leader_since_ns: int = 0
    ) -> dict[str, Any] | None:
        """The `cluster` object as the stream's leader sees it; None on a single server. `peers`: `all`.
        `leader_since_ns`: when the owner began, 0 if unknown. The leader was seen just now: 0 means "never"."""
        if not self._network.cluster_name:
            return None
        desired = self._desired_consumer(state)
        replicas = _shown(state, len(self._before()))
        if desired is not None:
            replicas = max(replicas, len(desired["replicas"]))
        cluster = cluster_wire(
            name=self._network.cluster_name,
            leader=self._name_of(state.owner),
            gid=self._replica.assignment.gid,
            replicas=replicas,
            memory=self._replica.assignment.memory,
            leader_since_ns=leader_since_ns,
            traffic_account=self._system_account,
            others=[
                other._replace(active_ns=1) if other.peer == self._network.me else other
                for other in peers
                if other.peer != state.owner
            ][: replicas - 1],
            desired=desired,
        )
        if "raft_group" in cluster:
            cluster["raft_group"] = "C" + cluster["raft_group"][1:]
        return cluster

    def tell_elected(self, state: ConsumerState) -> None:
        """Send the advisory that this node owns the consumer now, to the stream's account and, with that account's
        name, to the system account. An owner in a group of one sends none."""
        if len(self._replica.group.peers) < 2:
            return
        event = events.consumer_leader_elected(self._replica.assignment.name, state.name, self._network.name)
        tell_both(self._replica, event, replicas=lambda: [replica_wire(info) for info in self.all()])

    def all(self) -> list[ReplicaInfo]:
        return [self.own(), *self.others()] if self._network.cluster_name else []

    def _name_of(self, peer: str) -> str:
        if peer == self._network.me:
            return self._network.name
        node = self._machine.nodes.get(peer)
        return node.name if node is not None else f"Server name unknown at this time (peerID: {peer})"


def _shown(state: ConsumerState, replicas: int) -> int:
    """Returns the number that a consumer shows in a stream of so many replicas."""
    return min(int(state.rules.config.get("num_replicas") or 0) or replicas, replicas)
