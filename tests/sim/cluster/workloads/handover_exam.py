"""Exam of leaders that hand over while clients are at work and nothing else is amiss: nothing is lost, and nobody waits
for a time that is meant for failures."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Final

from testkit.sim.session import Msg, Session
from tests.sim.cluster.exam import Exam
from tests.sim.cluster.judges import Exact
from tests.sim.cluster.workload import PASSING, SECOND, Delivered
from tests.sim.cluster.workloads.fast_batches import END
from tests.sim.cluster.workloads.object_exam import digest_of

STREAM: Final = "HANDOVERS"
BUCKET: Final = "handovers"
ROUNDS: Final = 4
BURST: Final = 30
"""Messages of a round."""
SPAN: Final = 0.3
"""Seconds in which they are sent, and at some moment of which the leader is asked to step down."""
ANSWERED: Final = 2.0
COMES: Final = 12.0
"""Seconds within which all of a round is delivered, `ack_wait` being ten minutes: a request that came to the leader
before is lost with it, and asked again after its time."""
CHUNKS: Final = 16


class HandoverExam(Exam):
    name = "exam-handovers"
    weight = 0
    judges = (Exact,)
    promises = (
        "a leader that hands over acknowledges all that it has stored",
        "messages under way to a consumer whose leader hands over come at once, not after `ack_wait`",
        "a fast-ingest batch and an upload go on behind a change of leaders as if there had been none",
    )

    async def check(self) -> None:
        await self.examine([self._publishes, self._pulls, self._pushes, self._fast, self._uploads], 2)

    async def _begin(self, session: Session, stream: str = STREAM, **config: Any) -> None:
        await self.create(session, stream, **({"subjects": ["handovers.>"], "num_replicas": 3} | config))
        self.elects()

    async def _step_down(self, session: Session, of: str = f"STREAM.LEADER.STEPDOWN.{STREAM}") -> None:
        await asyncio.sleep(SPAN * self.rng.random())
        await self.ask(session, of)

    async def _end(self, session: Session, *others: Session) -> None:
        await self.ask(session, f"STREAM.DELETE.{STREAM}")
        for one in others:
            await one.close()

    # ---- publishers

    async def _publishes(self, session: Session) -> None:
        """One without a leader is refused, one that comes to who leads no more has no answer, and neither is there."""
        await self._begin(session)
        writers = [await self.session(f"at-{name}", name) for name in self.members]
        acked: dict[str, int] = {}
        for turn in range(ROUNDS):
            sent = [self._publish(writers[at % len(writers)], f"{turn}-{at}", acked) for at in range(BURST)]
            await self.at_once(*sent, self._step_down(session))
        stored = {msg.payload.decode(): seq for seq, msg in (await self.contents(session, STREAM)).items()}
        self.equal("stored without an ack", sorted(stored.keys() - acked.keys()), [])
        self.equal("what is stored", stored, acked)
        await self._end(session, *writers)

    async def _publish(self, session: Session, text: str, acked: dict[str, int]) -> None:
        await asyncio.sleep(SPAN * self.rng.random())
        try:
            ack = await session.js_publish("handovers.one", text.encode(), seconds=ANSWERED)
        except PASSING as error:
            self.count(type(error).__name__)
        else:
            acked[text] = int(ack["seq"])

    # ---- consumers

    async def _pulls(self, session: Session) -> None:
        await self._begin(session)
        await self.create_consumer(session, STREAM, "one", ack_wait=600 * SECOND, max_ack_pending=10_000)
        readers = [await self.session(f"reads-at-{name}", name) for name in self.members]
        for turn in range(ROUNDS):
            leader = self.rng.choice(["STREAM.LEADER.STEPDOWN." + STREAM, f"CONSUMER.LEADER.STEPDOWN.{STREAM}.one"])
            came: list[int] = []
            acked: dict[str, int] = {}
            sent = [self._publish(session, f"{turn}-{at}", acked) for at in range(BURST)]
            taken = [self._take(reader, came) for reader in readers]
            await self.at_once(*sent, *taken, self._step_down(session, leader))
            self._complete(came, acked)
        await self._end(session, *readers)

    async def _pushes(self, session: Session) -> None:
        """One that acknowledges nothing may get some twice."""
        await self._begin(session)
        with session.inbox() as (inbox, got):
            policy = self.rng.choice(["explicit", "none"])
            wait = {} if policy == "none" else {"ack_wait": 600 * SECOND, "max_ack_pending": 10_000}
            await self.create_consumer(session, STREAM, "one", deliver_subject=inbox, ack_policy=policy, **wait)
            for turn in range(ROUNDS):
                leader = self.rng.choice(["STREAM.LEADER.STEPDOWN." + STREAM, f"CONSUMER.LEADER.STEPDOWN.{STREAM}.one"])
                acked: dict[str, int] = {}
                sent = [self._publish(session, f"{turn}-{at}", acked) for at in range(BURST)]
                await self.at_once(*sent, self._step_down(session, leader))
                await asyncio.sleep(2.0)
                came = [Delivered.of(got.get_nowait()).seq for _ in range(got.qsize())]
                if policy == "none":  # the next owner begins with the last number that was committed
                    came = list(set(came))
                self._complete(came, acked)
        await self._end(session)

    def _complete(self, came: list[int], acked: dict[str, int]) -> None:
        self.equal("what does not come", sorted(set(acked.values()) - set(came)), [])
        self.equal("what comes", sorted(came), sorted(acked.values()))

    async def _take(self, session: Session, came: list[int]) -> None:
        """Into `came`, until there is no more."""
        end = self.now + COMES / 2
        with session.inbox() as (inbox, got):
            while self.now < end:
                request = {"batch": 4, "expires": SECOND // 2}
                session.publish(f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.one", json.dumps(request).encode(), inbox)
                try:
                    async with asyncio.timeout(1.0):
                        for _ in range(4):
                            if (msg := await got.get()).status:
                                break
                            came.append(Delivered.of(msg).seq)
                            await session.request(msg.reply, b"+ACK", ANSWERED)
                except PASSING:
                    continue

    # ---- what has several parts

    async def _fast(self, session: Session) -> None:
        """The end of a batch, which is no message, comes to another leader."""
        await self._begin(session, allow_batched=True)
        for turn in range(ROUNDS):
            size = self.rng.randint(2, 9)
            got: asyncio.Queue[Msg] = asyncio.Queue()
            inbox = session.new_inbox()
            sid = session.subscribe(f"{inbox}.>", got.put_nowait)
            attempt = 0
            while True:  # as long as nobody leads
                attempt += 1
                stem = f"{inbox}.{turn}-{attempt}.1.fail"
                for number in range(1, size + 1):
                    operation = min(number - 1, 1)
                    session.publish("handovers.fast", b"%d" % number, f"{stem}.{number}.{operation}.$FI")
                if await self._settled(got, size):
                    break
                await asyncio.sleep(0.1)
            await self._step_down(session)
            while (end := await self._ended(session, f"{stem}.{size + 1}.{END}.$FI", got)) is None:
                await asyncio.sleep(0.1)
            last = (await self.ask(session, f"STREAM.INFO.{STREAM}"))["state"]["last_seq"]
            self.equal("messages of the batch, and its last sequence", end, (size, last))
            session.unsubscribe(sid)
        await self._end(session)

    async def _settled(self, got: asyncio.Queue[Msg], size: int) -> bool:
        """True once all of a batch is acknowledged, False where nobody has taken it."""
        try:
            async with asyncio.timeout(ANSWERED):
                while not (msg := await got.get()).status:
                    if json.loads(msg.payload).get("seq") == size:
                        return True
        except TimeoutError:
            pass
        return False

    async def _ended(self, session: Session, reply: str, got: asyncio.Queue[Msg]) -> tuple[int, int] | None:
        """Messages and last sequence, as the answer to the end of a batch tells. None where nobody has taken it."""
        session.publish("handovers.fast", b"", reply)
        try:
            async with asyncio.timeout(ANSWERED):
                while not (msg := await got.get()).status:
                    answer = json.loads(msg.payload)
                    if "type" not in answer:
                        return int(answer["count"]), int(answer["seq"])
        except TimeoutError:
            pass
        return None

    async def _uploads(self, session: Session) -> None:
        stream = f"OBJ_{BUCKET}"
        await self._begin(session, stream, subjects=[f"$OBJ.{BUCKET}.>"])
        for turn in range(ROUNDS):
            chunks = [b"%d-%d" % (turn, at) * self.rng.randint(1, 40) for at in range(CHUNKS)]
            upload = self._upload(session, f"u{turn}", chunks)
            await self.at_once(upload, self._step_down(session, f"STREAM.LEADER.STEPDOWN.{stream}"))
        await self.ask(session, f"STREAM.DELETE.{stream}")

    async def _upload(self, session: Session, nonce: str, chunks: list[bytes]) -> None:
        """Each chunk is sent until it is acknowledged, the last one until the object is there."""
        about = {"name": nonce, "nonce": nonce, "chunks": len(chunks), "size": sum(map(len, chunks))}
        await self.store(session, f"$OBJ.{BUCKET}.info.{nonce}", f"{nonce}-info", payload=json.dumps(about).encode())
        for at, chunk in enumerate(chunks):
            found = await self._insist(session, f"$OBJ.{BUCKET}.chunks.{nonce}", chunk, f"{nonce}-{at}")
            await asyncio.sleep(SPAN / CHUNKS * self.rng.random())
        self.equal("its digest", str(found.get("digest")).rstrip("="), digest_of(b"".join(chunks)).rstrip("="))

    async def _insist(self, session: Session, subject: str, payload: bytes, msg_id: str) -> dict[str, Any]:
        """The answer of the next leader as soon as there is one: it still reads what the last one has stored."""
        while True:
            try:
                return await session.js_publish(subject, payload, {"Nats-Msg-Id": msg_id}, seconds=ANSWERED)
            except PASSING:
                await asyncio.sleep(0.001)
