"""Which machine may lose what it has stored, within what is promised: what a majority of others has on disk is kept.

Any machine may be damaged, one after the other: the next one only once all that the one before has is whole again, and
nothing hides on it (`Machine.hides_damage`). Nothing that is there once, or is about to be (what its stream is to
become counts as what it is), is ever damaged.

A leader counts on whoever had caught up a moment ago, and may make it a voter before it hears that its machine is down.
From then on a group needs a majority of its new voters, too. So who is about to vote counts as one who does: where one
of three new voters is lost already, the other two are spared, although a majority of the old ones has everything.
"""

from __future__ import annotations

from collections.abc import Collection, Container
from random import Random

from testkit.sim.deployment import COPIES, Deployment
from testkit.sim.machine import Machine
from tests.sim.cluster.invariants import Replica, jetstream_of, replicas

Assigned = dict[tuple[str, int], set[tuple[str, ...]]]
"""(cluster, group) -> the peers that its stream is to have, by what each server thinks."""


def expendable(
    deployment: Deployment, rng: Random, *, even: bool = False, among: Container[str] | None = None
) -> Machine | None:
    """The machine that may lose data now; None while there is none. `even`: also one of two voters, where the other one
    has everything; it may be damaged, and may not be gone (`is_half`). `among`: names; only one of these is asked
    for."""
    if deployment.shrinks or drains(deployment):
        return None
    found, assigned = list(replicas(deployment)), _assigned(deployment)
    free = [
        name
        for name, machine in sorted(deployment.machines.items())
        if (among is None or name in among)
        and not any(other.hides_damage for other in deployment.machines.values() if other is not machine)
        and may_lose(deployment, name, found, assigned, even=even)
    ]
    if not free:
        return None
    name = rng.choice(free)
    deployment.victims[name] = None
    return deployment.machines[name]


def is_half(deployment: Deployment, machine: Machine) -> bool:
    """True for what only `even` makes expendable: one of two voters, without whom the other one is no majority."""
    return not may_lose(deployment, machine.name, list(replicas(deployment)), _assigned(deployment))


def drains(deployment: Deployment) -> bool:
    """A server is being emptied: what is there once moves to others meanwhile, and nobody may lose it."""
    found = [jetstream for machine in deployment.running if (jetstream := jetstream_of(machine)) is not None]
    return any(node.draining for jetstream in found for node in jetstream.meta.machine.nodes.values())


def may_lose(
    deployment: Deployment, name: str, found: list[Replica], assigned: Assigned, *, even: bool = False
) -> bool:
    """All it has is on others too, on a majority without it."""
    machine = deployment.machines[name]
    own = [one for one in found if one.machine is machine]
    jetstream = jetstream_of(machine)
    if not own or machine.paused or jetstream is None or not jetstream.known.current:
        return False  # after a restart it may not know yet which streams it has
    return all(_kept_without(deployment, replica, found, assigned, even=even) for replica in own)


def _assigned(deployment: Deployment) -> Assigned:
    assigned: Assigned = {}
    for machine in deployment.running:
        jetstream = jetstream_of(machine)
        if jetstream is None:
            continue
        cluster = deployment.servers[machine.name].cluster or machine.name
        for assignment in jetstream.meta.machine.all_assignments():
            assigned.setdefault((cluster, assignment.gid), set()).add(assignment.peers)
    return assigned


def _kept_without(
    deployment: Deployment, replica: Replica, found: list[Replica], assigned: Assigned, *, even: bool
) -> bool:
    """True when nothing is lost without this replica, by the members that each one knows of: a leader that removes
    others goes by fewer already. The group goes on without it, also once it is a voter."""
    if not replica.group.log.durable:
        return False
    me, least = replica.group.me, 2 if even else COPIES
    aims = assigned.get((replica.cluster, replica.gid), set())
    if any(len(aim) < least for aim in aims):
        return False
    same = [one for one in found if one.gid == replica.gid and one.cluster == replica.cluster]
    commit = max(one.group.commit_index for one in same)
    whole = {
        one.group.me
        for one in same
        if _is_whole(one)
        and one.group.log.written_index >= commit
        and (one.machine.name, one.gid) not in deployment.drifted
    }

    def enough(voters: Collection[str], there: Container[str]) -> bool:
        kept = len([voter for voter in voters if voter != me and voter in there])
        return 2 * kept > len(voters) or (even and len(voters) == 2 and kept == 1)

    for view in same:
        config = view.group.log.config
        for voters in filter(None, (config.voters, config.outgoing)):  # a joint one needs both
            if not enough(voters, whole) or (me in voters and len(voters) < least):
                return False
        if me in config.learners and replica.stream is None:
            aims = {*aims, (*config.voters, me)}  # the meta group makes a voter of whoever has caught up
    coming = {one.group.me for one in same if one.group.log.joining}  # they vote once they have everything
    return all(enough(aim, whole | coming) for aim in aims if me in aim)


def _is_whole(replica: Replica) -> bool:
    log, stream = replica.group.log, replica.stream
    if log.damaged or log.joining or log.fetching or replica.machine.paused or replica.group.stopped:
        return False
    return stream is None or not (stream.installing or stream.rejected or stream.disputed)
