"""A pull consumer with order per key, shared by clients that forget, refuse and come again."""

from __future__ import annotations

import asyncio

from testkit.sim.session import Msg, Session
from tests.sim.cluster import replicas
from tests.sim.cluster.judges import Deliveries, Log
from tests.sim.cluster.key_judges import InTurn, OneOwner
from tests.sim.cluster.workload import PASSING, SECOND, SETTLE, Delivered, Workload

STREAM = "KEYS"
CONSUMER = "sharer"
ACTS = ("ack", "ack", "ack", "ack", "silent", "nak", "later", "progress", "term", "forget")
KEYS = 6
CLIENTS = 3
WARM_UP = 2.5
"""Seconds after which members that went are gone, and those who ask have come."""
CALM = 4.0
"""Seconds in which no key may move."""


class Keys(Workload):
    name = "keys"
    newest = True
    judges = (Log, Deliveries, InTurn, OneOwner)
    promises = (
        "of a key max_ack_pending_per_subject are out at most; with 1 each comes when the one before is settled",
        "a key that waits holds up no other, and nothing that waits is forgotten",
        "no key has two owners, and while no member comes or goes each key comes to one member",
    )

    async def prepare(self) -> None:
        rng = self.rng
        self.log = Log()
        self.wanted: set[int] = set()
        self.removed: set[int] = set()
        limit = rng.choice([1, 1, 2])
        pending = rng.choice([4, 30, 1000])
        self.judge = Deliveries(0, pending)
        self.turn = InTurn(limit)
        self.key = rng.choice(["subject", "token:2", "header:Key"])
        wish = {"max_ack_pending_per_subject": limit, "key": self.key}
        if rng.random() < 0.5:
            wish = {"metadata": {f"jetcluster.{name}": str(value) for name, value in wish.items()}}
        self.admin = await self.session("admin")
        retention = rng.choice(["limits", "limits", "workqueue"])
        replicas = rng.choice([1, 3, 3])
        await self.create(self.admin, STREAM, subjects=["keys.>"], num_replicas=replicas, retention=retention)
        wait = rng.choice([1, 3]) * SECOND
        self.owner = OneOwner(wait / SECOND / 4)
        self.fresh = [rng.random() < 0.5 for _ in range(CLIENTS)]
        """For each client whether it takes a new inbox for each request."""
        self.inboxes = 0
        self.came: dict[str, set[str]] = {}
        """The clients to which messages of each key came that were stored in the calm, before it ended."""
        self.calm_seq, self.calm_end = 0, 0.0
        """The first of these messages, 0 before the calm; and its end, from which on clients go one by one."""
        self.late = False
        """One of them was not acknowledged in time, as where a disk was slow: its member may be gone."""
        await self.create_consumer(self.admin, STREAM, CONSUMER, ack_wait=wait, max_ack_pending=pending, **wish)

    async def work(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._write())
            group.create_task(self._remove())
            for number in range(CLIENTS):
                group.create_task(self._consume(number))

    async def _write(self) -> None:
        session = await self.session("write")
        async for count in self.turns(10.0):
            key = str(int(self.rng.triangular(0, KEYS, 0)))
            subject = f"keys.{key}.{self.rng.choice('xy')}"
            name = subject if self.key == "subject" else key
            ack = await self.store_logged(self.log, session, subject, str(count), {"Key": key})
            self.wanted.add(int(ack["seq"]))
            self.turn.stored(int(ack["seq"]), name)

    async def _remove(self) -> None:
        """Deletes a message now and then: its key goes on without it."""
        async for _ in self.turns(0.3):
            seq = self.rng.choice(sorted(self.wanted)[-10:] or [0])
            if seq:
                self.removed.add(seq)
                self.turn.settling(seq)
                self.owner.settling(seq)
                self.judge.acking(seq)
                try:
                    await self.admin.api(f"STREAM.MSG.DELETE.{STREAM}", {"seq": seq}, seconds=2.0)
                except PASSING:
                    continue

    async def _consume(self, number: int) -> None:
        session = await self.session(f"pull{number}")
        while not self.stopping:
            await self._pull(session, acks_all=False, inbox=self._inbox(number))
        await session.close()

    def _inbox(self, number: int) -> str:
        """An inbox of a client as stock clients make them."""
        self.inboxes += self.fresh[number]
        return f"_INBOX.{f'client{number}':x<12}{self.inboxes if self.fresh[number] else 0:010}"

    async def _pull(self, session: Session, *, acks_all: bool, inbox: str = "") -> None:
        async def take(msg: Msg) -> None:
            await self._take(session, msg, "ack" if acks_all else self.rng.choice(ACTS))

        await self.pull(session, STREAM, CONSUMER, take, self.rng.choice([1, 5, 20]), inbox)

    async def _take(self, session: Session, msg: Msg, act: str) -> None:
        told = Delivered.of(msg)
        self.count("delivered")
        self.judge.take(told.seq, msg.payload.decode(), told.count, told.consumer_seq)
        key = msg.subject if self.key == "subject" else msg.subject.split(".")[1]
        self.turn.take(told.seq, key)
        self.owner.take(told.seq, key, session.name, told.count, self.now)
        if 0 < self.calm_seq <= told.seq and self.now < self.calm_end:
            self.came.setdefault(key, set()).add(session.name)
            self.late |= told.count > 1
        match act:
            case "forget":
                self.count("forgotten")
            case "nak" | "later":
                self.owner.refusing(told.seq)
                session.publish(msg.reply, b"-NAK" if act == "nak" else b'-NAK {"delay": 700000000}')
            case "silent":
                self.owner.settling(told.seq)
                self.turn.settling(told.seq)
                self.judge.acking(told.seq)
                session.publish(msg.reply, b"+ACK")
            case _:
                if act == "progress":
                    session.publish(msg.reply, b"+WPI")
                    await asyncio.sleep(self.rng.uniform(0.0, 0.5))
                self.owner.settling(told.seq)
                self.turn.settling(told.seq)
                self.judge.acking(told.seq)
                await session.request(msg.reply, b"+TERM" if act == "term" else b"+ACK", seconds=1.0)
                self.judge.confirm(told.seq, replicas.decided(self.deployment, STREAM, CONSUMER))

    async def check(self) -> None:
        session = await self.session("rest")

        async def all_done() -> bool:
            await self._pull(session, acks_all=True)
            info = await session.api(f"CONSUMER.INFO.{STREAM}.{CONSUMER}")
            return bool(info["num_ack_pending"] == 0 and info["num_pending"] == 0)

        await self.until("nothing waits any more", all_done, SETTLE)
        await self._calm()
        await self.until("nothing waits any more", all_done, SETTLE)
        self.judge.complete(self.wanted - self.removed)
        info = await session.api(f"CONSUMER.INFO.{STREAM}.{CONSUMER}")
        floor, delivered = info["ack_floor"], info["delivered"]
        self.require(floor["consumer_seq"] == delivered["consumer_seq"], f"the ack floor {floor} is below {delivered}")
        for seq, text in self.judge.texts.items():
            if seq in self.log.acked:
                self.log.read(seq, text)

    async def _calm(self) -> None:
        """Lets all clients ask without a pause: no key moves while the owner stays and no message is late."""
        self.stopping = False
        for _ in range(3):
            owner = await self._owner_of()
            end = self.calm_end = self.now + WARM_UP + CALM
            self.came, self.calm_seq, self.late = {}, 0, False
            async with asyncio.TaskGroup() as group:
                group.create_task(self._write_until(end))
                for number in range(CLIENTS):
                    group.create_task(self._consume_until(number, end))
            if await self._owner_of() == owner and not self.late:
                moved = {key: sorted(clients) for key, clients in self.came.items() if len(clients) > 1}
                self.require(not moved, f"keys moved while nobody came or went: {moved}")
                self.count("calm keys", len(self.came))
                break
        self.stopping = True

    async def _owner_of(self) -> str:
        info = await self.admin.api(f"CONSUMER.INFO.{STREAM}.{CONSUMER}")
        return str(info["cluster"].get("leader"))

    async def _write_until(self, end: float) -> None:
        session = await self.session("calm-write")
        number = 0
        while self.now < end - 1.0:
            number += 1
            key = str(number % KEYS)
            subject = f"keys.{key}.x"
            ack = await self.store_logged(self.log, session, subject, f"calm {self.now:.3f} {number}", {"Key": key})
            self.wanted.add(int(ack["seq"]))
            self.turn.stored(int(ack["seq"]), subject if self.key == "subject" else key)
            await asyncio.sleep(0.05)
            if not self.calm_seq and self.now >= end - CALM:
                self.calm_seq = int(ack["seq"]) + 1
        await session.close()

    async def _consume_until(self, number: int, end: float) -> None:
        session = await self.session(f"calm{number}")
        while self.now < end:
            await self._pull(session, acks_all=True, inbox=self._inbox(number))
        await session.close()
