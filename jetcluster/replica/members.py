"""Membership of a stream's group: the leader brings it to the assigned peers, and keeps consumers on reachable owners.

Voters change in one step, through a joint configuration (`raft.core.changes`): on its way a stream of three is never
one of four or two, so the loss of a server meanwhile stops nothing that it would not have stopped before or after. New
peers learn first. When all have caught up, the assigned peers become the voters; until then a reachable peer replaces a
lost one, one for one. The next tick retries a step that failed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jetcluster.consumer.owners import ConsumerOwners, encode_moves
from jetcluster.consumer.state.table import ConsumerTable
from jetcluster.raft.api import MembershipError, NotLeaderError, PeerStatus, RaftGroup
from jetcluster.raft.membership import Config, is_quorum
from jetcluster.replica.replica_state import ReplicaState
from jetcluster.replica.services import Network
from jetcluster.stream.log.levels import RETENTION_GUARD_LEVEL
from jetcluster.stream.rules import StreamRules

MAX_ENTRIES_BEHIND = 256
"""Log entries that a voter may lack and still count as caught up."""


def may_go(group: RaftGroup, peer: str) -> bool:
    """True when the group without voter `peer` has a majority that is connected and caught up."""
    rest, carried = carried_without(group, peer)
    return is_quorum(tuple(rest), carried)


def carried_without(group: RaftGroup, peer: str) -> tuple[list[str], list[str]]:
    """The voters without `peer`, and those of them that are heard and caught up. While voters change, the worse of the
    old and the new set counts. Valid on the leader only, which hears all of them. A link alone proves nothing: it
    outlives its machine by seconds."""
    config, away = group.members_at(group.last_index), _away(group)
    rests = [[p for p in voters if p != peer] for voters in (config.voters, config.outgoing) if voters]
    found = [(rest, [p for p in rest if p not in away]) for rest in rests]
    return min(found, key=lambda part: 2 * len(part[1]) - len(part[0]))


def _away(group: RaftGroup) -> set[str]:
    status = group.status()
    return {p.peer for p in status.peers if not (p.connected and not p.silent and _carries(p, status.commit_index))}


def _carries(peer: PeerStatus, commit_index: int) -> bool:
    return not peer.recovering and peer.match_index > 0 and peer.match_index + MAX_ENTRIES_BEHIND >= commit_index


def may_retire(me: str, answer: Mapping[str, Any], assigned: tuple[str, ...], last_index: int) -> bool:
    """True when replica `me`, whose log ends at `last_index`, may be deleted, by the leader's answer to "members"
    (`StreamRequests`): it is a member neither of the committed configuration nor of the one in force (a peer that was
    just added again may become a voter at any moment), and all entries of its log, which may add it, are decided."""
    decided = answer["commit"] >= last_index and not answer["outgoing"]
    return decided and set(assigned) <= set(answer["voters"]) and me not in answer["members"]


def learners(group: RaftGroup) -> list[str]:
    return [p.peer for p in group.status().peers if not p.voter]


def follow_assignment(network: Network, group: RaftGroup, wanted: tuple[str, ...], level: int) -> None:
    """Take one step towards the assigned peers, as the stream's leader, if the last step is committed. A peer of a
    version below `level` (`level_of`) has to wait: it would stop there, or apply what it does not know otherwise."""
    config = group.members_at(group.last_index)
    if config.outgoing or (set(config.voters) == set(wanted) and not config.learners):
        return
    try:
        _step(network, group, wanted, config, level)
    except (MembershipError, NotLeaderError):
        return  # a change or a transfer of leadership is in progress: the next tick looks again


def level_of(table: ConsumerTable, rules: StreamRules) -> int:
    """Lowest level of a server that may become a member: it understands what the consumers have in the log, and heeds
    the stream's retention guard, which comes to it by a snapshot too, where no command of the log stops it."""
    return max(table.level, RETENTION_GUARD_LEVEL if rules.guard is not None else 0)


def _step(network: Network, group: RaftGroup, wanted: tuple[str, ...], config: Config, level: int) -> None:
    voters, online = config.voters, {network.me, *network.mesh.peers}
    for peer in config.learners:
        if peer not in wanted:
            group.remove_peer(peer)
            return
    missing = [peer for peer in wanted if peer not in voters]
    for peer in missing:
        if peer in online and peer not in config.learners and network.raft.levels.understands(peer, level):
            group.add_peer(peer)
            return
    able = {p.peer for p in group.status().peers if p.caught_up}
    come = [peer for peer in missing if peer in able]
    if come == missing:
        aim = wanted
    else:
        gone = [peer for peer in voters if peer not in wanted and peer not in online]
        places = dict(zip(gone, come, strict=False))
        aim = tuple(places.get(peer, peer) for peer in voters)
    away = _away(group).difference(come)
    if set(aim) != set(voters) and is_quorum(aim, [peer for peer in aim if peer not in away]):
        group.change_voters(aim)


SILENT_SECONDS = 1.0
"""Silence of a node after which its consumers move to others."""
REPEAT_SECONDS = 0.2
"""Delay before moves that are proposed, and not yet applied, are proposed again; applying one twice is harmless."""


REMEMBERED_SECONDS = 120.0
LEAST_REMEMBERED = 64
"""Moves of consumers that are remembered before old ones are looked for."""


class ConsumerBalancer:
    """Moves consumers to owners that are reachable. One per replica; it acts on the leader only."""

    def __init__(self, replica: ReplicaState, policy: ConsumerOwners) -> None:
        self._clock = replica.runtime.clock
        self._network = replica.network
        self._replica = replica
        self._table = replica.table
        self._policy = policy
        self._again_at = 0.0
        self._moved_at: dict[int, float] = {}
        """By consumer id, when it moved last (monotonic); those that moved long ago are forgotten."""
        self._forget_at = LEAST_REMEMBERED

    def able_peers(self) -> list[str]:
        """Voters that are heard and caught up, so that they could serve a consumer at once (the leader's view)."""
        status = self._replica.group.status()
        lag = {peer.peer: status.commit_index - peer.match_index for peer in status.peers}
        return [
            peer
            for peer in self.present()
            if (
                self._replica.sound
                if peer == self._network.me
                else lag.get(peer, MAX_ENTRIES_BEHIND) < MAX_ENTRIES_BEHIND
            )
        ]

    def move(self) -> None:
        """On the leader, propose new owners for consumers whose owner is gone or leaves."""
        replica = self._replica
        if not replica.leading or not self._table.count:
            return
        present = self.present()
        now = self._clock.monotonic()
        if not self._policy.must_move(present) or now < self._again_at:
            return
        moves = self._policy.moves(self._table.by_cid.values(), present, self.able_peers())
        if moves and self._replica.try_propose(encode_moves(self._clock.time_ns(), moves)):
            self._again_at = now + REPEAT_SECONDS

    @property
    def wanted(self) -> bool:
        """True on the leader when a consumer has no owner that is heard and stays."""
        return self._replica.leading and bool(self._table.count) and self._policy.must_move(self.present())

    def moved(self, cid: int) -> None:
        """Note that a move was applied, on any replica: a proposed one may be followed at once."""
        self._again_at = 0.0
        now = self._clock.monotonic()
        if len(self._moved_at) >= self._forget_at:
            self._moved_at = {cid: at for cid, at in self._moved_at.items() if now - at < REMEMBERED_SECONDS}
            self._forget_at = 2 * len(self._moved_at) + LEAST_REMEMBERED
        self._moved_at[cid] = now

    def rested(self, cid: int, seconds: float) -> bool:
        """True when the consumer has kept its owner for so long (REMEMBERED_SECONDS at most), as far as is known."""
        moved_at = self._moved_at.get(cid)
        return moved_at is None or self._clock.monotonic() - moved_at >= seconds

    def present(self) -> list[str]:
        """Assigned voters that are heard."""
        replica, network = self._replica, self._network
        now = self._clock.monotonic()
        voters = [peer for peer in replica.group.peers if peer in replica.assignment.peers] or replica.group.peers
        return [
            peer
            for peer in voters
            if peer == network.me
            or (peer in network.mesh.peers and now - network.raft.peers.last_seen(peer) < SILENT_SECONDS)
        ]
