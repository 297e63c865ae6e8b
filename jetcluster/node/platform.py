"""All that a node asks its machine for: time, randomness, files, the data store, limits.

Connections, timers, signals and work in threads come from the event loop that the node runs on. With a loop and a
platform of its own a whole node runs in a simulation; nothing else of it knows of that.
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
    from jetcluster.node.data_renewal import OpenStore
    from jetcluster.raft.config import JournalOptions, RaftConfig
    from jetcluster.raft.journal.writer import WaitingWriter
    from jetcluster.store.rocks_kv import RocksKv


class Platform(Protocol):
    @property
    def clock(self) -> Clock: ...
    @property
    def rng(self) -> Rng: ...
    @property
    def files(self) -> Files: ...
    @property
    def open_store(self) -> OpenStore: ...
    @property
    def usage(self) -> Usage: ...
    @property
    def stopwatch(self) -> Callable[[], float]:
        """Seconds of the finest clock there is, for what is only measured."""
        ...

    def raise_limit(self) -> tuple[int, int]:
        """See `health.descriptors.raise_limit`."""
        ...

    def descriptors(self) -> DescriptorWatch: ...
    def memory_trouble(self) -> Callable[[], str]:
        """A `node_health.Check` of the memory that is left."""
        ...

    def physical_memory(self) -> int:
        """Bytes."""
        ...

    def open_writer(self, loop: asyncio.AbstractEventLoop) -> WaitingWriter:
        """The journal's."""
        ...

    def journal_options(self, directory: Path, sync_interval: float | None) -> JournalOptions:
        """See `part_options.journal_options`."""
        ...

    def raft_config(self) -> RaftConfig:
        """Times and limits of the Raft groups, but for what the node's configuration says."""
        ...


class SystemPlatform:
    """The operating system."""

    def __init__(self) -> None:
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
        return physical_memory()

    def open_writer(self, loop: asyncio.AbstractEventLoop) -> WaitingWriter:
        from jetcluster.raft.journal.writer import ThreadWriter

        return ThreadWriter(loop.call_soon_threadsafe)

    def journal_options(self, directory: Path, sync_interval: float | None) -> JournalOptions:
        return journal_options(directory, sync_interval, self.files)

    def raft_config(self) -> RaftConfig:
        from jetcluster.raft.config import RaftConfig

        return RaftConfig()

    def open_store(self, path: Path, *, salvage: bool = False, owner_flushes: bool = False) -> RocksKv:
        from jetcluster.store.rocks_kv import RocksKv

        return RocksKv(path, salvage=salvage, owner_flushes=owner_flushes)
