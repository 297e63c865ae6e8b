"""Choice of a group's next leader for a LEADER.STEPDOWN with a `placement` (checked against 2.15.2)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from jetcluster.errors import NO_SUITABLE_PEERS, ApiError, by_code
from jetcluster.meta.placement import Candidate, fits
from jetcluster.meta.state import Node
from jetcluster.raft.api import RaftGroup
from jetcluster.replica.services import Network

LOOK_SECONDS = 0.01
MAX_LOOKS = 200
"""Together two seconds: a transfer takes one round trip."""


async def hand_over(
    network: Network, nodes: Mapping[str, Node], group: RaftGroup, gid: int, placement: Mapping[str, Any]
) -> None:
    """Transfers the leadership of `group`; returns once another node leads, or after two seconds. Raises ApiError."""
    voters = group.peers
    if voters == (network.me,):
        return  # no other voter exists, which is a success
    wanted = successors(voters, network.me, nodes, placement, network.cluster_name)
    connected = {p.peer: p.match_index for p in group.status().peers if p.connected}
    ranked = sorted((peer for peer in wanted if peer in connected), key=connected.__getitem__, reverse=True)
    if not any(group.transfer(peer) for peer in ranked):
        if ranked and not any(map(network.raft.peers.is_well, ranked)):
            raise _refused("no replacement peer is well")
        raise nobody()
    for _ in range(MAX_LOOKS):
        if network.leaders.get(gid) not in {None, network.me}:
            return
        await asyncio.sleep(LOOK_SECONDS)


def successors(
    voters: Sequence[str], me: str, nodes: Mapping[str, Node], placement: Mapping[str, Any], cluster: str
) -> list[str]:
    """Returns the voters besides the leader `me` that the placement allows; `preferred` wins. Raises ApiError 10005."""
    others = [peer for peer in voters if peer != me]
    preferred = placement.get("preferred") or ""
    if preferred:
        found = [peer for peer in voters if peer in nodes and nodes[peer].name == preferred]
        if not found:
            raise _refused(f'preferred server "{preferred}" not known')
        if found == [me]:
            raise _refused(f'preferred server "{preferred}" is already leader')
        return found
    if placement.get("cluster") not in {None, "", cluster}:
        raise nobody()
    allowed = [peer for peer in others if peer in nodes and fits(_candidate(nodes[peer]), placement)]
    if placement.get("tags") and not allowed:
        raise nobody()
    return allowed if placement.get("tags") else others


def nobody() -> ApiError:
    return _refused("no replacement peer connected")


def _candidate(node: Node) -> Candidate:
    return Candidate(node.peer, node.tags)


def _refused(text: str) -> ApiError:
    return by_code(NO_SUITABLE_PEERS, err=text)
