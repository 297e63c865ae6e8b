"""Messages with ids to a stream, read back from every replica and through a pull consumer."""

from __future__ import annotations

import asyncio
import math

from testkit.sim.session import ApiError, Msg, Session
from tests.sim.cluster import replicas
from tests.sim.cluster.judges import Deliveries, Log
from tests.sim.cluster.workload import NO_CONSUMER, NOT_FOUND, PASSING, SETTLE, Delivered, Workload, together

CONSUMER = "reader"
PUBLISHERS = 2
PENDING = 50
AGAIN = 12
"""Messages that are sent once more at the end."""
SYNC = 10.0
"""Seconds that a sync may take while a disk is slow or hangs."""


class Publish(Workload):
    name = "publish"
    judges = (Log, Deliveries)
    promises = (
        "an acknowledged message is stored once, at the sequence of its acknowledgement, on every replica",
        "a message that is sent again under its id is not stored again",
        "a message that was acknowledged is found by MSG.GET from then on",
        "a message whose ack was confirmed is not delivered again, and none is skipped",
        "no more messages than max_ack_pending wait for their acks",
    )
    stream = "LOG"

    def config(self) -> dict[str, object]:
        return {}

    @property
    def window(self) -> float:
        """Seconds of acks that a loss of power may take (`judges.Log`)."""
        return 0.0

    async def prepare(self) -> None:
        self.subject = self.stream.lower()
        config = self.config()
        self.log = Log(self.deployment.power_failures, self.window)
        self.deliveries = Deliveries(0, PENDING, self.deployment.power_failures, self.window)
        self.admin = await self.session("admin")
        await self.create(self.admin, self.stream, subjects=[f"{self.subject}.>"], **config)
        await self._create_consumer()

    async def _create_consumer(self) -> None:
        await self.create_consumer(self.admin, self.stream, CONSUMER, ack_wait=5_000_000_000, max_ack_pending=PENDING)
        self.consumer_known = self.now
        """The time at which somebody last got the answer that the consumer is there."""

    async def work(self) -> None:
        await together(*(self._publish(number) for number in range(PUBLISHERS)), self._consume(), self._read())

    # ---- publishing

    async def _publish(self, number: int) -> None:
        session = await self.session(f"pub{number}")
        count, pace, burst = 0, self.rng.choice((0.5, 2.0, 6.0)), self.rng.choice((1, 1, 8))
        while not self.stopping:
            texts = [f"{number}-{count + at}" for at in range(burst if self.rng.random() < 0.3 else 1)]
            count += len(texts)
            await asyncio.gather(*(self._publish_one(session, text) for text in texts))
            await asyncio.sleep(self.rng.expovariate(pace))
        await session.close()

    async def _publish_one(self, session: Session, text: str) -> None:
        await self.store_logged(self.log, session, f"{self.subject}.{text}", text)

    # ---- reading

    async def _read(self) -> None:
        """Reads what was acknowledged, which must be there wherever one asks."""
        session = await self.session("get")
        async for _ in self.turns(4.0):
            acked = self.log.acked
            if not acked:
                continue
            seq = max(acked) if self.rng.random() < 0.7 else self.rng.choice(list(acked))
            try:
                answer = await session.api(f"STREAM.MSG.GET.{self.stream}", {"seq": seq}, seconds=2.0)
            except ApiError as error:
                if error.err_code == NOT_FOUND:
                    self.log.read(seq, None)
                continue
            except PASSING:
                continue
            self.count("read")
            self.log.read(seq, str(answer["message"]["subject"]).removeprefix(f"{self.subject}."))
        await session.close()

    async def _consume(self) -> None:
        self.reader = await self.session("pull")
        while not self.stopping:
            await self._pull()

    async def _pull(self) -> None:
        """A loss of power that may take acks may take the consumer as well; then clients create it again."""
        if self.log.forgives(self.consumer_known):
            try:
                await self.admin.api(f"CONSUMER.INFO.{self.stream}.{CONSUMER}", seconds=2.0)
                self.consumer_known = self.now
            except ApiError as error:
                if error.err_code == NO_CONSUMER:
                    self.count("consumers created again")
                    await self._create_consumer()
            except PASSING:
                await asyncio.sleep(0.1)
                return
        await self.pull(self.reader, self.stream, CONSUMER, self._take)

    async def _take(self, msg: Msg) -> None:
        told = Delivered.of(msg)
        self.deliveries.take(told.seq, msg.payload.decode(), told.count, told.consumer_seq, self.now)
        self.count("delivered")
        self.deliveries.acking(told.seq)
        await self.reader.request(msg.reply, b"+ACK", seconds=1.0)
        self.deliveries.confirm(told.seq, replicas.decided(self.deployment, self.stream, CONSUMER), self.now)

    # ---- afterwards

    async def check(self) -> None:
        last = max(self.log.kept, default=0)
        await self.everywhere(self.stream, last, self._look)
        await self.until("the consumer has delivered everything", self._all_delivered, SETTLE)
        await self._send_again()

    async def _send_again(self) -> None:
        """Ids that are still known, which after a jump of clocks need not be any, stand for the same message."""
        kept = self.log.kept
        for seq in self.rng.sample(kept, min(AGAIN, len(kept))):
            text = self.log.acked[seq]
            ack = await self.store(self.admin, f"{self.subject}.{text}", text)
            self.require(not ack.get("duplicate") or ack["seq"] == seq, f"{text} is at {seq}, and sent again {ack}")

    def _look(self, where: str, contents: dict[int, Msg]) -> None:
        self.stored(self.log, where, contents)

    async def _all_delivered(self) -> bool:
        await self._pull()
        return all(self.deliveries.texts.get(seq) == self.log.acked[seq] for seq in self.log.kept)


class PublishVariants(Publish):
    """Other sizes and storages of the same."""

    name = "publish-variants"
    promises = (
        "an acknowledged message of a stream with one, three or five replicas is kept",
        "a memory stream loses nothing but by a loss of power, no message and no ack of a consumer",
    )
    stream = "VARIANT"

    def config(self) -> dict[str, object]:
        sizes = [1, 3, 5] if len(self.members) >= 5 else [1, 3]
        self.storage = self.rng.choice(["file", "file", "memory"])
        compression = self.rng.choice(["none", "s2"])
        return {"num_replicas": self.rng.choice(sizes), "storage": self.storage, "compression": compression}

    @property
    def window(self) -> float:
        return math.inf if self.storage == "memory" else 0.0


class Relaxed(Publish):
    name = "relaxed"
    promises = (
        "with sync_interval a loss of power takes no more than what was acknowledged right before it",
        "with sync_interval a message comes again after its ack was confirmed only if power was lost right then",
    )
    layout = "relaxed"
    stream = "RELAXED"

    @property
    def window(self) -> float:
        """Seconds until the next sync, and of one that takes as long as disks of the simulation hang."""
        return max(server.sync_interval for server in self.deployment.servers.values()) + SYNC
