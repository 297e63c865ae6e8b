"""Acks and their times, with a consumer that nothing disturbs: when a message comes again, how often, and when not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

from testkit.sim.session import Msg, Session
from tests.sim.cluster.exam import Exam
from tests.sim.cluster.judges import Exact
from tests.sim.cluster.workload import Delivered

STREAM = "ACKS"
SECOND = 1_000_000_000
LATE = 1.5
"""Seconds by which a message may come later than it could: timers of consumers, a request that is repeated."""
EARLY = 0.05
WORDS = 70
"""More than the times that a consumer remembers before it looks which of them still count."""


class AckExam(Exam):
    name = "exam-acks"
    judges = (Exact,)
    promises = (
        "a message comes again after its ack_wait, its backoff or the delay of its NAK, and not before",
        "a message is given up after max_deliver, with an advisory, and what is terminated does not come again",
        "max_ack_pending holds messages back, and an ack of all counts for what is below",
    )

    async def check(self) -> None:
        session = self.session_ = await self.session("fill")
        size = self.rng.choice([1, 3])
        await self.fill(session, STREAM, [f"acks.{at}" for at in range(6)], subjects=["acks.*"], num_replicas=size)
        parts: list[Callable[[Session], Awaitable[None]]] = [
            self._ack_wait, self._delay, self._backoff, self._max_deliver, self._term, self._pending, self._all,
            self._next, self._watched,
        ]  # fmt: skip
        await self.examine(parts)

    async def _one(self, name: str, seconds: float = 8.0, batch: int = 1) -> tuple[float, Msg]:
        """The next message of a consumer, after the time at which it came."""
        found = await self.take(self.session_, STREAM, name, {"batch": batch, "expires": int(seconds * SECOND)})
        self.require(bool(found) and not found[0].status, f"nothing comes in {seconds} s: {found}")
        return self.now, found[0]

    async def _consumer(self, name: str, **config: object) -> None:
        await self.create_consumer(self.session_, STREAM, name, **config)

    def _again(self, what: str, msg: Msg, first: Msg, seconds: float, least: float) -> None:
        self.equal(what, Delivered.of(msg).seq, Delivered.of(first).seq)
        Exact.between(f"{what} comes again after", seconds, least - EARLY, least + LATE)

    async def _ack_wait(self, session: Session) -> None:
        """The clock of the wait begins anew with +WPI."""
        wait = self.rng.choice([2.0, 4.0])
        await self._consumer("wait", ack_wait=int(wait * SECOND), filter_subject="acks.1")
        at, first = await self._one("wait")
        then, again = await self._one("wait")
        self._again("unacknowledged", again, first, then - at, wait)
        self.equal("its count", Delivered.of(again).count, 2)
        await asyncio.sleep(wait / 2)
        began = self.now
        session.publish(again.reply, b"+WPI")
        then, third = await self._one("wait")
        self._again("in progress", third, first, then - began, wait)
        await session.request(third.reply, b"+ACK")
        rest = await self.take(session, STREAM, "wait", {"batch": 1, "expires": int((wait + LATE) * SECOND)})
        self.equal("after its ack", [msg.status[:3] for msg in rest], ["408"])

    async def _watched(self, session: Session) -> None:
        """Word of one message, again and again, makes nobody forget the other one that came with it."""
        wait = 8.0
        await self._consumer("watched", ack_wait=int(wait * SECOND))
        began = self.now
        found = await self.take(session, STREAM, "watched", {"batch": 3, "expires": 2 * SECOND})
        self.equal("of three", [Delivered.of(msg).seq for msg in found], [1, 2, 3])
        await session.request(found[0].reply, b"+ACK")
        for _ in range(WORDS):
            await session.request(found[2].reply, b"+WPI")
            if self.now > began + wait - 1.0:
                return  # disks that are as slow as that
        rest = await self.take(session, STREAM, "watched", {"batch": 3, "expires": 2 * SECOND})
        self.equal("the other ones", [Delivered.of(msg).seq for msg in rest if not msg.status], [4, 5, 6])
        then, again = await self._one("watched", began + wait - self.now + 2 * LATE)
        self._again("the one beside", again, found[1], then - began, wait)

    async def _delay(self, session: Session) -> None:
        await self._consumer("delay", ack_wait=30 * SECOND, filter_subject="acks.2")
        _, first = await self._one("delay")
        session.publish(first.reply, b"-NAK")
        began = self.now
        then, again = await self._one("delay")
        self._again("refused", again, first, then - began, 0.0)
        session.publish(again.reply, b'-NAK {"delay": 3000000000}')
        began = self.now
        then, third = await self._one("delay")
        self._again("refused for 3 s", third, first, then - began, 3.0)
        info = await self.ask(session, f"CONSUMER.INFO.{STREAM}.delay")
        self.equal("delay, redelivered", (info["num_redelivered"], info["num_ack_pending"]), (1, 1))

    async def _backoff(self, session: Session) -> None:
        await self._consumer("backoff", backoff=[1 * SECOND, 3 * SECOND], max_deliver=3, filter_subject="acks.3")
        at, first = await self._one("backoff")
        then, second = await self._one("backoff")
        self._again("the first time", second, first, then - at, 1.0)
        later, third = await self._one("backoff")
        self._again("the second time", third, first, later - then, 3.0)

    async def _max_deliver(self, session: Session) -> None:
        told: asyncio.Queue[Msg] = asyncio.Queue()
        sid = session.subscribe(f"$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.{STREAM}.last", told.put_nowait)
        await self._consumer("last", ack_wait=SECOND, max_deliver=2, filter_subject="acks.4")
        await self._one("last")
        await self._one("last")
        rest = await self.take(session, STREAM, "last", {"batch": 1, "expires": 4 * SECOND})
        self.equal("after the last delivery", [msg.status[:3] for msg in rest], ["408"])
        async with asyncio.timeout(5.0):
            advisory = json.loads((await told.get()).payload)
        self.equal("the advisory", (advisory["stream_seq"], advisory["deliveries"]), (5, 2))
        session.unsubscribe(sid)

    async def _term(self, session: Session) -> None:
        await self._consumer("term", ack_wait=SECOND, filter_subject="acks.5")
        _, first = await self._one("term")
        await session.request(first.reply, b"+TERM because")
        rest = await self.take(session, STREAM, "term", {"batch": 1, "expires": 3 * SECOND})
        self.equal("terminated", [msg.status[:3] for msg in rest], ["408"])
        info = await self.ask(session, f"CONSUMER.INFO.{STREAM}.term")
        self.equal("waiting after +TERM", info["num_ack_pending"], 0)

    async def _pending(self, session: Session) -> None:
        await self._consumer("few", ack_wait=30 * SECOND, max_ack_pending=2)
        found = await self.take(session, STREAM, "few", {"batch": 5, "expires": 2 * SECOND})
        self.equal("with two at most", [msg.status[:3] for msg in found], ["", "", "408"])
        await session.request(found[0].reply, b"+ACK")
        more = await self.take(session, STREAM, "few", {"batch": 5, "expires": 2 * SECOND})
        self.equal("after one ack", [msg.status[:3] for msg in more], ["", "408"])
        self.equal("the next one", Delivered.of(more[0]).seq, 3)

    async def _all(self, session: Session) -> None:
        await self._consumer("all", ack_policy="all", ack_wait=30 * SECOND)
        found = await self.take(session, STREAM, "all", {"batch": 5, "expires": 2 * SECOND})
        self.equal("of five", len(found), 5)
        await session.request(found[2].reply, b"+ACK")
        info = await self.ask(session, f"CONSUMER.INFO.{STREAM}.all")
        self.equal("an ack of three", (info["num_ack_pending"], info["ack_floor"]["stream_seq"]), (2, 3))

    async def _next(self, session: Session) -> None:
        """+NXT acknowledges and asks for the next one."""
        await self._consumer("next", ack_wait=30 * SECOND)
        _, first = await self._one("next")
        with session.inbox() as (inbox, got):
            session.publish(first.reply, b"+NXT", inbox)
            async with asyncio.timeout(5.0):
                second = await got.get()
            self.equal("the one after +NXT", Delivered.of(second).seq, Delivered.of(first).seq + 1)
            info = await self.ask(session, f"CONSUMER.INFO.{STREAM}.next")
            self.equal("waiting after +NXT", info["num_ack_pending"], 1)
