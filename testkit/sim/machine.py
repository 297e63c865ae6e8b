"""A simulated host: its clocks, its disk, and the process of the node on it, which is started, killed and paused."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import math
import re
import signal
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from jetcluster.clock import Rng
from jetcluster.health.descriptors import DescriptorWatch
from jetcluster.node.node import Node
from jetcluster.node.part_options import journal_options
from jetcluster.node.platform import Platform
from jetcluster.node.process import START_AGAIN, serve
from jetcluster.raft.config import JournalOptions, RaftConfig
from jetcluster.store.kv import KvError
from jetcluster.store.rocks_kv import RocksKv
from jetcluster.store.seal import StoreSeal
from jetcluster.store.sealed_kv import SealedKv
from testkit.sim.loop import TURN, Scheduler, SimLoop
from testkit.sim.network import FEW, Endpoints, Host, Network, SimTransport
from testkit.sim.trace import SimLog, Trace
from testkit.twins.storage import RocksModule, SimDisk, SimWriter
from testkit.twins.storage.sectors import SectorFile
from testkit.twins.storage.threads import CUTS, Threads
from testkit.twins.time import SeededRng

if TYPE_CHECKING:
    from testkit.sim.vows import Vows

EPOCH_NS = 1_700_000_000_000_000_000
LOOK = 20e-6
"""Seconds of the processor from one look at the monotonic clock to the next: jobs that are to stop after a while
(`jetcluster.budget`) look after each step."""
UPTIME = 100.0
"""Seconds of the monotonic clocks when the simulation begins."""
MEMORY = 8 << 30
DESCRIPTORS = 65_536
ENDS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2)
"""Signals upon which a node ends; the last one after it has sent its clients away."""
SMALL_RETENTION = 16
"""Entries that a small journal keeps of a group."""
IDENTITY = "/data/jetstream/node.json"
JOURNAL, DATA = "/data/jetstream/journal/", "/data/jetstream/data/"
OF_DISK = re.compile(
    r"Kv\w*Error|OSError|Errno|DamagedError|damaged|cannot be read|No space|bytes free|no room|Corruption: |IO error: "
)
"""In the text of an error of the disk; the last two are RocksDB's words."""


class MachineClock:
    """The two clocks of a machine, and its processor's speed. The monotonic clock may run fast or slow, the wall clock
    may be off and jump."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.wall_ahead = 0.0
        """Seconds; may be changed at any time."""
        self.spent = 0.0
        self.slowness = 1.0
        self._scheduler = scheduler
        self._rate = 1.0
        self._base = UPTIME
        """The monotonic clock's reading at the beginning, had it always run as it does now."""

    def set_rate(self, rate: float) -> None:
        """Seconds of this machine per true second, from now on. Timers that run go off when they would have."""
        self._base += self._scheduler.now * (self._rate - rate)
        self._rate = rate

    def monotonic(self) -> float:
        self.spent += LOOK * self.slowness
        return self._base + (self._scheduler.now + self.spent) * self._rate

    def now(self) -> float:
        return self._base + (self._scheduler.now + self.spent) * self._rate

    def uptime(self) -> float:
        return self.monotonic()

    def time_ns(self) -> int:
        return EPOCH_NS + int((self.now() - UPTIME + self.wall_ahead) * 1e9)

    def true_delay(self, seconds: float) -> float:
        return seconds / self._rate


class SimUsage:
    """`jetcluster.health.usage.Usage` of one process: the same wherever and however often a seed is run."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop

    def memory_bytes(self) -> int:
        return 64 << 20

    def cpu_seconds(self) -> float:
        return self._loop.turns * TURN

    def cores(self) -> int:
        return 4

    def collections(self) -> tuple[int, int]:
        return 0, 0


class SimPlatform:
    """`jetcluster.node.platform.Platform` of one process."""

    def __init__(self, machine: Machine, rng: Rng) -> None:
        self.clock = machine.clock
        self.rng = rng
        self.files = machine.disk.files
        assert machine.loop is not None
        self.usage = SimUsage(machine.loop)
        self.stopwatch = machine.clock.monotonic
        self._machine = machine

    def raise_limit(self) -> tuple[int, int]:
        return DESCRIPTORS, DESCRIPTORS

    def descriptors(self) -> DescriptorWatch:
        return DescriptorWatch(lambda: DESCRIPTORS, self._machine.lowest_free)

    def memory_trouble(self) -> Callable[[], str]:
        return lambda: self._machine.memory_trouble

    def physical_memory(self) -> int:
        return MEMORY

    def open_writer(self, loop: asyncio.AbstractEventLoop) -> SimWriter:
        return SimWriter(self._machine.disk, loop, self._machine.threads)

    def journal_options(self, directory: Path, sync_interval: float | None) -> JournalOptions:
        """The usual options, or ones so small that the journal forgets soon and a node that was away needs another's
        state."""
        usual, segment = journal_options(directory, sync_interval, self.files), self._machine.segment
        if not segment:
            return usual
        return replace(
            usual,
            segment_bytes=segment,
            retain_bytes=segment // 4,
            retain_entries=SMALL_RETENTION,
            node_retain_bytes=segment,
        )

    def raft_config(self) -> RaftConfig:
        """The usual configuration, with leases also for few readers, and in some runs with batches so small that a few
        entries do not fit into one."""
        usual, batch = replace(RaftConfig(lease_reads=2), **self._machine.raft_limits), self._machine.batch
        return replace(usual, frame_entries=batch, promote_lag=min(usual.promote_lag, 2 * batch)) if batch else usual

    def open_store(
        self, path: Path, *, salvage: bool = False, owner_flushes: bool = False, seal: StoreSeal | None = None
    ) -> RocksKv:
        machine = self._machine
        make = RocksKv if seal is None else partial(SealedKv, seal=seal)
        return make(
            path,
            salvage=salvage,
            owner_flushes=owner_flushes,
            monotonic=machine.clock.monotonic,
            files=machine.disk.files,
            rocks=RocksModule(machine.disk),
        )


class Machine:
    """`failed` is called for what must not happen."""

    def __init__(
        self,
        name: str,
        ip: str,
        scheduler: Scheduler,
        network: Network,
        trace: Trace,
        seed: int,
        failed: Callable[[str], None],
    ) -> None:
        self.name = name
        self.host = Host(ip)
        self.clock = MachineClock(scheduler)
        self.disk: SimDisk
        self.loop: SimLoop | None = None
        """The loop of the process that runs; None when none does."""
        self.node: Node | None = None
        self.make_node: Callable[[SimLog, Platform], Node]
        """Makes the node of each start; there is none where no node runs."""
        self.paused = False
        self.forgotten = -math.inf
        """The time at which the network forgot some of its connections."""
        self.fills = 0
        """Counts how others have taken what was free of its disk."""
        self.damaged_data = False
        """Its data store was (`disk_faults`)."""
        self.memory_trouble = ""
        """A reason to say that hardly any memory is left; "" for none."""
        self._descriptors: int | None = FEW
        self.failing = 0
        """Faults of its disk that fail reads or writes now."""
        self._harmed: list[tuple[str, SectorFile, int]] = []
        """Files that were damaged, and how often the node had been started before."""
        self.lost_peers: list[str] = []
        """Peer ids of the stores that were here before the one of now."""
        self.usual_slowness = 1.0
        self.segment = 0
        """Bytes of its journal's; 0: as usual."""
        self.batch = 0
        """Entries that it sends at a time, and half of what a replica may lack that becomes a voter; 0: as usual."""
        self.raft_limits: Mapping[str, Any] = {}
        """Fields of its RaftConfig that are not as usual; from the next start on."""
        self.level = 0
        """Level of the older version that its server has (`stream.log.levels`); 0: this one. From the next start on."""
        self.threads: Threads | None = None
        """Those of the process."""
        self.cuts = CUTS
        """Share of the calls of the disk at which a thread stands still; counts from the next start on."""
        self.disk_pace = 1.0
        """Factor by which a disk takes longer than usual; counts from the next `new_disk` on."""
        self.starts = 0
        self._begins: list[dict[str, int]] = []
        """The incidents of the disk up to the start of this process, behind those up to the start of the one before."""
        self.vows: Vows | None = None
        """Vows of servers: called at ends and beginnings."""
        self.power_failures: list[float] = []
        """Times of all; shared by the machines of a deployment."""
        self.expected: set[str] = set()
        """See `Deployment.expected`; shared by its machines."""
        self.exits: list[int] = []
        """Exit codes of processes that ended by themselves."""
        self._told_to_end = False
        """The process got a signal upon which it ends."""
        self.last_words = ""
        """Words of the process before that tell what made it end."""
        self._scheduler = scheduler
        self._network = network
        self._trace = trace
        self._random = Random(seed)
        self._call = Random(seed ^ 1)
        """For what threads do when."""
        self._capacity = 1 << 40
        self.disk = SimDisk(SeededRng(self._random.getrandbits(64)), capacity=self._capacity)
        self._failed = failed
        self._endpoints: Endpoints | None = None
        network.hosts[ip] = self.host

    @property
    def runs(self) -> bool:
        return self.loop is not None

    @property
    def ready(self) -> bool:
        """The node serves clients."""
        return self.node is not None and self.node._started and not self.node._stopping

    def new_disk(self, capacity: int | None = None) -> None:
        """An empty one, of `capacity` bytes or as large as the one before. While no process runs."""
        assert self.loop is None
        if self.peer_id:
            self.lost_peers.append(self.peer_id)
        self.damaged_data = False
        self._harmed = []
        self._begins = []
        self._capacity = capacity or self._capacity
        self.disk = SimDisk(SeededRng(self._random.getrandbits(64)), capacity=self._capacity, pace=self.disk_pace)
        if self.vows is not None:
            self.vows.new_disk(self)

    @property
    def peer_id(self) -> str:
        """Id of the peer whose store is here; "" where no node was ever."""
        with contextlib.suppress(FileNotFoundError):
            identity = self.disk.file(IDENTITY)
            return str(json.loads(identity.read(0, identity.size))["peer_id"])
        return ""

    def harm(self, path: str) -> None:
        """Something has happened to this file of the disk."""
        self._harmed.append((path, self.disk.file(path), self.starts))

    @property
    def descriptors(self) -> int | None:
        """The number of the process's next descriptor; None: there is none left, for a file or a connection."""
        return self._descriptors

    @descriptors.setter
    def descriptors(self, lowest: int | None) -> None:
        self._descriptors = lowest
        self.host.descriptor = lowest
        self.disk.files.exhaust(wanted=lowest is None)

    def lowest_free(self) -> int:
        """The process's next descriptor. Raises OSError where there is none."""
        if self.descriptors is None:
            raise OSError(errno.EMFILE, "Too many open files")
        return self.descriptors

    @property
    def is_short(self) -> bool:
        """True while the process lacks memory or descriptors."""
        return bool(self.memory_trouble) or self.descriptors != FEW

    @property
    def hides_damage(self) -> bool:
        """Some of its data may be damaged and nobody has come upon that. A journal is read when the node starts; what
        the data store has lies there until it is written anew."""
        return self.failing > 0 or any(self._hides(*one) for one in self._harmed)

    def _hides(self, path: str, file: SectorFile, starts: int) -> bool:
        if path.startswith(JOURNAL):
            return self.starts == starts or not self.ready
        with contextlib.suppress(OSError):
            return self.disk.file(path) is file
        return False

    @property
    def transports(self) -> list[SimTransport]:
        """Connections of the process."""
        return list(self._endpoints.transports) if self._endpoints is not None else []

    # ---- the process

    def begin(self) -> SimLoop:
        """A process, with nothing in it yet."""
        assert self.loop is None
        self._told_to_end = False
        self.host.up = True
        loop = self.loop = SimLoop(self._scheduler, self.clock, self._work, self._raised)  # type: ignore[abstract]
        loop.level = self.level
        loop.log = SimLog(self._trace, self.name, self._caught)
        self._endpoints = Endpoints(self._network, self.host, loop)
        self.threads = Threads(
            self.disk, self._scheduler.after, SeededRng(self._call.getrandbits(64)), cuts=self.cuts, enter=loop.enter
        )
        return loop

    def start(self) -> None:
        """Starts the node."""
        self.starts += 1
        self._begins = [*self._begins[-1:], self._happened()]
        self._trace.add(self.name, f"starts, for the {self.starts}. time")
        loop = self.begin()
        platform = SimPlatform(self, SeededRng(self._random.getrandbits(64)))
        self.node = self.make_node(loop.log, platform)
        if self.vows is not None:
            self.vows.started(self)
        self.run(self._serve(self.node))

    async def _serve(self, node: Node) -> None:
        code = await serve(node)
        self._scheduler.after(0.0, self._exited, node, code)

    def _exited(self, node: Node, code: int) -> None:
        if self.node is not node:
            return
        self._trace.add(self.name, f"exits with {code}")
        self.exits.append(code)
        words = " ".join(self.loop.log.fatals) if self.loop is not None else ""
        if (code or not self._told_to_end) and not self.disk_troubled():
            self._failed(f"{self.name} ends by itself with {code}, and nothing has happened to its disk: {words}")
        self._gone(tell=True)
        self.disk.kill_process()
        if code == START_AGAIN:
            self.start()

    def run(self, work: Coroutine[Any, Any, Any]) -> None:
        """Starts it in the process."""
        loop = self.loop
        assert loop is not None
        loop.from_outside(lambda: setattr(loop, "main", loop.create_task(work)))

    def kill(self) -> None:
        """Ends the process like `kill -9`: what it had in memory is gone, what it gave to the system is not."""
        if self.loop is None:
            return
        self._trace.add(self.name, "is killed")
        self._gone(tell=True)
        self.disk.kill_process()

    def lose_power(self) -> None:
        """No connection is closed; what was not synced is gone."""
        self._trace.add(self.name, "loses power")
        self.power_failures.append(self._scheduler.now)
        self.host.up = False
        if self.loop is not None:
            self._gone(tell=False)
        self.disk.lose_power()

    def _gone(self, *, tell: bool) -> None:
        assert self.loop is not None
        assert self._endpoints is not None
        if self.vows is not None:
            self.vows.died(self)
        self.last_words = " ".join(self.loop.log.fatals) if self.loop.log is not None else ""
        assert self.threads is not None
        self.loop.kill()
        self.threads.end()
        self._endpoints.drop(tell=tell)
        self.loop = self.node = self.threads = self._endpoints = None
        self.paused = False

    def signal(self, number: int) -> None:
        if self.loop is not None and number in self.loop.signals:
            self._told_to_end |= number in ENDS
            self.loop.from_outside(self.loop.signals[number])

    def pause(self) -> None:
        """Stops the process like SIGSTOP: connections stay, and what comes waits."""
        if self.loop is not None and not self.paused:
            self._trace.add(self.name, "stands still")
            self.paused = True
            self.loop.pause()
            assert self.threads is not None
            self.threads.pause()

    def resume(self) -> None:
        if self.loop is not None and self.paused:
            self._trace.add(self.name, "goes on")
            self.paused = False
            self.loop.resume()
            assert self.threads is not None
            self.threads.resume()

    # ---- threads

    def _work(self, work: Callable[[], None], done: Callable[[], None]) -> None:
        """Does `work` in a thread, and `done` in a turn of the loop."""
        loop, threads = self.loop, self.threads
        assert loop is not None and threads is not None

        def run() -> None:
            work()
            loop.from_outside(done)

        threads.start(run)

    def _happened(self) -> dict[str, int]:
        """Errors and damage by path, and under "" how often there was no room."""
        return {**self.disk.incidents, "": self.disk.refused + self.fills}

    def disk_troubled(self, folder: str = "/", *, full: bool = True) -> bool:
        """Files in `folder` have failed or were damaged in the life of this process or of the one before (whose end may
        have come of that), or are damaged still; or the disk was full, where that counts."""
        before = self._begins[0] if self._begins else {}
        new = [path for path, count in self._happened().items() if count > before.get(path, 0)]
        if full and (self.disk.ballast or "" in new):
            return True
        if any(path and path.startswith(folder) for path in new):
            return True
        return any(self._hides(*one) for one in self._harmed if one[0].startswith(folder))

    def _caught(self, text: str, error: BaseException | None) -> None:
        """The node has logged an error that it did not expect. That of a disk that fails may come up anywhere."""
        of_disk = isinstance(error, (KvError, OSError)) or (error is None and OF_DISK.search(text) is not None)
        if not (of_disk and self.disk_troubled()) and not text.startswith(tuple(self.expected)):
            self._failed(f"{self.name}: {text} {error!r}")

    def _raised(self, text: str, error: BaseException | None) -> None:
        self._failed(f"{self.name}: {text} {error!r}")
