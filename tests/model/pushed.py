"""Messages that come to a connection of the model's player without being asked for."""

from __future__ import annotations

import asyncio

from tests.model.answers import Answer

PATIENCE = 4.0
"""Seconds until an answer counts as lost."""


class Pushed:
    """The pushed messages of one connection, until they are looked at."""

    def __init__(self) -> None:
        self._messages: list[Answer] = []
        self._came = asyncio.Event()

    def add(self, message: Answer) -> None:
        self._messages.append(message)
        self._came.set()

    async def heard(self, wanted: int) -> list[Answer]:
        """See `player.Connection.heard`."""
        try:
            async with asyncio.timeout(PATIENCE):
                while sum(not one.status for one in self._messages) < wanted:
                    self._came.clear()
                    await self._came.wait()
        except TimeoutError:
            pass
        found, self._messages = self._messages, []
        return found
