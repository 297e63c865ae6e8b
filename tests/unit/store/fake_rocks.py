"""A RocksDB whose flush lasts as long as a test wants, and one with something in the place of some functions."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import rocksdict

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


class Rocks:
    """The module `rocksdict`, whose database asks `instead` first. `real` is the database itself."""

    def __init__(self) -> None:
        self.instead: object = None
        self.real: Any = None

    def Rdict(self, *args: Any) -> Any:
        self.real = rocksdict.Rdict(*args)
        return _Database(self)

    def __getattr__(self, name: str) -> Any:
        return getattr(rocksdict, name)


class _Database:
    def __init__(self, rocks: Rocks) -> None:
        self._rocks = rocks

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._rocks.instead, name, None)
        return getattr(self._rocks.real, name) if found is None else found
