"""Clients that ask for more than their connection takes, read nothing for a while, and then read on: what they asked
for waits for them, within bounds, and comes as it was stored."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

from testkit.sim.session import Disconnected, Msg, NoResponders, Session
from tests.sim.cluster.judges import Exact
from tests.sim.cluster.workload import PASSING, Delivered, Workload, together

STREAM = "SLOW"
SIZE = 40_000
"""Bytes of a message: twenty fill what kernels hold of a connection, and what a server holds for a slow one."""
RATE = 200_000
"""Bytes per second of a push consumer that has a limit."""
FIRST, MOST = 8, 24
"""Messages at the beginning, and in the end."""
READERS = 2
CROWD = 24
"""Requests at a time."""
DEAF = (0.3, 1.0, 4.0)
"""Seconds in which nothing is read; a connection that answers no PING for longer is given up by its own client."""
REFUSAL = Msg("", "", {}, "503", b"")
PATIENCE = 12.0
"""Seconds from a request to its answer, at most."""


def _is_connected_since(session: Session, connects: int) -> bool:
    """False once its client has given the connection up, which answered no PING; there may be no other one yet."""
    return session.connected and session.connects == connects


class SlowReaders(Workload):
    name = "slow-readers"
    judges = (Exact,)
    promises = (
        "what a client asked for that reads nothing for seconds comes once it reads, each message as it was stored",
        "a batch for such a client has no gap, and tells its end if it is whole",
        "a push consumer sends to such a client all in order, while all is calm",
    )

    async def prepare(self) -> None:
        self.admin = await self.session("admin")
        self.stored_up_to = 0
        strong = {"read_consistency": "strong"}  # reads wait for the leader's word, and then for their reader
        option = strong if self.rng.random() < 0.7 else {}
        self.strong = bool(option)
        await self.create(self.admin, STREAM, subjects=["slow"], num_replicas=self.rng.choice([1, 3, 3]), **option)
        for _ in range(FIRST):
            await self._write()

    async def _write(self) -> None:
        number = self.stored_up_to + 1
        ack = await self.store(self.admin, "slow", str(number), payload=self._payload(number))
        Exact.equal("the sequence of a message", int(ack["seq"]), number)
        self.stored_up_to = number

    def _payload(self, number: int) -> bytes:
        return f"{number}:".encode().ljust(SIZE, b"%d" % (number % 10))

    async def work(self) -> None:
        await together(self._write_on(), *(self._read(number) for number in range(READERS)), self._take_pushed())

    async def _write_on(self) -> None:
        async for _ in self.turns(0.5):
            if self.stored_up_to < MOST:
                await self._write()

    async def _read(self, number: int) -> None:
        session = await self.session(f"r{number}")
        async for _ in self.turns(0.7):
            try:
                await self._one_turn(session, calm=False)
            except PASSING:
                self.count("unknown")
        await session.close()

    async def _one_turn(self, session: Session, *, calm: bool) -> None:
        """Asks for much, is deaf for a while, and looks at what comes. Raises what requests raise."""
        connects, last = session.connects, self.stored_up_to
        way = self.rng.choice(["crowd", "crowd", "batch", "pull"])
        puller = await self._puller(session) if way == "pull" else ""
        await session.flush()
        session.stop_reading()
        asked = asyncio.ensure_future(self._ask(session, way, last, puller))
        try:
            await asyncio.sleep(self.rng.choice(DEAF))
        finally:
            session.read_on()
        answers = await asked
        if not _is_connected_since(session, connects):
            return
        if calm:
            self.require(bool(answers), f"nothing comes of a {way} although all is calm")
        self._look(way, last, answers, calm=calm)
        self.count(way)

    async def _puller(self, session: Session) -> str:
        """A new pull consumer, which begins at the first message."""
        name = f"p{self.rng.getrandbits(40)}"
        config = {"name": name, "ack_policy": "none", "mem_storage": True, "inactive_threshold": 20_000_000_000}
        await session.api(f"CONSUMER.CREATE.{STREAM}.{name}", {"stream_name": STREAM, "config": config})
        return name

    async def _ask(self, session: Session, way: str, last: int, puller: str) -> list[Msg]:
        if way == "crowd":
            return await self._crowd(session, last)
        with session.inbox() as (inbox, got):
            if way == "batch":
                session.publish(f"$JS.API.DIRECT.GET.{STREAM}", json.dumps({"seq": 1, "batch": last}).encode(), inbox)
            else:
                request = json.dumps({"batch": last, "expires": 5_000_000_000}).encode()
                session.publish(f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.{puller}", request, inbox)
            found: list[Msg] = []
            try:
                async with asyncio.timeout(PATIENCE):
                    while len(found) < last + (way == "batch"):
                        found.append(await got.get())
                        if found[-1].status and not found[-1].status.startswith("100"):
                            break
            except TimeoutError:
                self.count(f"{way}s without an end")
            return found

    async def _crowd(self, session: Session, last: int) -> list[Msg]:
        numbers = [self.rng.randint(1, last) for _ in range(CROWD)]
        subject = f"$JS.API.DIRECT.GET.{STREAM}"
        found = await asyncio.gather(
            *(session.request(subject, b'{"seq":%d}' % number, PATIENCE) for number in numbers),
            return_exceptions=True,
        )
        answers = []
        for number, answer in zip(numbers, found, strict=True):
            if isinstance(answer, Msg):
                answers.append(answer)
                if not answer.status:
                    Exact.equal("the sequence that was asked for", int(answer.headers["Nats-Sequence"]), number)
            elif isinstance(answer, NoResponders):  # there was no room for it to wait
                answers.append(REFUSAL)
            elif not isinstance(answer, PASSING):
                raise answer
        return answers

    def _look(self, way: str, last: int, answers: list[Msg], *, calm: bool) -> None:
        seqs = []
        for msg in answers:
            if msg.status:
                self.count(f"{way}: {msg.status[:3]}")
                continue
            seq = int(msg.headers["Nats-Sequence"]) if way != "pull" else Delivered.of(msg).seq
            self.require(msg.payload == self._payload(seq), f"{seq} is not what was stored, by a {way}")
            seqs.append(seq)
        if way == "crowd":
            self.require(not calm or len(answers) == CROWD, f"{len(answers)} of {CROWD} requests are answered")
            return
        self.require(seqs == list(range(1, len(seqs) + 1)), f"a {way} of 1 to {last} gets {seqs}")
        if answers and answers[-1].status.startswith("204") and (self.strong or calm):
            # Without the leader's word a replica that lags answers with what it has.
            self.require(len(seqs) == last, f"a batch of {last} ends as if it were whole, with {len(seqs)}")

    async def _take_pushed(self) -> None:
        """A push consumer, whose client is deaf now and then. Without acks it may send something again, or leave it
        out, when its owner or its client's connection changes."""
        session = await self.session("push")
        seqs = await self._pushed(session, "pushed")
        async for _ in self.turns(0.5):
            session.stop_reading()
            await asyncio.sleep(self.rng.choice(DEAF))
            session.read_on()
        self.count("pushed", len(seqs))
        await session.close()

    async def _pushed(self, session: Session, name: str) -> list[int]:
        """A new push consumer; the sequences that come."""
        seqs: list[int] = []

        def take(msg: Msg) -> None:
            if not msg.status:
                seq = Delivered.of(msg).seq
                self.require(msg.payload == self._payload(seq), f"{seq} is not what was stored, as it is pushed")
                seqs.append(seq)
            elif msg.reply:  # a question of flow control
                with contextlib.suppress(Disconnected):
                    session.publish(msg.reply)

        session.subscribe(f"slow.{name}", take)
        config: dict[str, Any] = {"deliver_subject": f"slow.{name}", "ack_policy": "none"}
        config |= self.rng.choice(
            [{}, {"rate_limit_bps": 8 * RATE}, {"flow_control": True, "idle_heartbeat": 500_000_000}]
        )
        await self.create_consumer(self.admin, STREAM, name, **config)
        return seqs

    async def _push_in_calm(self, session: Session) -> None:
        connects = session.connects
        seqs = await self._pushed(session, "calm")
        session.stop_reading()
        await asyncio.sleep(self.rng.choice(DEAF))
        session.read_on()

        async def all_there() -> bool:
            return len(seqs) >= self.stored_up_to or not _is_connected_since(session, connects)

        await self.until("a deaf client is sent all", all_there)
        if _is_connected_since(session, connects):
            Exact.equal("what is pushed while all is calm", seqs, list(range(1, self.stored_up_to + 1)))

    async def check(self) -> None:
        session = await self.session("calm")
        for _ in range(2):

            async def done() -> bool:
                await self._one_turn(session, calm=True)
                return True

            await self.until("a deaf client gets its answers", done)
        await self._push_in_calm(session)
        found = await self.insist("all messages", lambda: self.contents(session, STREAM))
        Exact.equal("the messages there", sorted(found), list(range(1, self.stored_up_to + 1)))
        await session.close()
