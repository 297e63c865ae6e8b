"""Liveness: within a bounded time after the last fault all is led, current, whole and equal.

Nobody helps but whoever starts a server that has ended, as a supervisor does, or moves a store away: one that holds
nothing of the meta group any more, as the server asks, or that of a server which knows none of those that are there, as
the documentation does.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from typing import Any

from jetcluster.monitor.healthz import healthz
from jetcluster.raft.api import META_GROUP, Role
from jetcluster.stream.rules import RESTORING
from testkit.sim.deployment import Deployment, Violation
from testkit.sim.machine import Machine
from tests.sim.cluster.invariants import Replica, jetstream_of, replicas

SETTLES = 60.0
"""Seconds after the last fault."""
SUPERVISED = 2.0
"""Seconds until a supervisor starts what has ended."""
MOST_STARTS = 4
"""Starts of one server at most, those with a disk that it repairs or a store that is moved away among them."""
WANTS_TO_BE_EMPTY = "holds nothing of the meta group any more"
"""Why a server does not start by itself."""


async def settle(deployment: Deployment) -> None:
    """Returns once nothing is wanting. Raises Violation after SETTLES, with what is."""
    end = deployment.scheduler.now + SETTLES
    while True:
        first = next(itertools.chain(wanting(deployment), ailing(deployment)), "")
        if not first:
            return
        if deployment.scheduler.now > end:
            raise Violation(f"{SETTLES:g} s after the last fault: {first}")
        await asyncio.sleep(0.5)


async def supervise(deployment: Deployment) -> None:
    """Starts what has ended, for ever, but no server again and again."""
    starts: dict[str, int] = {}
    while True:
        await asyncio.sleep(SUPERVISED)
        for name, machine in deployment.machines.items():
            lost = name in deployment.victims and _knows_nobody(deployment, machine)
            if lost:
                machine.kill()
            if not machine.runs and name not in deployment.off:
                if lost or (name in deployment.victims and WANTS_TO_BE_EMPTY in machine.last_words):
                    # Of its journal nothing was left that tells what it had promised: the docs ask an administrator to
                    # move the store away (docs/membership/servers.md). Only a machine that was damaged may ask for it.
                    deployment.trace.add("nemesis", f"the store of {name} is moved away")
                    machine.new_disk()
                starts[name] = starts.get(name, 0) + 1
                if starts[name] > MOST_STARTS:
                    raise Violation(f"{name} ends again and again: {machine.last_words}")
                deployment.trace.add("nemesis", f"{name} has ended and is started")
                machine.start()


def _knows_nobody(deployment: Deployment, machine: Machine) -> bool:
    """True for one whose log was damaged, if all of the members that are left in it have been replaced since: it hears
    nobody (docs/membership/servers.md)."""
    metas = [one for one in replicas(deployment) if one.stream is None and not one.machine.paused]
    known = {peer for one in metas if one.machine is machine for peer in one.group.log.config.members}
    waits = any(one.machine is machine and (one.group.log.damaged or one.group.log.fetching) for one in metas)
    ends = any(other.lost_peers for other in deployment.machines.values())
    return waits and ends and not known & {one.group.me for one in metas if one.machine is not machine}


def ailing(deployment: Deployment) -> Iterator[str]:
    """The servers' own words, as whoever asks for their health gets them."""
    for name, machine in deployment.machines.items():
        if machine.node is not None and machine.ready:
            health = healthz(machine.node, {})
            if health.status != 200:
                yield f"{name} is not healthy: {health.body.get('error')}"


def wanting(deployment: Deployment) -> Iterator[str]:
    """Nothing, where all is well."""
    for name, machine in deployment.machines.items():
        if not machine.ready:
            yield f"{name} does not serve"
        elif (most := deployment.servers[name].max_payload) and machine.node.options.max_payload != most:
            yield f"{name} takes messages of {machine.node.options.max_payload} bytes, and is to take {most}"
    found = list(replicas(deployment))
    for cluster in sorted(
        {server.cluster or server.name for server in deployment.servers.values() if server.jetstream}
    ):
        yield from _meta_wanting(deployment, cluster, [one for one in found if one.cluster == cluster])


def _meta_wanting(deployment: Deployment, cluster: str, found: list[Replica]) -> Iterator[str]:
    metas = [one for one in found if one.stream is None]
    leaders = [one for one in metas if one.group.role is Role.LEADER]
    if len(leaders) != 1:
        yield f"{cluster}: its meta group has {len(leaders)} leaders"
        return
    yield from _group_wanting(f"{cluster}, the meta group", metas)
    jetstream = jetstream_of(leaders[0].machine)
    servers = [s for s in deployment.servers.values() if (s.cluster or s.name) == cluster and s.jetstream]
    members, voters = leaders[0].group.log.config.members, leaders[0].group.log.config.voters
    if len(members) != len(servers):
        yield f"{cluster}: {len(members)} of {len(servers)} servers are in the meta group"
    machines = {one.worker_of or one.name for one in servers}
    if len(voters) != len(machines):  # of the workers of a machine one votes
        yield f"{cluster}: {len(voters)} of {len(machines)} machines vote in the meta group"
    for assignment in jetstream.meta.machine.all_assignments():
        of_stream = [one for one in found if one.gid == assignment.gid and one.gid != META_GROUP]
        where = f"{cluster}, stream {assignment.name}"
        yield from _group_wanting(where, of_stream)
        yield from _placed(where, assignment, of_stream)


def _placed(where: str, assignment: Any, found: list[Replica]) -> Iterator[str]:
    here = sorted(one.group.me for one in found)
    if assignment.config.get(RESTORING):
        yield f"{where}: it is still to be restored"
    if here != sorted(assignment.peers):
        yield f"{where}: it is on {here}, and belongs on {sorted(assignment.peers)}"
    for one in found:
        config = one.group.members_at(one.group.commit_index)  # one that others do not have may never count
        voters = sorted(config.electorate)
        if one.group.role is Role.LEADER and (voters != sorted(assignment.peers) or config.outgoing):
            yield f"{where}: its voters are {voters}, and belong on {sorted(assignment.peers)}"


def _group_wanting(where: str, found: list[Replica]) -> Iterator[str]:
    leaders = [one for one in found if one.group.role is Role.LEADER and one.group.ready]
    if len(leaders) != 1:
        yield f"{where}: {len(leaders)} leaders that are ready"
        return
    commit = leaders[0].group.commit_index
    for one in found:
        group, stream, name = one.group, one.stream, one.machine.name
        if group.stopped:
            yield f"{where}: {name} has stopped: {group.stopped}"
        if group.applied_index < commit:
            yield f"{where}: {name} has applied {group.applied_index} of {commit}"
        if group.log.damaged or group.log.joining or group.log.fetching:
            yield f"{where}: {name} has not recovered its log"
        if stream is None:
            continue
        if stream.installing or stream.rejected or stream.disputed:
            yield f"{where}: {name} is not sure of its state: {stream.rejected or stream.disputed or 'it is installed'}"
        if stream.damaged:
            yield f"{where}: {name} has not repaired what it cannot read: {stream.damaged}"
        if stream.machine.rules.allow_direct and not stream.reads.own.joined:
            yield f"{where}: {name} answers no reads"
