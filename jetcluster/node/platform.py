"""Everything that a node gets from its machine: time, randomness, files, the data store, limits.

Connections, timers, signals and threads come from the event loop that the node runs on. With another loop and platform
a whole node runs in a simulation, unaware of it.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from jetcluster.clock import Clock, Rng, SystemClock, SystemRng
from jetcluster.files import Files
from jetcluster.health.descriptors import DescriptorWatch, raise_limit
from jetcluster.health.usage import ProcessUsage, Usage
from jetcluster.node.capacity import physical_memory
from jetcluster.node.part_options import journal_options

if TYPE_CHECKING:
    from jetcluster.raft.config import JournalOptions, RaftConfig
    from jetcluster.raft.journal.writer import WaitingWriter
    from jetcluster.store.rocks_kv import RocksKv
    from jetcluster.store.seal import StoreSeal


class Platform(Protocol):
    """The machine of a node."""

    @property
    def clock(self) -> Clock: ...
    @property
    def rng(self) -> Rng: ...
    @property
    def files(self) -> Files: ...
    def open_store(
        self, path: Path, *, salvage: bool = False, owner_flushes: bool = False, seal: StoreSeal | None = None
    ) -> RocksKv:
        """A `data_renewal.OpenStore`. `seal`: of a store that is encrypted."""

    @property
    def usage(self) -> Usage: ...
    @property
    def stopwatch(self) -> Callable[[], float]:
        """Returns seconds of the finest clock, for measurements only."""

    def raise_limit(self) -> tuple[int, int]:
        """See `health.descriptors.raise_limit`."""

    def descriptors(self) -> DescriptorWatch: ...
    def memory_trouble(self) -> Callable[[], str]:
        """Returns a `node_health.Check` of the remaining memory."""

    def physical_memory(self) -> int:
        """Returns the bytes of memory."""

    def open_writer(self, loop: asyncio.AbstractEventLoop) -> WaitingWriter:
        """Opens the journal's writer."""

    def journal_options(self, directory: Path, sync_interval: float | None) -> JournalOptions:
        """See `part_options.journal_options`."""

    def raft_config(self) -> RaftConfig:
        """Returns times and limits of the Raft groups, except the configured ones."""


class SystemPlatform:
    """The operating system."""

    def __init__(self, sharers: int = 1) -> None:
        """`sharers`: server processes that share the machine's memory."""
        self._sharers = sharers
        self.clock: Clock = SystemClock()
        self.rng: Rng = SystemRng()
        self.files: Files = os
        self.usage: Usage = ProcessUsage()
        self.stopwatch = time.perf_counter

    def raise_limit(self) -> tuple[int, int]:
        return raise_limit()

    def descriptors(self) -> DescriptorWatch:
        return DescriptorWatch()

    def memory_trouble(self) -> Callable[[], str]:
        from jetcluster.health.memory import MemoryWatch

        return MemoryWatch(self.clock).trouble

    def physical_memory(self) -> int:
        return physical_memory() // self._sharers

    def open_writer(self, loop: asyncio.AbstractEventLoop) -> WaitingWriter:
        from jetcluster import native

        if native.WriteQueue is not None:
            from jetcluster.raft.journal.queued_writer import QueuedWriter

            return QueuedWriter(loop)
        from jetcluster.raft.journal.writer import ThreadWriter

        return ThreadWriter(loop.call_soon_threadsafe)

    def journal_options(self, directory: Path, sync_interval: float | None) -> JournalOptions:
        return journal_options(directory, sync_interval, self.files)

    def raft_config(self) -> RaftConfig:
        from jetcluster.raft.config import RaftConfig

        return RaftConfig()

    def open_store(
        self, path: Path, *, salvage: bool = False, owner_flushes: bool = False, seal: StoreSeal | None = None
    ) -> RocksKv:
        if seal is not None:
            from jetcluster.store.sealed_kv import SealedKv

            return SealedKv(path, seal, salvage=salvage, owner_flushes=owner_flushes)
        from jetcluster.store.rocks_kv import RocksKv

        return RocksKv(path, salvage=salvage, owner_flushes=owner_flushes)
