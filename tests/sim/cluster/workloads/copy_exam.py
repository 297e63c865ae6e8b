"""Exam of what streams take from others, and what leaves them: filters, starts and transforms of mirrors and sources,
counters of sources, work queues, interest."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from testkit.sim.session import Msg, Session
from tests.sim.cluster.exam import Exam
from tests.sim.cluster.judges import Exact
from tests.sim.cluster.workload import SECOND

COMES = 30.0
"""Seconds within which a copy is complete."""


class CopyExam(Exam):
    name = "exam-copies"
    judges = (Exact,)
    promises = (
        "a mirror or source with a filter, a start or a transform has exactly what these leave of its upstream",
        "a stream that is full takes the rest of its source once there is room; a mirror of a stream made anew says so",
        "a counter with sources has the sum of what each of them counted",
        "a work queue or a stream with interest removes a message with its last ack, and not before",
    )

    async def check(self) -> None:
        await self.examine(
            [self._mirror, self._sources, self._counters, self._queue, self._interest, self._limit, self._full,
             self._anew, self._late], 4
        )  # fmt: skip

    async def _has(self, session: Session, name: str, wanted: list[tuple[str, str]]) -> dict[int, Msg]:
        """(subject, text) of all messages, once they are there."""

        async def is_so() -> bool:
            return len(await self.contents(session, name)) >= len(wanted)

        await self.until(f"{name} has {len(wanted)} messages", is_so, COMES)
        await asyncio.sleep(1.0)
        found = await self.contents(session, name)
        told = [(found[seq].headers["Nats-Subject"], found[seq].payload.decode()) for seq in sorted(found)]
        self.equal(name, told, wanted)
        return found

    def _size(self) -> int:
        return self.rng.choice([1, 3])

    async def _mirror(self, session: Session) -> None:
        subjects = [f"up.{self.rng.choice('ab')}.{at}" for at in range(10)]
        await self.fill(session, "UP", subjects, subjects=["up.>"], num_replicas=self._size())
        mirror = {"name": "UP", "filter_subject": "up.a.*", "opt_start_seq": 3}
        await self.create(session, "FILTERED", mirror=mirror, num_replicas=self._size())
        texts = [(one, f"UP-{at}") for at, one in enumerate(subjects)]
        wanted = [one for one in texts[2:] if one[0].startswith("up.a.")]
        found = await self._has(session, "FILTERED", wanted)
        self.equal("sequences", sorted(found), [at + 1 for at, one in enumerate(texts) if at >= 2 and one in wanted])
        await self.ask(session, "STREAM.MSG.DELETE.UP", {"seq": 1})
        self.equal("what follows", len(await self.contents(session, "FILTERED")), len(wanted))
        await self._mirror_of_nothing(session, len(subjects))

    async def _mirror_of_nothing(self, session: Session, last: int) -> None:
        """A mirror begins where its upstream is, also where that has no message any more."""
        await self.ask(session, "STREAM.PURGE.UP")
        await self.create(session, "EMPTY", mirror={"name": "UP"}, num_replicas=1)

        async def is_so() -> bool:
            state = (await self.ask(session, "STREAM.INFO.EMPTY"))["state"]
            return (state["messages"], state["first_seq"], state["last_seq"]) == (0, last + 1, last)

        await self.until(f"a mirror of an empty stream is at {last}", is_so, COMES)

    async def _sources(self, session: Session) -> None:
        await self.fill(session, "SA", ["sa.1", "sa.2", "sb.1"], subjects=["sa.*", "sb.*"], num_replicas=self._size())
        await self.fill(session, "SC", ["sc.1", "sc.2"], subjects=["sc.*"], num_replicas=self._size())
        transform = [{"src": "sc.*", "dest": "to.{{wildcard(1)}}"}]
        sources: list[dict[str, Any]] = [
            {"name": "SA", "filter_subject": "sa.*"},
            {"name": "SC", "subject_transforms": transform},
        ]
        config: dict[str, Any] = {"sources": sources, "subjects": ["own"], "num_replicas": self._size()}
        await self.create(session, "BOTH", **config)
        wanted = {("sa.1", "SA-0"), ("sa.2", "SA-1"), ("to.1", "SC-0"), ("to.2", "SC-1")}

        async def is_so() -> bool:
            return len(await self.contents(session, "BOTH")) >= len(wanted)

        await self.until("all have come", is_so, COMES)
        await self.store(session, "own", "own")
        await asyncio.sleep(1.0)
        found = await self.contents(session, "BOTH")
        told = [(found[seq].headers["Nats-Subject"], found[seq].payload.decode()) for seq in sorted(found)]
        self.equal("of its sources", sorted(told), sorted([*wanted, ("own", "own")]))
        own = [text for subject, text in told if subject.startswith("sa")]
        self.equal("in their order", own, ["SA-0", "SA-1"])

    async def _full(self, session: Session) -> None:
        """A source whose stream has no room for all of it, and then has."""
        await self.fill(session, "MUCH", ["much"] * 5, subjects=["much"], num_replicas=self._size())
        config = {"sources": [{"name": "MUCH"}], "max_msgs": 3, "discard": "new", "num_replicas": self._size()}
        await self.create(session, "LITTLE", **config)
        await self._has(session, "LITTLE", [("much", f"MUCH-{at}") for at in range(3)])

        async def says_so() -> bool:
            told = (await session.api("STREAM.INFO.LITTLE"))["sources"][0]
            return "error" in told

        await self.until("the source tells that there is no room", says_so, COMES)
        await self.ask(session, "STREAM.PURGE.LITTLE", {"keep": 1})
        await self._has(session, "LITTLE", [("much", f"MUCH-{at}") for at in (2, 3, 4)])

    async def _anew(self, session: Session) -> None:
        """A mirror keeps what it has, and takes nothing of another stream with the same name."""
        await self.fill(session, "FIRE", ["fire"] * 4, subjects=["fire"], num_replicas=self._size())
        await self.create(session, "ASHES", mirror={"name": "FIRE"}, num_replicas=self._size())
        old = [("fire", f"FIRE-{at}") for at in range(4)]
        await self._has(session, "ASHES", old)
        await self.ask(session, "STREAM.DELETE.FIRE")
        await self.create(session, "FIRE", subjects=["fire"], num_replicas=self._size())
        for number in range(6):
            await self.store(session, "fire", f"new {number}")

        async def says_so() -> bool:
            told = (await session.api("STREAM.INFO.ASHES"))["mirror"]
            return "created again" in told.get("error", {}).get("description", "")

        await self.until("the mirror tells that its stream was made anew", says_so, COMES)
        await self._has(session, "ASHES", old)

    async def _late(self, session: Session) -> None:
        """A mirror and a source of a stream that is not there yet, and is gone for a while."""
        await self.create(session, "WAITS", sources=[{"name": "LATER"}], num_replicas=self._size())
        await asyncio.sleep(2.0)
        await self.fill(session, "LATER", ["later"] * 3, subjects=["later"], num_replicas=self._size())
        await self._has(session, "WAITS", [("later", f"LATER-{at}") for at in range(3)])

    async def _counters(self, session: Session) -> None:
        for name in ("C1", "C2"):
            await self.create(session, name, subjects=[f"{name}.n"], allow_msg_counter=True, num_replicas=self._size())
            for number in (5, 7, -2):
                await session.js_publish(f"{name}.n", b"", {"Nats-Incr": f"{number:+d}"})
        sources = [
            {"name": name, "subject_transforms": [{"src": f"{name}.n", "dest": "sum.n"}]} for name in ("C1", "C2")
        ]
        await self.create(
            session, "SUM", subjects=["sum.*"], allow_msg_counter=True, sources=sources, num_replicas=self._size()
        )

        async def total() -> int:
            body = {"last_by_subj": "sum.n"}
            message = (await session.api("STREAM.MSG.GET.SUM", body))["message"]
            return int(json.loads(self.text_of(message))["val"])

        async def is_so() -> bool:
            return await total() == 20

        await self.until("the sum is 20", is_so, COMES)
        await session.js_publish("C1.n", b"", {"Nats-Incr": "+1"})
        await asyncio.sleep(2.0)
        self.equal("with one more", await total(), 21)

    async def _pull(self, session: Session, stream: str, consumer: str, number: int) -> list[Msg]:
        found = await self.take(session, stream, consumer, {"batch": number, "expires": 5 * SECOND})
        self.equal(f"{consumer} gets", [msg.status for msg in found], [""] * number)
        return found

    async def _left(self, session: Session, stream: str, wanted: list[int]) -> None:
        async def is_so() -> bool:
            return sorted(await self.contents(session, stream)) == wanted

        await self.until(f"{stream} has {wanted} left", is_so, 5.0)

    async def _queue(self, session: Session) -> None:
        await self.fill(
            session, "WORK", ["work"] * 5, subjects=["work"], retention="workqueue", num_replicas=self._size()
        )
        await self.create_consumer(session, "WORK", "worker")
        found = await self._pull(session, "WORK", "worker", 5)
        for at in (1, 3, 0):
            await session.request(found[at].reply, b"+ACK")
        await self._left(session, "WORK", [3, 5])
        await session.request(found[2].reply, b"+TERM")
        await self._left(session, "WORK", [5])

    async def _interest(self, session: Session) -> None:
        await self.create(session, "HEADLINES", subjects=["news"], retention="interest", num_replicas=self._size())
        await self.store(session, "news", "for nobody")
        for name in ("first", "second"):
            await self.create_consumer(session, "HEADLINES", name)
        await self._left(session, "HEADLINES", [])
        for number in range(3):
            await self.store(session, "news", f"news {number}")
        both = [await self._pull(session, "HEADLINES", name, 3) for name in ("first", "second")]
        for msg in both[0]:
            await session.request(msg.reply, b"+ACK")
        await asyncio.sleep(1.0)
        self.equal("before the second has had it", len(await self.contents(session, "HEADLINES")), 3)
        await session.request(both[1][1].reply, b"+ACK")
        await self._left(session, "HEADLINES", [2, 4])
        await self.ask(session, "CONSUMER.DELETE.HEADLINES.second")
        await self._left(session, "HEADLINES", [])

    async def _limit(self, session: Session) -> None:
        """A work queue has one consumer per message."""
        await self.create(session, "SHARED", subjects=["sh.*"], retention="workqueue", num_replicas=self._size())
        await self.create_consumer(session, "SHARED", "a", filter_subject="sh.a")
        await self.create_consumer(session, "SHARED", "b", filter_subject="sh.b")
        config = {"durable_name": "c", "ack_policy": "explicit", "filter_subject": "sh.b"}
        body = {"stream_name": "SHARED", "config": config}
        self.equal("a second one", await self.refused(session, "CONSUMER.DURABLE.CREATE.SHARED.c", body), 10100)
