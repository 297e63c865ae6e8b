"""Faults of processes, machines, links and clocks, each with its end."""

from __future__ import annotations

import asyncio
import re
import signal
from random import Random

from jetcluster.health.descriptors import MAX_RESERVE
from jetcluster.raft.api import Role
from testkit.sim.deployment import Deployment
from testkit.sim.link import Link
from testkit.sim.machine import DESCRIPTORS, Machine
from testkit.sim.network import FEW
from testkit.sim.rafts import raft_of
from tests.sim.cluster.invariants import replicas

MOMENTS = (
    re.compile(rb'"seq":'),  # a client gets the ack of its message
    re.compile(rb"\x09.{4}\x01\x02", re.DOTALL),  # a server tells another what it has on disk (raft.codec.ACK)
    re.compile(rb"\x09.{4}\x01\x07", re.DOTALL),  # it gives it its vote (raft.codec.VOTE_REPLY)
)
"""Bytes that say, when they come over the network, that something is on disk and may not be lost."""
MOST = 2.0
"""Seconds to wait for one."""
POLL = 0.01
"""Seconds between two looks at what journals forget."""
SEGMENT = 1_448
"""Bytes of TCP's largest segment on Ethernet."""
SLOW = 0.05
"""Seconds that a piece of work of a disk takes longer meanwhile, at most."""


def one(deployment: Deployment, rng: Random) -> Machine | None:
    """A process that runs and does not stand still; often one that leads something."""
    running = [machine for machine in deployment.running if not machine.paused]
    if rng.random() < 0.5:
        leaders = [found.machine for found in replicas(deployment) if found.group.role is Role.LEADER]
        running = [machine for machine in leaders if not machine.paused] or running
    return rng.choice(running) if running else None


def start(machine: Machine) -> None:
    """Starts it unless it runs."""
    if not machine.runs:
        machine.start()


async def kill(deployment: Deployment, rng: Random) -> None:
    """`kill -9`; it is started again soon."""
    machine = await _at_a_moment(deployment, rng)
    if machine is not None and machine.runs:
        machine.kill()
        await asyncio.sleep(rng.uniform(0.1, 5.0))
        start(machine)


async def _at_a_moment(deployment: Deployment, rng: Random) -> Machine | None:
    """A machine that runs, at any time, or at one of MOMENTS; then mostly the one that said it."""
    if rng.random() < 0.3:
        return one(deployment, rng)
    told: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def come(source: str, target: str) -> None:
        if not told.done():
            told.set_result(deployment.names.get(source, ""))

    deployment.network.awaited.append((rng.choices(MOMENTS, (4, 2, 1))[0], come))
    try:
        async with asyncio.timeout(MOST):
            name = await told
    except TimeoutError:
        name = ""
    said = deployment.machines.get(name)
    return said if said is not None and said.runs and rng.random() < 0.7 else one(deployment, rng)


async def power(deployment: Deployment, rng: Random) -> None:
    """A machine loses power, and with it what was not synced; sometimes another one does, too."""
    machine = await _at_a_moment(deployment, rng)
    if machine is None:
        return
    lost = [machine]
    machine.lose_power()
    if rng.random() < 0.4 and (other := one(deployment, rng)) is not None:
        other.lose_power()
        lost.append(other)
    for one_of_them in lost:
        await asyncio.sleep(rng.uniform(0.5, 8.0 / len(lost)))
        start(one_of_them)


async def ballot(deployment: Deployment, rng: Random) -> None:
    """A leader is killed, and who votes for the next one loses power right then."""
    leader = one(deployment, rng)
    if leader is None:
        return
    granted: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    come = lambda source, target: granted.done() or granted.set_result(source)  # noqa: E731
    deployment.network.awaited.append((MOMENTS[2], come))
    leader.kill()
    try:
        async with asyncio.timeout(MOST):
            voter = deployment.machines[deployment.names[await granted]]
        if voter.runs:
            voter.lose_power()
        await asyncio.sleep(rng.uniform(0.0, 0.5))
        start(voter)
    except TimeoutError:
        pass
    await asyncio.sleep(rng.uniform(0.0, 2.0))
    start(leader)


async def blackout(deployment: Deployment, rng: Random) -> None:
    """All machines lose power at once."""
    await _at_a_moment(deployment, rng)
    for machine in deployment.machines.values():
        machine.lose_power()
    await asyncio.sleep(rng.uniform(0.5, 3.0))
    for machine in list(deployment.machines.values()):  # one may join meanwhile
        start(machine)
        await asyncio.sleep(rng.uniform(0.0, 1.0))


async def forgetting(deployment: Deployment, rng: Random) -> None:
    """A machine loses power as its journal forgets: an old segment is gone, what takes its place is hardly there."""
    before: dict[str, int] = {}
    slow = list(deployment.running)
    for machine in slow:
        machine.disk.slowness = SLOW
    lost: Machine | None = None
    for _ in range(int(2 * MOST / POLL)):
        await asyncio.sleep(POLL)
        for machine in deployment.running:
            if (raft := raft_of(machine)) is not None:
                oldest = raft.journal.retention.oldest
                if before.setdefault(machine.name, oldest) < oldest:
                    lost = machine
                before[machine.name] = oldest
        if lost is not None:
            break
    if lost is not None:
        await asyncio.sleep(rng.uniform(0.0, 2 * SLOW))
    for machine in slow:
        machine.disk.slowness = 0.0
    if lost is not None:
        lost.lose_power()
        await asyncio.sleep(rng.uniform(0.1, 3.0))
        start(lost)


async def restart(machine: Machine, rng: Random, number: int = signal.SIGTERM) -> None:
    """A signal upon which it ends, and a start. One that has not ended after 20 s is killed."""
    before = machine.node
    machine.signal(number)
    for _ in range(200):
        await asyncio.sleep(0.1)
        if machine.node is not before:
            break
    else:
        machine.kill()
    await asyncio.sleep(rng.uniform(0.0, 1.0))
    start(machine)


async def stop(deployment: Deployment, rng: Random) -> None:
    """SIGTERM, and a start."""
    machine = one(deployment, rng)
    if machine is not None:
        await restart(machine, rng)


async def rolling(deployment: Deployment, rng: Random) -> None:
    """One after the other is stopped and started, once the one before serves again."""
    for machine in list(deployment.machines.values()):
        if not machine.runs or machine.paused:
            continue
        await restart(machine, rng)
        for _ in range(100):
            if machine.ready:
                break
            await asyncio.sleep(0.1)


async def lame_duck(deployment: Deployment, rng: Random) -> None:
    """It sends its clients away, and ends."""
    machine = one(deployment, rng)
    if machine is not None:
        await restart(machine, rng, signal.SIGUSR2)


async def reload(deployment: Deployment, rng: Random) -> None:
    """SIGHUP, with the configuration that it has."""
    machine = one(deployment, rng)
    if machine is not None:
        machine.signal(signal.SIGHUP)


async def pause(deployment: Deployment, rng: Random) -> None:
    """A process stands still, and goes on."""
    machine = one(deployment, rng)
    if machine is not None:
        machine.pause()
        await asyncio.sleep(rng.uniform(0.2, 6.0))
        machine.resume()


def cut_links(deployment: Deployment, here: list[str], there: list[str], *, one_way: bool = False) -> list[Link]:
    """Links from machines of one list to those of the other, and back."""
    network, machines = deployment.network, deployment.machines
    found = []
    for a in here:
        for b in there:
            source, target = machines[a].host.ip, machines[b].host.ip
            found.append(network.link(source, target))
            if not one_way:
                found.append(network.link(target, source))
    arrow = "to" if one_way else "and"
    deployment.trace.add("nemesis", f"cuts {','.join(sorted(here))} {arrow} {','.join(sorted(there))}")
    for link in found:
        link.cut()
    return found


async def _heal_later(deployment: Deployment, rng: Random, cut: list[Link]) -> None:
    await asyncio.sleep(rng.uniform(0.5, 8.0))
    deployment.trace.add("nemesis", "heals")
    for link in cut:
        link.heal()


async def partition(deployment: Deployment, rng: Random) -> None:
    """Some machines do not reach the others, in both directions or in one."""
    names = list(deployment.machines)
    rng.shuffle(names)
    if (first := one(deployment, rng)) is not None:
        names.remove(first.name)
        names.insert(0, first.name)
    at = rng.randint(1, max(1, len(names) // 2))
    cut = cut_links(deployment, names[:at], names[at:], one_way=rng.random() < 0.3)
    await _heal_later(deployment, rng, cut)


async def usurped(deployment: Deployment, rng: Random) -> None:
    """A leader stands still, or reaches no other server while clients reach it, until another one leads in its place,
    and a little longer. Sometimes its disk is slow, so that what it still writes is under way when it hears of that."""
    found = [one for one in replicas(deployment) if one.group.role is Role.LEADER and not one.machine.paused]
    if not found:
        return
    old = rng.choice(found)
    machine, disk = old.machine, old.machine.disk
    if rng.random() < 0.5:
        disk.slowness = rng.choice([0.05, 0.2, 0.5])
    cut: list[Link] = []
    if rng.random() < 0.4:
        machine.pause()
    else:
        cut = cut_links(deployment, [machine.name], [name for name in deployment.machines if name != machine.name])
    for _ in range(60):
        await asyncio.sleep(0.05)
        others = [one for one in replicas(deployment) if one.gid == old.gid and one.cluster == old.cluster]
        if any(one.group.role is Role.LEADER and one.machine is not machine for one in others):
            break
    await asyncio.sleep(rng.choice([0.0, 0.1, 0.5, 1.0]))
    deployment.trace.add("nemesis", f"{machine.name} hears of the others again")
    for link in cut:
        link.heal()
    machine.resume()
    await asyncio.sleep(rng.uniform(0.0, 0.5))
    disk.slowness = 0.0


async def elections(deployment: Deployment, rng: Random) -> None:
    """Leaders hand over one after the other, of streams and of meta groups, as for a while nobody is content."""
    for _ in range(rng.randint(3, 12)):
        found = [one for one in replicas(deployment) if one.group.role is Role.LEADER]
        for leader in rng.sample(found, min(len(found), 2)):
            if (loop := leader.machine.loop) is not None:
                loop.from_outside(rng.choice([leader.group.transfer, leader.group.resign]))
        await asyncio.sleep(rng.choice([0.02, 0.1, 0.3]))


async def one_link(deployment: Deployment, rng: Random) -> None:
    """Two machines do not reach each other, and all others reach both."""
    if len(deployment.machines) > 1:
        a, b = rng.sample(list(deployment.machines), 2)
        await _heal_later(deployment, rng, cut_links(deployment, [a], [b], one_way=rng.random() < 0.3))


async def bridge(deployment: Deployment, rng: Random) -> None:
    """Two halves that reach each other over one machine only."""
    names = list(deployment.machines)
    rng.shuffle(names)
    middle = 1 + (len(names) - 1) // 2
    await _heal_later(deployment, rng, cut_links(deployment, names[1:middle], names[middle:], one_way=False))


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


async def congested(deployment: Deployment, rng: Random) -> None:
    """Connections of one machine have few segments under way, as those that TCP has slowed down: their buffers fill up,
    and whoever writes is told to wait."""
    ip = rng.choice(list(deployment.machines.values())).host.ip
    links = [link for ends, link in deployment.network.links() if ip in ends and ends[0] != ends[1]]
    window, delay = rng.choice([1, 4, 16]) * SEGMENT, rng.choice([0.0002, 0.002, 0.02])
    for link in links:
        link.window, link.delay = window, delay
    await asyncio.sleep(rng.uniform(1.0, 8.0))
    for link in links:
        link.calm()


async def half_open(deployment: Deployment, rng: Random) -> None:
    """Connections of one process lead nowhere any more, and neither end notices."""
    machine = one(deployment, rng)
    if machine is None:
        return
    share = rng.choice([0.3, 1.0])
    for transport in machine.transports:
        if rng.random() < share:
            transport.forget()
            machine.forgotten = deployment.scheduler.now
    await asyncio.sleep(rng.uniform(0.5, 5.0))


async def busy(deployment: Deployment, rng: Random) -> None:
    """The processor of one machine is slow."""
    machine = rng.choice(list(deployment.machines.values()))
    machine.clock.slowness = rng.choice([5.0, 20.0, 60.0])
    await asyncio.sleep(rng.uniform(1.0, 8.0))
    machine.clock.slowness = machine.usual_slowness


async def little_memory(deployment: Deployment, rng: Random) -> None:
    """The kernel would end the node of one machine, or of two, if it took much more memory; some of it is free again
    later."""
    there = list(deployment.machines.values())
    machines = rng.sample(there, min(rng.choice([1, 1, 2]), len(there)))
    for machine in machines:
        deployment.trace.add("nemesis", f"{machine.name} has hardly any memory left")
        machine.memory_trouble = "31 GiB are used of the 32 GiB that the control group allows"
    await asyncio.sleep(rng.uniform(1.0, 8.0))
    for machine in machines:
        machine.memory_trouble = ""


async def few_descriptors(deployment: Deployment, rng: Random) -> None:
    """Clients take nearly all descriptors of one process, or all."""
    machine = rng.choice(list(deployment.machines.values()))
    deployment.trace.add("nemesis", f"{machine.name} has few descriptors left")
    machine.descriptors = rng.choice([DESCRIPTORS - MAX_RESERVE, DESCRIPTORS - MAX_RESERVE // 4, None])
    await asyncio.sleep(rng.uniform(1.0, 8.0))
    machine.descriptors = FEW


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
