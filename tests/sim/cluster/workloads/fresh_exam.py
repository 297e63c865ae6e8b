"""Exam of reads that must be of now, many at a time, beside a writer that does not pause: one that begins behind an
acknowledgement has what was acknowledged."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from testkit.sim.session import Session
from tests.sim.cluster.exam import Exam
from tests.sim.cluster.judges import Exact
from tests.sim.cluster.workload import PASSING

STREAM, COPY = "NOW", "NOWCOPY"
SUBJECT: Final = "now.one"
WRITES: Final = 60
READERS: Final = 3
"""At each server."""
ANSWERED: Final = 3.0
OLD: Final = {"Nats-Max-Staleness": "0ms"}
STRONG: Final = {"Nats-Read-Consistency": "linearizable"}


class FreshExam(Exam):
    name = "exam-fresh"
    newest = True
    weight = 0
    judges = (Exact,)
    promises = (
        "reads that must be of now have what was acknowledged before they began, however many share a question",
    )

    async def check(self) -> None:
        if self.deployment.relaxed:
            return
        parts = [self._replicas, self._mirror, self._own, *([self._leaf] if self._leaves() else [])]
        await self.examine(parts, 2)

    def _leaves(self) -> list[str]:
        return [name for name, server in self.deployment.servers.items() if server.leaf_of]

    async def _replicas(self, session: Session) -> None:
        await self._begin(session)
        await self._read_beside_writes(session, STREAM, STRONG, self.members)
        await self.ask(session, f"STREAM.DELETE.{STREAM}")

    async def _mirror(self, session: Session) -> None:
        await self._begin(session)
        await self._copied(session, session, {"name": STREAM}, self.members)

    async def _leaf(self, session: Session) -> None:
        """Its origin is asked by the API, as it is none of its own servers."""
        await self._begin(session)
        leaves = self._leaves()
        there = await self.session("leaf", *leaves)
        await self._copied(session, there, {"name": STREAM, "external": {"api": "$JS.hub.API"}}, leaves)
        await there.close()

    async def _begin(self, session: Session) -> None:
        await self.create(session, STREAM, subjects=["now.*"], num_replicas=self.rng.choice([1, 3]))
        self.newest_acked = int((await self.store(session, SUBJECT, "now"))["seq"])

    async def _copied(self, session: Session, there: Session, upstream: dict[str, Any], nodes: list[str]) -> None:
        size = 1 if len(nodes) == 1 else self.rng.choice([1, 3])
        await self.create(there, COPY, mirror=upstream, mirror_direct=True, num_replicas=size)

        async def answers() -> bool:
            return await self._read(there, COPY, OLD) == 1

        await self.until("a mirror answers", answers, 20.0)
        await self._read_beside_writes(session, COPY, OLD, nodes)
        await self.ask(there, f"STREAM.DELETE.{COPY}")
        await self.ask(session, f"STREAM.DELETE.{STREAM}")

    async def _read_beside_writes(self, session: Session, name: str, wish: dict[str, str], nodes: list[str]) -> None:
        self.writes = True
        readers = [await self.session(f"reads-{node}-{at}", node) for node in nodes for at in range(READERS)]
        await self.at_once(self._write(session), *(self._follow(reader, name, wish) for reader in readers))
        for one in readers:
            await one.close()

    async def _write(self, session: Session) -> None:
        for at in range(WRITES):
            ack = await self.store(session, SUBJECT, f"now {at}")
            self.newest_acked = int(ack["seq"])
            await asyncio.sleep(0.002 * self.rng.random())
        self.writes = False

    async def _follow(self, session: Session, name: str, wish: dict[str, str]) -> None:
        while self.writes:
            known = self.newest_acked
            found = await self._read(session, name, wish)
            if found < known:
                self.equal(f"the newest of {name} at a read of now", found, known)
            await asyncio.sleep(0.0005 * self.rng.random())

    async def _read(self, session: Session, name: str, wish: dict[str, str]) -> int:
        """The sequence that a read finds; of one that is refused all that it could."""
        try:
            msg = await session.request(f"$JS.API.DIRECT.GET.{name}.{SUBJECT}", b"", ANSWERED, wish)
        except PASSING:
            self.count("no answer")
            return 1 << 60
        if msg.status:
            self.count(msg.status)
            return 1 << 60
        self.count("read")
        return int(msg.headers["Nats-Sequence"])

    async def _own(self, session: Session) -> None:
        """Without a wish, who writes reads what it has written, at any server."""
        await self.create(session, STREAM, subjects=["now.*"], num_replicas=3)
        writers = [await self.session(f"writes-{node}", node) for node in self.members]
        await self.at_once(*(self._write_and_read(one) for one in writers))
        for one in writers:
            await one.close()
        await self.ask(session, f"STREAM.DELETE.{STREAM}")

    async def _write_and_read(self, session: Session) -> None:
        for at in range(WRITES // 2):
            ack = await self.store(session, SUBJECT, f"{session.name} {at}")
            found = await self._read(session, STREAM, {})
            self.equal("older than its own", found < int(ack["seq"]), False)
