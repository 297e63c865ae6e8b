"""Room on the disk for a state that is installed over another one, where both do not fit."""

from __future__ import annotations

import asyncio
from typing import Final

from jetcluster.store.block_store import BlockStore
from jetcluster.store.kv import KvFullError
from jetcluster.store.rocks_kv import RocksKv
from jetcluster.store.transfer import Taker

SETTLE: Final = 2.0
"""Seconds. RocksDB deletes files some time after what was in them is gone: when nobody reads them and no compaction
is at work, which also needs space meanwhile."""
LOOK: Final = 0.05


class Room:
    """One per import: what it replaced is freed once, and what it might still replace is given up once."""

    def __init__(self, kv: RocksKv, store: BlockStore, taker: Taker, name: str) -> None:
        """`name`: of the stream, for the log."""
        self._name = name
        self._kv = kv
        self._store = store
        self._taker = taker
        self.reclaimed = 0

    async def make(self, size: int) -> None:
        """Returns when `size` bytes fit on the disk. Raises KvFullError, KvError."""
        while not await self._fits(size):
            if self.reclaimed == 2:
                spare = self._kv.spare_bytes
                raise KvFullError(f"there is no room for the state of {self._name}: {spare} bytes are left")
            # What was replaced so far fills the disk, or is in the way together with what may be replaced later.
            if self.reclaimed:
                self._taker.give_up_rest()
            self.reclaimed += 1
            await self._store.reclaim()

    async def _fits(self, size: int) -> bool:
        """Also soon, once something was given up."""
        for _ in range(round(SETTLE / LOOK) if self.reclaimed else 0):
            if self._kv.spare_bytes >= size:
                return True
            await asyncio.sleep(LOOK)
        return self._kv.spare_bytes >= size
