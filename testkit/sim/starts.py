"""A server that starts finds a journal and a data store that meet: what the store lacks is in the journal, and it has
nothing that the journal lacks. Where they do not, the server fetches a state from others, and no client notices before
no other one has it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from testkit.sim import leases
from testkit.sim.machine import DATA, JOURNAL
from testkit.sim.rafts import raft_of

if TYPE_CHECKING:
    from testkit.sim.deployment import Deployment
    from testkit.sim.machine import Machine

POLL = 0.001
"""Seconds between two looks at groups that begin."""
BEGINS = 5.0
"""Seconds within which all groups of a journal begin, of those that do at all."""


class Found(NamedTuple):
    """A log as the journal had it, before its group began."""

    base: int
    last: int
    term: int


def watch(
    deployment: Deployment, machine: Machine, logs: dict[int, Any], broken: Callable[[tuple[str, int], str], None]
) -> None:
    """`logs`: those of a journal that was read just now. What does not meet goes to `broken(key, what)`."""
    loop, end = machine.loop, deployment.scheduler.now + BEGINS
    waiting = {
        gid: Found(log.base_index, log.last_index, log.term)
        for gid, log in logs.items()
        if log.durable and not (log.damaged or log.joining or log.fetching)
    }

    def look() -> None:
        raft = raft_of(machine) if machine.loop is loop else None
        if raft is None:
            return
        for gid in [gid for gid in waiting if _is_removed(machine, gid)]:
            del waiting[gid]
        for gid in [gid for gid in waiting if gid in raft.groups]:
            what = _apart(raft.groups[gid], waiting.pop(gid))
            # A store that was renewed since has nothing of the damaged files any more.
            if what and not (machine.damaged_data or machine.disk_troubled(JOURNAL) or machine.disk_troubled(DATA)):
                broken((machine.name, gid), what)
        if waiting and deployment.scheduler.now < end:
            deployment.scheduler.after(POLL, look)

    look()


def _is_removed(machine: Machine, gid: int) -> bool:
    """True for what left this server before it ended: its log is removed before it comes again."""
    node: Any = machine.node
    jetstream = node.jetstream.jetstream
    return jetstream is not None and bool(jetstream.local.orphans.is_deleted(gid))


def _apart(group: Any, found: Found) -> str:
    """Return what is wrong of a group that has just begun; "" for nothing."""
    if group.applied_index < found.base:
        return f"starts with the state of {group.applied_index}, and its journal begins behind {found.base}"
    if group.log.base_index > found.last:
        return f"starts with the state of {group.log.base_index}, and its journal ended at {found.last}"
    if found.term and leases.forgets(group):
        return f"starts in term {found.term}, and has forgotten that it may have promised to vote for nobody else"
    return ""
