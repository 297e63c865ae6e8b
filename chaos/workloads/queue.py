"""Unique values, re-sent with their Nats-Msg-Id until acked: exact accounting on each replica (checkers/log.py)."""

from __future__ import annotations

import asyncio
import random
from typing import Any, ClassVar

from chaos.workloads.base import Session, Workload

WINDOW = 5
TRIES = 6
PAUSE = 0.02


class Queue(Workload):
    name = "queue"
    workers = 3
    config: ClassVar[dict[str, Any]] = {"max_age": 3600 * 10**9}
    """Longer than a run: nothing expires but by a wrong clock."""

    async def step(self, session: Session, worker: str, turn: int, dice: random.Random) -> None:
        values = [f"{worker}-{turn * WINDOW + n}" for n in range(WINDOW)]
        await self.publish(session, worker, f"queue.{worker}", values, tries=TRIES)
        await asyncio.sleep(PAUSE)
