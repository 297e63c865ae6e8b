"""A pull consumer with order per key, shared by clients that forget, refuse and come again."""

from __future__ import annotations

import asyncio

from testkit.sim.session import Msg, Session
from tests.sim.cluster import replicas
from tests.sim.cluster.judges import Deliveries, InTurn, Log
from tests.sim.cluster.workload import PASSING, SETTLE, Delivered, Workload

STREAM = "KEYS"
CONSUMER = "sharer"
SECOND = 1_000_000_000
ACTS = ("ack", "ack", "ack", "ack", "silent", "nak", "later", "progress", "term", "forget")
KEYS = 6


class Keys(Workload):
    name = "keys"
    judges = (Log, Deliveries, InTurn)
    promises = (
        "of a key max_ack_pending_per_subject are out at most; with 1 each comes when the one before is settled",
        "a key that waits holds up no other, and nothing that waits is forgotten",
    )

    async def prepare(self) -> None:
        rng = self.rng
        self.log = Log()
        self.wanted: set[int] = set()
        self.removed: set[int] = set()
        limit = rng.choice([1, 1, 1, 2])
        pending = rng.choice([4, 30, 1000])
        self.judge = Deliveries(0, pending)
        self.turn = InTurn(limit)
        self.key = rng.choice(["subject", "token:2", "header:Key"])
        wish = {"max_ack_pending_per_subject": limit, "key": self.key}
        if rng.random() < 0.5:
            wish = {"metadata": {f"jetcluster.{name}": str(value) for name, value in wish.items()}}
        self.admin = await self.session("admin")
        retention = rng.choice(["limits", "limits", "workqueue"])
        replicas = rng.choice([1, 3, 3])
        await self.create(self.admin, STREAM, subjects=["keys.>"], num_replicas=replicas, retention=retention)
        wait = rng.choice([1, 3]) * SECOND
        await self.create_consumer(self.admin, STREAM, CONSUMER, ack_wait=wait, max_ack_pending=pending, **wish)

    async def work(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._write())
            group.create_task(self._remove())
            for number in range(3):
                group.create_task(self._consume(number))

    async def _write(self) -> None:
        session = await self.session("write")
        async for count in self.turns(10.0):
            key = str(int(self.rng.triangular(0, KEYS, 0)))
            subject = f"keys.{key}.{self.rng.choice('xy')}"
            name = subject if self.key == "subject" else key
            ack = await self.store_logged(self.log, session, subject, str(count), {"Key": key})
            self.wanted.add(int(ack["seq"]))
            self.turn.stored(int(ack["seq"]), name)

    async def _remove(self) -> None:
        """Deletes a message now and then: its key goes on without it."""
        async for _ in self.turns(0.3):
            seq = self.rng.choice(sorted(self.wanted)[-10:] or [0])
            if seq:
                self.removed.add(seq)
                self.turn.settling(seq)
                self.judge.acking(seq)
                try:
                    await self.admin.api(f"STREAM.MSG.DELETE.{STREAM}", {"seq": seq}, seconds=2.0)
                except PASSING:
                    continue

    async def _consume(self, number: int) -> None:
        session = await self.session(f"pull{number}")
        while not self.stopping:
            await self._pull(session, acks_all=False)
        await session.close()

    async def _pull(self, session: Session, *, acks_all: bool) -> None:
        async def take(msg: Msg) -> None:
            await self._take(session, msg, "ack" if acks_all else self.rng.choice(ACTS))

        await self.pull(session, STREAM, CONSUMER, take, self.rng.choice([1, 5, 20]))

    async def _take(self, session: Session, msg: Msg, act: str) -> None:
        told = Delivered.of(msg)
        self.count("delivered")
        self.judge.take(told.seq, msg.payload.decode(), told.count, told.consumer_seq)
        key = msg.subject if self.key == "subject" else msg.subject.split(".")[1]
        self.turn.take(told.seq, key)
        match act:
            case "forget":
                self.count("forgotten")
            case "nak" | "later":
                session.publish(msg.reply, b"-NAK" if act == "nak" else b'-NAK {"delay": 700000000}')
            case "silent":
                self.turn.settling(told.seq)
                self.judge.acking(told.seq)
                session.publish(msg.reply, b"+ACK")
            case _:
                if act == "progress":
                    session.publish(msg.reply, b"+WPI")
                    await asyncio.sleep(self.rng.uniform(0.0, 0.5))
                self.turn.settling(told.seq)
                self.judge.acking(told.seq)
                await session.request(msg.reply, b"+TERM" if act == "term" else b"+ACK", seconds=1.0)
                self.judge.confirm(told.seq, replicas.decided(self.deployment, STREAM, CONSUMER))

    async def check(self) -> None:
        session = await self.session("rest")

        async def all_done() -> bool:
            await self._pull(session, acks_all=True)
            info = await session.api(f"CONSUMER.INFO.{STREAM}.{CONSUMER}")
            return bool(info["num_ack_pending"] == 0 and info["num_pending"] == 0)

        await self.until("nothing waits any more", all_done, SETTLE)
        self.judge.complete(self.wanted - self.removed)
        info = await session.api(f"CONSUMER.INFO.{STREAM}.{CONSUMER}")
        floor, delivered = info["ack_floor"], info["delivered"]
        self.require(floor["consumer_seq"] == delivered["consumer_seq"], f"the ack floor {floor} is below {delivered}")
        for seq, text in self.judge.texts.items():
            if seq in self.log.acked:
                self.log.read(seq, text)
