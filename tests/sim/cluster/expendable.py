"""Which machine may lose what it has stored, within what is promised: what a majority of others has on disk is kept.

Any machine may be damaged, one after the other: the next one only once all that the one before has is whole again, and
nothing hides on it (`Machine.hides_damage`). Nothing that is there once, or is about to be (what its stream is to
become counts as what it is), is ever damaged.
"""

from __future__ import annotations

from collections.abc import Container
from random import Random

from testkit.sim.deployment import COPIES, Deployment
from testkit.sim.machine import Machine
from tests.sim.cluster.invariants import Replica, jetstream_of, replicas

Sizes = dict[tuple[str, int], int]
"""(cluster, group) -> the fewest replicas that any server thinks its stream is to have."""


def expendable(
    deployment: Deployment, rng: Random, *, even: bool = False, among: Container[str] | None = None
) -> Machine | None:
    """The machine that may lose data now; None while there is none. `even`: also one of two voters, where the other one
    has everything; it may be damaged, and may not be gone (`is_half`). `among`: names; only one of these is asked
    for."""
    if deployment.shrinks or drains(deployment):
        return None
    found, sizes = list(replicas(deployment)), _sizes(deployment)
    free = [
        name
        for name, machine in sorted(deployment.machines.items())
        if (among is None or name in among)
        and not any(other.hides_damage for other in deployment.machines.values() if other is not machine)
        and may_lose(deployment, name, found, sizes, even=even)
    ]
    if not free:
        return None
    name = rng.choice(free)
    deployment.victims[name] = None
    return deployment.machines[name]


def is_half(deployment: Deployment, machine: Machine) -> bool:
    """True for what only `even` makes expendable: one of two voters, without whom the other one is no majority."""
    return not may_lose(deployment, machine.name, list(replicas(deployment)), _sizes(deployment))


def drains(deployment: Deployment) -> bool:
    """A server is being emptied: what is there once moves to others meanwhile, and nobody may lose it."""
    found = [jetstream for machine in deployment.running if (jetstream := jetstream_of(machine)) is not None]
    return any(node.draining for jetstream in found for node in jetstream.meta.machine.nodes.values())


def may_lose(deployment: Deployment, name: str, found: list[Replica], sizes: Sizes, *, even: bool = False) -> bool:
    """All it has is on others too, on a majority without it."""
    machine = deployment.machines[name]
    own = [one for one in found if one.machine is machine]
    jetstream = jetstream_of(machine)
    if not own or machine.paused or jetstream is None or not jetstream.known.current:
        return False  # after a restart it may not know yet which streams it has
    return all(_kept_without(deployment, replica, found, sizes, even=even) for replica in own)


def _sizes(deployment: Deployment) -> Sizes:
    sizes: Sizes = {}
    for machine in deployment.running:
        jetstream = jetstream_of(machine)
        if jetstream is None:
            continue
        cluster = deployment.servers[machine.name].cluster or machine.name
        for assignment in jetstream.meta.machine.all_assignments():
            key, size = (cluster, assignment.gid), len(assignment.peers)
            sizes[key] = min(size, sizes.get(key, size))
    return sizes


def _kept_without(deployment: Deployment, replica: Replica, found: list[Replica], sizes: Sizes, *, even: bool) -> bool:
    """True when nothing is lost without this replica, by the members that each one knows of: a leader that removes
    others goes by fewer already."""
    if not replica.group.log.durable:
        return False
    me, least = replica.group.me, 2 if even else COPIES
    if sizes.get((replica.cluster, replica.gid), least) < least:
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
    for view in same:
        config = view.group.log.config
        for voters in filter(None, (config.voters, config.outgoing)):  # a joint one needs both
            kept = len([voter for voter in voters if voter != me and voter in whole])
            enough = 2 * kept > len(voters) or (even and len(voters) == 2 and kept == 1)
            if not enough or (me in voters and len(voters) < least):
                return False
    return True


def _is_whole(replica: Replica) -> bool:
    log, stream = replica.group.log, replica.stream
    if log.damaged or log.joining or log.fetching or replica.machine.paused or replica.group.stopped:
        return False
    return stream is None or not (stream.installing or stream.rejected or stream.disputed)
