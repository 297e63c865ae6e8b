"""All faults by name, and how they come over a cluster: one after the other, or some at once, each with its end.

A `Fault` does its harm, waits, and takes it back, unless only time does that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from random import Random

from testkit.sim.deployment import Deployment
from testkit.sim.network import FEW
from tests.sim.cluster import confused, disk_faults, machine_faults, member_changes, server_changes, strangers

AGREED = 0.5
"""Seconds by which wall clocks are off in the end: servers of which no majority agrees on the time lead nothing, and
say so."""
Fault = Callable[[Deployment, Random], Awaitable[None]]

FAULTS: dict[str, Fault] = {
    fault.__name__: fault
    for fault in (
        machine_faults.kill,
        machine_faults.power,
        machine_faults.blackout,
        machine_faults.ballot,
        machine_faults.forgetting,
        machine_faults.stop,
        machine_faults.rolling,
        machine_faults.lame_duck,
        machine_faults.reload,
        machine_faults.pause,
        machine_faults.partition,
        machine_faults.usurped,
        machine_faults.elections,
        machine_faults.one_link,
        machine_faults.bridge,
        machine_faults.loss,
        machine_faults.narrow,
        machine_faults.congested,
        machine_faults.half_open,
        machine_faults.busy,
        machine_faults.little_memory,
        machine_faults.few_descriptors,
        strangers.strangers,
        confused.confused,
        machine_faults.clock_jump,
        machine_faults.clock_drift,
        disk_faults.slow_disk,
        disk_faults.hung_disk,
        disk_faults.hung_disks,
        disk_faults.full_disk,
        disk_faults.full_disks,
        disk_faults.io_error,
        disk_faults.rot,
        disk_faults.cut_file,
        disk_faults.wipe,
        disk_faults.wipe_even,
        disk_faults.break_data,
        disk_faults.torn_journal,
        member_changes.stepdown,
        server_changes.meta_stepdown,
        member_changes.peer_remove,
        member_changes.scale,
        member_changes.scale_back,
        member_changes.come_back,
        member_changes.left_behind,
        member_changes.sync_changes,
        server_changes.reconfigure,
        server_changes.join,
        server_changes.decommission,
        server_changes.remove_dead,
    )
}


WIDER = True
"""True where seeds draw the faults of WIDE as well."""
WIDE = frozenset(
    (
        "wipe_even", "break_data", "torn_journal", "scale", "scale_back", "come_back", "left_behind", "sync_changes",
        "join", "decommission", "remove_dead",
    )
)  # fmt: skip
"""Harder faults: of members and servers that change, of whole data stores, of servers that differ."""
LATER = ("congested",)
"""Faults that were added later: they are drawn by themselves, so that a seed is otherwise what it was before."""


@dataclass(slots=True, frozen=True)
class Rage:
    """The faults that come over a cluster."""

    faults: tuple[str, ...]
    """Keys of FAULTS."""
    hands: int
    """Number of faults that may be there at a time."""
    seconds: float
    """Time in which they begin."""
    rest: float
    """Seconds between two of one hand, at most."""

    def also(self, fault: str) -> Rage:
        return replace(self, faults=tuple(sorted({*self.faults, fault})))


async def rage(deployment: Deployment, rng: Random, plan: Rage) -> None:
    """All faults are over when this returns."""
    async with asyncio.TaskGroup() as group:
        for _ in range(plan.hands if plan.faults else 0):
            group.create_task(_hand(deployment, Random(rng.getrandbits(64)), plan))
    calm(deployment)


async def _hand(deployment: Deployment, rng: Random, plan: Rage) -> None:
    end = deployment.scheduler.now + plan.seconds
    while deployment.scheduler.now < end:
        await asyncio.sleep(rng.uniform(0.0, plan.rest))
        name = rng.choice(plan.faults)
        deployment.trace.add("nemesis", name)
        await FAULTS[name](deployment, rng)


def calm(deployment: Deployment) -> None:
    """No fault is left, whatever two of them made of each other's ends; who is down is started."""
    deployment.trace.add("nemesis", "all is calm")
    for _, link in deployment.network.links():
        link.calm()
        link.heal()
    for machine in deployment.machines.values():
        machine.disk.heal()
        machine.disk.ballast = 0
        machine.disk.slowness = 0.0
        if machine.disk.hung:
            machine.disk.release()
        machine.memory_trouble = ""
        machine.descriptors = FEW
        machine.clock.slowness = machine.usual_slowness
        machine.clock.wall_ahead = min(max(machine.clock.wall_ahead, -AGREED), AGREED)
        machine.resume()
        machine_faults.start(machine)
