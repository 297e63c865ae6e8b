"""Exam of message ids: one message is stored for each of those that come at once, and mirrors have what was stored."""

from __future__ import annotations

import asyncio
import json
from typing import Final

from testkit.sim.session import Session
from tests.sim.cluster.exam import Exam
from tests.sim.cluster.judges import Exact

STREAM, COPY = "IDS", "IDSCOPY"
BURST: Final = 24
IDS: Final = 7
SECOND: Final = 1_000_000_000
WINDOW: Final = 1.0
"""Seconds for which the upstream of a mirror knows an id."""


class IdExam(Exam):
    name = "exam-ids"
    weight = 0
    judges = (Exact,)
    promises = (
        "of messages with one id that come at once the first is stored, and the others are told its sequence",
        "a mirror has each message of its upstream, also where an id came again behind the upstream's window",
    )

    async def check(self) -> None:
        await self.examine([self._burst, self._mirrored], 2)

    async def _burst(self, session: Session) -> None:
        """From one client, so that the leader takes many of them at once, whether all of them have ids or not."""
        size = self.rng.choice([1, 3])
        await self.create(session, STREAM, subjects=["ids.*"], num_replicas=size, duplicate_window=600 * SECOND)
        some = self.rng.choice([IDS, IDS + 1])
        sent = [self.rng.randrange(some) for _ in range(BURST)]
        with session.inbox(f"{session.new_inbox()}.*") as (inbox, got):
            for at, number in enumerate(sent):
                headers = {"Nats-Msg-Id": f"id {number}"} if number < IDS else None
                session.publish(f"ids.{at}", b"", f"{inbox[:-1]}{at}", headers)
            async with asyncio.timeout(10.0):
                told = [await got.get() for _ in sent]
        acks = {int(msg.subject.rpartition(".")[2]): json.loads(msg.payload) for msg in told}
        first: dict[int, int] = {}
        for at, number in enumerate(sent):
            ack, known = acks[at], first.get(number)
            self.equal(f"ack {at} of {sent}", bool(ack.get("duplicate")), known is not None)
            self.equal(f"sequence of {at} of {sent}", ack["seq"], known or len(first) + 1)
            if known is None:
                first[number if number < IDS else -at - 1] = ack["seq"]
        self.equal("stored", len(await self.contents(session, STREAM)), len(first))
        await self.ask(session, f"STREAM.DELETE.{STREAM}")

    async def _mirrored(self, session: Session) -> None:
        window = int(WINDOW * SECOND)
        await self.create(session, STREAM, subjects=["ids.*"], num_replicas=1, duplicate_window=window)
        size = self.rng.choice([1, 3])
        await self.create(session, COPY, mirror={"name": STREAM}, num_replicas=size, duplicate_window=600 * SECOND)
        for at in range(3):
            for one in ("a", "b"):
                await session.js_publish("ids.x", f"{one}{at}".encode(), {"Nats-Msg-Id": one})
            await asyncio.sleep(3 * WINDOW)
        wanted = ["a0", "b0", "a1", "b1", "a2", "b2"]

        async def there() -> bool:
            return len(await self.contents(session, COPY)) >= len(wanted)

        await self.until("a mirror has all", there, 15.0)
        found = [msg.payload.decode() for _, msg in sorted((await self.contents(session, COPY)).items())]
        self.equal("a mirror's messages", found, wanted)
        for name in (COPY, STREAM):
            await self.ask(session, f"STREAM.DELETE.{name}")
