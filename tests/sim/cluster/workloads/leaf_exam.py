"""The exam of leaf links: clients at a leaf use the streams of the hub, and clients on both ends are one system."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

from testkit.sim.session import ApiError, Msg, NoResponders, Session
from tests.sim.cluster.exam import SPREAD, Exam
from tests.sim.cluster.judges import Exact
from tests.sim.cluster.workload import SECOND

STREAM = "HUBBED"
API = "$JS.hub.API"
COUNT = 12


class LeafExam(Exam):
    name = "exam-leaf"
    layout = "three and a leaf"
    weight = 0
    judges = (Exact,)
    promises = (
        "a client at a leaf publishes into the hub's streams, reads and pulls from them, and its acks count there",
        "what is delivered or answered over a leaf link has its subject, reply and headers",
        "subscriptions, queue groups and requests reach over a leaf link once, and know when nobody is there any more",
    )

    async def check(self) -> None:
        self.leaves = sorted(name for name, one in self.deployment.servers.items() if one.leaf_of)
        if not self.leaves:
            return
        self.hub = [await self.session(f"hub-{name}", name) for name in self.members if name not in self.leaves]
        self.far = [await self.session(f"far-{name}", name) for name in self.leaves]
        for one in (*self.hub, *self.far):  # the link is there, and the hub's leader
            await self._hub_api(one, "INFO")
        parts = [self._publishes, self._pulls, self._pushes, self._reads, self._domains]
        await self.examine([*parts, self._both, self._groups, self._leaving], 5)
        for one in (*self.hub, *self.far):
            await one.close()

    # ---- helpers

    async def _told(self) -> None:
        """All servers know of all subscriptions."""
        for one in (*self.hub, *self.far):
            await one.flush()
        await asyncio.sleep(2 * SPREAD)

    async def _hub_api(self, session: Session, subject: str, body: object = None) -> dict[str, Any]:
        """The answer of the hub, which is asked again while there is no link, or no leader."""
        data = b"" if body is None else json.dumps(body).encode()

        async def asked() -> dict[str, Any]:
            answer: dict[str, Any] = json.loads((await session.request(f"{API}.{subject}", data, 5.0)).payload)
            if "error" in answer:
                raise ApiError(answer["error"])
            return answer

        found: dict[str, Any] = await self.insist(subject, asked, 20.0)
        return found

    async def _made(self, count: int = COUNT) -> Session:
        """The stream with so many messages, at the hub; a session at a leaf."""
        home, there = self.rng.choice(self.hub), self.rng.choice(self.far)
        config = {
            "name": STREAM,
            "subjects": ["hubbed.>"],
            "num_replicas": self.rng.choice([1, 3]),
            "allow_direct": True,
        }
        await self._hub_api(there, f"STREAM.CREATE.{STREAM}", config)
        await self.until_all_lead()
        for at in range(count):
            await self.store(home, f"hubbed.{at % 3}", f"hubbed-{at}")
        return there

    async def _gone(self) -> None:
        await self._hub_api(self.rng.choice(self.hub), f"STREAM.DELETE.{STREAM}")

    def _texts(self, messages: list[Msg]) -> list[tuple[str, str]]:
        return [(msg.subject, msg.payload.decode()) for msg in messages]

    def _wanted(self, count: int = COUNT) -> list[tuple[str, str]]:
        return [(f"hubbed.{at % 3}", f"hubbed-{at}") for at in range(count)]

    # ---- JetStream of the hub

    async def _publishes(self, session: Session) -> None:
        """Acks come back over the link, and what is stored has its headers."""
        there = await self._made(0)
        for at in range(COUNT):
            ack = await self.insist(
                "an ack",
                lambda at=at: there.js_publish(
                    f"hubbed.{at % 3}", b"hubbed-%d" % at, {"Nats-Msg-Id": f"i{at}", "Own": "1"}
                ),  # type: ignore[misc]
            )
            self.equal("the ack", (ack["stream"], ack["seq"], ack.get("domain")), (STREAM, at + 1, "hub"))
        again = await there.js_publish("hubbed.0", b"hubbed-0", {"Nats-Msg-Id": "i0"})
        self.equal("a repetition", (again["seq"], again.get("duplicate")), (1, True))
        found = await self._hub_api(self.hub[0], f"STREAM.INFO.{STREAM}")
        self.equal("messages", found["state"]["messages"], COUNT)
        await self._gone()

    async def _pulls(self, session: Session) -> None:
        """Deliveries have the subjects and headers of the stream, and their acks arrive."""
        there = await self._made()
        config = {"durable_name": "pull", "ack_policy": "explicit", "ack_wait": 30 * SECOND}
        await self._hub_api(there, f"CONSUMER.CREATE.{STREAM}.pull", {"stream_name": STREAM, "config": config})
        got: list[Msg] = []
        with there.inbox() as (inbox, queue):
            await there.flush()
            await asyncio.sleep(SPREAD)
            body = json.dumps({"batch": COUNT, "expires": 5 * SECOND}).encode()
            there.publish(f"{API}.CONSUMER.MSG.NEXT.{STREAM}.pull", body, inbox)
            async with asyncio.timeout(10.0):
                while len(got) < COUNT:
                    msg = await queue.get()
                    self.equal("its status", msg.status, "")
                    got.append(msg)
        self.equal("what was delivered", self._texts(got), self._wanted())
        self.require(all(msg.reply.startswith("$JS.ACK.") for msg in got), f"replies: {[msg.reply for msg in got]}")
        for msg in got[:-2]:
            await there.request(msg.reply, b"", 5.0)
        info = await self._hub_api(there, f"CONSUMER.INFO.{STREAM}.pull")
        found = (info["ack_floor"]["stream_seq"], info["num_ack_pending"], info["num_pending"])
        self.equal("what is acknowledged", found, (COUNT - 2, 2, 0))
        await self._gone()

    async def _pushes(self, session: Session) -> None:
        """A push consumer of the hub delivers to a subject at a leaf, and stops when nobody is there."""
        there = await self._made()
        got: list[Msg] = []
        sid = there.subscribe("far.pushed", got.append)
        await self._told()
        config = {"durable_name": "push", "ack_policy": "none", "deliver_subject": "far.pushed"}
        await self._hub_api(there, f"CONSUMER.CREATE.{STREAM}.push", {"stream_name": STREAM, "config": config})
        await asyncio.sleep(2.0)
        self.equal("what was pushed", self._texts(got), self._wanted())
        there.unsubscribe(sid)
        await self._told()
        await self.store(self.hub[0], "hubbed.0", "late")
        await asyncio.sleep(2.0)
        info = await self._hub_api(there, f"CONSUMER.INFO.{STREAM}.push")
        self.equal("what waits for a listener", (info["num_pending"], info.get("push_bound", False)), (1, False))
        await self._gone()

    async def _reads(self, session: Session) -> None:
        """Direct Gets and MSG.GET by a client at a leaf."""
        there = await self._made()
        for at in range(COUNT):
            msg = await there.request(f"{API}.DIRECT.GET.{STREAM}", b'{"seq":%d}' % (at + 1), 5.0)
            found = (msg.headers.get("Nats-Subject"), msg.headers.get("Nats-Sequence"), msg.payload.decode())
            self.equal("a read", found, (f"hubbed.{at % 3}", str(at + 1), f"hubbed-{at}"))
        last = await there.request(f"{API}.DIRECT.GET.{STREAM}.hubbed.1", b"", 5.0)
        self.equal("the last of a subject", last.payload.decode(), f"hubbed-{COUNT - 2}")
        self.equal("none", (await there.request(f"{API}.DIRECT.GET.{STREAM}", b'{"seq":99}', 5.0)).status[:3], "404")
        got = await self._hub_api(there, f"STREAM.MSG.GET.{STREAM}", {"seq": 2})
        self.equal("by the leader", got["message"]["subject"], "hubbed.1")
        await self._gone()

    async def _domains(self, session: Session) -> None:
        """Either end has its own JetStream, and the other's buckets through the other's domain alone."""
        home, there = self.rng.choice(self.hub), self.rng.choice(self.far)
        for one, domain in ((home, "hub"), (there, "leaf")):
            self.equal("its JetStream", (await self.ask(one, "INFO")).get("domain"), domain)
        got: dict[str, list[Msg]] = {"hub": [], "leaf": []}
        for one, domain in ((home, "hub"), (there, "leaf")):
            one.subscribe("$KV.>", got[domain].append)
            one.subscribe("$OBJ.>", got[domain].append)
        await self._told()
        for subject in ("$KV.b.own", "$OBJ.b.own"):
            home.publish(subject, b"hub")
            there.publish(subject, b"leaf")
        for subject in ("$KV.b.far", "$OBJ.b.far"):
            home.publish(f"$JS.leaf.API.{subject}", b"hub")
            there.publish(f"{API}.{subject}", b"leaf")
        await asyncio.sleep(1.5)
        for own, other in (("hub", "leaf"), ("leaf", "hub")):
            wanted = [("$KV.b.far", other), ("$KV.b.own", own), ("$OBJ.b.far", other), ("$OBJ.b.own", own)]
            self.equal(f"what came at the {own}", sorted(self._texts(got[own])), wanted)

    # ---- core NATS

    async def _both(self, session: Session) -> None:
        """Each subscription on either side has each message once, as it was sent."""
        everyone = [*self.hub, *self.far]
        listening: list[tuple[str, list[Msg]]] = []
        for one in everyone:
            for pattern in ("both.>", "both.*", "both.a"):
                listening.append((pattern, []))
                one.subscribe(pattern, listening[-1][1].append)
        await self._told()
        for number, one in enumerate(everyone):
            one.publish("both.a", b"%d" % number, "a.reply", {"Own": str(number)})
            one.publish("both.a.b", b"deep")
        await asyncio.sleep(1.5)
        sent = sorted(("both.a", "a.reply", str(at), str(at)) for at in range(len(everyone)))
        deep = [("both.a.b", "", "", "deep")] * len(everyone)
        for pattern, got in listening:
            found = sorted((msg.subject, msg.reply, msg.headers.get("Own", ""), msg.payload.decode()) for msg in got)
            self.equal(f"messages of {pattern}", found, sorted([*sent, *(deep if pattern == "both.>" else [])]))

    async def _groups(self, session: Session) -> None:
        """One member of a group on both sides has a message, and answers a request."""
        counts: Counter[str] = Counter()
        everyone = [*self.hub, *self.far]
        for one in everyone:

            def serve(msg: Msg, one: Session = one) -> None:
                counts[msg.payload.decode()] += 1
                one.publish(msg.reply, one.name.encode(), headers={"Own": "answer"})

            one.subscribe("group.ask group", serve)
        await self._told()
        for number, one in enumerate(everyone * 2):
            answer = await one.request("group.ask", b"%d" % number, 5.0, {"Own": "question"})
            self.equal("headers of an answer", answer.headers, {"Own": "answer"})
        await asyncio.sleep(1.0)
        self.equal("members that got it", dict(counts), {str(number): 1 for number in range(2 * len(everyone))})

    async def _leaving(self, session: Session) -> None:
        """A request has an error at once when the last one who answers, on the other side, has left."""
        for asks, answers in ((self.hub, self.far), (self.far, self.hub)):
            one, other = self.rng.choice(asks), self.rng.choice(answers)
            group = self.rng.choice(["", " group"])
            sid = other.subscribe(f"left.ask{group}", lambda msg, other=other: other.publish(msg.reply, b"here"))  # type: ignore[misc]
            await self._told()
            self.equal("an answer", (await one.request("left.ask", b"", 5.0)).payload, b"here")
            other.unsubscribe(sid)
            await self._told()
            try:
                await one.request("left.ask", b"", 5.0)
            except NoResponders:
                continue
            self.require(False, "nobody is there, and something answers")
