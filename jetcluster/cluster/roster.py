"""Membership of the cluster where this node's own log of the meta group does not say it, and by which keys.

A node that was away may find a leader that joined meanwhile. Its log comes from that leader alone, so somebody else has
to say that this one may be heard: any member that this node does know names the meta group's members, and their keys,
whenever a link comes up or something changes (`joining`). What a stranger says of anybody counts for nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from jetcluster.cluster.bootstrap import Announcement
from jetcluster.ordered import OrderedSet
from jetcluster.raft.api import META_GROUP

if TYPE_CHECKING:
    from jetcluster.cluster.meta_replica import MetaReplica
    from jetcluster.mesh.api import NodeInfo
    from jetcluster.mesh.core import MeshCore
    from jetcluster.raft.node import RaftNode


class Roster:
    """One per node with JetStream."""

    def __init__(self, mesh: MeshCore, raft: RaftNode, meta: MetaReplica, on_member: Callable[[str], None]) -> None:
        """`on_member`: a peer that is linked, and was a stranger when its link came up, turns out to be a member."""
        self._mesh = mesh
        self._raft = raft
        self._meta = meta
        self._on_member = on_member
        self._told: dict[str, Announcement] = {}
        """By voter, what it said last."""
        self._strangers: OrderedSet[str] = OrderedSet()
        admission = raft.admission
        admission.vouched = self.vouched
        mesh.is_member = admission.is_member
        mesh.is_voter = admission.is_voter
        mesh.knows = admission.knows
        mesh.key_of = self.key_of
        mesh.on_peers(self._peer_up, self._peer_down)

    def vouched(self, peer: str) -> bool:
        """See `raft.admission`."""
        machine = self._meta.machine
        if peer in machine.removed:
            return False
        if any(peer in told.meta_peers for told in self._told.values()):
            return True
        if self._members():
            return False
        return peer in machine.nodes or not machine.nodes  # the journal has lost its configuration

    def key_of(self, peer: str) -> str:
        """The public key by which the cluster knows `peer`; "" when it knows none."""
        node = self._meta.machine.nodes.get(peer)
        if node is not None and node.key:
            return node.key
        for told in self._told.values():
            for named, key in told.keys:
                if named == peer:
                    return key
        return ""

    def keys(self) -> tuple[tuple[str, str], ...]:
        """All that this node can tell others."""
        return tuple((peer, node.key) for peer, node in sorted(self._meta.machine.nodes.items()) if node.key)

    def told(self, peer: str, announcement: Announcement) -> None:
        """`peer` says who votes in the meta group. Counts when `peer` does, by this node's own log."""
        log = self._raft.journal.groups.get(META_GROUP)
        voters = log.config.electorate if log is not None else ()
        for gone in [known for known in self._told if known not in voters]:
            del self._told[gone]
        if peer in voters:
            self._told[peer] = announcement
            self.look()
            if announcement.keys:
                self._mesh.check_keys()

    def look(self) -> None:
        """Strangers may have turned out to be members; a few times a second."""
        for peer in [peer for peer in self._strangers if self._raft.admission.is_member(peer)]:
            self._strangers.discard(peer)
            self._on_member(peer)

    def _members(self) -> frozenset[str]:
        """By this node's log."""
        log = self._raft.journal.groups.get(META_GROUP)
        return frozenset() if log is None else frozenset(log.config.members)

    def _peer_up(self, info: NodeInfo) -> None:
        if not self._raft.admission.is_member(info.peer_id):
            self._strangers.add(info.peer_id)

    def _peer_down(self, info: NodeInfo) -> None:
        self._strangers.discard(info.peer_id)
