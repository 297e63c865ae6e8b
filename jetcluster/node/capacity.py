"""The space that JetStream may use on this machine: as configured, else three quarters of what there is."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from jetcluster.config.account_options import AccountJetStreamOptions
from jetcluster.config.options import Options
from jetcluster.files import Files, free_bytes
from jetcluster.model.limits import AccountLimits, tier_replicas

UNKNOWN_DISK_BYTES = 1 << 40
"""Bytes assumed where the system does not report the free space."""
UNKNOWN_MEMORY_BYTES = 1 << 30
NOTICED_PART = 16
"""Fraction by which `max_storage` must grow before it is raised: a sixteenth."""


class Capacity:
    """Memory, measured at the start, and disk space, measured whenever `look` reports it. `options` may be reloaded."""

    def __init__(self, options: Options, directory: Path, memory: int | None = None, files: Files = os) -> None:
        """`memory`: bytes of the machine that this process may use; measured by default."""
        self._options = options
        self._memory = (physical_memory() if memory is None else memory) // 4 * 3
        self._sharers = 1 if options.worker is None else options.worker.count
        self._disk = free_disk(directory, files) // self._sharers // 4 * 3

    def look(self, free: int, stored: int, size: int) -> bool:
        """Takes `free` bytes on the disk, `stored` bytes in streams here and the `size` of the disk, 0 when it is
        unknown; returns True when `max_storage` has changed. Small gains are ignored. It never falls:
        `raft.journal.journal` keeps a reserve. What is stored may not be on the disk yet, or be compressed there."""
        room = free // self._sharers + stored
        found = (min(room, size // self._sharers) if size else room) // 4 * 3
        if found - self._disk <= self._disk // NOTICED_PART:
            return False
        self._disk = found
        return self.by_disk

    @property
    def by_disk(self) -> bool:
        """True when `max_storage` is measured, not configured."""
        return self._options.jetstream.max_file_store < 0

    @property
    def max_memory(self) -> int:
        """Bytes of memory streams on this node."""
        configured = self._options.jetstream.max_memory_store
        return configured if configured >= 0 else self._memory

    @property
    def max_storage(self) -> int:
        """Bytes of file streams on this node."""
        configured = self._options.jetstream.max_file_store
        return configured if configured >= 0 else self._disk

    def own_limits(self, account: str) -> AccountLimits:
        """Returns the configured limits of one account: `limits` of `$JS.API.INFO`."""
        own = self._configured(account)
        return self._limits(own, own.max_memory, own.max_store, self._tiers(own, 0))

    def limits(self, account: str, nodes: Callable[[], int]) -> AccountLimits:
        """Returns the limits in force: the account's, and at most what `nodes` servers like this one hold together. The
        room on each single node matters when a new stream is placed (`meta.placement`)."""
        own = self._configured(account)
        count = max(nodes(), 1)
        memory = _tighter(own.max_memory, self.max_memory * count)
        storage = _tighter(own.max_store, self.max_storage * count)
        return self._limits(own, memory, storage, self._tiers(own, count))

    def _tiers(self, own: AccountJetStreamOptions, nodes: int) -> dict[str, AccountLimits] | None:
        """Returns the limits of an account's tiers, at most the capacity of `nodes` servers; 0: no such bound."""
        if own.tiers is None:
            return None
        tiers: dict[str, AccountLimits] = {}
        for name, tier in own.tiers.items():
            replicas = tier_replicas(name)
            memory, storage = tier.max_memory, tier.max_store
            if nodes and replicas:
                memory = _tighter(memory, self.max_memory * nodes // replicas)
                storage = _tighter(storage, self.max_storage * nodes // replicas)
            tiers[name] = self._limits(tier, memory, storage, None, replicas)
        return tiers

    def _configured(self, account: str) -> AccountJetStreamOptions:
        configured = (self._options.accounts or {}).get(account)
        return (configured.jetstream if configured is not None else None) or AccountJetStreamOptions()

    def _limits(
        self,
        own: AccountJetStreamOptions,
        max_memory: int,
        max_storage: int,
        tiers: dict[str, AccountLimits] | None,
        replicas: int = 0,
    ) -> AccountLimits:
        return AccountLimits(
            max_memory=max_memory,
            max_storage=max_storage,
            max_streams=own.max_streams,
            max_consumers=own.max_consumers,
            max_ack_pending=own.max_ack_pending,
            memory_max_stream_bytes=own.memory_max_stream_bytes,
            storage_max_stream_bytes=own.store_max_stream_bytes,
            max_bytes_required=own.max_bytes_required,
            duplicate_window_max=int(self._options.jetstream.duplicate_window * 1e9),
            server_max_ack_pending=self._options.jetstream.max_ack_pending,
            max_request_batch=self._options.jetstream.max_request_batch,
            default_max_consumers=self._options.jetstream.default_max_consumers,
            replicas=replicas,
            tiers=tiers,
        )


def physical_memory(root: Path = Path("/")) -> int:
    """Returns the bytes of the machine, or those that the control group allows if they are less. `root`: see
    `MemoryWatch`."""
    from jetcluster.health.memory import memory_limit

    try:
        machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        machine = UNKNOWN_MEMORY_BYTES
    limit = memory_limit(root)
    return machine if limit is None else min(machine, limit)


def free_disk(directory: Path, files: Files = os) -> int:
    try:
        return free_bytes(directory, files)
    except OSError:
        return UNKNOWN_DISK_BYTES


def _tighter(own: int, capacity: int) -> int:
    """Returns an account's limit, of which -1 is none, or the capacity if that is less."""
    return capacity if own < 0 else min(own, capacity)
