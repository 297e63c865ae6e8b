"""Messages that come by hundreds at once, so that one command of the log holds many of them."""

from __future__ import annotations

import asyncio

from testkit.sim.session import ApiError, Msg, Session
from tests.sim.cluster.judges import Chain, Log
from tests.sim.cluster.workload import PASSING, Writers

STREAM = "BURST"
REFUSALS = (10071, 10164)
"""Error codes for an expectation that does not hold."""
RIVALS = ("burst.a", "burst.b")
"""Subjects of messages that expect the same."""


class Bursts(Writers):
    name = "bursts"
    stream = STREAM
    judges = (Log, Chain)
    promises = (
        "of hundreds of messages that come at once each one that is acknowledged is stored once, at its sequence",
        "of those among them that expect the same sequence one is stored",
    )

    async def prepare(self) -> None:
        self.log, self.chain = Log(), Chain()
        self.size = self.rng.choice([60, 150, 300])
        self.last = dict.fromkeys(RIVALS, 0)
        """The last sequence that is known, by subject."""
        self.sent = 0
        admin = await self.session("admin")
        await self.create(admin, STREAM, subjects=["burst.>"])

    async def work(self) -> None:
        session = await self.session("write")
        while not self.stopping:
            await self._burst(session)
            await asyncio.sleep(self.rng.uniform(1.0, 6.0))
        await session.close()

    async def _burst(self, session: Session) -> None:
        """All are written in one turn of the client, those that expect something in between."""
        work = []
        for _ in range(self.size):
            self.sent += 1
            text = str(self.sent)
            if self.rng.random() < 0.1:
                subject = self.rng.choice(RIVALS)
                work.append(self._expect(session, subject, text, self.last[subject]))
            else:
                work.append(self._publish(session, text))
        await asyncio.gather(*work)

    async def _publish(self, session: Session, text: str) -> None:
        await self.store_logged(self.log, session, "burst.x", text)

    async def _expect(self, session: Session, subject: str, text: str, last: int) -> None:
        self.log.send(text)
        self.chain.send(text, last)
        headers = {"Nats-Expected-Last-Subject-Sequence": str(last)}
        try:
            ack = await session.js_publish(subject, text.encode(), headers, seconds=4.0)
        except ApiError as error:
            if error.err_code in REFUSALS:
                self.count("refused")
                self.log.refuse(text)
        except PASSING:
            self.count("unknown")
        else:
            self.count("stored")
            self.log.ack(int(ack["seq"]), text, self.now)
            self.last[subject] = max(self.last[subject], int(ack["seq"]))

    def _look(self, where: str, contents: dict[int, Msg]) -> None:
        texts = {seq: msg.payload.decode() for seq, msg in contents.items()}
        self.stored(self.log, where, contents)
        for subject in RIVALS:
            own = [(seq, texts[seq]) for seq in sorted(texts) if contents[seq].headers["Nats-Subject"] == subject]
            self.chain.stored(f"{where}, {subject}", own)
