"""For judges of Raft: the groups of a server that runs, and what a majority is."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from testkit.sim.machine import Machine


def raft_of(machine: Machine) -> Any:
    """`jetcluster.raft.node.RaftNode` of what runs there, once it has read its journal."""
    node = machine.node
    return node.jetstream._raft if node is not None and node.jetstream is not None else None


def machine_of(machines: Iterable[Machine], log: Any) -> Machine | None:
    """The one that has this log of a group; None for a log of a process that has ended."""
    for machine in machines:
        raft = raft_of(machine)
        group = None if raft is None else raft.groups.get(log.gid)
        if group is not None and group.log is log:
            return machine
    return None


def quorum(config: Any, of: set[str]) -> bool:
    """True for a majority of the voters, of both sets in a joint configuration. Counted here once more, as the
    product's own count is what is judged."""
    return all(2 * len(of.intersection(part)) > len(part) for part in (config.voters, config.outgoing) if part)
