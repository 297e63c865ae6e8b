"""`cancelled`: ends tasks and waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any


async def cancelled(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancels those that run, and returns once they have ended, whatever they raise. At once when all have: `gather`
    takes one more turn of the loop for that in Python 3.11 than in later ones."""
    ending = list(tasks)
    running = [task for task in ending if not task.done()]
    for task in running:
        task.cancel()
    if running:
        await asyncio.wait(running)
    for task in ending:
        if not task.cancelled():
            task.exception()  # nobody else asks for it
