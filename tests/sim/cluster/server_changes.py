"""Changes of whole servers that administrators make through the API of the system account: servers that join, that are
emptied and leave, that are removed when they are dead, that hand the meta group over, that get other settings.

A removed server comes back with an empty store, as docs/membership/servers.md asks for: as a new member.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import signal
from random import Random
from typing import TYPE_CHECKING

from jetcluster.raft.api import Role
from testkit.sim.deployment import COPIES, Deployment, Violation
from tests.sim.cluster.expendable import drains, expendable
from tests.sim.cluster.invariants import jetstream_of, replicas
from tests.sim.cluster.machine_faults import one, restart, start
from tests.sim.cluster.member_changes import ask

if TYPE_CHECKING:
    from testkit.sim.machine import Machine
    from tests.sim.cluster.workload import Workload

SYSTEM = "sys"
"""The user of the system account, where a layout has one."""
JOINER = "j1"
"""The server that joins, once in a run."""
EMPTIED = 40.0
"""Seconds within which a server is empty, or is put back into use."""
MOST_REFUSALS = 4
PUT_BACK = 60.0
"""Seconds for which somebody tries that while the faults last."""
MIB = 1 << 20


async def meta_stepdown(deployment: Deployment, rng: Random) -> None:
    """The leader of a meta group hands it over, to anybody or to the one that is named."""
    if not _has_administrator(deployment):  # leaf clusters: as its node does when it is asked
        found = [one for one in replicas(deployment) if one.stream is None and one.group.role is Role.LEADER]
        if found:
            leader = rng.choice(found)
            loop = leader.machine.loop
            assert loop is not None
            deployment.trace.add("nemesis", f"{leader.machine.name} hands the meta group over")
            loop.from_outside(leader.group.transfer)
        return
    name = rng.choice(["", *_members(deployment)])
    body = {"placement": {"preferred": name}} if name else None
    await ask(deployment, rng, "META.LEADER.STEPDOWN", body, SYSTEM)


async def reconfigure(deployment: Deployment, rng: Random) -> None:
    """A server gets another `max_payload`, by SIGHUP; that it goes by it is judged in the end (`liveness`)."""
    machine = one(deployment, rng)
    if machine is not None and machine.ready:
        most = rng.choice([1, 2, 4]) * MIB
        deployment.trace.add("nemesis", f"{machine.name} is to take messages of {most} bytes")
        deployment.servers[machine.name] = dataclasses.replace(deployment.servers[machine.name], max_payload=most)
        machine.signal(signal.SIGHUP)


async def rotate(deployment: Deployment, rng: Random, seconds: float) -> None:
    """Within `seconds` each server gets another key for its store: it counts from its next start or reload on. Once
    each, since a key that no start has seen yet is none that the store could be opened with."""
    for name in rng.sample(sorted(deployment.servers), len(deployment.servers)):
        await asyncio.sleep(rng.uniform(0.0, seconds / len(deployment.servers)))
        deployment.trace.add("nemesis", f"{name} is to have another key")
        deployment.servers[name] = dataclasses.replace(deployment.servers[name], rotated=True)


async def join(deployment: Deployment, rng: Random) -> None:
    """One more server, configured like another one; those there hear of it by its routes only."""
    if JOINER in deployment.servers or not _members(deployment):
        return
    like = rng.choice(_members(deployment))
    if not deployment.servers[like].cluster:
        return  # it stands alone
    deployment.trace.add("nemesis", f"{JOINER} joins, like {like}")
    old = deployment.machines[like]
    machine = deployment.add(dataclasses.replace(deployment.servers[like], name=JOINER, ip="10.0.3.1"))
    machine.clock.slowness = machine.usual_slowness = old.usual_slowness
    machine.disk_pace, machine.segment, machine.batch = old.disk_pace, old.segment, old.batch
    machine.raft_limits = old.raft_limits
    machine.new_disk(old.disk.capacity)
    machine.start()
    await asyncio.sleep(rng.uniform(0.0, 6.0))


async def decommission(deployment: Deployment, rng: Random) -> None:
    """A server is emptied and removed, and comes back as a new member; sometimes it is put back into use before."""
    if not _has_administrator(deployment) or drains(deployment):
        return
    if len(_members(deployment)) <= COPIES:
        await join(deployment, rng)
    machine = deployment.machines[rng.choice(_members(deployment))]
    peer = machine.peer_id
    with contextlib.suppress(TimeoutError), deployment.resizing(1) as copies:
        if copies >= COPIES or not machine.ready:
            return  # what is there once goes to others, where no damage may hide
        if await ask(deployment, rng, "SERVER.EVACUATE", {"peer_id": peer}, SYSTEM) is None:
            raise TimeoutError
    if rng.random() < 0.3:
        await _tag(deployment, rng, machine.name)
    if (
        rng.random() < 0.3 and machine.ready
    ):  # too early: refused, or of a server with nothing; one that is down is gone
        await ask(deployment, rng, "SERVER.REMOVE", {"peer_id": peer}, SYSTEM)
    await _empty(deployment, rng, peer)
    if is_removed(deployment, peer):
        require_nothing_there(deployment, machine.name, peer)
    await put_back(deployment, rng)
    readmit(deployment)


async def _tag(deployment: Deployment, rng: Random, name: str) -> None:
    """A server starts again with one more tag, so that it is registered anew."""
    machine, server = deployment.machines[name], deployment.servers[name]
    if machine.runs and not machine.paused:
        tag = f"shelf:{rng.randrange(10)}"
        deployment.trace.add("nemesis", f"{name} gets the tag {tag}")
        deployment.servers[name] = dataclasses.replace(server, tags=(*server.tags, tag))
        await restart(machine, rng)


async def _empty(deployment: Deployment, rng: Random, peer: str) -> None:
    """Asks until the server is removed, or refused to be emptied, or for so long."""
    end = deployment.scheduler.now + rng.choice([rng.uniform(0.0, 8.0), EMPTIED, EMPTIED])
    refused = 0
    while deployment.scheduler.now < end and refused < MOST_REFUSALS and not is_removed(deployment, peer):
        left = await ask(deployment, rng, "SERVER.EVACUATE", {"peer_id": peer}, SYSTEM)
        if left is None:
            refused += not drains(deployment)
        elif left.get("assigned") == 0 and (left["held"] or {}).get("replicas") == 0:
            await ask(deployment, rng, "SERVER.REMOVE", {"peer_id": peer}, SYSTEM)
        await asyncio.sleep(0.5)


async def remove_dead(deployment: Deployment, rng: Random) -> None:
    """A server that is gone is removed. Then it comes back without its store, or, where that is refused, with it."""
    if not _has_administrator(deployment):
        return
    machine = expendable(deployment, rng, among=_members(deployment))
    if machine is None:
        return
    peer = machine.peer_id
    machine.kill()
    machine.failing += 1  # it counts as damaged: nobody else loses anything meanwhile
    await asyncio.sleep(rng.uniform(0.0, 8.0))
    for _ in range(rng.randint(1, 20)):
        if machine.runs or is_removed(deployment, peer):
            break
        await ask(deployment, rng, "SERVER.REMOVE", {"peer_id": peer}, SYSTEM)
        await asyncio.sleep(1.0)
    machine.failing -= 1
    readmit(deployment)
    start(machine)


async def put_back(deployment: Deployment, rng: Random, seconds: float = PUT_BACK) -> None:
    """Servers that are being emptied are used again."""
    end = deployment.scheduler.now + seconds
    while deployment.scheduler.now < end and (peers := _drained(deployment)):
        for peer in peers:
            deployment.put_back.add(peer)
            await ask(deployment, rng, "SERVER.EVACUATE", {"peer_id": peer, "cancel": True}, SYSTEM)
        await asyncio.sleep(0.5)


async def tidy(deployment: Deployment, rng: Random) -> None:
    """For ever once the faults are over: what was decided after whoever asked for it gave up is finished as well."""
    while True:
        await put_back(deployment, rng)
        readmit(deployment)
        await asyncio.sleep(1.0)


def readmit(deployment: Deployment) -> None:
    """Moves the stores of removed servers away, and starts these again."""
    for machine in deployment.machines.values():
        if has_left(deployment, machine.peer_id):
            deployment.trace.add("nemesis", f"the store of {machine.name}, which was removed, is moved away")
            machine.kill()
            machine.new_disk()
            machine.start()


async def remove(workload: Workload, machine: Machine, peer: str) -> None:
    """Removes a server that is away, until that is decided."""
    names = [name for name in workload.members if name != machine.name]
    system = await workload.session("system", *names, user=SYSTEM)

    async def removed() -> bool:
        if not is_removed(workload.deployment, peer):
            await system.api("SERVER.REMOVE", {"peer_id": peer}, 3.0)
        return is_removed(workload.deployment, peer)

    await workload.until(f"{machine.name} is removed", removed)
    await system.close()


def is_removed(deployment: Deployment, peer: str) -> bool:
    """Some server knows by the meta log that the one with this id is no member any more."""
    found = [jetstream for machine in deployment.running if (jetstream := jetstream_of(machine)) is not None]
    return any(peer in jetstream.meta.machine.removed for jetstream in found)


def has_left(deployment: Deployment, peer: str) -> bool:
    """Some server knows that this is decided, for which SERVER.REMOVE waits, too: of two voters the other one needs the
    one that leaves until then."""
    metas = [jetstream.meta for machine in deployment.running if (jetstream := jetstream_of(machine)) is not None]
    return any(
        peer in meta.machine.removed
        and meta.group is not None
        and peer not in meta.group.members_at(meta.group.commit_index).members
        for meta in metas
    )


def require_nothing_there(deployment: Deployment, name: str, peer: str) -> None:
    """Raises Violation where a server has a place that was connected when it was removed."""
    for machine in deployment.running:
        jetstream = jetstream_of(machine)
        if jetstream is not None and peer in jetstream.meta.machine.removed:
            places = [assignment.name for assignment in jetstream.meta.machine.assigned_to(peer)]
            if places:
                raise Violation(f"{name} was emptied and removed, and {machine.name} knows it to have {places}")


def _drained(deployment: Deployment) -> list[str]:
    """Ids of the servers that are being emptied, by what anybody knows of the main cluster. One that was removed is
    none, whatever it thinks itself: it may never hear of it, and whoever waits for it to be put back waits for ever."""
    found = [jetstream for machine in deployment.running if (jetstream := jetstream_of(machine)) is not None]
    nodes = [node for jetstream in found for node in jetstream.meta.machine.nodes.values()]
    drained = {node.peer for node in nodes if node.draining and not is_removed(deployment, node.peer)}
    return sorted(drained - {deployment.emptying})


def _members(deployment: Deployment) -> list[str]:
    """Servers of the main cluster with JetStream."""
    return [name for name in deployment.members() if deployment.servers[name].jetstream]


def _has_administrator(deployment: Deployment) -> bool:
    return all("system_account: SYS" in deployment.servers[name].config for name in deployment.members())
