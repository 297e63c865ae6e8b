"""Fast-ingest batches (ADR-50): messages that go on while their acks come in from time to time, some of them lost on
the way, while leaders hand over."""

from __future__ import annotations

import asyncio
import contextlib
import json

from testkit.sim.session import Disconnected, Msg, Session
from tests.sim.cluster.judges import FastBatches, Log
from tests.sim.cluster.workload import PASSING, Workload, together

STREAM = "FAST"
WRITERS = 2
PATIENCE = 2.0
"""Seconds without an answer after which a batch is given up."""
ASKS = 0.6
"""Seconds without one after which the server is asked how far it has come."""
COMMIT, END, PING = 2, 3, 4
"""Operations: the last message, the end without one, and the question."""


class FastIngest(Workload):
    name = "fast-batches"
    judges = (FastBatches, Log)
    promises = (
        "what was acknowledged to a fast-ingest batch is stored once and in order, but for the gaps reported to it",
        "a fast-ingest batch that ends with its first gap is stored as far as it was acknowledged, without a hole",
    )

    async def prepare(self) -> None:
        self.judge = FastBatches()
        self.log = Log()
        """The log of messages that are no part of a batch."""
        self.last = 0
        admin = await self.session("admin")
        await self.create(
            admin, STREAM, subjects=["fast.*"], allow_batched=True, num_replicas=self.rng.choice([1, 3, 3])
        )

    async def work(self) -> None:
        await together(*(self._write(number) for number in range(WRITERS)), self._write_alone())

    async def _write_alone(self) -> None:
        """Others' messages come between."""
        session = await self.session("alone")
        async for count in self.turns(4.0):
            if self.rng.random() < 0.1:
                with contextlib.suppress(*PASSING):
                    await session.api(f"STREAM.LEADER.STEPDOWN.{STREAM}", seconds=1.0)
            ack = await self.store_logged(self.log, session, "fast.alone", f"alone-{count}")
            self.last = max(self.last, int(ack["seq"]))

    async def _write(self, number: int) -> None:
        session = await self.session(f"w{number}")
        async for count in self.turns(3.0):
            batch = f"{number}-{count}"
            texts = [f"{batch}/{at}" for at in range(1, self.rng.choice([1, 3, 10, 30]) + 1)]
            gaps = self.rng.random() < 0.5
            self.judge.send(batch, texts, gaps=gaps)
            got: asyncio.Queue[Msg] = asyncio.Queue()
            inbox = session.new_inbox()
            sid = session.subscribe(f"{inbox}.>", got.put_nowait)
            try:
                await self._send(session, batch, texts, f"{inbox}.{batch}.{{}}.{'ok' if gaps else 'fail'}", got)
            except (Disconnected, TimeoutError):
                self.count("given up")
            finally:
                session.unsubscribe(sid)

    async def _send(self, session: Session, batch: str, texts: list[str], stem: str, got: asyncio.Queue[Msg]) -> None:
        """Two acks' worth ahead, as the ADR advises. Raises TimeoutError where no answer comes any more."""
        flow = self.rng.choice([1, 2, 10])
        stem = stem.format(flow)
        last = self.rng.choice([COMMIT, COMMIT, COMMIT, END])
        loses = self.rng.choice([0.0, 0.0, 0.0, 0.2])
        told, sent = 0, 0
        lost = (
            False  # what was to end the batch: it is ended without a message then, as pings would be answered for ever
        )
        while True:
            while sent < len(texts) and sent < told + 2 * flow:
                sent += 1
                if 1 < sent < len(texts) and self.rng.random() < loses:
                    self.judge.gap(batch, sent, sent + 1)
                    continue
                operation = last if sent == len(texts) else min(sent - 1, 1)
                session.publish("fast.part", texts[sent - 1].encode(), f"{stem}.{sent}.{operation}.$FI")
            asks = f"{sent + 1}.{END}" if lost else f"{sent}.{PING}"
            msg = await self._answer(session, f"{stem}.{asks}.$FI", got)
            if msg.status:  # nobody is there who takes it
                self.count("refused")
                return
            answer = json.loads(msg.payload)
            kind = answer.get("type", "end")
            if kind == "ack":
                told = max(told, int(answer["seq"]))
                self.judge.settled(batch, int(answer["seq"]))
            elif kind == "gap":
                self.judge.gap(batch, int(answer["last_seq"]), int(answer["seq"]))
                lost = int(answer["seq"]) > len(texts)
            elif kind == "err" or "error" in answer:
                self.count("refused")
                return
            else:
                self.count("stored", int(answer["count"]))
                self.judge.ended(batch, int(answer["count"]))
                self.last = max(self.last, int(answer["seq"]))
                return

    async def _answer(self, session: Session, ping: str, got: asyncio.Queue[Msg]) -> Msg:
        """The next one, which is asked for where none comes. Raises TimeoutError."""
        async with asyncio.timeout(PATIENCE):
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(ASKS):  # as `wait_for` takes more turns of the loop in Python 3.11
                        return await got.get()
                self.count("asked")
                session.publish("fast.part", b"", ping)

    async def check(self) -> None:
        await self.everywhere(STREAM, self.last, self.look)

    def look(self, where: str, contents: dict[int, Msg]) -> None:
        alone = {seq: msg for seq, msg in contents.items() if msg.headers["Nats-Subject"] == "fast.alone"}
        self.stored(self.log, where, alone)
        self.judge.stored(where, [contents[seq].payload.decode() for seq in sorted(contents.keys() - alone.keys())])
