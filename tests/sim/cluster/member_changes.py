"""Changes that administrators make while the cluster is in use: who leads, who has the copies, which version runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

from jetcluster.raft.api import Role
from jetcluster.stream.levels import LEVEL
from tests.sim.cluster.deployment import Deployment
from tests.sim.cluster.invariants import Replica, replicas
from tests.sim.cluster.machine_faults import restart
from tests.sim.cluster.session import ApiError, Disconnected, NoResponders, Session

REFUSED = (ApiError, Disconnected, NoResponders, TimeoutError)
"""Administrators, too, meet faults."""


async def stepdown(deployment: Deployment, rng: Random) -> None:
    """The leader of a stream hands it over."""
    leader = _leader(deployment, rng)
    if leader is not None:
        await _ask(deployment, rng, f"STREAM.LEADER.STEPDOWN.{leader.stream.assignment.name}", None)


async def meta_stepdown(deployment: Deployment, rng: Random) -> None:
    """The leader of a meta group hands it over, as its node does when the system account asks for it."""
    found = [one for one in replicas(deployment) if one.stream is None and one.group.role is Role.LEADER]
    if found:
        leader = rng.choice(found)
        loop = leader.machine.loop
        assert loop is not None
        deployment.trace.add("nemesis", f"{leader.machine.name} hands the meta group over")
        loop.from_outside(leader.group.transfer)


async def peer_remove(deployment: Deployment, rng: Random) -> None:
    """A stream gives up the replica of one server, and gets another one where there is a place."""
    leader = _leader(deployment, rng)
    if leader is None:
        return
    voters = leader.group.log.config.voters
    names = [one.machine.name for one in replicas(deployment) if one.group.me in voters and one.gid == leader.gid]
    if len(deployment.members()) <= len(voters) or len(voters) < 3:
        return
    await _ask(deployment, rng, f"STREAM.PEER.REMOVE.{leader.stream.assignment.name}", {"peer": rng.choice(names)})


async def upgrade(deployment: Deployment, rng: Random) -> None:
    """A server of a version of before is started anew, with this one."""
    old = [name for name, server in deployment.servers.items() if server.level < LEVEL]
    found = [name for name in old if deployment.machines[name].runs and not deployment.machines[name].paused]
    if found:
        name = rng.choice(found)
        deployment.trace.add("nemesis", f"{name} gets a newer version")
        deployment.servers[name] = dataclasses.replace(deployment.servers[name], level=LEVEL)
        await restart(deployment.machines[name], rng)


def _leader(deployment: Deployment, rng: Random) -> Replica | None:
    """Of some stream of the main cluster."""
    found = [
        one
        for one in replicas(deployment)
        if one.stream is not None and one.cluster == "sim" and one.group.role is Role.LEADER
    ]
    return rng.choice(found) if found else None


async def _ask(deployment: Deployment, rng: Random, subject: str, body: Any) -> None:
    """Through the API, as clients do; what comes of it is for others to judge."""
    addresses = deployment.addresses()
    rng.shuffle(addresses)
    session = Session("administrator", addresses)
    try:
        await session.connect(2.0)
        answer: Callable[[], Awaitable[Any]] = lambda: session.api(subject, body, 3.0)  # noqa: E731
        await answer()
        deployment.trace.add("nemesis", f"{subject} {body or ''}")
    except REFUSED as error:
        deployment.trace.add("nemesis", f"{subject} {body or ''}: {error!r}")
    finally:
        await session.close()
