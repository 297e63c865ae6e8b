"""Push consumers: with acks, and ordered ones, which begin again where they stood when a number is missing."""

from __future__ import annotations

import asyncio

from testkit.sim.session import Msg, Session
from tests.sim.cluster import replicas
from tests.sim.cluster.judges import Deliveries, Log, Ordered
from tests.sim.cluster.workload import PASSING, SECOND, SETTLE, Delivered, Workload, together


class Pushes(Workload):
    name = "pushes"
    judges = (Deliveries,)
    promises = ("a push consumer delivers every message, and none again whose ack was confirmed",)
    stream = "PUSH"

    async def prepare(self) -> None:
        self.log = Log()
        pending = self.rng.choice([10, 1000])
        self.judge = Deliveries(1000, pending)
        self.admin = await self.session("admin")
        await self.create(self.admin, self.stream, subjects=[f"{self.stream}.>"], num_replicas=self.rng.choice([1, 3]))
        config: dict[str, object] = {
            "deliver_subject": "to.push",
            "ack_wait": 2 * SECOND,
            "max_ack_pending": pending,
            "max_deliver": 1000,
        }
        if self.rng.random() < 0.5:
            config |= {"flow_control": True, "idle_heartbeat": 5 * SECOND}
        await self.create_consumer(self.admin, self.stream, "pusher", **config)

    async def work(self) -> None:
        await together(self.write(), self._consume())

    async def write(self) -> None:
        session = await self.session("write")
        pace = self.rng.choice([3.0, 15.0])
        async for count in self.turns(pace):
            await self.store_logged(self.log, session, f"{self.stream}.{count % 3}", str(count))

    async def _consume(self) -> None:
        """Goes on beyond the end of `work`, until `check` has seen everything."""
        got: asyncio.Queue[Msg] = asyncio.Queue()
        session = await self.session("push")
        session.subscribe("to.push", got.put_nowait)
        self.reading = self.loop.create_task(self._take_all(session, got))

    async def _take_all(self, session: Session, got: asyncio.Queue[Msg]) -> None:
        while True:
            msg = await got.get()
            try:
                await self._take(session, msg)
            except PASSING:
                continue

    async def _take(self, session: Session, msg: Msg) -> None:
        if msg.status:
            if msg.reply:
                session.publish(msg.reply)
            return
        told = Delivered.of(msg)
        self.count("delivered")
        self.judge.take(told.seq, msg.payload.decode(), told.count, told.consumer_seq)
        if not self.stopping and self.rng.random() < 0.2:
            return
        self.judge.acking(told.seq)
        await session.request(msg.reply, b"+ACK", seconds=1.0)
        self.judge.confirm(told.seq, replicas.decided(self.deployment, self.stream, "pusher"))

    async def check(self) -> None:
        async def complete() -> bool:
            if self.reading.done():
                self.reading.result()
            info = await self.admin.api(f"CONSUMER.INFO.{self.stream}.pusher")
            delivered = self.log.acked.keys() <= self.judge.texts.keys()
            return delivered and info["num_ack_pending"] == 0 and info["num_pending"] == 0

        await self.until("everything is delivered and nothing is pending", complete, SETTLE)
        self.reading.cancel()


class OrderedConsumers(Pushes):
    name = "ordered"
    judges = (Ordered,)
    promises = ("an ordered consumer sees the stream as it is: every message once and in order",)
    stream = "ORDER"

    async def prepare(self) -> None:
        self.log = Log()
        self.ordered = Ordered()
        self.admin = await self.session("admin")
        await self.create(self.admin, self.stream, subjects=[f"{self.stream}.>"])

    async def work(self) -> None:
        self.reading = self.loop.create_task(self._follow())
        await self.write()

    async def _follow(self) -> None:
        session = await self.session("ordered")
        number = 0
        while True:
            number += 1
            got: asyncio.Queue[Msg] = asyncio.Queue()
            sid = session.subscribe(f"to.ordered.{number}", got.put_nowait)
            try:
                await self._read(session, number, got)
            except PASSING:
                self.count("begun again")
                await asyncio.sleep(0.2)
            finally:
                session.unsubscribe(sid)

    async def _read(self, session: Session, number: int, got: asyncio.Queue[Msg]) -> None:
        """Returns when a number is missing. Raises TimeoutError when nothing comes, not even a heartbeat."""
        start = {"deliver_policy": "by_start_sequence", "opt_start_seq": self.ordered.last + 1}
        config = start | {
            "deliver_subject": f"to.ordered.{number}", "ack_policy": "none", "max_deliver": 1, "flow_control": True,
            "idle_heartbeat": SECOND, "mem_storage": True, "num_replicas": 1, "inactive_threshold": 5 * SECOND,
        }  # fmt: skip
        name = f"o{number}"
        body = {"stream_name": self.stream, "config": config | {"name": name}}
        await session.api(f"CONSUMER.CREATE.{self.stream}.{name}", body, seconds=3.0)
        consumer_seq = 0
        while True:
            async with asyncio.timeout(3.0):
                msg = await got.get()
            if msg.status:
                if msg.reply:
                    session.publish(msg.reply)
                last = msg.headers.get("Nats-Last-Consumer")
                if last is not None and int(last) != consumer_seq:
                    return
                continue
            told = Delivered.of(msg)
            if told.consumer_seq != consumer_seq + 1:
                return
            consumer_seq += 1
            self.count("delivered")
            self.ordered.take(told.seq, msg.payload.decode())

    async def check(self) -> None:
        async def complete() -> bool:
            if self.reading.done():
                self.reading.result()
            return self.ordered.last >= max(self.log.acked, default=0)

        await self.until("the ordered consumer is at the end", complete, SETTLE)
        self.reading.cancel()
        self.ordered.complete(self.log.acked)
