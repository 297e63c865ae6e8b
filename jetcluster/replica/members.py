"""Keeping a stream's members as they are assigned.

All changes are Raft's single-server changes, one at a time, each tried again by the next tick; the order is always the
same. A peer that is gone is removed before its successor is added: while it is gone, the group needs the same peers
for a majority with it and without it, and the number of voters never exceeds what was asked for. A peer that is there
is removed last, when all that should be members are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jetcluster.raft.api import MembershipError, NotLeaderError, PeerStatus, RaftGroup
from jetcluster.replica.context import NodeContext

CAUGHT_UP = 256
"""Log entries that a voter may lack and still count as one that carries the group."""


def may_go(group: RaftGroup, peer: str) -> bool:
    """Is the group, without voter `peer`, carried by a majority that is connected and caught up?"""
    rest, carried = carried_without(group, peer)
    return 2 * len(carried) > len(rest)


def carried_without(group: RaftGroup, peer: str) -> tuple[list[str], list[str]]:
    """The voters without `peer`, and those of them that are heard and caught up. Only its leader knows them all. A link
    to a machine that is gone lasts for seconds: a group that shrank to two of which one is gone is led no more."""
    status = group.status()
    away = {p.peer for p in status.peers if not (p.connected and not p.silent and _carries(p, status.commit_index))}
    rest = [p for p in group.peers if p != peer]
    return rest, [p for p in rest if p not in away]


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
    voters, me = group.peers, context.me
    if set(voters) == set(wanted):
        return
    try:
        _step(context, group, voters, wanted, me)
    except (MembershipError, NotLeaderError):
        return  # the change before is under way, or the leadership is: the next tick looks again


def _step(context: NodeContext, group: RaftGroup, voters: tuple[str, ...], wanted: tuple[str, ...], me: str) -> None:
    online = {me, *context.mesh.peers}
    learning = learners(group)
    for peer in learning:
        if peer not in wanted:
            group.remove_peer(peer)
            return
    extra = [peer for peer in voters if peer not in wanted]
    for peer in extra:
        if peer not in online and may_go(group, peer):
            group.remove_peer(peer)
            return
    missing = [peer for peer in wanted if peer not in voters]
    for peer in missing:
        if peer in online and peer not in learning:
            group.add_peer(peer)
            return
    if missing:
        return
    for peer in extra:
        if peer != me and may_go(group, peer):
            group.remove_peer(peer)
            return
    if extra == [me]:
        group.transfer()
