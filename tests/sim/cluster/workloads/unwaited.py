"""A client that publishes without waiting for acks, and asks its stream: it finds what it has published."""

from __future__ import annotations

import asyncio
import json

from testkit.sim.session import Msg
from tests.sim.cluster.judges import Exact
from tests.sim.cluster.replicas import replicas
from tests.sim.cluster.workload import PASSING, Workload

STREAM = "UNWAITED"
MOST = 20
"""Messages at a time."""
QUICK = 0.3
"""Seconds in which an answer comes to somebody who need not wait for the others: the server gives up waiting for them
after half a second."""


class Unwaited(Workload):
    name = "unwaited"
    weight = 0
    judges = (Exact,)
    promises = ("a client of the leader's server that publishes, and asks without waiting for the acks, finds it all",)

    async def prepare(self) -> None:
        self.asked = 0
        self.admin = await self.session("admin")
        await self.create(self.admin, STREAM, subjects=["unwaited"])

    async def work(self) -> None:
        async for _ in self.turns(3.0):
            led = self._led()
            if led is not None:
                try:
                    await self._ask(*led)
                except PASSING:
                    self.count("no answer")

    def _led(self) -> tuple[str, int] | None:
        """The server that leads, and the term."""
        found = [(name, one.group.term) for name, one in replicas(self.deployment, STREAM).items() if one.leading]
        return max(found, key=lambda one: one[1]) if found else None

    async def _ask(self, name: str, term: int) -> None:
        self.asked += 1  # a name of its own, or it hears answers that come too late for the one before
        session = await self.session(f"at-{name}-{self.asked}", name)
        try:
            with session.inbox() as (inbox, got):
                began, number = self.now, self.rng.randint(1, MOST)
                for _ in range(number):
                    session.publish("unwaited", b"x", inbox)
                state = (await session.api(f"STREAM.INFO.{STREAM}", seconds=1.0))["state"]
                quick = self.now - began < QUICK
                acks = [await self._ack(got) for _ in range(number)]
        finally:
            await session.close()
        if quick and self._led() == (name, term):
            self.count("asked")
            Exact.between(f"{self.name}: what was published before INFO", max(acks), 0, state["last_seq"])

    async def _ack(self, got: asyncio.Queue[Msg]) -> int:
        """The sequence; 0 for a message that was refused."""
        async with asyncio.timeout(2.0):
            msg = await got.get()
        return 0 if msg.status else int(json.loads(msg.payload).get("seq", 0))

    async def check(self) -> None:
        async def is_told() -> bool:
            led = self._led()
            before = self.counts.get("asked", 0)
            if led is not None:
                await self._ask(*led)
            return self.counts.get("asked", 0) > before

        await self.until("somebody who asks is told", is_told)
