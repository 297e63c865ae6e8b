"""Streams with sources, and a mirror, that take the messages of work queues and of streams with interest; and an
upstream that is deleted and made anew again and again."""

from __future__ import annotations

from random import Random
from typing import Any

from testkit.sim.deployment import Deployment
from testkit.sim.session import ApiError, Msg, Session
from tests.sim.cluster.judges import Copies, Log
from tests.sim.cluster.workload import NO_STREAM, SECOND, Workload, together

QUEUES = {"JOBS": "workqueue", "NEWS": "interest", "MOVED": "workqueue"}
"""Upstreams and their retention: the first two are sources of one stream, the last one has a mirror."""
GIVEN = 0.4
"""Share of the links of work queues that take a consumer that is given to them."""


class QueueCopies(Workload):
    name = "queue-copies"
    judges = (Copies, Log)
    promises = (
        "of a work queue, or a stream with interest, that is its source, a stream takes each message once, in order",
        "what a mirror or source has stored goes from the queue that it came from, and nothing else does",
    )

    async def prepare(self) -> None:
        self.logs = {name: Log() for name in QUEUES}
        self.leaf = [name for name, server in self.deployment.servers.items() if server.leaf_of]
        admin = await self.session("admin")
        for name, retention in QUEUES.items():
            copies = self.rng.choice([1, 3])
            await self.create(admin, name, subjects=[f"{name}.>"], retention=retention, num_replicas=copies)
        there = await self.session("leaf", *self.leaf) if self.leaf else admin
        external = {"external": {"api": "$JS.hub.API"}} if self.leaf else {}
        size = self.rng.choice([1, 3]) if len(self.leaf) != 1 else 1
        given = set() if self.leaf else {name for name in ("JOBS", "MOVED") if self.rng.random() < GIVEN}
        links = {name: {"name": name} | external | await self._given(admin, name, name in given) for name in QUEUES}
        await self.create(there, "TAKEN", num_replicas=size, sources=[links["JOBS"], links["NEWS"]])
        await self.create(there, "MOVED_TWIN", num_replicas=size, mirror=links["MOVED"])
        await self.until("all links are there", lambda: self._linked(admin))

    async def _given(self, session: Session, stream: str, given: bool) -> dict[str, Any]:
        """A consumer of our own for the link of this upstream (ADR-60), or nothing."""
        if not given:
            return {}
        self.count("consumers given")
        deliver = f"deliver.{stream}"
        pace = {"flow_control": True, "idle_heartbeat": SECOND}
        await self.create_consumer(session, stream, "given", ack_policy="flow_control", deliver_subject=deliver, **pace)
        return {"consumer": {"name": "given", "deliver_subject": deliver}}

    async def _linked(self, session: Session) -> bool:
        """A message that comes to a stream with interest while nobody has any is for nobody."""
        infos = [await session.api(f"STREAM.INFO.{name}") for name in QUEUES]
        return all(info["state"]["consumer_count"] == 1 for info in infos)

    async def work(self) -> None:
        await together(*(self._write(name) for name in QUEUES))

    async def _write(self, stream: str) -> None:
        session = await self.session(f"write-{stream}")
        pace = self.rng.choice([3.0, 10.0])
        async for count in self.turns(pace):
            await self.store_logged(self.logs[stream], session, f"{stream}.x", f"{stream}-{count}")

    async def check(self) -> None:
        taken = [self.logs[name].acked for name in ("JOBS", "NEWS")]
        moved = self.logs["MOVED"].acked

        def sourced(where: str, contents: dict[int, Msg]) -> None:
            Copies.sourced(where, taken, [contents[seq].payload.decode() for seq in sorted(contents)])

        def mirrored(where: str, contents: dict[int, Msg]) -> None:
            Copies.mirrored(where, moved, {seq: msg.payload.decode() for seq, msg in contents.items()})

        nodes = tuple(self.leaf)
        await self.everywhere("TAKEN", sum(map(len, taken)), sourced, nodes=nodes)
        await self.everywhere("MOVED_TWIN", max(moved, default=0), mirrored, nodes=nodes)
        session = await self.session("check")
        for name in QUEUES:

            async def empty(name: str = name) -> bool:
                return int((await session.api(f"STREAM.INFO.{name}"))["state"]["messages"]) == 0

            await self.until(f"{name} is empty", empty)
        await session.close()


class Renewed(Workload):
    name = "renewed"
    judges = (Copies,)
    promises = ("a source that is deleted and made anew goes on with the first message of the new stream, in order",)

    def __init__(self, deployment: Deployment, rng: Random) -> None:
        super().__init__(deployment, rng)
        self.lives: list[dict[int, str]] = []
        """Messages of each stream there was, by sequence."""

    async def prepare(self) -> None:
        self.admin = await self.session("admin")
        self.retention = self.rng.choice(["limits", "limits", "workqueue"])
        self.copies = self.rng.choice([1, 3, 3])
        await self._anew()
        await self.create(self.admin, "COPY", sources=[{"name": "PHOENIX"}], num_replicas=self.rng.choice([1, 3]))

    async def _anew(self) -> None:
        """The subject is free for the next one: of what was sent to the one before nobody waits for an ack."""
        await self.create(
            self.admin, "PHOENIX", subjects=["phoenix"], retention=self.retention, num_replicas=self.copies
        )
        self.lives.append({})

    async def work(self) -> None:
        async for _ in self.turns(0.5):
            await self._write()
            if self.rng.random() < 0.4:
                await self.until("the copy has all of it", self._copied)
                await self.insist("deleting PHOENIX", self._delete)
                await self._anew()
                self.count("made anew")
        await self._write()

    async def _write(self) -> None:
        for _ in range(self.rng.randint(1, 8)):
            text = f"{len(self.lives)}-{len(self.lives[-1])}"
            self.lives[-1][int((await self.store(self.admin, "phoenix", text))["seq"])] = text

    async def _copied(self) -> bool:
        found = await self.contents(self.admin, "COPY")
        return len(found) >= sum(map(len, self.lives))

    async def _delete(self) -> None:
        try:
            await self.admin.api("STREAM.DELETE.PHOENIX")
        except ApiError as error:
            if error.err_code != NO_STREAM:
                raise

    async def check(self) -> None:
        def look(where: str, contents: dict[int, Msg]) -> None:
            Copies.sourced(where, self.lives, [contents[seq].payload.decode() for seq in sorted(contents)])

        await self.everywhere("COPY", sum(map(len, self.lives)), look)
