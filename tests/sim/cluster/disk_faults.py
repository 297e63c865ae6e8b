"""Faults of disks: slow, hung, full, errors; and what damages data, within the limits of what is promised.

Damage (`expendable.py`) comes to one machine at a time, and never to the only copy of anything: what two of three
disks hold is what is promised, and nobody knows of rot before somebody reads it. The data store of a machine is damaged
once in a run: a server renews its store or starts again for its sake once in a while, and then says that the disk is
failing.
"""

from __future__ import annotations

import asyncio
import errno
from random import Random

from testkit.sim.deployment import Deployment
from testkit.sim.machine import DATA, JOURNAL, Machine
from testkit.twins.storage.sectors import SectorFile
from tests.sim.cluster.expendable import expendable, is_half
from tests.sim.cluster.machine_faults import elections, one, start


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


async def hung_disks(deployment: Deployment, rng: Random) -> None:
    """Two of them, or all."""
    machines = _some(deployment, rng)
    for machine in machines:
        machine.disk.hang()
    await asyncio.sleep(rng.uniform(0.5, 8.0))
    for machine in machines:
        machine.disk.release()


async def full_disk(deployment: Deployment, rng: Random) -> None:
    """Others fill it, up to the last bytes or not quite."""
    machine = rng.choice(list(deployment.machines.values()))
    disk = machine.disk
    disk.ballast = max(0, disk.free - rng.choice([0, 64 << 10, 2 << 20]))
    machine.fills += 1
    deployment.trace.add("nemesis", f"the disk of {machine.name} is full")
    await asyncio.sleep(rng.uniform(1.0, 8.0))
    disk.ballast = 0
    start(machine)


async def full_disks(deployment: Deployment, rng: Random) -> None:
    """Two of them, or all."""
    machines = _some(deployment, rng)
    for machine in machines:
        machine.disk.ballast = max(0, machine.disk.free - rng.choice([0, 64 << 10, 2 << 20]))
        machine.fills += 1
    await asyncio.sleep(rng.uniform(1.0, 8.0))
    for machine in machines:
        machine.disk.ballast = 0
        start(machine)


def _some(deployment: Deployment, rng: Random) -> list[Machine]:
    machines = list(deployment.machines.values())
    return rng.sample(machines, rng.choice([min(2, len(machines)), len(machines)]))


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
    machine.failing += 1
    await asyncio.sleep(rng.uniform(0.5, 4.0))
    disk.heal(fault)
    await asyncio.sleep(1.0)
    start(machine)
    machine.failing -= 1


async def rot(deployment: Deployment, rng: Random) -> None:
    """Bytes of a file change, in the journal or in the data store; mostly it is read soon, at a start."""
    machine = expendable(deployment, rng)
    if machine is None or not rot_once(deployment, rng, machine, _folder(machine, rng)):
        return
    if rng.random() < 0.7:
        await asyncio.sleep(rng.uniform(0.0, 2.0))
        machine.kill()
        await asyncio.sleep(0.5)
        start(machine)
        await _elections(deployment, rng)


def rot_once(deployment: Deployment, rng: Random, machine: Machine, folder: str) -> bool:
    """Changes bytes of a file there; False where there is none."""
    found = _files(machine, folder)
    if not found:
        return False
    path, file = rng.choice(found)
    offset, flips = _within(file, rng), rng.choice([1, 8, 512])
    deployment.trace.add("nemesis", f"{machine.name}: rot in {path} at {offset}, {flips} bytes")
    machine.disk.rot(path, offset, flips)
    machine.harm(path)
    return True


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
        machine.harm(path)
    await asyncio.sleep(rng.uniform(0.5, 2.0))
    start(machine)
    await _elections(deployment, rng)


async def _elections(deployment: Deployment, rng: Random) -> None:
    """Sometimes: who has just come back without all that it had is asked for votes at once."""
    if rng.random() < 0.5:
        await asyncio.sleep(rng.uniform(0.1, 0.6))
        await elections(deployment, rng)


async def torn_journal(deployment: Deployment, rng: Random) -> None:
    """A machine comes back with a journal that is damaged at several places, in several ways: bytes that changed, the
    beginning or the end of a segment that is gone, and segments that are."""
    machine = expendable(deployment, rng)
    if machine is None:
        return
    machine.kill()
    for _ in range(rng.randint(2, 5)):
        found = _files(machine, JOURNAL)
        if found:
            _tear(deployment, rng, machine, *rng.choice(found))
    await asyncio.sleep(rng.uniform(0.1, 2.0))
    start(machine)
    await _elections(deployment, rng)


def _tear(deployment: Deployment, rng: Random, machine: Machine, path: str, file: SectorFile) -> None:
    disk, way = machine.disk, rng.randrange(4)
    deployment.trace.add("nemesis", f"{machine.name}: {path} is torn, in way {way}")
    machine.harm(path)
    if way == 0:
        disk.rot(path, rng.randrange(min(64, file.size)), rng.choice([1, 8]))
    elif way == 1:
        disk.cut(path, _within(file, rng))
    elif way == 2:
        disk.note(path)
        disk.files.unlink(path)
    else:
        disk.rot(path, _within(file, rng), rng.choice([1, 64, 4096]))


async def break_data(deployment: Deployment, rng: Random) -> None:
    """The data store of one machine cannot be opened any more; its journal is whole."""
    machine = expendable(deployment, rng)
    if machine is None or machine.damaged_data:
        return
    machine.kill()
    spoil_data(deployment, machine)
    await asyncio.sleep(rng.uniform(0.2, 2.0))
    start(machine)


def spoil_data(deployment: Deployment, machine: Machine) -> None:
    """All of it, by the one file that tells what there is."""
    machine.damaged_data = True
    deployment.trace.add("nemesis", f"{machine.name}: its data store is broken")
    for path, file in machine.disk.tree(DATA):
        if "/MANIFEST" in path and file.sectors:
            machine.disk.rot(path, 20, 64)
            machine.harm(path)


async def wipe(deployment: Deployment, rng: Random) -> None:
    """A machine comes back with an empty disk."""
    await _wipe(deployment, rng, expendable(deployment, rng))


async def wipe_even(deployment: Deployment, rng: Random) -> None:
    """The same. One of two voters only comes back with a rotten journal: the other one, which has everything, heals it.
    Wiped it would be another peer, and no majority could give it the place of the one that is gone for good: the
    docs ask an operator to rescue such a stream (docs/membership/rescue.md)."""
    machine = expendable(deployment, rng, even=True)
    if machine is None or not is_half(deployment, machine):
        await _wipe(deployment, rng, machine)
        return
    machine.lose_power()
    rot_once(deployment, rng, machine, JOURNAL)
    await asyncio.sleep(rng.uniform(0.5, 4.0))
    start(machine)
    await _elections(deployment, rng)


async def _wipe(deployment: Deployment, rng: Random, machine: Machine | None) -> None:
    if machine is None:
        return
    deployment.trace.add("nemesis", f"{machine.name} is wiped")
    machine.lose_power()
    machine.new_disk()
    await asyncio.sleep(rng.uniform(0.5, 4.0))
    start(machine)


def _folder(machine: Machine, rng: Random) -> str:
    """The folder that is to be damaged now."""
    folder = JOURNAL if machine.damaged_data else rng.choice([JOURNAL, DATA])
    machine.damaged_data |= folder == DATA
    return folder


def _files(machine: Machine, folder: str) -> list[tuple[str, SectorFile]]:
    """Files of a folder, without those that tell whose they are: a server that lost these wants somebody to move its
    store away, and says so."""
    found = machine.disk.tree()
    return [
        (path, file) for path, file in found if file.sectors and path.startswith(folder) and not path.endswith("/STORE")
    ]


def _within(file: SectorFile, rng: Random) -> int:
    """A place that was written: most of a segment of the journal never was."""
    at = rng.choice(sorted(file.sectors)) * file.sector + rng.randrange(file.sector)
    return min(at, file.size - 1)
