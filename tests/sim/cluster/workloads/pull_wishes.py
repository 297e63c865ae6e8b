"""Pull requests with any wishes, dozens of them at a time, to a consumer that is changed meanwhile: each gets what it
may have and no more, and ends."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any, Final

from testkit.sim.session import Msg, Session
from tests.sim.cluster import replicas
from tests.sim.cluster.judges import Deliveries, Log
from tests.sim.cluster.workload import PASSING, SECOND, SETTLE, Delivered, Workload

STREAM, CONSUMER, GROUP = "WISHES", "wisher", "g"
CLIENTS: Final = 3
SUBJECTS: Final = 5
POLICIES: Final = ("none", "none", "overflow", "prioritized", "pinned_client")
ACTS: Final = ("ack", "ack", "ack", "ack", "next", "nak", "term", "silent", "forget")
ENDS_IN: Final = 2.0
"""Seconds after `expires` within which a request has ended, when nothing disturbs its server."""


@dataclass(slots=True, eq=False)
class Wish:
    """A pull request, and what came of it."""

    batch: int
    max_bytes: int
    pin: str = ""
    owned: frozenset[int] = frozenset()
    """The epochs of the consumer that its replicas knew when this was asked."""
    messages: int = 0
    size: int = 0
    ended: str = ""
    """The status with which it ended."""


class PullWishes(Workload):
    name = "pull-wishes"
    weight = 0
    newest = True
    judges = (Log, Deliveries)
    promises = (
        "a pull request gets no more messages than its batch and no more bytes than its max_bytes",
        "a pull request ends when its time is over, whatever else it asked for",
        "and nothing is lost while clients ask for anything and go without a word",
    )

    async def prepare(self) -> None:
        rng = self.rng
        self.log = Log()
        self.wanted: set[int] = set()
        self.policy = rng.choice(POLICIES)
        self.pin = ""
        pending = rng.choice([8, 30, 1000])
        self.judge = Deliveries(0, pending)
        self.config: dict[str, Any] = {"ack_wait": rng.choice([1, 3]) * SECOND, "max_ack_pending": pending}
        if self.policy != "none":
            self.config |= {"priority_groups": [GROUP], "priority_policy": self.policy}
            self.config |= {"priority_timeout": SECOND} if self.policy == "pinned_client" else {}
        limits = {"max_waiting": 12, "max_batch": 20, "max_expires": 4 * SECOND, "max_bytes": 4_000}
        self.config |= {name: limits[name] for name in rng.sample(sorted(limits), rng.choice([0, 0, 1, 2]))}
        self.admin = await self.session("admin")
        await self.create(self.admin, STREAM, subjects=["wish.*"], num_replicas=rng.choice([1, 3, 3]))
        await self.create_consumer(self.admin, STREAM, CONSUMER, **self.config)

    async def work(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._write())
            group.create_task(self._change())
            for number in range(CLIENTS):
                group.create_task(self._ask(number))

    async def _write(self) -> None:
        session = await self.session("write")
        async for count in self.turns(12.0):
            text = f"{count}." + "x" * self.rng.choice([0, 0, 40, 300])
            ack = await self.store_logged(self.log, session, f"wish.{self.rng.randrange(SUBJECTS)}", text)
            self.wanted.add(int(ack["seq"]))

    async def _change(self) -> None:
        """Has the consumer begin or cease to hold messages by their key, unpins its client, or pauses it."""
        async for _ in self.turns(0.5):
            try:
                match self.rng.randrange(3):
                    case 0 if self.policy == "none":
                        keys = self.rng.choice([{}, {"max_ack_pending_per_subject": self.rng.choice([1, 2])}])
                        wish = {"durable_name": CONSUMER, "ack_policy": "explicit", **self.config, **keys}
                        body = {"stream_name": STREAM, "config": wish, "action": "update"}
                        await self.admin.api(f"CONSUMER.CREATE.{STREAM}.{CONSUMER}", body, seconds=2.0)
                        self.count("changed")
                    case 1 if self.policy == "pinned_client":
                        await self.admin.api(f"CONSUMER.UNPIN.{STREAM}.{CONSUMER}", {"group": GROUP}, seconds=2.0)
                    case 2:
                        body = {"pause_until": self.wall(self.rng.uniform(0.3, 1.5))}
                        await self.admin.api(f"CONSUMER.PAUSE.{STREAM}.{CONSUMER}", body, seconds=2.0)
            except PASSING:
                continue

    async def _ask(self, number: int) -> None:
        session = await self.session(f"asks{number}")
        came: asyncio.Queue[tuple[Wish, Msg]] = asyncio.Queue()
        taking = asyncio.create_task(self._take_all(session, came))
        try:
            async for _ in self.turns(8.0):
                if taking.done():
                    break
                try:
                    sid, _ = self._wish(session, came)
                except PASSING:
                    continue
                if self.rng.random() < 0.15:  # it does not listen any more, and does not say so to the consumer
                    await asyncio.sleep(self.rng.uniform(0.0, 0.3))
                    session.unsubscribe(sid)
        finally:
            taking.cancel()
        if taking.done() and not taking.cancelled():
            taking.result()
        await session.close()

    def _wish(self, session: Session, came: asyncio.Queue[tuple[Wish, Msg]], **given: Any) -> tuple[int, Wish]:
        """Sends a request; returns the number of its subscription with it. Raises what requests raise."""
        rng = self.rng
        asked: dict[str, Any] = {"batch": rng.choice([1, 1, 3, 10, 40])}
        others: dict[str, Any] = {
            "expires": rng.choice([1, SECOND // 2, 2 * SECOND, 6 * SECOND, -1]), "no_wait": True,
            "max_bytes": rng.choice([1, 90, 800, 5_000]),
            "idle_heartbeat": rng.choice([SECOND // 10, SECOND // 4, SECOND]),
        }  # fmt: skip
        if self.policy != "none":
            asked["group"] = GROUP if rng.random() < 0.95 else rng.choice(["", "other"])
        if self.policy == "overflow":
            others |= {"min_pending": rng.randrange(12), "min_ack_pending": rng.randrange(12)}
        if self.policy == "prioritized":
            others["priority"] = rng.randrange(11)
        if self.policy == "pinned_client":
            others["id"] = self.pin if rng.random() < 0.8 else "x"
        asked |= {name: others[name] for name in rng.sample(sorted(others), rng.randint(0, len(others)))} | given
        wish = Wish(asked["batch"], asked.get("max_bytes", 0), asked.get("id", ""), self._owned())
        sid, inbox = self._listen(session, wish, came)
        body = (
            json.dumps(asked).encode()
            if given or rng.random() < 0.95
            else rng.choice([b"", b"3", b"-1", b"x", b"{", b"[]"])
        )
        if not body.startswith(b'{"'):
            wish.batch, wish.max_bytes = 3 if body == b"3" else 1, 0
        session.publish(f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.{CONSUMER}", body, inbox)
        self.count("asked")
        return sid, wish

    def _owned(self) -> frozenset[int]:
        found = replicas.replicas(self.deployment, STREAM).values()
        states = (replica.table.by_name.get(CONSUMER) for replica in found)
        return frozenset(state.epoch for state in states if state is not None)

    def _listen(self, session: Session, wish: Wish, came: asyncio.Queue[tuple[Wish, Msg]]) -> tuple[int, str]:
        inbox = session.new_inbox()
        return session.subscribe(inbox, lambda msg: came.put_nowait((wish, msg))), inbox

    async def _take_all(self, session: Session, came: asyncio.Queue[tuple[Wish, Msg]]) -> None:
        while True:
            await self._take(session, *await came.get(), came=came)

    async def _take(self, session: Session, wish: Wish, msg: Msg, came: Any, act: str = "") -> None:
        if msg.status:
            wish.ended = wish.ended if msg.status.startswith("100") else msg.status
            if msg.status.startswith("423") and wish.pin == self.pin:
                self.pin = ""  # another one is pinned, or will be
            return
        told = Delivered.of(msg)
        self.count("delivered")
        wish.messages += 1
        wish.size += len(msg.subject) + len(msg.reply) + len(msg.payload) if wish.max_bytes else 0
        if len(wish.owned | self._owned()) == 1:  # two owners may both have heard of it, and each is right
            self.require(wish.messages <= wish.batch, f"{wish} got more than it asked for")
            self.require(wish.size <= wish.max_bytes, f"{wish} got more bytes than it asked for")
        self.pin = msg.headers.get("Nats-Pin-Id", self.pin)
        self.judge.take(told.seq, msg.payload.decode(), told.count, told.consumer_seq)
        act = act or self.rng.choice(ACTS)
        try:
            await self._answer(session, msg, told.seq, act, came)
        except PASSING:
            self.count("not confirmed")

    async def _answer(self, session: Session, msg: Msg, seq: int, act: str, came: Any) -> None:
        match act:
            case "forget":
                pass
            case "nak":
                session.publish(
                    msg.reply, self.rng.choice([b"-NAK", b'-NAK {"delay": 300000000}', b"-NAK {", b"-NAK x"])
                )
            case "next":
                self.judge.acking(seq)
                wish = Wish(2, 0, owned=self._owned())
                asked = json.dumps(
                    {"batch": 2, "expires": SECOND} | ({"group": GROUP} if self.policy != "none" else {})
                )
                session.publish(msg.reply, b"+NXT " + asked.encode(), self._listen(session, wish, came)[1])
            case "silent":
                self.judge.acking(seq)
                session.publish(msg.reply, b"+ACK")
            case _:
                self.judge.acking(seq)
                await session.request(msg.reply, b"+TERM why" if act == "term" else b"+ACK", seconds=1.0)
                self.judge.confirm(seq, replicas.decided(self.deployment, STREAM, CONSUMER))

    async def check(self) -> None:
        session = await self.session("rest")
        came: asyncio.Queue[tuple[Wish, Msg]] = asyncio.Queue()
        given = {"batch": 10, "expires": SECOND, "max_bytes": 4_000, "no_wait": False, "idle_heartbeat": SECOND // 4}
        given |= {"min_pending": 0, "min_ack_pending": 0, "priority": 0}

        async def all_done() -> bool:
            group = {"group": GROUP} if self.policy != "none" else {}
            wishes = [self._wish(session, came, **given, **group, id=self.pin)[1] for _ in range(4)]
            await self._until_ended(session, came, wishes)
            info = await session.api(f"CONSUMER.INFO.{STREAM}.{CONSUMER}")
            return bool(info["num_ack_pending"] == 0 and info["num_pending"] == 0)

        await self.until("nothing waits any more", all_done, SETTLE)
        for seq, text in self.judge.texts.items():
            if seq in self.log.acked:
                self.log.read(seq, text)
        missing = self.judge.missing(self.wanted)
        self.require(not missing, f"{missing} were never delivered")

    async def _until_ended(self, session: Session, came: Any, wishes: list[Wish]) -> None:
        """Takes what comes until all have ended or got all, which they do in time."""
        end = self.now + 1.0 + ENDS_IN
        while any(not wish.ended and wish.messages < wish.batch for wish in wishes):
            try:
                async with asyncio.timeout(max(end - self.now, 0.0)):
                    await self._take(session, *await came.get(), came=came, act="ack")
            except TimeoutError:
                self.count("did not end")
                raise
