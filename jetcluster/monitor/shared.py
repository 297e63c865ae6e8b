"""`Shared`: work that several askers want at once is done once. `part_of`: parts of a node that all its pages share."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar, cast

from jetcluster.clock import Clock
from jetcluster.node.node import Node

T = TypeVar("T")


class Shared(Generic[T]):
    """The result of one kind of work: askers that come while it is made wait for it, those that come within `seconds`
    after that get it, too. An error goes to all who wait, and is not kept."""

    def __init__(self, clock: Clock, seconds: float, make: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._clock = clock
        self._seconds = seconds
        self._make = make
        self._task: asyncio.Task[T] | None = None
        self._until = -math.inf

    async def get(self) -> T:
        """Returns the result; raises what the work raises. It goes on when nobody waits any more."""
        task = self._task
        if task is None or (task.done() and self._clock.monotonic() >= self._until):
            task = self._task = asyncio.get_running_loop().create_task(self._make())
            task.add_done_callback(self._made)
        return await asyncio.shield(task)

    def _made(self, task: asyncio.Task[T]) -> None:
        well = not task.cancelled() and task.exception() is None
        self._until = self._clock.monotonic() + self._seconds if well else -math.inf


def part_of(node: Node, kind: Callable[[Node], T]) -> T:
    """Returns the node's part of this kind, made at the first call."""
    parts = node.monitoring.parts
    if kind not in parts:
        parts[kind] = kind(node)
    return cast(T, parts[kind])
