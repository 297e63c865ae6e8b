"""Atomic batches: all or nothing (checkers/batches.py). A batch without an answer is not sent again."""

from __future__ import annotations

import asyncio
import random
from typing import Any, ClassVar

from chaos.workloads.base import Session, Workload, outcome
from jetcluster.pipeline.checkers.batches import value

SIZES = (2, 12)
PAUSE = 0.03


class Batches(Workload):
    name = "batches"
    workers = 2
    config: ClassVar[dict[str, Any]] = {"allow_atomic": True}

    async def step(self, session: Session, worker: str, turn: int, dice: random.Random) -> None:
        client = await session.client()
        batch = f"{worker}-{turn}"
        count = dice.randint(*SIZES)
        subject = f"batches.{worker}"
        invoked = self.history.invoke(self.name, "batch", worker, subject=subject, msg_id=batch, count=count)
        for index in range(count - 1):
            headers = {"Nats-Batch-Id": batch, "Nats-Batch-Sequence": str(index + 1)}
            client.publish(subject, value(batch, index).encode(), headers=headers)
        last = {"Nats-Batch-Id": batch, "Nats-Batch-Sequence": str(count), "Nats-Batch-Commit": "1"}
        msg = await self.ask(client, invoked, subject, value(batch, count - 1).encode(), last)
        kind, more = outcome(msg)
        self.history.end(invoked, kind, **more)
        await asyncio.sleep(PAUSE)
