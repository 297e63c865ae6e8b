"""The voters of the meta group among workers: at most five, on different machines. The others follow without a vote.

Each voter more makes every decision wait for more disks, and five survive the loss of any two machines. Two workers of
one machine fail together, so a second vote there would protect from nothing. While voters are away for long, workers
that follow take their places one for one, so that a large cluster survives more losses than its voters alone would.
Nodes that are no workers all vote, and keep their votes while they are away: they would vote again once they are back,
beside those that took their places.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final

from jetcluster.mesh.core import MeshCore
from jetcluster.meta.machine import MetaMachine
from jetcluster.model.machines import machine_of
from jetcluster.raft.api import MembershipError, NotLeaderError, RaftGroup

MAX_VOTERS: Final = 5
REPLACE_SECONDS: Final = 10.0
"""Time that a voter must be away before a member that follows takes its place: a restart takes less."""

MachineOf = Callable[[str], str]
"""Returns the machine of a node by its peer id: the id itself for a node that is no worker."""


def has_place(peer: str, voters: Collection[str], machine: MachineOf) -> bool:
    """True when `peer` may vote beside `voters`."""
    if machine(peer) == peer:
        return True
    return len(voters) < MAX_VOTERS and machine(peer) not in {machine(voter) for voter in voters}


def replaced(
    voters: Sequence[str], away: Collection[str], followers: Sequence[str], machine: MachineOf
) -> tuple[str, ...] | None:
    """Returns the voters with one of `followers` in the place of each that is `away`, as far as there are enough on
    other machines; None when nothing can be replaced."""
    stay = [voter for voter in voters if voter not in away]
    taken = {machine(voter) for voter in stay}
    places: list[str] = []
    for peer in followers:
        if machine(peer) not in taken and len(places) < len(voters) - len(stay):
            taken.add(machine(peer))
            places.append(peer)
    if not places:
        return None
    left = [voter for voter in voters if voter in away][len(places) :]
    return (*stay, *places, *left)


class MetaVoters:
    """The choice of voters on one node; it acts while the node leads the meta group."""

    def __init__(self, mesh: MeshCore, machine: MetaMachine) -> None:
        self._mesh, self._machine = mesh, machine

    def machine(self, peer: str) -> str:
        """Returns the node's machine, by its present tags or else by the recorded ones."""
        if peer == self._mesh.me.peer_id:
            return machine_of(self._mesh.me.tags, peer)
        link, node = self._mesh.peers.get(peer), self._machine.nodes.get(peer)
        return machine_of(link.tags if link is not None else node.tags if node is not None else (), peer)

    def may_vote(self, peer: str, voters: Collection[str]) -> bool:
        """True when `peer`, which follows, may become a voter beside `voters`."""
        node = self._machine.nodes.get(peer)
        stays = peer not in self._machine.removed and not (node is not None and node.draining)
        return stays and has_place(peer, voters, self.machine)

    def first(self, peers: Sequence[str]) -> tuple[str, ...]:
        """Returns the voters of a cluster that `peers`, each on another machine, found. All of them find the same."""
        workers = any(self.machine(peer) != peer for peer in peers)
        return tuple(sorted(peers))[: MAX_VOTERS if workers else len(peers)]

    def replace(self, group: RaftGroup, away: Callable[[str], float]) -> None:
        """Gives the votes of workers that are away to others. `away` returns for how many seconds a peer is away, 0 for
        one that is connected."""
        config = group.members_at(group.last_index)
        gone = [peer for peer in config.voters if self.machine(peer) != peer and away(peer) >= REPLACE_SECONDS]
        if not gone:
            return
        followers = [peer.peer for peer in group.status().peers if peer.caught_up and not away(peer.peer)]
        free = [peer for peer in followers if self.machine(peer) != peer and self.may_vote(peer, ())]
        voters = replaced(config.voters, gone, free, self.machine)
        if voters is None:
            return
        try:
            group.change_voters(voters)
        except (MembershipError, NotLeaderError):
            return  # another change is under way, or there is no majority: the next round looks again
