"""Faults of disks: slow, hung, full, errors; and what damages data, within the limits of what is promised.

Damage (`expendable`) comes to one machine of a run only, and never to the only copy of anything: what two of three
disks hold is what is promised, and nobody knows of rot before somebody reads it. The data store is damaged once in a
run: a server renews its store or starts again for its sake once in a while, and then says that the disk is failing.
"""

from __future__ import annotations

import asyncio
import errno
from random import Random

from tests.sim.cluster.deployment import Deployment
from tests.sim.cluster.invariants import Replica, jetstream_of, replicas
from tests.sim.cluster.machine import Machine
from tests.sim.cluster.machine_faults import elections, one, start
from tests.twins.storage.sectors import SectorFile

COPIES = 3
"""Voters of a group of which one may lose its data."""
JOURNAL, DATA = "/data/jetstream/journal/", "/data/jetstream/data/"


async def slow_disk(deployment: Deployment, rng: Random) -> None:
    machine = one(deployment, rng) or rng.choice(list(deployment.machines.values()))
    machine.disk.slowness = rng.choice([0.02, 0.1, 0.5])
    await asyncio.sleep(rng.uniform(1.0, 6.0))
    machine.disk.slowness = 0.0


async def hung_disk(deployment: Deployment, rng: Random) -> None:
    machine = one(deployment, rng) or rng.choice(list(deployment.machines.values()))
    machine.disk.hang()
    await asyncio.sleep(rng.uniform(0.5, 8.0))
    machine.disk.release()


async def full_disk(deployment: Deployment, rng: Random) -> None:
    """Others fill it, up to the last bytes or not quite."""
    machine = rng.choice(list(deployment.machines.values()))
    disk = machine.disk
    disk.ballast = max(0, disk.free - rng.choice([0, 64 << 10, 2 << 20]))
    deployment.trace.add("nemesis", f"the disk of {machine.name} is full")
    await asyncio.sleep(rng.uniform(1.0, 8.0))
    disk.ballast = 0
    start(machine)


async def io_error(deployment: Deployment, rng: Random) -> None:
    """EIO, once or for a while. A sync that fails has lost what it was for, so this is damage."""
    machine = expendable(deployment, rng)
    if machine is None:
        return
    operation = rng.choice(["read", "write", "sync"])
    within = _folder(machine, rng)
    times = rng.choice([1, 1, 3, None])
    deployment.trace.add("nemesis", f"{machine.name}: {operation} in '{within}' fails, times: {times}")
    disk = machine.disk
    fault = disk.fail(operation, errno.EIO, within=within, times=times)
    await asyncio.sleep(rng.uniform(0.5, 4.0))
    disk.heal(fault)
    await asyncio.sleep(1.0)
    start(machine)


async def rot(deployment: Deployment, rng: Random) -> None:
    """Bytes of a file change, in the journal or in the data store; mostly it is read soon, at a start."""
    machine = expendable(deployment, rng)
    if machine is None:
        return
    found = _files(machine, _folder(machine, rng))
    if not found:
        return
    path, file = rng.choice(found)
    offset, flips = _within(file, rng), rng.choice([1, 8, 512])
    deployment.trace.add("nemesis", f"{machine.name}: rot in {path} at {offset}, {flips} bytes")
    machine.disk.rot(path, offset, flips)
    if rng.random() < 0.7:
        await asyncio.sleep(rng.uniform(0.0, 2.0))
        machine.kill()
        await asyncio.sleep(0.5)
        start(machine)
        await _elections(deployment, rng)


async def cut_file(deployment: Deployment, rng: Random) -> None:
    """A file is shorter when the machine comes back."""
    machine = expendable(deployment, rng)
    if machine is None:
        return
    machine.lose_power()
    found = _files(machine, _folder(machine, rng))
    if found:
        path, file = rng.choice(found)
        size = _within(file, rng)
        deployment.trace.add("nemesis", f"{machine.name}: {path} is cut to {size} of {file.size} bytes")
        machine.disk.cut(path, size)
    await asyncio.sleep(rng.uniform(0.5, 2.0))
    start(machine)
    await _elections(deployment, rng)


async def _elections(deployment: Deployment, rng: Random) -> None:
    """Sometimes: who has just come back without all that it had is asked for votes at once."""
    if rng.random() < 0.5:
        await asyncio.sleep(rng.uniform(0.1, 0.6))
        await elections(deployment, rng)


async def wipe(deployment: Deployment, rng: Random) -> None:
    """A machine comes back with an empty disk."""
    machine = expendable(deployment, rng)
    if machine is None:
        return
    deployment.trace.add("nemesis", f"{machine.name} is wiped")
    machine.lose_power()
    machine.new_disk()
    await asyncio.sleep(rng.uniform(0.5, 4.0))
    start(machine)


def expendable(deployment: Deployment, rng: Random) -> Machine | None:
    """The machine that may lose data now; None while there is none."""
    names = [deployment.victim] if deployment.victim else sorted(deployment.machines)
    found = list(replicas(deployment))
    free = [name for name in names if _may_lose(deployment, name, found)]
    if not free:
        return None
    deployment.victim = rng.choice(free)
    return deployment.machines[deployment.victim]


def _may_lose(deployment: Deployment, name: str, found: list[Replica]) -> bool:
    """All it has is on others too, on a majority without it."""
    machine = deployment.machines[name]
    own = [one for one in found if one.machine is machine]
    jetstream = jetstream_of(machine)
    if not own or machine.paused or jetstream is None or not jetstream.context.meta_current:
        return False  # after a restart it may not know yet which streams it has
    return all(_kept_without(replica, found) for replica in own)


def _kept_without(replica: Replica, found: list[Replica]) -> bool:
    voters = replica.group.log.config.voters
    if len(voters) < COPIES or not replica.group.log.durable:
        return False
    same = [one for one in found if one.gid == replica.gid and one.cluster == replica.cluster]
    for other in same:  # a leader that removes others goes by fewer already
        shrunk = other.group.log.config.voters
        if replica.group.me in shrunk and len(shrunk) < COPIES:
            return False
    others = [one for one in same if one.group.me != replica.group.me and one.group.me in voters]
    commit = max(one.group.commit_index for one in same)
    whole = [one for one in others if _is_whole(one) and one.group.log.written_index >= commit]
    return 2 * len(whole) > len(voters)


def _is_whole(replica: Replica) -> bool:
    log, stream = replica.group.log, replica.stream
    if log.damaged or log.joining or log.fetching or replica.machine.paused or replica.group.stopped:
        return False
    return stream is None or not (stream.installing or stream.suspect or stream.doubt)


def _folder(machine: Machine, rng: Random) -> str:
    """What is to be damaged now."""
    folder = JOURNAL if machine.damaged_data else rng.choice([JOURNAL, DATA])
    machine.damaged_data |= folder == DATA
    return folder


def _files(machine: Machine, folder: str) -> list[tuple[str, SectorFile]]:
    """Not what tells whose they are: a server that lost that wants somebody to move its store away, and says so."""
    found = machine.disk.tree()
    return [
        (path, file) for path, file in found if file.sectors and path.startswith(folder) and not path.endswith("/STORE")
    ]


def _within(file: SectorFile, rng: Random) -> int:
    """A place that was written: most of a segment of the journal never was."""
    at = rng.choice(sorted(file.sectors)) * file.sector + rng.randrange(file.sector)
    return min(at, file.size - 1)
