"""Background tasks of one node: kept until they end, and what they raise is told."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from jetcluster.logs import Log
from jetcluster.ordered import OrderedSet


class Background:
    def __init__(self, log: Log) -> None:
        self.tasks: OrderedSet[asyncio.Task[None]] = OrderedSet()
        self._log = log

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(coroutine)
        self.tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    async def stop(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._log.error("a background task failed", error=repr(error))
