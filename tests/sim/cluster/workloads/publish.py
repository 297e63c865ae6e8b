"""Messages with ids to a replicated stream, read back from every replica and through a pull consumer."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from tests.sim.cluster.session import ApiError, Msg, Session
from tests.sim.cluster.workload import PASSING, SETTLE, Workload

STREAM = "LOG"
CONSUMER = "reader"
PUBLISHERS = 2
NOT_FOUND = 10037


class Publish(Workload):
    name = "publish"
    promises = (
        "an acknowledged message is stored once, at the sequence of its acknowledgement, on every replica",
        "a message that is sent again under its id is not stored again",
        "a message that was acknowledged is found by MSG.GET from then on",
        "a message whose ack was confirmed is not delivered again, and none is skipped",
    )

    async def prepare(self) -> None:
        self.acked: dict[int, str] = {}
        """By sequence: what was acknowledged as stored there."""
        self.sent: set[str] = set()
        self.delivered: dict[int, str] = {}
        self.confirmed: set[int] = set()
        self.admin = await self.session("admin")
        config = {"name": STREAM, "subjects": ["log.>"], "num_replicas": 3, "allow_direct": True}
        await self.insist("creating the stream", lambda: self.admin.api(f"STREAM.CREATE.{STREAM}", config))
        consumer = {"stream_name": STREAM, "config": {"durable_name": CONSUMER, "ack_policy": "explicit",
                    "ack_wait": 5_000_000_000, "max_ack_pending": 50}}  # fmt: skip
        await self.insist(
            "creating the consumer", lambda: self.admin.api(f"CONSUMER.DURABLE.CREATE.{STREAM}.{CONSUMER}", consumer)
        )

    async def work(self) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(PUBLISHERS):
                group.create_task(self._publish(number))
            group.create_task(self._consume())
            group.create_task(self._read())

    # ---- publishing

    async def _publish(self, number: int) -> None:
        session = await self.session(f"pub{number}")
        count, pace = 0, self.rng.choice((1.0, 4.0, 12.0))
        while not self.stopping:
            count += 1
            await self._publish_one(session, f"{number}-{count}")
            await asyncio.sleep(self.rng.expovariate(pace))
        await session.close()

    async def _publish_one(self, session: Session, text: str) -> None:
        """Sent again under its id until it is acknowledged."""
        self.sent.add(text)
        while True:
            try:
                ack = await session.js_publish(f"log.{text}", text.encode(), {"Nats-Msg-Id": text}, seconds=2.0)
            except PASSING:
                self.count("publishes again")
                await asyncio.sleep(self.rng.uniform(0.05, 0.3))
                continue
            break
        seq = int(ack["seq"])
        self.count("published")
        self.require(
            self.acked.get(seq, text) == text, f"{text} and {self.acked.get(seq)} were both acknowledged as {seq}"
        )
        self.acked[seq] = text

    # ---- reading

    async def _read(self) -> None:
        """What was acknowledged is there, wherever one asks."""
        session = await self.session("get")
        while not self.stopping:
            await asyncio.sleep(self.rng.expovariate(4.0))
            if not self.acked:
                continue
            seq = max(self.acked) if self.rng.random() < 0.7 else self.rng.choice(list(self.acked))
            try:
                answer = await session.api(f"STREAM.MSG.GET.{STREAM}", {"seq": seq}, seconds=2.0)
            except ApiError as error:
                self.require(error.err_code != NOT_FOUND, f"{seq} was acknowledged and is not found")
                continue
            except PASSING:
                continue
            self.count("read")
            found = str(answer["message"]["subject"]).removeprefix("log.")
            self.require(found == self.acked[seq], f"{seq} is {found}, {self.acked[seq]} was acknowledged")
        await session.close()

    async def _consume(self) -> None:
        session = await self.session("pull")
        while not self.stopping:
            await self._pull(session)
        self.reader = session

    async def _pull(self, session: Session) -> None:
        got: asyncio.Queue[Msg] = asyncio.Queue()
        inbox = session.new_inbox()
        sid = session.subscribe(inbox, got.put_nowait)
        try:
            request = json.dumps({"batch": 10, "expires": 1_000_000_000}).encode()
            session.publish(f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.{CONSUMER}", request, inbox)
            async with asyncio.timeout(1.5):
                for _ in range(10):
                    msg = await got.get()
                    if msg.status:
                        break
                    await self._take(session, msg)
        except PASSING:
            await asyncio.sleep(0.1)
        finally:
            session.unsubscribe(sid)

    async def _take(self, session: Session, msg: Msg) -> None:
        seq, text = int(msg.reply.split(".")[5]), msg.payload.decode()
        self.count("delivered")
        self.require(seq not in self.confirmed, f"{seq} came again after its ack was confirmed")
        self.require(self.delivered.setdefault(seq, text) == text, f"{seq} was delivered with different content")
        await session.request(msg.reply, b"+ACK", seconds=1.0)
        self.confirmed.add(seq)

    # ---- afterwards

    async def check(self) -> None:
        for name in self.deployment.members():
            await self._check_replica(name)
        await self.until("the consumer has delivered everything", self._all_delivered, SETTLE)

    async def _all_delivered(self) -> bool:
        await self._pull(self.reader)
        return self.acked.keys() <= self.delivered.keys()

    async def _check_replica(self, node: str) -> None:
        """A server asks its own replica where it has one that is current."""
        session = await self.session(f"check-{node}", node)
        last = max(self.acked, default=0)

        stored: dict[int, str] = {}

        async def whole() -> bool:
            stored.clear()
            stored.update(await self._contents(session))
            return max(stored, default=0) >= last

        await self.until(f"{node} answers up to {last}", whole)
        for seq, text in self.acked.items():
            self.require(stored.get(seq) == text, f"{node}: {seq} is {stored.get(seq)}, {text} was acknowledged")
        texts = list(stored.values())
        self.require(len(texts) == len(set(texts)), f"{node}: a message is stored twice")
        self.require(self.sent.issuperset(texts), f"{node}: something is stored that nobody has sent")
        await session.close()

    async def _contents(self, session: Session) -> dict[int, str]:
        got: asyncio.Queue[Msg] = asyncio.Queue()
        inbox = session.new_inbox()
        sid = session.subscribe(inbox, got.put_nowait)
        found: dict[int, str] = {}
        try:
            start = 1
            while True:
                request: dict[str, Any] = {"seq": start, "batch": 1000}
                session.publish(f"$JS.API.DIRECT.GET.{STREAM}", json.dumps(request).encode(), inbox)
                before = len(found)
                while True:
                    async with asyncio.timeout(5.0):
                        msg = await got.get()
                    if msg.status:
                        break
                    found[int(msg.headers["Nats-Sequence"])] = msg.payload.decode()
                if len(found) == before:
                    return found
                start = max(found) + 1
        finally:
            session.unsubscribe(sid)
