"""A flush that lasts as long as a test wants."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from jetcluster import faults
from jetcluster.store.rocks_kv import RocksKv

END = b"\xff" * 8


@asynccontextmanager
async def flushing(kv: RocksKv) -> AsyncIterator[None]:
    """A flush is under way, and does not return as long as the block lasts."""
    go_on = threading.Event()

    def hang() -> None:
        assert go_on.wait(30)

    with faults.armed("store.flush", hang):
        task = asyncio.create_task(kv.flush())
        while kv._switching or kv.busy_since is None or not kv.commits:
            await asyncio.sleep(0)
        try:
            yield
        finally:
            go_on.set()
            await task
