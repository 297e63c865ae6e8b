"""Exam of reads that wait: for a sequence, for a leader, for what their client knows of. Each is answered, with what it
asked for or with why not."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, Final

from testkit.sim.session import Msg, Session
from tests.sim.cluster.exam import Exam
from tests.sim.cluster.judges import Exact

STREAM = "WAITED"
TOO_LOW = 10180
"""Code of the error of a sequence that is not there yet."""
CROWD: Final = 60
"""Reads at a time: more than may wait where limits are small."""
ANSWERED: Final = 4.0
"""Seconds until all reads are answered."""
LEASES: Final = 4.0
"""Seconds after which no leader that is alone has a lease."""
BEHIND, LATE, UNLED, MANY = "503 Min Last Sequence", "503 Not Caught Up", "503 No Leader", "503 Too Many Waiting Reads"
"""Their answers."""
MIN, STALE, STRONG = "Nats-Min-Last-Sequence", "Nats-Max-Staleness", "Nats-Read-Consistency"
WAVES, WAVE = 4, 3
"""Times that messages are asked for while nobody leads, and how many requests come then."""


class WaitExam(Exam):
    name = "exam-waits"
    newest = True
    weight = 0
    judges = (Exact,)
    promises = (
        "a read that waits for a sequence is answered when that is stored, or told after a second that it is not",
        "while nobody leads, a read that must be of now is refused, and one that may be old is answered",
        "reads that wait when their stream is deleted are answered",
        "of a stream that asks for it each read has what its client was told of",
    )

    async def check(self) -> None:
        if self.deployment.relaxed:
            return
        await self.examine([self._sequences, self._unled, self._deleted, self._defaults], 4)

    async def _filled(self, session: Session, size: int, **config: Any) -> None:
        await self.create(session, STREAM, subjects=["waited.>"], num_replicas=size, **config)
        for at in range(3):
            await self.store(session, "waited.x", f"waited {at}")

    async def _read(self, session: Session, wishes: list[dict[str, str]], subject: str = "waited.x") -> list[str]:
        """The answers of reads of the subject's newest message: its payload, or a status; "" for nothing."""
        found = [""] * len(wishes)
        inbox = session.new_inbox()

        def take(msg: Msg) -> None:
            found[int(msg.subject.rpartition(".")[2])] = msg.status or msg.payload.decode()

        sid = session.subscribe(f"{inbox}.*", take)
        for at, headers in enumerate(wishes):
            session.publish(f"$JS.API.DIRECT.GET.{STREAM}.{subject}", b"", f"{inbox}.{at}", headers)
        await session.flush()
        end = self.now + ANSWERED
        while self.now < end and not all(found):
            await asyncio.sleep(0.1)
        session.unsubscribe(sid)
        return found

    def _only(self, what: str, found: list[str], *wanted: str) -> None:
        """Nothing else is answered; where limits are small, or all come to one server, there may be too many."""
        other = {said: number for said, number in Counter(found).items() if not said.startswith((*wanted, MANY))}
        self.equal(what, other, {})

    async def _sequences(self, session: Session) -> None:
        await self._filled(session, self.rng.choice([1, 3]))
        far = [{MIN: "50"}] * CROWD
        self._only("what never comes", await self._read(session, far), BEHIND)
        self._only("one that never comes", await self._read(session, far[:1]), BEHIND)
        refusal = await self.refused(session, f"STREAM.MSG.GET.{STREAM}", {"seq": 1, "min_last_seq": 50})
        self.equal("of the API", refusal, TOO_LOW)
        both = [{MIN: "4"}, {MIN: "50"}] * 5 + [{MIN: "4", "Nats-Read-Info": "true"}, {}] * 5
        reading = asyncio.ensure_future(self._read(session, both))
        await asyncio.sleep(self.rng.uniform(0.0, 0.4))
        await self.store(session, "waited.x", "waited 3")
        found = await reading
        self._only("what comes", [found[at] for at in (*range(0, 10, 2), *range(10, 20, 2))], "waited 3")
        self._only("and what does not", found[1:10:2], BEHIND)
        self._only("and who waits for nothing", found[11::2], "waited 2", "waited 3")
        await self.ask(session, f"STREAM.DELETE.{STREAM}")

    async def _unled(self, session: Session) -> None:
        """The other servers of a stream stand still: the one that is left cannot know what they would have."""
        await self._filled(session, 3)
        cluster = (await self.ask(session, f"STREAM.INFO.{STREAM}"))["cluster"]
        names = [cluster["leader"], *(one["name"] for one in cluster["replicas"])]
        left = self.rng.choice(names)
        own = await self.session("left", left)
        self.equal("before", await self._read(own, [{STRONG: "linearizable"}]), ["waited 2"])
        self.elects()
        machines = [self.deployment.machines[name] for name in names if name != left]
        for machine in machines:
            machine.pause()
        gets: list[str] = []
        inbox = own.new_inbox()
        sid = own.subscribe(inbox, lambda msg: gets.append(msg.payload.decode()))
        try:
            rest = self.rng.choice([0.0, 1.0, LEASES])
            await asyncio.sleep(rest)
            for _ in range(WAVES):  # those of the next one come while those of the first wait for a proof
                own.publish(f"$JS.API.STREAM.MSG.GET.{STREAM}", b'{"seq":1}', inbox, times=WAVE)
                await asyncio.sleep(0.3)
            known = () if rest == LEASES else ("waited 2",)  # the leader's lease may last
            strong = [{STRONG: "linearizable"}] * CROWD
            self._only("what must be of now", await self._read(own, strong), LATE, UNLED, *known)
            self._only("what must be young", await self._read(own, [{STALE: "10ms"}] * 5), LATE, UNLED, *known)
            old = await self._read(own, [{STRONG: "eventual"}, {STALE: "10m"}])
            self._only("what may be of any age", old[:1], "waited 2")
            self._only("what may be old, if it is known how old it is", old[1:], "waited 2", LATE, UNLED)
        finally:
            for machine in machines:
                machine.resume()

        async def again() -> bool:
            return await self._read(own, [{STRONG: "linearizable"}, {STRONG: "session"}]) == ["waited 2"] * 2

        await self.until("it knows again", again, 20.0)

        async def all_answered() -> bool:
            return len(gets) == WAVE * WAVES

        await self.until("each MSG.GET is answered", all_answered, 20.0)
        own.unsubscribe(sid)
        await own.close()
        await self.insist("its end", lambda: session.api(f"STREAM.DELETE.{STREAM}"))

    async def _deleted(self, session: Session) -> None:
        await self._filled(session, self.rng.choice([1, 3]))
        wishes = [{MIN: "9"}, {MIN: "5", STRONG: "linearizable"}, {MIN: "9", STALE: "1s"}] * 5
        reading = asyncio.ensure_future(self._read(session, wishes))
        await asyncio.sleep(self.rng.uniform(0.0, 0.6))
        await self.ask(session, f"STREAM.DELETE.{STREAM}")
        self._only("of a stream that goes", await reading, "503", "404", "408")

    async def _defaults(self, session: Session) -> None:
        """Reads of a stream that are consistent by default, from any server; a client that wants less may say so."""
        level = self.rng.choice(["default", "session", "strong"])
        await self._filled(session, 3, read_consistency=level)
        plain: list[dict[str, str]] = [{}, {"Nats-Read-Info": "true"}, {MIN: "1"}, {STRONG: "linearizable"}, {}]
        for at in range(8):
            await self.store(session, "waited.x", f"newer {at}")
            found = await self._read(session, plain * self.rng.choice([1, 4]))
            self._only(f"{level}, after {at}", found, f"newer {at}")
        weak = await self._read(session, [{STRONG: "eventual"}, {STALE: "1h"}] * 5)
        self._only("what may be old", weak, "newer ", "waited 2")
        await self.ask(session, f"STREAM.DELETE.{STREAM}")
