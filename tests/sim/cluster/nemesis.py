"""Faults that come over a simulated cluster, one after the other, each with its end.

A `Fault` does its harm, waits, and takes it back, unless only time does that. `FAULTS` has them by name.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random

from tests.sim.cluster.deployment import Deployment
from tests.sim.cluster.machine import Machine

Fault = Callable[[Deployment, Random], Awaitable[None]]


def _one(deployment: Deployment, rng: Random) -> Machine | None:
    running = [machine for machine in deployment.running if not machine.paused]
    return rng.choice(running) if running else None


async def kill(deployment: Deployment, rng: Random) -> None:
    """`kill -9`; it is started again soon."""
    machine = _one(deployment, rng)
    if machine is not None:
        machine.kill()
        await asyncio.sleep(rng.uniform(0.1, 5.0))
        _start(machine)


async def power(deployment: Deployment, rng: Random) -> None:
    """A machine loses power, and with it what was not synced."""
    machine = _one(deployment, rng)
    if machine is not None:
        machine.lose_power()
        await asyncio.sleep(rng.uniform(0.5, 8.0))
        _start(machine)


async def blackout(deployment: Deployment, rng: Random) -> None:
    """All machines lose power at once."""
    for machine in deployment.machines.values():
        machine.lose_power()
    await asyncio.sleep(rng.uniform(0.5, 3.0))
    for machine in deployment.machines.values():
        _start(machine)
        await asyncio.sleep(rng.uniform(0.0, 1.0))


async def stop(deployment: Deployment, rng: Random) -> None:
    """SIGTERM, and a start."""
    machine = _one(deployment, rng)
    if machine is None:
        return
    machine.signal(signal.SIGTERM)
    for _ in range(200):
        await asyncio.sleep(0.1)
        if not machine.runs:
            break
    await asyncio.sleep(rng.uniform(0.0, 1.0))
    _start(machine)


async def pause(deployment: Deployment, rng: Random) -> None:
    """A process stands still, and goes on."""
    machine = _one(deployment, rng)
    if machine is not None:
        machine.pause()
        await asyncio.sleep(rng.uniform(0.2, 6.0))
        machine.resume()


async def partition(deployment: Deployment, rng: Random) -> None:
    """Some machines do not reach the others, in both directions or in one."""
    names = list(deployment.machines)
    rng.shuffle(names)
    side = names[: rng.randint(1, max(1, len(names) // 2))]
    one_way = rng.random() < 0.3
    deployment.trace.add("nemesis", f"cuts {','.join(sorted(side))} off{' one way' if one_way else ''}")
    cut = []
    for here in side:
        for there in names:
            if there in side:
                continue
            a, b = deployment.machines[here].host.ip, deployment.machines[there].host.ip
            cut.append(deployment.network.link(a, b))
            if not one_way:
                cut.append(deployment.network.link(b, a))
    for link in cut:
        link.cut()
    await asyncio.sleep(rng.uniform(0.5, 8.0))
    deployment.trace.add("nemesis", "heals")
    for link in cut:
        link.heal()


async def loss(deployment: Deployment, rng: Random) -> None:
    """Links lose segments and are slow."""
    links = [link for (source, target), link in deployment.network.links() if source != target]
    for link in links:
        link.loss, link.delay = rng.choice([0.0, 0.02, 0.1]), rng.choice([0.0002, 0.002, 0.02])
    await asyncio.sleep(rng.uniform(1.0, 8.0))
    for link in links:
        link.calm()


async def narrow(deployment: Deployment, rng: Random) -> None:
    """All that goes to one machine, or comes from it, has little room."""
    ip = rng.choice(list(deployment.machines.values())).host.ip
    links = [link for ends, link in deployment.network.links() if ip in ends and ends[0] != ends[1]]
    rate = rng.choice([20e3, 100e3, 1e6])
    for link in links:
        link.rate = rate
    await asyncio.sleep(rng.uniform(1.0, 8.0))
    for link in links:
        link.calm()


async def half_open(deployment: Deployment, rng: Random) -> None:
    """Connections of one process lead nowhere any more, and neither end is told."""
    machine = _one(deployment, rng)
    if machine is None:
        return
    share = rng.choice([0.3, 1.0])
    for transport in machine.transports:
        if rng.random() < share:
            transport.forget()
    await asyncio.sleep(rng.uniform(0.5, 5.0))


async def busy(deployment: Deployment, rng: Random) -> None:
    """The processor of one machine is slow."""
    machine = rng.choice(list(deployment.machines.values()))
    machine.clock.slowness = rng.choice([5.0, 20.0, 60.0])
    await asyncio.sleep(rng.uniform(1.0, 8.0))
    machine.clock.slowness = machine.usual_slowness


async def clock_jump(deployment: Deployment, rng: Random) -> None:
    """The wall clock of one machine is set, forwards or back; sometimes it is set right later."""
    clock = rng.choice(list(deployment.machines.values())).clock
    before = clock.wall_ahead
    clock.wall_ahead += rng.choice([-3600.0, -30.0, -1.0, -0.05, 0.05, 1.0, 30.0, 3600.0])
    await asyncio.sleep(rng.uniform(0.5, 8.0))
    if rng.random() < 0.7:
        clock.wall_ahead = before


async def clock_drift(deployment: Deployment, rng: Random) -> None:
    """One machine's time runs fast or slow, by far more than clocks do."""
    clock = rng.choice(list(deployment.machines.values())).clock
    clock.set_rate(rng.choice([0.9, 0.98, 1.02, 1.1]))
    await asyncio.sleep(rng.uniform(1.0, 8.0))
    clock.set_rate(1.0)


async def slow_disk(deployment: Deployment, rng: Random) -> None:
    machine = rng.choice(list(deployment.machines.values()))
    machine.disk.slowness = rng.choice([0.02, 0.1, 0.5])
    await asyncio.sleep(rng.uniform(1.0, 6.0))
    machine.disk.slowness = 0.0


async def hung_disk(deployment: Deployment, rng: Random) -> None:
    machine = rng.choice(list(deployment.machines.values()))
    machine.disk.hang()
    await asyncio.sleep(rng.uniform(0.5, 8.0))
    machine.disk.release()


def _start(machine: Machine) -> None:
    if not machine.runs:
        machine.start()


FAULTS: dict[str, Fault] = {
    fault.__name__: fault
    for fault in (
        kill,
        power,
        blackout,
        stop,
        pause,
        partition,
        loss,
        narrow,
        half_open,
        slow_disk,
        hung_disk,
        busy,
        clock_jump,
        clock_drift,
    )
}


@dataclass(slots=True, frozen=True)
class Rage:
    """What comes over a cluster."""

    faults: tuple[str, ...]
    """Keys of FAULTS."""
    hands: int
    """So many faults may be there at a time."""
    seconds: float
    """For how long they begin."""
    rest: float
    """Seconds between two of one hand, at most."""


async def rage(deployment: Deployment, rng: Random, plan: Rage) -> None:
    """All faults are over when this returns."""
    async with asyncio.TaskGroup() as group:
        for _ in range(plan.hands if plan.faults else 0):
            group.create_task(_hand(deployment, Random(rng.getrandbits(64)), plan))


async def _hand(deployment: Deployment, rng: Random, plan: Rage) -> None:
    end = deployment.scheduler.now + plan.seconds
    while deployment.scheduler.now < end:
        await asyncio.sleep(rng.uniform(0.0, plan.rest))
        name = rng.choice(plan.faults)
        deployment.trace.add("nemesis", name)
        await FAULTS[name](deployment, rng)
