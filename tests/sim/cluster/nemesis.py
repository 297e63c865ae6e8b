"""All faults by name, and how they come over a cluster: one after the other, or some at once, each with its end.

A `Fault` does its harm, waits, and takes it back, unless only time does that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

from tests.sim.cluster import disk_faults, machine_faults, member_changes
from tests.sim.cluster.deployment import Deployment

Fault = Callable[[Deployment, Random], Awaitable[None]]

FAULTS: dict[str, Fault] = {
    fault.__name__: fault
    for fault in (
        machine_faults.kill,
        machine_faults.power,
        machine_faults.blackout,
        machine_faults.stop,
        machine_faults.rolling,
        machine_faults.lame_duck,
        machine_faults.reload,
        machine_faults.pause,
        machine_faults.partition,
        machine_faults.one_link,
        machine_faults.bridge,
        machine_faults.loss,
        machine_faults.narrow,
        machine_faults.half_open,
        machine_faults.busy,
        machine_faults.clock_jump,
        machine_faults.clock_drift,
        disk_faults.slow_disk,
        disk_faults.hung_disk,
        disk_faults.full_disk,
        disk_faults.io_error,
        disk_faults.rot,
        disk_faults.cut_file,
        disk_faults.wipe,
        member_changes.stepdown,
        member_changes.meta_stepdown,
        member_changes.peer_remove,
        member_changes.upgrade,
    )
}


async def rage(
    deployment: Deployment, rng: Random, faults: tuple[str, ...], *, seconds: float, rest: float, at_once: int
) -> None:
    """Faults of `faults`, up to `at_once` at a time, with rests of up to `rest` seconds between them; all are over when
    this returns."""
    end = deployment.scheduler.now + seconds

    async def one_by_one(rng: Random) -> None:
        while deployment.scheduler.now < end and faults:
            await asyncio.sleep(rng.uniform(0.0, rest))
            name = rng.choice(faults)
            deployment.trace.add("nemesis", name)
            await FAULTS[name](deployment, rng)

    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(one_by_one(Random(rng.getrandbits(64))))
    calm(deployment)


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
        machine.clock.slowness = machine.usual_slowness
        machine.resume()
        machine_faults.start(machine)
