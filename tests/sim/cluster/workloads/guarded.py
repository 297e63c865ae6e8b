"""A stream whose limits wait for its retention guard, and a job that archives it and moves the guard."""

from __future__ import annotations

import asyncio
from typing import Any

from testkit.sim.session import ApiError, Session
from tests.sim.cluster.judges import Guarded, Log
from tests.sim.cluster.workload import PASSING, SECOND, SETTLE, Workload

STREAM = "KEPT"
GUARD = "archive"
LIMITS: tuple[dict[str, int], ...] = (
    {"max_msgs": 5}, {"max_msgs_per_subject": 1}, {"max_age": SECOND, "duplicate_window": SECOND}, {"max_bytes": 500}
)  # fmt: skip
MOST = 5
"""Messages that a stream may have in the end, by each of them: there are as many subjects."""


class GuardedLimits(Workload):
    name = "guarded"
    newest = True
    judges = (Log, Guarded)
    promises = (
        "limits remove a message only once the retention guard has acknowledged it, and then they do",
        "an archive and its stream are together whole, also while the job that makes it dies",
    )

    async def prepare(self) -> None:
        self.log = Log()
        self.judge = Guarded()
        self.admin = await self.session("admin")
        self.limits = self.rng.choice(LIMITS)
        guard = {"consumer": GUARD, "max_bytes": 1 << 30}
        config: dict[str, Any] = {"subjects": ["kept.>"], "num_replicas": self.rng.choice([1, 3, 3])}
        await self.create(self.admin, STREAM, **config, **self.limits, retention_guard=guard)

    async def work(self) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(2):
                group.create_task(self._write(number))
            group.create_task(self._archive())

    async def _write(self, number: int) -> None:
        session = await self.session(f"write{number}")
        async for count in self.turns(6.0):
            await self.store_logged(self.log, session, f"kept.{count % MOST}", f"kept-{number}-{count}")

    async def _archive(self) -> None:
        """One job after the other, each of which dies after some batches, now and then between archive and guard."""
        async for _ in self.turns(1.0):
            session = await self.session("job")
            try:
                await self._begin(session)
                for _ in range(self.rng.randrange(1, 6)):
                    await asyncio.sleep(self.rng.random())
                    await self._batch(session, moves=self.rng.random() < 0.7)
            except PASSING:
                self.count("jobs that failed")
            await session.close()

    async def _begin(self, session: Session) -> None:
        """Makes the guard, unless it is there, and moves it to where the archive ends."""
        config = {"durable_name": GUARD, "ack_policy": "explicit", "deliver_policy": "all"}
        try:
            await session.api(f"CONSUMER.INFO.{STREAM}.{GUARD}")
        except ApiError as error:
            if error.code != 404:
                raise
            await session.api(f"CONSUMER.CREATE.{STREAM}.{GUARD}", {"stream_name": STREAM, "config": config})
        await self._move(session)

    async def _batch(self, session: Session, *, moves: bool = True) -> None:
        state = (await session.api(f"STREAM.INFO.{STREAM}"))["state"]
        self.judge.begins(int(state["first_seq"]))
        end, last = self.judge.end, int(state["last_seq"])
        found: dict[int, str] = {}
        while end <= last:
            some = await self.direct(session, STREAM, {"seq": end, "batch": 100, "min_last_seq": last})
            texts = {int(msg.headers["Nats-Sequence"]): msg.payload.decode() for msg in some}
            found |= {seq: text for seq, text in texts.items() if seq <= last}
            end = max(texts, default=last) + 1
        self.judge.archive(max(last + 1, self.judge.end), found)
        self.count("batches")
        if moves:
            await self._move(session)

    async def _move(self, session: Session) -> None:
        if self.judge.end > 1:
            await session.api(f"CONSUMER.RESET.{STREAM}.{GUARD}", {"seq": self.judge.end})
            self.count("moves")

    async def check(self) -> None:
        session = await self.session("rest")
        stored = {seq: msg.payload.decode() for seq, msg in (await self._contents(session)).items()}
        self.judge.complete(self._acked, stored)
        await self.insist("the last job begins", lambda: self._begin(session))
        await self.insist("the last batch", lambda: self._batch(session))
        self.judge.complete(self._acked, {})

        async def limited() -> bool:
            info = await session.api(f"STREAM.INFO.{STREAM}")
            return int(info["state"]["messages"]) <= (15 if "max_bytes" in self.limits else MOST)

        await self.until("the limits hold for what is archived", limited, SETTLE)

    @property
    def _acked(self) -> dict[int, str]:
        return {seq: self.log.acked[seq] for seq in self.log.kept}

    async def _contents(self, session: Session) -> dict[int, Any]:
        found: dict[int, Any] = await self.insist("reading the stream", lambda: self.contents(session, STREAM))
        return found
