"""A batch that nobody goes on with, in a stream to which nothing else happens: it is given up in time."""

from __future__ import annotations

import asyncio
import json

from tests.sim.cluster.judges import Exact
from tests.sim.cluster.replicas import replicas
from tests.sim.cluster.workload import PASSING, Workload

STREAM = "ABANDONED"
ADVISORY = f"$JS.EVENT.ADVISORY.STREAM.BATCH_ABANDONED.{STREAM}"
LEAST, MOST = 9.0, 14.0
"""Seconds until a batch is given up: ten by what the documentation says."""


class Abandoned(Workload):
    name = "abandoned"
    weight = 0
    judges = (Exact,)
    promises = (
        "a batch that nobody goes on with is given up after ten seconds, with an advisory, also if all is quiet",
    )

    async def prepare(self) -> None:
        self.admin = await self.session("admin")
        await self.create(self.admin, STREAM, subjects=["abandoned"], allow_atomic=True)

    async def work(self) -> None:
        async for number in self.turns(0.05):
            await self._begin(f"rage-{number}")

    async def _begin(self, batch: str) -> None:
        try:
            await self.admin.request("abandoned", b"x", 2.0, {"Nats-Batch-Id": batch, "Nats-Batch-Sequence": "1"})
        except PASSING:
            self.count("uncertain")
        else:
            self.count("begun")

    def _led(self) -> set[tuple[str, int]]:
        return {(name, one.group.term) for name, one in replicas(self.deployment, STREAM).items() if one.leading}

    async def check(self) -> None:
        await self.until("a batch is given up", self._is_given_up)

    async def _is_given_up(self) -> bool:
        """The leader stays the same meanwhile; otherwise it begins again."""
        led, began, batch = self._led(), self.now, f"calm-{self.now:.0f}"
        with self.admin.inbox(ADVISORY) as (_, got):
            await self.admin.flush()
            await self._begin(batch)
            told = 0.0
            while not told and self.now < began + MOST:
                try:
                    async with asyncio.timeout(1.0):
                        fields = json.loads((await got.get()).payload)
                except TimeoutError:
                    continue
                if fields.get("batch", batch) == batch:
                    told = self.now - began
        if self._led() != led:
            return False
        Exact.between(f"{self.name}: seconds until the batch is given up", told or MOST + 1.0, LEAST, MOST)
        return True
