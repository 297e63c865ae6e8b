"""Exam of messages that come at once, with ids and in batches, and of ids that come again at a mirror."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Final

from testkit.sim.session import Session
from tests.sim.cluster.exam import Exam
from tests.sim.cluster.judges import Exact

STREAM, COPY = "IDS", "IDSCOPY"
BURST: Final = 24
IDS: Final = 7
MIXED: Final = 6
"""Messages of each of two batches, and of none."""
SECOND: Final = 1_000_000_000
WINDOW: Final = 1.0
"""Seconds for which the upstream of a mirror knows an id."""


class IdExam(Exam):
    name = "exam-ids"
    weight = 0
    judges = (Exact,)
    promises = (
        "of messages with one id that come at once the first is stored, and the others are told its sequence",
        "of batches and others that come at once each ack has the sequence of its own message",
        "a mirror has each message of its upstream, also where an id came again behind the upstream's window",
    )

    async def check(self) -> None:
        await self.examine([self._burst, self._mixed, self._mirrored], 3)

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

    async def _mixed(self, session: Session) -> None:
        """Two fast-ingest batches and others at once: each end and each ack has the sequence of its own message."""
        size = self.rng.choice([1, 3])
        await self.create(session, STREAM, subjects=["ids.*"], num_replicas=size, allow_batched=True)
        kinds = ["a"] * MIXED + ["b"] * MIXED + ["plain"] * MIXED
        self.rng.shuffle(kinds)
        last: dict[str, dict[str, Any]] = {}
        with session.inbox(f"{session.new_inbox()}.>") as (inbox, got):
            count = dict.fromkeys(kinds, 0)
            for kind in kinds:
                count[kind] += 1
                at = count[kind]
                operation = 2 if at == MIXED else min(at - 1, 1)
                reply = f"{kind}{at}" if kind == "plain" else f"{kind}.1.fail.{at}.{operation}.$FI"
                session.publish(f"ids.{kind}", f"{kind} {at}".encode(), f"{inbox[:-1]}{reply}")
            async with asyncio.timeout(10.0):
                while len(last) < MIXED + 2:
                    msg = await got.get()
                    token, answer = msg.subject.removeprefix(inbox[:-1]).split(".")[0], json.loads(msg.payload)
                    if answer.get("type", "end") == "end":
                        last[token] = answer
        found = {msg.payload.decode(): seq for seq, msg in (await self.contents(session, STREAM)).items()}
        self.equal("stored", len(found), len(kinds))
        for token, answer in last.items():
            text = f"plain {token[5:]}" if token.startswith("plain") else f"{token} {MIXED}"
            self.equal(f"the sequence of {text} among {kinds}", answer["seq"], found[text])
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
