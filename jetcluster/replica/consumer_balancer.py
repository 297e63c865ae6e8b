"""The balancing of a stream's consumers by its leader: it looks which owners are there, and moves what has to move."""

from __future__ import annotations

from collections.abc import Callable

from jetcluster.consumer.owners import ConsumerOwners, encode_moves
from jetcluster.replica.members import CAUGHT_UP
from jetcluster.replica.replica_state import ReplicaState

SILENT = 1.0
"""Seconds without a sign of a node after which its consumers go elsewhere."""
REPEAT = 0.2
"""Seconds until moves that were proposed, and are not applied, are proposed again; twice does no harm."""


class ConsumerBalancer:
    """One per replica; does something on the leader only. `propose` puts a command into the log; False: not now."""

    def __init__(self, replica: ReplicaState, policy: ConsumerOwners, propose: Callable[[bytes], bool]) -> None:
        self._context = replica.context
        self._replica = replica
        self._table = replica.table
        self._propose = propose
        self._policy = policy
        self._again_at = 0.0

    def able_peers(self) -> list[str]:
        """Voters that are there and lack little: they could serve a consumer at once. The leader's view."""
        status = self._replica.group.status()
        lag = {peer.peer: status.commit_index - peer.match_index for peer in status.peers}
        return [
            peer
            for peer in self.present()
            if (self._replica.sound if peer == self._context.me else lag.get(peer, CAUGHT_UP) < CAUGHT_UP)
        ]

    def move(self) -> None:
        """If this replica leads: proposes new owners for consumers whose owner is gone or leaves."""
        replica = self._replica
        if not replica.leading or not self._table.count:
            return
        present = self.present()
        now = self._context.clock.monotonic()
        if not self._policy.must_move(present) or now < self._again_at:
            return
        moves = self._policy.moves(self._table.by_cid.values(), present, self.able_peers())
        if moves and self._propose(encode_moves(self._context.clock.time_ns(), moves)):
            self._again_at = now + REPEAT

    @property
    def wanted(self) -> bool:
        """This replica leads, and a consumer has no owner that is there and wants to stay."""
        return self._replica.leading and bool(self._table.count) and self._policy.must_move(self.present())

    def moved(self) -> None:
        """A command of ours was applied: the next one may follow at once."""
        self._again_at = 0.0

    def present(self) -> list[str]:
        """Voters with a place that are heard."""
        context, replica = self._context, self._replica
        now = context.clock.monotonic()
        voters = [peer for peer in replica.group.peers if peer in replica.assignment.peers] or replica.group.peers
        return [
            peer
            for peer in voters
            if peer == context.me or (peer in context.mesh.peers and now - context.raft.peers.last_seen(peer) < SILENT)
        ]
