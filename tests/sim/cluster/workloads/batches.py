"""Atomic batches: some committed, some given up, some whose answer is never seen."""

from __future__ import annotations

import asyncio

from testkit.sim.session import Msg, Session
from tests.sim.cluster.judges import Batches
from tests.sim.cluster.workload import PASSING, Workload, together

STREAM = "BATCH"
WRITERS = 2


class AtomicBatches(Workload):
    name = "batches"
    judges = (Batches,)
    promises = ("an atomic batch is stored whole and together, or not at all; an acknowledged one is stored",)

    async def prepare(self) -> None:
        self.judge = Batches()
        self.last = 0
        admin = await self.session("admin")
        replicas = self.rng.choice([1, 3, 3])
        await self.create(admin, STREAM, subjects=["batch.>"], allow_atomic=True, num_replicas=replicas)

    async def work(self) -> None:
        await together(*(self._write(number) for number in range(WRITERS)), self._write_alone())

    async def _write_alone(self) -> None:
        """Others' messages come between."""
        session = await self.session("alone")
        async for _ in self.turns(5.0):
            count = self.counts.get("published", 0)
            await self.store(session, "batch.alone", f"alone-{count}")

    async def _write(self, number: int) -> None:
        session = await self.session(f"w{number}")
        async for count in self.turns(4.0):
            batch = f"{number}-{count}"
            texts = [f"{batch}/{at}" for at in range(self.rng.choice([1, 2, 5, 20]))]
            self.judge.send(batch, texts)
            try:
                await self._send(session, batch, texts)
            except PASSING:
                self.count("batches unknown")

    async def _send(self, session: Session, batch: str, texts: list[str]) -> None:
        given_up = self.rng.random() < 0.1
        for at, text in enumerate(texts, 1):
            headers = {"Nats-Batch-Id": batch, "Nats-Batch-Sequence": str(at)}
            if at < len(texts):
                session.publish("batch.part", text.encode(), headers=headers)
                if self.rng.random() < 0.1:
                    await asyncio.sleep(self.rng.uniform(0.0, 0.5))
                continue
            if given_up:
                self.count("batches given up")
                return
            ack = await session.js_publish("batch.end", text.encode(), headers | {"Nats-Batch-Commit": "1"}, seconds=2)
            self.count("batches stored")
            self.require(int(ack["count"]) == len(texts), f"{ack['count']} of {len(texts)} messages of {batch}")
            self.judge.ack(batch, int(ack["seq"]))
            self.last = max(self.last, int(ack["seq"]))

    async def check(self) -> None:
        await self.everywhere(STREAM, self.last, self._look)

    def _look(self, where: str, contents: dict[int, Msg]) -> None:
        self.judge.stored(where, {seq: msg.payload.decode() for seq, msg in contents.items()})
