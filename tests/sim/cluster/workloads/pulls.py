"""Pull consumers: acks of every kind, redeliveries, filters, pauses, last deliveries, priority groups."""

from __future__ import annotations

import asyncio
import contextlib

from testkit.sim.session import Disconnected, Msg, Session
from tests.sim.cluster import replicas
from tests.sim.cluster.judges import Deliveries, Log
from tests.sim.cluster.workload import PASSING, SECOND, SETTLE, Delivered, Workload

STREAM = "PULL"
CONSUMER = "puller"
SUBJECTS = "abcd"
ACTS = ("ack", "ack", "ack", "double", "silent", "nak", "later", "progress", "term", "forget", "late")


class Pulls(Workload):
    name = "pulls"
    weight = 2
    judges = (Log, Deliveries)
    promises = (
        "a message whose ack or term was confirmed is not delivered again, however many clients pull",
        "a consumer delivers every message that its filters match, and no other",
        "no delivery of a message comes twice under one count, and none above max_deliver",
    )

    async def prepare(self) -> None:
        self.log = Log()
        self.wanted: set[int] = set()
        self.all = self.rng.random() < 0.2
        self.limit = self.rng.choice([0, 0, 3])
        pending = self.rng.choice([5, 30, 1000])
        self.judge = Deliveries(self.limit, pending)
        self.filters = self.rng.choice([(), ("a",), ("a", "c")])
        self.pauses = self.rng.random() < 0.3
        self.wait = self.rng.choice([1, 3])
        self.rests_until = 0.0
        """Nobody asks for messages before this time."""
        self.late: list[Msg] = []
        """Those of which nobody has said a word yet."""
        config: dict[str, object] = {
            "ack_policy": "all" if self.all else "explicit",
            "ack_wait": self.wait * SECOND,
            "max_ack_pending": pending,
            "max_deliver": self.limit or -1,
            "filter_subjects": [f"pull.{one}" for one in self.filters],
            "num_replicas": 0,
        }
        self.admin = await self.session("admin")
        await self.create(self.admin, STREAM, subjects=["pull.*"], num_replicas=self.rng.choice([1, 3, 3]))
        await self.create_consumer(self.admin, STREAM, CONSUMER, **config)

    async def work(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._write())
            for number in range(1 if self.all else 2):
                group.create_task(self._consume(number))
            if self.pauses:
                group.create_task(self._pause())

    async def _write(self) -> None:
        session = await self.session("write")
        async for count in self.turns(8.0):
            letter = self.rng.choice(SUBJECTS)
            ack = await self.store_logged(self.log, session, f"pull.{letter}", str(count))
            if not self.filters or letter in self.filters:
                self.wanted.add(int(ack["seq"]))

    async def _pause(self) -> None:
        while not self.stopping:
            await asyncio.sleep(self.rng.uniform(2.0, 8.0))
            until = self.wall(self.rng.uniform(0.5, 3.0))
            try:
                await self.admin.api(f"CONSUMER.PAUSE.{STREAM}.{CONSUMER}", {"pause_until": until}, seconds=2.0)
                self.count("paused")
            except PASSING:
                continue

    async def _consume(self, number: int) -> None:
        session = await self.session(f"pull{number}")
        while not self.stopping:
            await asyncio.sleep(max(self.rests_until - self.now, 0.0))
            await self._pull(session, acks_all=False)
            if self.late:
                await self._speak_late(session)
        await session.close()

    async def _pull(self, session: Session, *, acks_all: bool) -> None:
        async def take(msg: Msg) -> None:
            await self._take(session, msg, "ack" if acks_all else self.rng.choice(ACTS))

        await self.pull(session, STREAM, CONSUMER, take, self.rng.choice([1, 5, 20]))

    async def _take(self, session: Session, msg: Msg, act: str) -> None:
        told = Delivered.of(msg)
        self.count("delivered")
        self.judge.take(told.seq, msg.payload.decode(), told.count, told.consumer_seq)
        letter = msg.subject.rpartition(".")[2]
        self.require(not self.filters or letter in self.filters, f"{msg.subject} is none of {self.filters}")
        if act == "forget":
            return
        if act == "late":
            self.late.append(msg)
        elif act == "nak":
            session.publish(msg.reply, b"-NAK")
        elif act == "later":
            session.publish(msg.reply, b'-NAK {"delay": 700000000}')
        elif act == "silent":
            self.judge.acking(told.seq, below=self.all)
            session.publish(msg.reply, b"+ACK")
        else:
            if act == "progress":
                session.publish(msg.reply, b"+WPI")
                await asyncio.sleep(self.rng.uniform(0.0, 0.5))
            self.judge.acking(told.seq, below=self.all)
            await self._confirm(session, msg, told.seq, b"+TERM" if act == "term" and not self.all else b"+ACK")
            if act == "double":
                await self._confirm(session, msg, told.seq, b"+ACK")

    async def _speak_late(self, session: Session) -> None:
        """Word of messages that wait for their next delivery, as nobody asks for any."""
        late, self.late = self.late, []
        silence = self.wait + self.rng.uniform(0.2, 1.0)
        self.rests_until = self.now + silence + 1.0
        await asyncio.sleep(silence)
        with contextlib.suppress(Disconnected):
            for msg in late:
                session.publish(msg.reply, self.rng.choice([b"+WPI", b'-NAK {"delay": 700000000}']))
                self.count("late words")

    async def _confirm(self, session: Session, msg: Msg, seq: int, word: bytes) -> None:
        await session.request(msg.reply, word, seconds=1.0)
        self.count("confirmed")
        decided = replicas.decided(self.deployment, STREAM, CONSUMER)
        self.judge.confirm(seq, decided, below=self.all)

    async def check(self) -> None:
        session = await self.session("rest")

        async def all_delivered() -> bool:
            await self._pull(session, acks_all=True)
            return not self.judge.missing(self.wanted)

        async def all_done() -> bool:
            await self._pull(session, acks_all=True)
            info = await session.api(f"CONSUMER.INFO.{STREAM}.{CONSUMER}")
            return bool(info["num_ack_pending"] == 0 and info["num_pending"] == 0)

        if not self.limit:  # with a limit the last delivery of a message may have been lost on its way
            await self.until("everything is delivered", all_delivered, SETTLE)
        await self.until("nothing is pending", all_done, SETTLE)
        for seq, text in self.judge.texts.items():
            if seq in self.log.acked:
                self.log.read(seq, text)
