"""Atomic batches: some committed, some given up, some whose answer is never seen."""

from __future__ import annotations

import asyncio
from typing import ClassVar

from testkit.sim.session import Msg, Session
from tests.sim.cluster.judges import Batches, Log
from tests.sim.cluster.workload import PASSING, Workload, together

LONG = 5
"""Messages of a batch that is longer than one entry of the log (`stream.log.commands.PART_BYTES`)."""
LONG_BYTES = 900_000
"""Bytes of each of these messages."""
MOST_LONG = 3
"""Long batches of a seed: its disks are small."""
WRITERS = 2


class AtomicBatches(Workload):
    name = "batches"
    stream: ClassVar[str] = "BATCH"
    prefix: ClassVar[str] = "batch"
    """First token of the subjects."""
    judges = (Batches, Log)
    patience = 2.0
    """Seconds to wait for the ack."""
    promises = ("an atomic batch is stored whole and together, or not at all; an acknowledged one is stored",)

    async def prepare(self) -> None:
        self.judge = Batches()
        self.log = Log()
        """The log of messages that are no part of a batch."""
        self.last = 0
        admin = await self.session("admin")
        replicas = self.rng.choice([1, 3, 3])
        await self.create(admin, self.stream, subjects=[f"{self.prefix}.>"], allow_atomic=True, num_replicas=replicas)

    async def work(self) -> None:
        await together(*(self._write(number) for number in range(WRITERS)), self._write_alone())

    async def _write_alone(self) -> None:
        """Others' messages come between."""
        session = await self.session("alone")
        async for _ in self.turns(5.0):
            count = self.counts.get("published", 0)
            ack = await self.store_logged(self.log, session, f"{self.prefix}.alone", f"alone-{count}")
            self.last = max(self.last, int(ack["seq"]))

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
                session.publish(f"{self.prefix}.part", self._payload(text), headers=headers)
                if self.rng.random() < 0.1:
                    await asyncio.sleep(self.rng.uniform(0.0, 0.5))
                continue
            if given_up:
                self.count("batches given up")
                return
            headers["Nats-Batch-Commit"] = "1"
            ack = await session.js_publish(f"{self.prefix}.end", self._payload(text), headers, seconds=self.patience)
            self.count("batches stored")
            self.require(int(ack["count"]) == len(texts), f"{ack['count']} of {len(texts)} messages of {batch}")
            self.judge.ack(batch, int(ack["seq"]))
            self.last = max(self.last, int(ack["seq"]))

    def _payload(self, text: str) -> bytes:
        return text.encode()

    async def check(self) -> None:
        await self.everywhere(self.stream, self.last, self.look)

    def look(self, where: str, contents: dict[int, Msg]) -> None:
        alone = {seq: msg for seq, msg in contents.items() if msg.headers["Nats-Subject"] == f"{self.prefix}.alone"}
        self.stored(self.log, where, alone)
        texts = {seq: msg.payload.decode().strip() for seq, msg in contents.items() if seq not in alone}
        self.judge.stored(where, texts)


class LongBatches(AtomicBatches):
    name = "long-batches"
    stream = "LONG"
    prefix = "long"
    patience = 10.0
    promises = ("an atomic batch of several entries of the log is stored whole and together, or not at all",)

    async def work(self) -> None:
        await together(self._write_long(), self._write_alone())

    async def _write_long(self) -> None:
        session = await self.session("long")
        sent = 0
        async for count in self.turns(0.4):
            if sent >= MOST_LONG:
                continue
            sent += 1
            batch = f"long-{count}"
            texts = [f"{batch}/{at}" for at in range(LONG)]
            self.judge.send(batch, texts)
            try:
                await self._send(session, batch, texts)
            except PASSING:
                self.count("batches unknown")

    def _payload(self, text: str) -> bytes:
        return text.ljust(LONG_BYTES).encode()
