"""Direct Gets that come by dozens at once on one connection, behind a write of it, at servers that have the stream and
at one that has not: reads are answered together, wait together, and are refused together."""

from __future__ import annotations

import asyncio
import json
from typing import NamedTuple

from testkit.sim.session import Msg, Session
from tests.sim.cluster.judges import Registers
from tests.sim.cluster.workload import PASSING, Workload, together

STREAM = "CROWD"
KEYS = ("a", "b", "c")
READERS = 3
WAYS = 3
CROWDS = (2, 20, 120)
"""Requests at a time."""


class _Read(NamedTuple):
    """One request, and what it may not find."""

    subject: str
    body: bytes
    key: str = ""
    """Subject of the newest message that it asks for; "" where it asks for a sequence."""
    seq: int = 0


class Crowds(Workload):
    name = "crowds"
    judges = (Registers,)
    promises = (
        "of dozens of Direct Gets that come at once each one finds the own writes of its connection, or gets an error",
        "and each one that names a sequence finds the message that was stored there",
    )

    async def prepare(self) -> None:
        self.judge = Registers()
        self.texts: dict[int, str] = {}
        """Messages that were acknowledged, by sequence."""
        self.written = 0
        rng = self.rng
        admin = await self.session("admin")
        said = rng.choice(["", "", "weak", "strong"])
        option = {"read_consistency": said} if said else {}
        self.weak = said == "weak"
        await self.create(admin, STREAM, subjects=["crowd.*"], num_replicas=rng.choice([1, 3, 3]), **option)

    async def work(self) -> None:
        await together(*(self._read(number) for number in range(READERS)))

    async def _read(self, number: int) -> None:
        session = await self.session(f"r{number}")
        own: dict[str, int] = {}
        connects = session.connects
        async for _ in self.turns(2.0):
            if session.connects != connects:
                own, connects = {}, session.connects
            try:
                await self._crowd(session, own, connects)
            except PASSING:
                self.count("unknown")
        await session.close()

    async def _crowd(self, session: Session, own: dict[str, int], connects: int) -> None:
        key = self.rng.choice(KEYS)
        self.written += 1
        text = str(self.written)
        ack = await session.js_publish(f"crowd.{key}", text.encode(), seconds=2.0)
        seq = int(ack["seq"])
        self.texts[seq] = text
        self.judge.learn(key, seq, text)
        if session.connects != connects:
            return
        own[key] = seq
        known = {} if self.weak else dict(own)
        alike = self.rng.choice([None, *range(WAYS)])  # those that follow each other are handed on together
        reads = [self._next(alike) for _ in range(self.rng.choice(CROWDS))]
        answers = await asyncio.gather(
            *(session.request(one.subject, one.body, seconds=5.0) for one in reads), return_exceptions=True
        )
        if session.connects != connects:
            return
        for read, answer in zip(reads, answers, strict=True):
            if isinstance(answer, Msg):
                self._look(read, answer, known)
            elif isinstance(answer, PASSING):
                self.count("unknown")
            else:
                raise answer

    def _next(self, alike: int | None) -> _Read:
        subject, key = f"$JS.API.DIRECT.GET.{STREAM}", self.rng.choice(KEYS)
        way = self.rng.randrange(WAYS) if alike is None else alike
        if way == 0 and self.texts:
            seq = self.rng.choice(list(self.texts))
            return _Read(subject, json.dumps({"seq": seq}).encode(), seq=seq)
        if way == 1:
            return _Read(subject, json.dumps({"last_by_subj": f"crowd.{key}"}).encode(), key)
        return _Read(f"{subject}.crowd.{key}", b"", key)

    def _look(self, read: _Read, answer: Msg, known: dict[str, int]) -> None:
        if answer.status[:3] not in ("", "404"):
            self.count("refused")
            return
        self.count("read")
        found = int(answer.headers.get("Nats-Sequence", "0"))
        if read.key:
            self.judge.read_own(read.key, known.get(read.key, 0), found)
        if found:
            name, text = answer.headers["Nats-Subject"].rpartition(".")[2], answer.payload.decode()
            self.judge.learn(name, found, text)
            if read.seq:
                self.require((found, text) == (read.seq, self.texts[read.seq]), f"{found} is {text} for {read}")

    async def check(self) -> None:
        def look(where: str, contents: dict[int, Msg]) -> None:
            for key in KEYS:
                own = [(seq, one) for seq, one in contents.items() if one.headers["Nats-Subject"] == f"crowd.{key}"]
                self.judge.stored(where, key, {seq: one.payload.decode() for seq, one in own})

        await self.everywhere(STREAM, max(self.texts, default=0), look)
