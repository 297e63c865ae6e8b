"""Futures for the outcomes of control-plane commands, by log index.

Publishes need no future per message (`stream.lead.ingest`). Unlike them, these commands may use the disk's reserve: a
purge or a deletion must succeed on a disk that is too full for publishes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from jetcluster.errors import PassingError
from jetcluster.raft.api import BackpressureError, RaftGroup

MAX_WAITING = 10_000


class OutcomeUnknownError(PassingError):
    """The replica lost its leadership, or time ran out, before the command was committed here; it may still be."""


def resolver(future: asyncio.Future[bool]) -> Callable[[bool], None]:
    """Return a callback that settles `future`, unless its waiter has given up."""

    def resolve(value: bool) -> None:
        if not future.done():
            future.set_result(value)

    return resolve


class Proposals:
    """The control-plane commands that wait for their outcome. One per replica."""

    def __init__(self) -> None:
        self._waiting: dict[int, asyncio.Future[Any]] = {}

    async def propose(self, group: RaftGroup, command: bytes, seconds: float) -> Any:
        """Propose `command` and return the result of applying it. Raises subclasses of RaftError (nothing was
        appended) and OutcomeUnknownError."""
        if len(self._waiting) >= MAX_WAITING:
            raise BackpressureError(f"{MAX_WAITING} commands are waiting")
        index = group.propose(command, reserve=True)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[index] = future
        try:
            async with asyncio.timeout(seconds):
                return await future
        except TimeoutError:
            raise OutcomeUnknownError(f"command {index} not committed within {seconds} s") from None
        finally:
            self._waiting.pop(index, None)

    def applied(self, index: int, result: Any) -> None:
        future = self._waiting.get(index)
        if future is not None and not future.done():
            future.set_result(result)

    def dropped(self, first_index: int) -> None:
        for index, future in self._waiting.items():
            if index >= first_index and not future.done():
                future.set_exception(OutcomeUnknownError("leadership lost"))
