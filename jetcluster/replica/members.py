"""Keeping a stream's members as they are assigned, and its consumers with owners that are there.

A change of voters is one step, through a joint configuration (`raft.core.changes`): a stream of three is never one of
four or two on its way, nor one of one a stream of two, so that a server that is lost meanwhile stops nothing that it
would not have stopped before, or will after. New peers learn first. When all have caught up the assigned ones become
the voters. Until then a peer that is there takes the place of one that is gone, one for one. Each step is tried again
by the next tick.

The leader balances the stream's consumers too: it looks which owners are there, and moves what has to move.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from jetcluster.consumer.owners import ConsumerOwners, encode_moves
from jetcluster.raft.api import MembershipError, NotLeaderError, PeerStatus, RaftGroup
from jetcluster.raft.membership import Config, is_quorum
from jetcluster.replica.context import NodeContext
from jetcluster.replica.replica_state import ReplicaState

CAUGHT_UP = 256
"""Log entries that a voter may lack and still count as one that carries the group."""


def may_go(group: RaftGroup, peer: str) -> bool:
    """True when the group, without voter `peer`, is carried by a majority that is connected and caught up."""
    rest, carried = carried_without(group, peer)
    return is_quorum(tuple(rest), carried)


def carried_without(group: RaftGroup, peer: str) -> tuple[list[str], list[str]]:
    """The voters without `peer`, and those of them that are heard and caught up: while voters change, of the old and of
    the new ones those that lack more. Only its leader knows them all. A link to a machine that is gone lasts for
    seconds: a group that shrank to two of which one is gone is led no more."""
    config, away = group.members_at(group.last_index), _away(group)
    rests = [[p for p in voters if p != peer] for voters in (config.voters, config.outgoing) if voters]
    found = [(rest, [p for p in rest if p not in away]) for rest in rests]
    return min(found, key=lambda part: 2 * len(part[1]) - len(part[0]))


def _away(group: RaftGroup) -> set[str]:
    status = group.status()
    return {p.peer for p in status.peers if not (p.connected and not p.silent and _carries(p, status.commit_index))}


def _carries(peer: PeerStatus, commit_index: int) -> bool:
    return not peer.recovering and peer.match_index > 0 and peer.match_index + CAUGHT_UP >= commit_index


def may_retire(me: str, answer: Mapping[str, Any], assigned: tuple[str, ...], last_index: int) -> bool:
    """May replica `me`, whose log ends at `last_index`, be deleted, by the leader's answer to "members"
    (`StreamRequests`)? Neither by what is committed nor by what is in force it is a member: who was just taken in again
    may be a voter in the next moment. And what its log says is decided, which may be that it is taken in."""
    decided = answer["commit"] >= last_index and not answer["outgoing"]
    return decided and set(assigned) <= set(answer["voters"]) and me not in answer["members"]


def learners(group: RaftGroup) -> list[str]:
    return [p.peer for p in group.status().peers if not p.voter]


def follow_assignment(context: NodeContext, group: RaftGroup, wanted: tuple[str, ...]) -> None:
    """One step of a stream's leader towards the assigned peers; nothing where they are reached, or while the last step
    is not committed."""
    config = group.members_at(group.last_index)
    if config.outgoing or (set(config.voters) == set(wanted) and not config.learners):
        return
    try:
        _step(group, wanted, {context.me, *context.mesh.peers}, config)
    except (MembershipError, NotLeaderError):
        return  # the change before is under way, or the leadership is: the next tick looks again


def _step(group: RaftGroup, wanted: tuple[str, ...], online: set[str], config: Config) -> None:
    voters = config.voters
    for peer in config.learners:
        if peer not in wanted:
            group.remove_peer(peer)
            return
    missing = [peer for peer in wanted if peer not in voters]
    for peer in missing:
        if peer in online and peer not in config.learners:
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
