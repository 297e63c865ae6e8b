"""More messages at once than servers with little room for them take: what is refused is not stored, and the rest is."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json
from random import Random
from typing import Any

from testkit.sim.deployment import Deployment
from testkit.sim.session import Disconnected, Msg, NoResponders, Session
from tests.sim.cluster.judges import Batches, FastBatches, Log
from tests.sim.cluster.workload import PASSING, Workload, together

STREAM = "FLOOD"
MESSAGES, BYTES = 30, 24_000
"""Room of a stream's leader for what is not applied yet."""
UNCOMMITTED = 24_000
"""Room of a group's leader for what is not committed yet: less than one long command that comes behind another."""
FEW_BATCHES = ", limits { batch { max_msgs: 30, max_inflight_per_stream: 1, max_inflight_total: 2 } }"
PATIENCE = 4.0
"""Seconds for all answers."""
ROOM = 20.0
"""Seconds for which a message is sent again, once all floods are over, until one is taken."""
COMMIT, END = 2, 3
"""Operations of a fast-ingest batch."""


class Floods(Workload):
    name = "floods"
    layout = "three"
    examined = False
    weight = 0
    judges = (Log, FastBatches, Batches)
    promises = (
        "of more messages at once than a leader has room for each that is acknowledged is stored, and no refused one",
        "once what came is applied there is room again",
        "a batch that finds no room is refused as a whole; a fast-ingest batch tells what is lost",
    )

    @classmethod
    def before(cls, deployment: Deployment, rng: Random) -> None:
        """Room at the leader, in the log, or both."""
        way, batches = rng.choice(["stream", "log", "both"]), rng.random() < 0.5
        for name, server in deployment.servers.items():
            room = FEW_BATCHES if batches else ""
            if way != "log":
                room += f", max_buffered_msgs: {MESSAGES}, max_buffered_size: {BYTES}"
            deployment.servers[name] = dataclasses.replace(server, jetstream_options=room)
            if way != "stream":
                machine = deployment.machines[name]
                machine.raft_limits = {**machine.raft_limits, "max_uncommitted": UNCOMMITTED}

    async def prepare(self) -> None:
        self.log, self.fast, self.whole = Log(), FastBatches(), Batches()
        self.last = 0
        admin = await self.session("admin")
        size = self.rng.choice([1, 3, 3])
        await self.create(admin, STREAM, subjects=["flood.*"], allow_batched=True, allow_atomic=True, num_replicas=size)

    async def work(self) -> None:
        await together(*(self._flood(number) for number in range(2)), self._change())

    async def _change(self) -> None:
        session = await self.session("changes")
        async for _ in self.turns(0.5):
            try:
                await session.api(f"STREAM.LEADER.STEPDOWN.{STREAM}", seconds=1.0)
            except PASSING as error:
                self.note(f"nobody else leads: {error!r}")

    async def _flood(self, number: int) -> None:
        session = await self.session(f"flood{number}")
        ways = (self._plain, self._plain, self._atomic, self._atomic, self._fast, self._fast, self._fast, self._odd)
        async for count in self.turns(2.0):
            way = self.rng.choice(ways)
            try:
                await way(session, f"{number}-{count}")
            except Disconnected:
                self.count("given up")

    # ---- messages one by one

    async def _plain(self, session: Session, name: str) -> None:
        texts = [
            f"plain {name}/{at} {'.' * self.rng.choice([10, 600, 3000])}" for at in range(self.rng.choice([5, 60]))
        ]
        headers = {"Flood": "yes"} if self.rng.random() < 0.3 else None
        inbox, got = session.new_inbox(), dict[int, Msg]()
        sid = session.subscribe(
            f"{inbox}.*", lambda msg: got.setdefault(int(msg.subject.rpartition(".")[2]), msg) and None
        )
        try:
            for at, text in enumerate(texts):
                self.log.send(text)
                mixed = headers if self.rng.random() < 0.9 else None
                session.publish("flood.plain", text.encode(), f"{inbox}.{at}", mixed)
            await self._answers(got, len(texts))
        finally:
            session.unsubscribe(sid)
            for at, msg in got.items():
                self._take(texts[at], msg)

    async def _answers(self, got: dict[int, Msg], number: int) -> None:
        end = self.now + PATIENCE
        while len(got) < number and self.now < end:
            await asyncio.sleep(0.05)

    def _take(self, text: str, msg: Msg) -> None:
        if msg.status.startswith("429"):
            self.count("too many")
            self.log.refuse(text)
            return
        answer = json.loads(msg.payload) if msg.payload else {}
        if "seq" in answer and "error" not in answer:
            self.count("stored")
            self.log.ack(int(answer["seq"]), text, self.now)
            self.last = max(self.last, int(answer["seq"]))
        else:
            self.count("not stored")

    # ---- atomic batches

    async def _atomic(self, session: Session, name: str) -> None:
        batch = f"atomic-{name}"
        texts = [f"{batch}/{at} {'.' * self.rng.choice([10, 900])}" for at in range(1, self.rng.choice([3, 40]) + 1)]
        self.whole.send(batch, texts)
        for at, text in enumerate(texts[:-1], 1):
            session.publish("flood.atomic", text.encode(), "", {"Nats-Batch-Id": batch, "Nats-Batch-Sequence": str(at)})
        last = {"Nats-Batch-Id": batch, "Nats-Batch-Sequence": str(len(texts)), "Nats-Batch-Commit": "1"}
        try:
            msg = await session.request("flood.atomic", texts[-1].encode(), PATIENCE, last)
        except (TimeoutError, NoResponders):  # who hands over has no answer for it
            self.count("unknown batches")
            return
        answer: dict[str, Any] = json.loads(msg.payload) if msg.payload else {}
        if "seq" in answer and "error" not in answer:
            self.whole.ack(batch, int(answer["seq"]))
            self.last = max(self.last, int(answer["seq"]))
        else:
            self.count("batches refused")

    # ---- fast-ingest batches

    async def _fast(self, session: Session, name: str) -> None:
        """All of it at once, which is more than any flow control permits."""
        batch = f"fast-{name}"
        gaps, flow = self.rng.random() < 0.6, self.rng.choice(["1", "5", "50", "9" * 30])
        texts = [f"{batch}/{at} {'.' * self.rng.choice([10, 900])}" for at in range(1, self.rng.choice([4, 40]) + 1)]
        self.fast.send(batch, texts, gaps=gaps)
        got: asyncio.Queue[Msg] = asyncio.Queue()
        inbox = session.new_inbox()
        sid = session.subscribe(f"{inbox}.>", got.put_nowait)
        stem = f"{inbox}.{batch}.{flow}.{'ok' if gaps else 'fail'}"
        pause = self.rng.choice([0.0, 0.0, 0.005])
        try:
            for at, text in enumerate(texts, 1):
                operation = self.rng.choice([COMMIT, COMMIT, END]) if at == len(texts) else min(at - 1, 1)
                session.publish("flood.fast", text.encode(), f"{stem}.{at}.{operation}.$FI")
                await asyncio.sleep(pause) if pause else None
            async with asyncio.timeout(PATIENCE):
                while not self._told(batch, await got.get()):
                    pass
        except TimeoutError:
            self.count("fast batches without an end")
        finally:
            session.unsubscribe(sid)

    async def _odd(self, session: Session, name: str) -> None:
        """Parts whose reply subjects tell nothing of a batch."""
        inbox, got = session.new_inbox(), list[Msg]()
        sid = session.subscribe(f"{inbox}.>", got.append)
        marks = ["", ".b", ".b.5.ok.2.0", ".b.5.ok.1.1", ".b.5.no.1.0", ".b.5.ok.1.9", ".b.5.ok.0.0", ".b.5.ok.x.1"]
        try:
            for mark in marks:
                session.publish("flood.fast", f"odd {name}".encode(), f"{inbox}.x{mark}.$FI")
            end = self.now + PATIENCE
            while len(got) < len(marks) and self.now < end:
                await asyncio.sleep(0.05)
        finally:
            session.unsubscribe(sid)
        answers = [json.loads(msg.payload) for msg in got if msg.payload]
        self.require(all("error" in one for one in answers), f"odd parts of batches are answered with {answers}")

    def _told(self, batch: str, msg: Msg) -> bool:
        """True for the last that is told of a batch."""
        if msg.status:
            self.count("fast batches without room")
            return True
        answer = json.loads(msg.payload)
        kind = answer.get("type", "end")
        if kind == "ack":
            self.fast.settled(batch, int(answer["seq"]))
        elif kind == "gap":
            self.fast.gap(batch, int(answer["last_seq"]), int(answer["seq"]))
        elif kind == "err":
            self.count("parts refused")
            self.fast.gap(batch, int(answer["seq"]), int(answer["seq"]) + 1)
        elif "error" in answer:
            self.count("fast batches refused")
            return True
        else:
            self.fast.ended(batch, int(answer["count"]))
            self.last = max(self.last, int(answer["seq"]))
            return True
        return False

    # ---- at the end

    async def check(self) -> None:
        """There is room again, whoever leads since the last flood."""
        session = await self.session("after")
        attempts = itertools.count()

        async def published() -> None:
            text = f"after, {next(attempts)}"  # another one each time: that of before may be stored as well
            self.log.send(text)
            ack = await session.js_publish("flood.plain", text.encode())
            self.log.ack(int(ack["seq"]), text, self.now)
            self.last = max(self.last, int(ack["seq"]))

        await self.insist("room again", published, ROOM)
        await self.everywhere(STREAM, self.last, self._look)

    def _look(self, where: str, contents: dict[int, Msg]) -> None:
        of: dict[str, dict[int, Msg]] = {"plain": {}, "atomic": {}, "fast": {}}
        for seq, msg in contents.items():
            of[msg.headers["Nats-Subject"].rpartition(".")[2]][seq] = msg
        self.stored(self.log, where, of["plain"])
        self.fast.stored(where, [of["fast"][seq].payload.decode() for seq in sorted(of["fast"])])
        self.whole.stored(where, {seq: msg.payload.decode() for seq, msg in of["atomic"].items()})
