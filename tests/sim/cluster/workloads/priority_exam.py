"""Priority groups of pull consumers (ADR-42), and what pull requests ask for, with nothing to disturb them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from testkit.sim.session import Msg, Session
from tests.sim.cluster.exam import Exam
from tests.sim.cluster.judges import Exact
from tests.sim.cluster.workload import SECOND

STREAM = "PRIO"
GROUP = "g"
MESSAGES = 8


class PriorityExam(Exam):
    name = "exam-pulls"
    judges = (Exact,)
    promises = (
        "a pinned client gets all messages of its group until it is unpinned or silent for priority_timeout",
        "a pull request with min_pending gets nothing below it, one of a better priority is served first",
        "a pull request ends with its status: no messages, its time, its bytes, too many requests, or a consumer gone",
    )

    async def check(self) -> None:
        session = await self.session("fill")
        size = self.rng.choice([1, 3])
        await self.fill(session, STREAM, ["prio"] * MESSAGES, subjects=["prio"], num_replicas=size)
        parts: list[Callable[[Session], Awaitable[None]]] = [
            self._pinned, self._timeout, self._overflow, self._prioritized, self._statuses, self._waiting, self._gone
        ]  # fmt: skip
        await self.examine(parts)

    def _pull(self, session: Session, name: str, **request: Any) -> asyncio.Queue[Msg]:
        """Sends a pull request; returns the queue of what it gets."""
        got: asyncio.Queue[Msg] = asyncio.Queue()
        inbox = session.new_inbox()
        session.subscribe(inbox, lambda msg: None if msg.status.startswith("100") else got.put_nowait(msg))
        body = {"batch": 1, "expires": 10 * SECOND} | request
        session.publish(f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.{name}", json.dumps(body).encode(), inbox)
        return got

    async def _next(self, got: asyncio.Queue[Msg], seconds: float = 5.0) -> Msg | None:
        try:
            async with asyncio.timeout(seconds):
                return await got.get()
        except TimeoutError:
            return None

    async def _status(self, got: asyncio.Queue[Msg], seconds: float = 5.0) -> str:
        """ "" for a message, "nothing" where nothing comes."""
        msg = await self._next(got, seconds)
        return "nothing" if msg is None else msg.status[:3]

    async def _consumer(self, session: Session, name: str, policy: str = "", **config: Any) -> None:
        own = {"priority_groups": [GROUP], "priority_policy": policy} if policy else {}
        await self.create_consumer(session, STREAM, name, ack_wait=60 * SECOND, **own, **config)

    async def _pinned(self, session: Session) -> None:
        await self._consumer(session, "pin", "pinned_client", priority_timeout=30 * SECOND)
        self.equal("without a group", await self._status(self._pull(session, "pin")), "400")
        first, second = (self._pull(session, "pin", group=GROUP, batch=2) for _ in range(2))
        one, two = await self._next(first), await self._next(first)
        assert one is not None
        assert two is not None
        pin = one.headers.get("Nats-Pin-Id", "")
        self.require(bool(pin) and two.headers.get("Nats-Pin-Id") == pin, f"pins {one.headers} and {two.headers}")
        self.equal("who is not pinned", await self._status(second, 2.0), "nothing")
        wrong = self._pull(session, "pin", group=GROUP, id="wrong")
        self.equal("with a wrong pin", await self._status(wrong), "423")
        again = self._pull(session, "pin", group=GROUP, id=pin)
        self.equal("with the pin", await self._status(again), "")
        await self.ask(session, f"CONSUMER.UNPIN.{STREAM}.pin", {"group": GROUP})
        other = await self._next(second)
        self.require(other is not None and other.headers.get("Nats-Pin-Id", pin) != pin, f"unpinned: {other}")

    async def _timeout(self, session: Session) -> None:
        await self._consumer(session, "silent", "pinned_client", priority_timeout=3 * SECOND)
        first = self._pull(session, "silent", group=GROUP)
        second = self._pull(session, "silent", group=GROUP)
        self.equal("the first one", await self._status(first), "")
        began = self.now
        self.equal("the second one", await self._status(second, 9.0), "")
        Exact.between("a silent client is pinned for", self.now - began, 2.5, 7.0)

    async def _overflow(self, session: Session) -> None:
        await self._consumer(session, "over", "overflow")
        pending = (await self.ask(session, f"CONSUMER.INFO.{STREAM}.over"))["num_pending"]
        above = self._pull(session, "over", group=GROUP, min_pending=pending + 1)
        self.equal("above what is pending", await self._status(above, 2.0), "nothing")
        below = self._pull(session, "over", group=GROUP, min_pending=pending)
        self.equal("at what is pending", await self._status(below), "")
        acks = self._pull(session, "over", group=GROUP, min_ack_pending=2)
        self.equal("above what waits for acks", await self._status(acks, 2.0), "nothing")
        free = self._pull(session, "over", group=GROUP)
        self.equal("with no bounds", await self._status(free), "")
        self.equal("at what waits for acks", await self._status(acks), "")

    async def _prioritized(self, session: Session) -> None:
        await self._consumer(session, "prior", "prioritized", filter_subject="prio", deliver_policy="new")
        pulls = {number: self._pull(session, "prior", group=GROUP, priority=number) for number in (5, 1, 3)}
        await asyncio.sleep(1.0)
        for at, number in enumerate((1, 3, 5)):
            await self.store(session, "prio", f"prioritized-{at}")
            self.equal(f"priority {number}", await self._status(pulls[number]), "")

    async def _statuses(self, session: Session) -> None:
        await self._consumer(session, "ends", max_batch=5, max_expires=20 * SECOND)
        self.equal("too large a batch", await self._status(self._pull(session, "ends", batch=6)), "409")
        self.equal("too long a time", await self._status(self._pull(session, "ends", expires=21 * SECOND)), "409")
        small = self._pull(session, "ends", batch=5, max_bytes=10)
        self.equal("too few bytes", await self._status(small), "409")
        got = self._pull(session, "ends", batch=5, no_wait=True)
        self.equal("five", [await self._status(got) for _ in range(5)], [""] * 5)
        began = self.now
        left = (await self.ask(session, f"CONSUMER.INFO.{STREAM}.ends"))["num_pending"]
        await self.take(session, STREAM, "ends", {"batch": left - 1, "no_wait": True})
        rest = self._pull(session, "ends", batch=5, expires=3 * SECOND)
        statuses = [await self._status(rest) for _ in range(2)]
        self.equal("the rest, and the end of its time", statuses, ["", "408"])
        Exact.between("a request of 3 s ends after", self.now - began, 2.5, 4.5)
        self.equal(
            "with nothing there", await self._status(self._pull(session, "ends", expires=0, no_wait=True)), "404"
        )

        await self._consumer(session, "soon")
        there = (await self.ask(session, f"CONSUMER.INFO.{STREAM}.soon"))["num_pending"]
        began = self.now
        some = self._pull(session, "soon", batch=there + 1, expires=3 * SECOND, no_wait=True)
        statuses = [await self._status(some) for _ in range(there + 1)]
        self.equal("all there is, and that there is no more", statuses, [""] * there + ["404"])
        Exact.between("a request that need not wait and got some ends after", self.now - began, 0.0, 1.0)

    async def _waiting(self, session: Session) -> None:
        await self._consumer(session, "wait", max_waiting=2, deliver_policy="new")
        two = [self._pull(session, "wait", expires=4 * SECOND) for _ in range(2)]
        await asyncio.sleep(0.5)
        self.equal("a third request", await self._status(self._pull(session, "wait")), "409")
        info = await self.ask(session, f"CONSUMER.INFO.{STREAM}.wait")
        self.equal("requests that wait", info["num_waiting"], 2)
        self.equal("their ends", [await self._status(got) for got in two], ["408", "408"])

    async def _gone(self, session: Session) -> None:
        await self._consumer(session, "gone", deliver_policy="new")
        got = self._pull(session, "gone")
        await asyncio.sleep(0.5)
        await self.ask(session, f"CONSUMER.DELETE.{STREAM}.gone")
        self.equal("of a deleted consumer", await self._status(got), "409")
        config = {"name": "brief", "ack_policy": "explicit", "inactive_threshold": 2 * SECOND}
        body = {"stream_name": STREAM, "config": config}
        await self.ask(session, f"CONSUMER.CREATE.{STREAM}.brief", body)

        async def is_gone() -> bool:
            names = await session.api(f"CONSUMER.NAMES.{STREAM}")
            return "brief" not in (names["consumers"] or ())

        began = self.now
        await self.until("an ephemeral consumer goes", is_gone, 30.0)
        self.require(self.now - began >= 1.5, f"an ephemeral consumer went after {self.now - began:.1f} s")
