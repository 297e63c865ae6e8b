"""Core NATS across the servers of a cluster: every subscription has every message once and in order, one of a queue
group has it, requests find who answers."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

from testkit.sim.session import Msg, NoResponders, Session
from tests.sim.cluster.exam import SPREAD, Exam
from tests.sim.cluster.judges import Exact

MESSAGES = 12


class CoreExam(Exam):
    name = "exam-core"
    judges = (Exact,)
    promises = (
        "every subscription, on whatever server, gets each message that matches it once, in order, as it was sent",
        "one member of a queue group gets a message, on whatever server it is, and a request without one gets an error",
    )

    async def check(self) -> None:
        self.sessions = [await self.session(f"at-{name}", name) for name in self.deployment.members()]
        await self.examine(
            [self._subscriptions, self._queues, self._requests, self._unsubscribed, self._headers, self._bulk,
             self._services], 5
        )  # fmt: skip
        for session in self.sessions:
            await session.close()

    def _listen(self, session: Session, subject: str) -> list[Msg]:
        got: list[Msg] = []
        session.subscribe(subject, got.append)
        return got

    async def _known(self) -> None:
        for session in self.sessions:
            await session.flush()
        await asyncio.sleep(SPREAD)

    async def _subscriptions(self, session: Session) -> None:
        """Two of each pattern on each server."""
        patterns = {"sub.one": "one", "sub.*": "one two", "sub.>": "one two one.deep", "*.two": "two"}
        listening = {
            (at, pattern): [self._listen(one, pattern) for _ in range(2)]
            for at, one in enumerate(self.sessions)
            for pattern in patterns
        }
        await self._known()
        sent: list[tuple[str, bytes]] = []
        publisher = self.rng.choice(self.sessions)
        for number in range(MESSAGES):
            subject = f"sub.{self.rng.choice(['one', 'two', 'one.deep'])}"
            sent.append((subject, b"%d" % number))
            publisher.publish(subject, b"%d" % number, "to.me")
        await asyncio.sleep(SPREAD)
        for (at, pattern), both in listening.items():
            own = [one for one in sent if one[0][4:] in patterns[pattern].split(" ")]
            for got in both:
                found = [(msg.subject, msg.payload) for msg in got]
                self.equal(f"server {at}, {pattern}", found, own)
                self.require(all(msg.reply == "to.me" for msg in got), f"replies {[msg.reply for msg in got]}")

    async def _queues(self, session: Session) -> None:
        """Members on some servers; all messages come once, and every member of the own server may get them."""
        got: list[tuple[int, Msg]] = []
        for at in self.rng.sample(range(len(self.sessions)), 2):
            one = self.sessions[at]
            for _ in range(2):
                one.subscribe("queued workers", lambda msg, at=at: got.append((at, msg)))  # type: ignore[misc]
        plain = self._listen(self.sessions[0], "queued")
        await self._known()
        for number in range(MESSAGES):
            self.sessions[number % len(self.sessions)].publish("queued", b"%d" % number)
        await asyncio.sleep(SPREAD)
        counts = Counter(int(msg.payload) for _, msg in got)
        self.equal("by a queue group", counts, Counter(range(MESSAGES)))
        self.equal("by a plain subscription", Counter(int(msg.payload) for msg in plain), Counter(range(MESSAGES)))

    async def _requests(self, session: Session) -> None:
        server = self.rng.choice(self.sessions)
        server.subscribe("ask", lambda msg: server.publish(msg.reply, b"answer to " + msg.payload))
        await self._known()
        for at, one in enumerate(self.sessions):
            answer = await one.request("ask", b"%d" % at)
            self.equal(f"the answer at server {at}", answer.payload, b"answer to %d" % at)
            try:
                await one.request("ask.nobody", b"")
            except NoResponders:
                continue
            self.require(False, f"server {at}: a request that nobody answers is not refused")

    async def _unsubscribed(self, session: Session) -> None:
        """Ends of subscriptions: one that is over gets nothing, one with a maximum ends by itself."""
        one, other = self.rng.sample(self.sessions, 2)
        got: list[Msg] = []
        sid = one.subscribe("gone", got.append)
        few: list[Msg] = []
        limited = one.subscribe("few", few.append)
        one._write(f"UNSUB {limited} 3\r\n".encode())
        enough: list[Msg] = []
        had = one.subscribe("enough", enough.append)
        await self._known()
        for _ in range(2):
            other.publish("enough", b"x")
        other.publish("gone", b"1")
        for _ in range(5):
            other.publish("few", b"x")
        await asyncio.sleep(SPREAD)
        self.equal("before", len(got), 1)
        self.equal("three at most", len(few), 3)
        one._subscriptions[sid] = "gone", got.append
        one._write(f"UNSUB {sid}\r\nUNSUB {had} {self.rng.choice([1, 2])}\r\n".encode())
        await self._known()
        for subject in ("gone", "enough"):
            other.publish(subject, b"2")
        await asyncio.sleep(SPREAD)
        self.equal("after", (len(got), len(enough)), (1, 2))
        one.unsubscribe(had)
        one._subscriptions.pop(sid)
        one._subscriptions.pop(limited)

    async def _headers(self, session: Session) -> None:
        one, other = self.rng.sample(self.sessions, 2)
        got = self._listen(one, "with.headers")
        await self._known()
        fields = {"First": "1", "Second": "two words"}
        other.publish("with.headers", b"", headers=fields)
        other.publish("with.headers", b"\r\n\x00MSG", "reply.to", fields)
        await asyncio.sleep(SPREAD)
        self.equal("headers", [msg.headers for msg in got], [fields, fields])
        self.equal("payloads", [(msg.payload, msg.reply) for msg in got], [(b"", ""), (b"\r\n\x00MSG", "reply.to")])

    async def _bulk(self, session: Session) -> None:
        """More than one read holds, both ways."""
        one, other = self.rng.sample(self.sessions, 2)
        got = self._listen(one, "bulk")
        await self._known()
        sizes = [self.rng.choice([0, 10, 5_000, 70_000]) for _ in range(20)]
        for at, size in enumerate(sizes):
            other.publish("bulk", bytes([at]) * size)
        await asyncio.sleep(2 * SPREAD)
        self.equal("sizes", [len(msg.payload) for msg in got], sizes)
        self.require(all(set(msg.payload) <= {at} for at, msg in enumerate(got)), "contents of large messages")

    async def _services(self, session: Session) -> None:
        """Answers of the server itself about an account, and about who is connected."""
        answer: dict[str, Any] = json.loads((await session.request("$JS.API.INFO")).payload)
        names = (await self.ask(session, "STREAM.NAMES"))["streams"] or []
        self.equal("streams of the account", answer["streams"], len(names))
        listed = (await self.ask(session, "STREAM.LIST"))["streams"] or []
        self.equal("listed streams", sorted(one["config"]["name"] for one in listed), sorted(names))
        consumers = sum(one["state"]["consumer_count"] for one in listed)
        self.equal("consumers of the account", answer["consumers"], consumers)
        stored = sum(one["state"]["bytes"] for one in listed if one["config"]["storage"] == "file")
        self.require((answer["storage"] > 0) == (stored > 0), f"{answer['storage']} bytes, and streams have {stored}")
