"""A work queue whose consumer gives messages up, and the stream that its dead letters go to, which may come later."""

from __future__ import annotations

import asyncio

from testkit.sim.session import Msg, Session
from tests.sim.cluster.judges import Letters, Log
from tests.sim.cluster.workload import SETTLE, Workload

STREAM = "GIVEN"
TARGET = "DEAD"
CONSUMER = "quitter"
SECOND = 1_000_000_000


class DeadLetters(Workload):
    name = "dead-letters"
    judges = (Log, Letters)
    promises = (
        "each message that is given up has one dead letter, and none is lost",
        "a work queue frees a message when it is acknowledged, or its letter is stored",
    )

    async def prepare(self) -> None:
        self.log = Log()
        self.judge = Letters()
        self.admin = await self.session("admin")
        self.copies = self.rng.choice([1, 3, 3])
        await self.create(self.admin, STREAM, subjects=["given.>"], num_replicas=self.copies, retention="workqueue")
        wish = {"subject": "dead.{subject}", "on_term": True}
        await self.create_consumer(
            self.admin, STREAM, CONSUMER, ack_wait=SECOND, max_deliver=self.rng.choice([1, 2]), dead_letter=wish
        )
        self.later = self.rng.random() < 0.5
        if not self.later:
            await self._target()

    async def _target(self) -> None:
        await self.create(self.admin, TARGET, subjects=["dead.>"], num_replicas=self.copies)

    async def work(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._write())
            for number in range(2):
                group.create_task(self._consume(number))

    async def _write(self) -> None:
        session = await self.session("write")
        async for count in self.turns(8.0):
            await self.store_logged(self.log, session, f"given.{count % 5}", f"given-{count}")

    async def _consume(self, number: int) -> None:
        session = await self.session(f"pull{number}")
        while not self.stopping:
            await self._pull(session, self.rng.choice([1, 5]))
        await session.close()

    async def _pull(self, session: Session, batch: int) -> None:
        async def take(msg: Msg) -> None:
            self.count("delivered")
            act = self.rng.choice(("ack", "term", "forget"))
            if act == "ack":
                self.judge.acking(msg.payload.decode())
                session.publish(msg.reply, b"+ACK")
            elif act == "term":
                session.publish(msg.reply, b"+TERM because")

        await self.pull(session, STREAM, CONSUMER, take, batch)

    async def check(self) -> None:
        session = await self.session("rest")
        if self.later:
            await self._target()

        async def empty() -> bool:
            await self._pull(session, 20)
            info = await session.api(f"STREAM.INFO.{STREAM}")
            return bool(info["state"]["messages"] == 0)

        await self.until("the work queue is empty", empty, SETTLE)
        letters = await self.contents(session, TARGET)
        self.count("letters", len(letters))
        self.judge.complete(self.log.acked.values(), [msg.payload.decode() for msg in letters.values()])
