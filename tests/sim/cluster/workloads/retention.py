"""Work queues and interest: a message stays until everybody who is to have it has acknowledged it, and goes then."""

from __future__ import annotations

from typing import ClassVar

from testkit.sim.session import Msg, Session
from tests.sim.cluster import replicas
from tests.sim.cluster.judges import Deliveries, Log
from tests.sim.cluster.workload import SETTLE, Delivered, Workload, together

SHARES = ("queue.a", "queue.b", "queue.c", "queue.d")
APART = {"one": ("queue.a",), "two": ("queue.b", "queue.c", "queue.d")}
"""Filters of a work queue's consumers: a message is one's."""
OVERLAPPING = {"one": ("queue.a", "queue.b"), "two": ("queue.b", "queue.c")}
"""Filters of consumers of a stream with interest: a message is one's, both's or nobody's."""


class Retention(Workload):
    name = "retention"
    stream: ClassVar[str] = "QUEUE"
    subjects: ClassVar[tuple[str, ...]] = ("queue",)
    judges = (Log, Deliveries)
    promises = (
        "a message of a work queue, or of a stream with interest retention, stays until all have acknowledged it",
        "what all have acknowledged goes from every replica",
    )

    async def prepare(self) -> None:
        self.log = Log()
        retention = self.rng.choice(["workqueue", "interest"])
        self.filters = self._filters(retention)
        self.consumers = list(self.filters)
        self.subject_of: dict[int, str] = {}
        """By sequence, of what was acknowledged or delivered."""
        self.judges = {name: Deliveries(max_ack_pending=100) for name in self.consumers}
        self.acking: dict[str, set[int]] = {name: set() for name in self.consumers}
        """Sequences whose ack may have come."""
        admin = await self.session("admin")
        replicas_ = self.rng.choice([1, 3, 3])
        await self.create(admin, self.stream, subjects=list(self.subjects), retention=retention, num_replicas=replicas_)
        for name in self.consumers:
            config = {} if self.filters[name] == self.subjects else {"filter_subjects": self.filters[name]}
            await self.create_consumer(admin, self.stream, name, ack_wait=2_000_000_000, max_ack_pending=100, **config)

    def _filters(self, retention: str) -> dict[str, tuple[str, ...]]:
        """Consumers, and the subjects that each is for."""
        return dict.fromkeys(("one",) if retention == "workqueue" else ("one", "two"), self.subjects)

    def _subject(self) -> str:
        """The next message's."""
        return self.subjects[0]

    async def work(self) -> None:
        await together(self._write(), *(self._consume(name) for name in self.consumers))

    async def _write(self) -> None:
        session = await self.session("write")
        async for count in self.turns(8.0):
            subject = self._subject()
            self.subject_of[int((await self.store_logged(self.log, session, subject, str(count)))["seq"])] = subject

    def _is_for(self, name: str, seq: int) -> bool:
        return self.subject_of[seq] in self.filters[name]

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
            self.subject_of[told.seq] = msg.subject
            self.require(self._is_for(name, told.seq), f"{name} gets {told.seq}, on {msg.subject}")
            judge.take(told.seq, msg.payload.decode(), told.count, told.consumer_seq)
            if self.rng.random() > share:
                return
            judge.acking(told.seq)
            self.acking[name].add(told.seq)
            await session.request(msg.reply, b"+ACK", seconds=1.0)
            judge.confirm(told.seq, replicas.decided(self.deployment, self.stream, name))

        await self.pull(session, self.stream, name, take)

    async def check(self) -> None:
        await self.everywhere(self.stream, max(self.log.acked, default=0), self._look)
        for name in self.consumers:
            session = await self.session(f"rest-{name}")

            async def done(session: Session = session, name: str = name) -> bool:
                await self._pull(session, name, 1.0)
                wanted = {seq for seq in self.log.acked if self._is_for(name, seq)}
                return wanted <= self.judges[name].texts.keys()

            await self.until(f"everything is delivered to {name}", done, SETTLE)

            async def acked(session: Session = session, name: str = name) -> bool:
                await self._pull(session, name, 1.0)
                info = await session.api(f"CONSUMER.INFO.{self.stream}.{name}")
                return bool(info["num_ack_pending"] == 0 and info["num_pending"] == 0)

            await self.until(f"nothing is pending for {name}", acked, SETTLE)
        await self.everywhere(self.stream, max(self.log.acked, default=0), self._look_empty)

    def _look(self, where: str, contents: dict[int, Msg]) -> None:
        may_go = self._of_all(self.acking)
        must_go = self._of_all({name: set(judge.confirmed) for name, judge in self.judges.items()})
        missing = {seq for seq in may_go if seq not in contents}
        self.stored(self.log, where, contents, must_go | missing)

    def _of_all(self, acked: dict[str, set[int]]) -> set[int]:
        """Sequences that are in the sets of all whose filters match them."""
        return {
            seq
            for seq in self.subject_of
            if all(seq in acked[name] for name in self.consumers if self._is_for(name, seq))
        }

    def _look_empty(self, where: str, contents: dict[int, Msg]) -> None:
        self.require(not contents, f"{where}: {sorted(contents)[:10]} are acknowledged by all and still there")


class FilteredRetention(Retention):
    name = "retention-filters"
    stream = "SHARES"
    subjects = SHARES
    promises = (
        "a message of a stream with interest is for the consumers whose filters match it, with filters that overlap",
        "a message for nobody goes at once, and one of a work queue with several consumers is for one of them",
    )

    def _filters(self, retention: str) -> dict[str, tuple[str, ...]]:
        return APART if retention == "workqueue" else OVERLAPPING

    def _subject(self) -> str:
        return self.rng.choice(self.subjects)
