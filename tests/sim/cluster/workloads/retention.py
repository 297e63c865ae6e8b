"""Work queues and interest: a message stays until everybody who is to have it has acknowledged it, and goes then."""

from __future__ import annotations

from testkit.sim.session import Msg, Session
from tests.sim.cluster import replicas
from tests.sim.cluster.judges import Deliveries, Log
from tests.sim.cluster.workload import SETTLE, Delivered, Workload, together

STREAM = "QUEUE"


class Retention(Workload):
    name = "retention"
    judges = (Log, Deliveries)
    promises = (
        "a message of a work queue, or of a stream with interest retention, stays until all have acknowledged it",
        "what all have acknowledged goes from every replica",
    )

    async def prepare(self) -> None:
        self.log = Log()
        retention = self.rng.choice(["workqueue", "interest"])
        self.consumers = ["one"] if retention == "workqueue" else ["one", "two"]
        self.judges = {name: Deliveries(max_ack_pending=100) for name in self.consumers}
        self.acking: dict[str, set[int]] = {name: set() for name in self.consumers}
        """Sequences whose ack may have come."""
        admin = await self.session("admin")
        replicas_ = self.rng.choice([1, 3, 3])
        await self.create(admin, STREAM, subjects=["queue"], retention=retention, num_replicas=replicas_)
        for name in self.consumers:
            await self.create_consumer(admin, STREAM, name, ack_wait=2_000_000_000, max_ack_pending=100)

    async def work(self) -> None:
        await together(self._write(), *(self._consume(name) for name in self.consumers))

    async def _write(self) -> None:
        session = await self.session("write")
        async for count in self.turns(8.0):
            await self.store_logged(self.log, session, "queue", str(count))

    async def _consume(self, name: str) -> None:
        session = await self.session(f"pull-{name}")
        while not self.stopping:
            await self._pull(session, name, self.rng.choice([0.6, 1.0]))
        await session.close()

    async def _pull(self, session: Session, name: str, share: float) -> None:
        """Acknowledges this share of what comes."""
        judge = self.judges[name]

        async def take(msg: Msg) -> None:
            told = Delivered.of(msg)
            self.count("delivered")
            judge.take(told.seq, msg.payload.decode(), told.count, told.consumer_seq)
            if self.rng.random() > share:
                return
            judge.acking(told.seq)
            self.acking[name].add(told.seq)
            await session.request(msg.reply, b"+ACK", seconds=1.0)
            judge.confirm(told.seq, replicas.decided(self.deployment, STREAM, name))

        await self.pull(session, STREAM, name, take)

    async def check(self) -> None:
        await self.everywhere(STREAM, max(self.log.acked, default=0), self._look)
        for name in self.consumers:
            session = await self.session(f"rest-{name}")

            async def done(session: Session = session, name: str = name) -> bool:
                await self._pull(session, name, 1.0)
                return self.log.acked.keys() <= self.judges[name].texts.keys()

            await self.until(f"everything is delivered to {name}", done, SETTLE)

            async def acked(session: Session = session, name: str = name) -> bool:
                await self._pull(session, name, 1.0)
                info = await session.api(f"CONSUMER.INFO.{STREAM}.{name}")
                return bool(info["num_ack_pending"] == 0 and info["num_pending"] == 0)

            await self.until(f"nothing is pending for {name}", acked, SETTLE)
        await self.everywhere(STREAM, max(self.log.acked, default=0), self._look_empty)

    def _look(self, where: str, contents: dict[int, Msg]) -> None:
        may_go = set.intersection(*self.acking.values())
        must_go = set.intersection(*(set(judge.confirmed) for judge in self.judges.values()))
        missing = {seq for seq in may_go if seq not in contents}
        texts = {seq: msg.payload.decode() for seq, msg in contents.items()}
        self.log.stored(where, texts, must_go | missing)

    def _look_empty(self, where: str, contents: dict[int, Msg]) -> None:
        self.require(not contents, f"{where}: {sorted(contents)[:10]} are acknowledged by all and still there")
