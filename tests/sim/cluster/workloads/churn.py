"""Streams and consumers that come, change and go: created, scaled, moved, their leaders sent away, deleted."""

from __future__ import annotations

import asyncio

from tests.sim.cluster.judges import Log
from tests.sim.cluster.session import ApiError, Msg, Session
from tests.sim.cluster.workload import PASSING, Workload

OWNERS = 2
NO_STREAM = 10059


class Churn(Workload):
    name = "churn"
    judges = (Log,)
    promises = (
        "an acknowledged message is kept while its stream is scaled, moved to other servers and led by others",
        "a stream whose creation was acknowledged is there, one whose deletion was acknowledged is not",
    )

    async def prepare(self) -> None:
        self.logs: dict[str, Log] = {}
        self.deleted: list[str] = []
        self.paces = [self.rng.uniform(0.5, 3.0) for _ in range(OWNERS)]

    async def work(self) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(OWNERS):
                group.create_task(self._own(number))

    async def _own(self, number: int) -> None:
        """One stream after the other, whose names are never used again: a late retry of a deletion hits nobody."""
        session = await self.session(f"own{number}")
        life = 0
        while not self.stopping:
            life += 1
            stream = f"CHURN_{number}_{life}"
            await self._create(session, stream)
            acts = [self._scale, self._scale, self._stepdown, self._remove_peer, self._consumer, self._update]
            for _ in range(self.rng.randint(2, 8)):
                if self.stopping:
                    break
                await self._write(session, stream)
                try:
                    await self.rng.choice(acts)(session, stream)
                except PASSING:
                    self.count("uncertain")
                await asyncio.sleep(self.rng.expovariate(self.paces[number]))
            if not self.stopping and self.rng.random() < 0.7:
                await self._delete(session, stream)
        await session.close()

    async def _create(self, session: Session, stream: str) -> None:
        config = {"subjects": [f"{stream}.>"], "num_replicas": self.rng.choice([1, 3])}
        await self.create(session, stream, **config)
        self.logs[stream] = Log()
        self.count("created")

    async def _write(self, session: Session, stream: str) -> None:
        log = self.logs[stream]
        for _ in range(self.rng.randint(1, 10)):
            text = f"{len(log.sent)}"
            log.send(text)
            ack = await self.store(session, f"{stream}.x", text)
            log.ack(int(ack["seq"]), text, self.now)

    async def _change(self, session: Session, stream: str, **changes: object) -> None:
        config = (await session.api(f"STREAM.INFO.{stream}"))["config"]
        await session.api(f"STREAM.UPDATE.{stream}", config | changes)

    async def _scale(self, session: Session, stream: str) -> None:
        sizes = [1, 3, 5] if len(self.members) >= 5 else [1, 3]
        await self._change(session, stream, num_replicas=self.rng.choice(sizes))
        self.count("scaled")

    async def _update(self, session: Session, stream: str) -> None:
        await self._change(session, stream, description=f"at {self.now:.0f}", duplicate_window=60_000_000_000)
        self.count("updated")

    async def _stepdown(self, session: Session, stream: str) -> None:
        await session.api(f"STREAM.LEADER.STEPDOWN.{stream}")
        self.count("stepped down")

    async def _remove_peer(self, session: Session, stream: str) -> None:
        await session.api(f"STREAM.PEER.REMOVE.{stream}", {"peer": self.rng.choice(self.members)})
        self.count("peers removed")

    async def _consumer(self, session: Session, stream: str) -> None:
        name = self.rng.choice(["one", "two"])
        if self.rng.random() < 0.5:
            config = {"durable_name": name, "ack_policy": "explicit"}
            body = {"stream_name": stream, "config": config}
            await session.api(f"CONSUMER.DURABLE.CREATE.{stream}.{name}", body)
            self.count("consumers created")
        elif self.rng.random() < 0.5:
            await session.api(f"CONSUMER.LEADER.STEPDOWN.{stream}.{name}")
        else:
            await session.api(f"CONSUMER.DELETE.{stream}.{name}")
            self.count("consumers deleted")

    async def _delete(self, session: Session, stream: str) -> None:
        async def delete() -> None:
            try:
                await session.api(f"STREAM.DELETE.{stream}")
            except ApiError as error:
                if error.err_code != NO_STREAM:
                    raise

        del self.logs[stream]
        await self.insist(f"deleting {stream}", delete)
        self.deleted.append(stream)
        self.count("deleted")

    async def check(self) -> None:
        for stream, log in self.logs.items():

            def look(where: str, contents: dict[int, Msg], log: Log = log, stream: str = stream) -> None:
                log.stored(f"{where}, {stream}", {seq: msg.payload.decode() for seq, msg in contents.items()})

            await self.everywhere(stream, max(log.acked, default=0), look)
        session = await self.session("check")
        names = await self.insist("STREAM.NAMES", lambda: session.api("STREAM.NAMES"))
        there = [name for name in self.deleted if name in (names["streams"] or ())]
        self.require(not there, f"{there} were deleted and are there")
        await session.close()
