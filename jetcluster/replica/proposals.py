"""Waiting for the outcome of control-plane commands: one future per command, by log index.

Publishes do not come through here: they need no future per message (`stream.lead.ingest`). Other commands may use the
disk's reserve: a purge or a deletion must get in where a publish must not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from jetcluster.errors import PassingError
from jetcluster.raft.api import BackpressureError, RaftGroup

MAX_WAITING = 10_000


class OutcomeUnknownError(PassingError):
    """The replica lost its leadership, or time ran out, before the command was seen committed: it may or may not
    happen."""


def resolver(future: asyncio.Future[bool]) -> Callable[[bool], None]:
    """A callback that settles `future`, unless its waiter has given up."""

    def resolve(value: bool) -> None:
        if not future.done():
            future.set_result(value)

    return resolve


class Proposals:
    def __init__(self) -> None:
        self._waiting: dict[int, asyncio.Future[Any]] = {}

    async def propose(self, group: RaftGroup, command: bytes, seconds: float) -> Any:
        """Proposes and returns what the state machine's apply returned. Raises RaftError subclasses (nothing was
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
