"""Changes that administrators make while the cluster is in use: who leads, who has the copies and how many, which
version runs, and with which settings."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from random import Random
from typing import Any

from jetcluster.raft.api import Role
from testkit.sim.deployment import Deployment
from testkit.sim.machine import Machine
from testkit.sim.rafts import raft_of
from testkit.sim.session import ApiError, Disconnected, NoResponders, Session
from tests.sim.cluster.disk_faults import spoil_data
from tests.sim.cluster.expendable import expendable
from tests.sim.cluster.invariants import Replica, replicas
from tests.sim.cluster.machine_faults import cut_links, restart, start

MOVED = 100.0
"""Seconds within which a stream leaves a server for good, on slow disks."""
REFUSED = (ApiError, Disconnected, NoResponders, TimeoutError)
"""Administrators, too, meet faults."""


OWN = "MODEL-"
"""Beginning of the names of streams of which one client, and nobody else, changes the configuration."""


async def stepdown(deployment: Deployment, rng: Random) -> None:
    """The leader of a stream hands it over."""
    leader = _leader(deployment, rng)
    if leader is not None:
        await ask(deployment, rng, f"STREAM.LEADER.STEPDOWN.{leader.stream.assignment.name}", None)


async def peer_remove(deployment: Deployment, rng: Random) -> None:
    """A stream gives up the replica of one server, and gets another one where there is a place."""
    leader = _leader(deployment, rng)
    if leader is None:
        return
    voters = leader.group.log.config.voters
    names = [one.machine.name for one in replicas(deployment) if one.group.me in voters and one.gid == leader.gid]
    if len(deployment.members()) <= len(voters) or len(voters) < 3:
        return
    await ask(deployment, rng, f"STREAM.PEER.REMOVE.{leader.stream.assignment.name}", {"peer": rng.choice(names)})


async def scale(deployment: Deployment, rng: Random) -> None:
    """A stream gets another number of replicas."""
    leader = _leader(deployment, rng)
    if leader is not None:
        await _resize(
            deployment, rng, leader, rng.choice([1, 2, 3, 3, 5] if _servers(deployment) >= 5 else [1, 2, 3, 3])
        )


async def scale_back(deployment: Deployment, rng: Random) -> None:
    """A stream is scaled to fewer replicas and to three, twice, whether the change before is through or not."""
    leader = _leader(deployment, rng)
    if leader is None:
        return
    for copies in (rng.choice([1, 2]), 3, rng.choice([1, 2, 5] if _servers(deployment) >= 5 else [1, 2]), 3):
        await _resize(deployment, rng, leader, copies)
        await asyncio.sleep(rng.choice([0.0, 0.1, 0.5, 2.0]))


async def come_back(deployment: Deployment, rng: Random) -> None:
    """A stream gives up the replica of one server, which may be away meanwhile, and takes it in again."""
    leader = _leader(deployment, rng)
    if leader is None or _servers(deployment) < 5 or len(leader.group.log.config.voters) != 3:
        return
    stream = leader.stream.assignment.name
    others = [machine for machine in _voters(deployment, leader) if machine is not leader.machine and machine.runs]
    if not others:
        return
    machine, away = rng.choice(others), rng.choice(["", "killed", "paused"])
    if away == "killed":
        machine.kill()
    elif away == "paused":
        machine.pause()
    await asyncio.sleep(rng.choice([0.0, 1.0, 4.0]))
    await ask(deployment, rng, f"STREAM.PEER.REMOVE.{stream}", {"peer": machine.name})
    await asyncio.sleep(rng.choice([0.0, 0.3, 1.0, 5.0]))
    if rng.random() < 0.5:
        _is_back(machine)
    await _resize(deployment, rng, leader, 5)
    await asyncio.sleep(rng.choice([0.0, 0.5, 3.0]))
    _is_back(machine)
    await asyncio.sleep(rng.choice([0.5, 4.0]))
    await _resize(deployment, rng, leader, 5)
    await asyncio.sleep(rng.choice([0.0, 2.0, 8.0]))
    await _resize(deployment, rng, leader, 3)


def _is_back(machine: Machine) -> None:
    machine.resume()
    start(machine)


async def left_behind(deployment: Deployment, rng: Random) -> None:
    """A stream moves from one server to another while a third one is cut off. Then the data store of the first one
    breaks, and who it reaches when it starts is the third one, which does not know of the move."""
    leader = _leader(deployment, rng)
    if deployment.left_behind or leader is None or _servers(deployment) < 5 or len(leader.group.log.config.voters) != 3:
        return
    others = [machine for machine in _voters(deployment, leader) if machine is not leader.machine]
    if len(others) != 2:
        return
    rng.shuffle(others)
    deployment.left_behind = True
    try:
        await _move_behind(deployment, rng, leader, *others)
    finally:
        deployment.left_behind = False


async def _move_behind(deployment: Deployment, rng: Random, leader: Replica, cut_off: Machine, left: Machine) -> None:
    stream, gid = leader.stream.assignment.name, leader.gid
    cut = cut_links(deployment, [cut_off.name], [name for name in deployment.machines if name != cut_off.name])
    await asyncio.sleep(rng.choice([0.0, 1.0, 3.0]))
    for _ in range(10):
        if await ask(deployment, rng, f"STREAM.PEER.REMOVE.{stream}", {"peer": left.name}) is not None:
            break
        await asyncio.sleep(1.0)
    for _ in range(int(2 * MOVED)):
        await asyncio.sleep(0.5)
        raft = raft_of(left)
        if raft is not None and left.ready and gid not in raft.groups and gid not in raft.journal.groups:
            break
    else:
        deployment.trace.add("nemesis", f"{stream} does not leave {left.name}")
    if expendable(deployment, rng, among=[left.name]) is not None and not left.damaged_data:
        left.kill()
        spoil_data(deployment, left)
        rest = [name for name in deployment.machines if name not in (left.name, cut_off.name)]
        cut += cut_links(deployment, [left.name], rest)
        for ends in ((left.host.ip, cut_off.host.ip), (cut_off.host.ip, left.host.ip)):
            deployment.network.link(*ends).heal()
        start(left)
        await asyncio.sleep(rng.uniform(6.0, 12.0))
    deployment.trace.add("nemesis", "heals")
    for link in cut:
        link.heal()


async def sync_changes(deployment: Deployment, rng: Random) -> None:
    """A server starts with another `sync_interval` than others have, where acks may be ahead of syncs at all."""
    name = rng.choice([name for name, server in deployment.servers.items() if server.jetstream])
    if deployment.relaxed and deployment.machines[name].runs:
        interval = rng.choice([0.0, 0.0, 0.5, 1.0])
        deployment.trace.add("nemesis", f"{name} gets a sync_interval of {interval:g} s")
        deployment.servers[name] = dataclasses.replace(deployment.servers[name], sync_interval=interval)
        await restart(deployment.machines[name], rng)


def _leader(deployment: Deployment, rng: Random) -> Replica | None:
    """The leader of some stream of the main cluster."""
    found = [
        one
        for one in replicas(deployment)
        if one.stream is not None and one.cluster == "sim" and one.group.role is Role.LEADER
    ]
    return rng.choice(found) if found else None


def _servers(deployment: Deployment) -> int:
    """That may have replicas."""
    return len([name for name in deployment.members() if deployment.servers[name].jetstream])


def _voters(deployment: Deployment, leader: Replica) -> list[Machine]:
    """Machines that run and vote in its group."""
    voters = leader.group.log.config.voters
    return [
        one.machine
        for one in replicas(deployment)
        if one.gid == leader.gid and one.cluster == leader.cluster and one.group.me in voters
    ]


async def _resize(deployment: Deployment, rng: Random, leader: Replica, copies: int) -> None:
    assignment = leader.stream.assignment
    if assignment.name.startswith(OWN):
        return
    if any(gid == leader.gid for _, gid in deployment.drifted):  # which one is wrong is for a majority of three to say
        return
    with contextlib.suppress(TimeoutError), deployment.resizing(copies) as allowed:
        body = dict(assignment.config) | {"num_replicas": allowed}
        deployment.configs.setdefault(assignment.name, []).append(body)
        if await ask(deployment, rng, f"STREAM.UPDATE.{assignment.name}", body) is None:
            raise TimeoutError


async def ask(deployment: Deployment, rng: Random, subject: str, body: Any, user: str = "") -> dict[str, Any] | None:
    """Asks the API, as clients do; what comes of it is for others to judge. The answer; None for an error, or none."""
    addresses = deployment.addresses()
    rng.shuffle(addresses)
    deployment.asked += 1
    session = Session(f"admin{deployment.asked:08}", addresses, user=user)
    try:
        await session.connect(2.0)
        answer = await session.api(subject, body, 3.0)
    except REFUSED as error:
        deployment.trace.add("nemesis", f"{subject} {body or ''}: {error!r}")
        return None
    else:
        deployment.trace.add("nemesis", f"{subject} {body or ''}")
        return answer
    finally:
        await session.close()
