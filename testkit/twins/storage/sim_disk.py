"""`SimDisk`: the disk of one simulated machine, with its file system, which outlives the processes on it.

What is not synced is lost when the power goes: of a file any subset of its sectors, of names any that no later one
rests on, until the folder is synced. A process that is killed loses nothing that it has written. Work that takes time
is done by `threads`; or it is a `Flight`: a running system sees its writes at once, its syncs come to the platter when
it lands, and a part of them where the power goes before.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from jetcluster.clock import Rng
from testkit.twins.storage.sectors import Flight, Folder, Moment, Node, SectorFile
from testkit.twins.storage.sim_files import SimFiles

if TYPE_CHECKING:
    from testkit.twins.storage.threads import Threads

OPERATIONS: Final = ("open", "read", "write", "sync", "create", "rename", "unlink")
USUAL: Final = (0.0003, 0.004)
TAIL: Final = (0.01, 0.1)
"""Seconds of a piece of work, and of one in twenty."""


@dataclass(slots=True)
class Fault:
    operation: str
    code: int
    within: str
    """A part of the path."""
    left: int | None
    """The number of times; None: until it is taken away."""


@dataclass(slots=True, frozen=True, eq=False)
class Rename:
    """A change of names, atomic: (folder, name, what is there then)."""

    slots: tuple[tuple[Folder, str, Node | None], ...]
    moment: Moment | None

    @property
    def keys(self) -> list[tuple[int, str]]:
        return [(folder.number, name) for folder, name, _ in self.slots]


class SimDisk:
    def __init__(self, rng: Rng, *, sector: int = 4_096, capacity: int = 1 << 40, pace: float = 1.0) -> None:
        """`sector`: bytes that are written as one, 512 or 4096. `capacity` in bytes; may be changed. `pace`: how many
        times as long as usual everything takes."""
        self.rng = rng
        self.pace = pace
        self.sector = sector
        self.capacity = capacity
        self.ballast = 0
        """Bytes that others have taken; may be changed."""
        self.used = 0
        self.reported_free: int | None = None
        """The bytes that `statvfs` finds free, when a test wants a wrong answer."""
        self.slowness = 0.0
        """Up to so many seconds are added to each piece of work."""
        self.hung = False
        self.flights: list[Flight] = []
        self.faults: list[Fault] = []
        self.tampered = 0
        """Counts rot and cuts."""
        self.errors = 0
        """Counts operations that failed as `fail` had asked."""
        self.incidents: dict[str, int] = {}
        """The same by path."""
        self.refused = 0
        """Counts writes for which there was no room."""
        self.locked: dict[str, object] = {}
        """Path of a lock file -> its holder, a process' own matter: RocksDB's."""
        self.threads: Threads | None = None
        """Those of the process that uses it."""
        self._flight: Flight | None = None
        self._waiting: list[Callable[[], None]] = []
        self._renames: list[Rename] = []
        """Renames that are not on the platter yet, in their order."""
        self._numbers = 1
        self.root = Folder(1, 0o755)
        self.files = SimFiles(self)
        """The twin of `os` (`jetcluster.files.Files`)."""

    # -- time

    def seconds(self) -> float:
        """The time that the next piece of work takes."""
        rng = self.rng
        usual = rng.uniform(*USUAL) if rng.random() < 0.95 else rng.uniform(*TAIL)
        return usual * self.pace + (rng.uniform(0.0, self.slowness) if self.slowness else 0.0)

    def hang(self) -> None:
        """No work ends until `release`."""
        self.hung = True

    def release(self) -> None:
        self.hung = False
        waiting, self._waiting = self._waiting, []
        for resume in waiting:
            resume()

    def when_released(self, resume: Callable[[], None]) -> None:
        self._waiting.append(resume)

    @contextlib.contextmanager
    def flight(self) -> Iterator[Flight]:
        """Puts off the syncs within: they come to the platter when the flight lands (`land`)."""
        before, self._flight = self._flight, Flight()
        self.flights.append(self._flight)
        try:
            yield self._flight
        finally:
            self._flight = before

    def land(self, flight: Flight) -> None:
        """All that was synced in it is on the platter."""
        flight.land()
        if flight in self.flights:
            self.flights.remove(flight)

    def moment(self) -> Moment | None:
        flight = self._flight
        return None if flight is None else Moment(flight, flight.landed + len(flight.syncs))

    def call(self) -> None:
        """Called first by each call of the disk: a thread may stand still then."""
        threads = self.threads
        if threads is not None and threads.current is not None:
            threads.call()

    # -- faults

    def fail(self, operation: str, code: int, *, within: str = "", times: int | None = None) -> Fault:
        """Has operations on paths that contain `within` fail with `code`: `times` of them, or until `heal`."""
        assert operation in OPERATIONS
        fault = Fault(operation, code, within, times)
        self.faults.append(fault)
        return fault

    def heal(self, fault: Fault | None = None) -> None:
        """Takes away one fault, or all."""
        self.faults = [other for other in self.faults if fault is not None and other is not fault]

    def check(self, operation: str, path: str) -> None:
        """Raises what was armed."""
        for fault in self.faults:
            if fault.operation == operation and fault.within in path:
                if fault.left is not None:
                    fault.left -= 1
                    if fault.left <= 0:
                        self.heal(fault)
                self.errors += 1
                self._note(path)
                raise OSError(fault.code, os.strerror(fault.code), path)

    def rot(self, path: object, offset: int, flips: int = 1) -> None:
        """Changes the byte there, and `flips` - 1 more behind it."""
        file = self.file(path)
        old = file.read(offset, flips)
        self.tampered += 1
        self._note(str(path))
        file.overwrite(offset, bytes(byte ^ (1 + self.rng.randrange(255)) for byte in old))

    def cut(self, path: object, size: int) -> None:
        file = self.file(path)
        file.cut(size)
        self.tampered += 1
        self._note(str(path))
        self._reserve(file, -(-file.size // self.sector) * self.sector)

    def _note(self, path: str) -> None:
        self.incidents[path] = self.incidents.get(path, 0) + 1

    def tree(self, path: object = "/") -> Iterator[tuple[str, SectorFile]]:
        """Every file below `path`, by name."""
        name = str(path).rstrip("/")
        node = self.find(name)
        if isinstance(node, SectorFile):
            yield name, node
            return
        for inner in sorted(node.names):
            yield from self.tree(f"{name}/{inner}")

    # -- ends

    def kill_process(self) -> None:
        """Descriptors and locks are gone; the system goes on, and writes what it was given."""
        for flight in list(self.flights):
            self.land(flight)
        self._end_process()

    def lose_power(self) -> None:
        """Loses all that was not synced, except some writes that had reached the platter all the same."""
        rng = self.rng
        for flight in self.flights:
            flight.land(rng.randrange(len(flight.syncs) + 1))
        self.flights = []
        self._end_process()
        survives = rng.random()
        lost: set[tuple[int, str]] = set()
        for rename in self._renames:
            came = rename.moment is None or rename.moment.came
            if came and lost.isdisjoint(rename.keys) and rng.random() < survives:
                self._store(rename)
            else:
                lost.update(rename.keys)
        self._renames = []
        self.used = 0
        self._after_power(self.root)

    def _end_process(self) -> None:
        self.files.close_all()
        self.locked = {}
        self._waiting = []
        self._flight = None

    def _after_power(self, folder: Folder) -> None:
        folder.names = dict(folder.stored)
        for name in sorted(folder.names):
            node = folder.names[name]
            if isinstance(node, Folder):
                self._after_power(node)
                continue
            node.lose_power(self.rng)
            node.links, node.opened = 1, 0
            node.allocated = -(-node.size // self.sector) * self.sector
            self.used += node.allocated

    # -- what the system's calls are made of

    def find(self, path: object) -> Node:
        """Raises OSError."""
        node: Node = self.root
        for name in str(path).split("/"):
            if not name or name == ".":
                continue
            if not isinstance(node, Folder):
                raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
            found = node.names.get(name)
            if found is None:
                raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
            node = found
        return node

    def file(self, path: object) -> SectorFile:
        node = self.find(path)
        if isinstance(node, Folder):
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        return node

    def folder_of(self, path: object) -> tuple[Folder, str]:
        """The folder that a name is in, and the name."""
        above, _, name = str(path).rstrip("/").rpartition("/")
        folder = self.find(above)
        if not isinstance(folder, Folder):
            raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
        return folder, name

    def make(self, path: object, mode: int) -> Node:
        """`mode` tells a folder from a file."""
        folder, name = self.folder_of(path)
        self._numbers += 1
        node: Node = (
            Folder(self._numbers, stat.S_IMODE(mode))
            if stat.S_ISDIR(mode)
            else SectorFile(self._numbers, mode, self.sector)
        )
        self.rename((folder, name, node))
        return node

    def rename(self, *slots: tuple[Folder, str, Node | None]) -> None:
        for folder, name, node in slots:
            old = folder.names.pop(name, None)
            if node is not None:
                folder.names[name] = node
                node.links += 1
            if old is not None:
                old.links -= 1
                self.forget(old)
        self._renames.append(Rename(slots, self.moment()))

    def forget(self, node: Node) -> None:
        """Frees the space of a file that has no name and is not open."""
        if isinstance(node, SectorFile) and not node.links and not node.opened:
            self.used -= node.allocated
            node.allocated = 0

    @property
    def free(self) -> int:
        return max(self.capacity - self.used - self.ballast, 0)

    def grow(self, file: SectorFile, end: int) -> int:
        """Takes space for a file that is to reach `end`; returns up to where it can."""
        wanted = -(-end // self.sector) * self.sector
        if wanted > file.allocated:
            fits = min(wanted - file.allocated, self.free // self.sector * self.sector)
            self.refused += fits < wanted - file.allocated
            self._reserve(file, file.allocated + fits)
        return min(end, max(file.allocated, 0))

    def _reserve(self, file: SectorFile, size: int) -> None:
        self.used += size - file.allocated
        file.allocated = size

    def sync_file(self, file: SectorFile, only: list[int] | None = None) -> None:
        unwritten = file.unwritten(only)
        self._do_sync(lambda: file.store(unwritten))

    def sync_folder(self, folder: Folder) -> None:
        """The names in it, and what those rest on."""
        needed: set[tuple[int, str]] = set()
        wanted: list[Rename] = []
        for rename in reversed(self._renames):
            if any(other is folder for other, _, _ in rename.slots) or not needed.isdisjoint(rename.keys):
                needed.update(rename.keys)
                wanted.append(rename)
        wanted.reverse()

        def store() -> None:
            for rename in wanted:
                if rename in self._renames:
                    self._renames.remove(rename)
                    self._store(rename)

        self._do_sync(store)

    def _do_sync(self, sync: Callable[[], None]) -> None:
        if self._flight is not None:
            self._flight.syncs.append(sync)
            return
        if self.threads is not None and self.threads.current is not None:
            self.threads.sync()
        sync()

    @staticmethod
    def _store(rename: Rename) -> None:
        for folder, name, node in rename.slots:
            folder.stored.pop(name, None)
            if node is not None:
                folder.stored[name] = node
