"""Exam of whom a read asks: one replica by its server, the stream's leader, the last message of a subject, a mirror."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from testkit.sim.session import Msg, Session
from tests.sim.cluster.exam import SPREAD, Exam
from tests.sim.cluster.judges import Exact
from tests.sim.cluster.workload import PASSING

Read = tuple[str, bytes, dict[str, str]]
"""Subject, body and headers."""
STREAM, LAST, COPY = "ASKED", "LAST", "ASKEDCOPY"
COUNT: Final = 12
CROWD: Final = 25
"""Reads at a time."""
PURGED: Final = 80
"""Messages of a stream that is purged."""
MANY: Final = 12
"""Sources of one stream: more than begin at a time."""
ANSWERED: Final = 4.0
"""Seconds until all reads are answered."""
GET, PEER, LEADER = "$JS.API.DIRECT.GET.", "$JS.API.DIRECT.PEER.", "$JS.API.DIRECT_LEADER.GET."
STALE, MIN, STRONG = "Nats-Max-Staleness", "Nats-Min-Last-Sequence", "Nats-Read-Consistency"
WISHES: Final[tuple[tuple[dict[str, str], str], ...]] = (
    ({}, ""), ({STALE: "1h"}, ""), ({MIN: "3"}, ""), ({STRONG: "linearizable"}, ""), ({MIN: str(COUNT + 9)}, "503"),
    ({STALE: "soon"}, "408"), ({MIN: "-"}, "408"), ({"Nats-Read-Info": "true"}, ""),
)  # fmt: skip
"""Headers of a read, and what its status begins with; "" for the message."""


class AskedExam(Exam):
    name = "exam-asked"
    newest = True
    weight = 0
    judges = (Exact,)
    promises = (
        "a read that names a server, or the leader, has the message of that replica, or a reason why not",
        "LAST in a subject asks for the newest message, until a stream has that name, and again once none has it",
        "a mirror that answers for its upstream has what was acknowledged there, and goes on when that is deleted",
        "a stream with more sources than may be asked at a time has what each of them has",
        "a purge that is interrupted for longer than a request waits is answered with all that it has removed",
    )

    async def check(self) -> None:
        if self.deployment.relaxed:
            return
        await self.examine([self._servers, self._last, self._mirrored, self._empty, self._sources, self._purged], 4)

    async def _filled(self, session: Session, size: int, **config: Any) -> None:
        await self.create(session, STREAM, subjects=["asked.*"], num_replicas=size, **config)
        for at in range(COUNT):
            await self.store(session, f"asked.{at % 3}", f"asked {at}")

    async def _read(self, session: Session, reads: Sequence[Read]) -> list[str]:
        """The answer to each of them: its payload, or a status; "" for nothing."""
        found = [""] * len(reads)
        inbox = session.new_inbox()

        def take(msg: Msg) -> None:
            found[int(msg.subject.rpartition(".")[2])] = msg.status or msg.payload.decode()

        sid = session.subscribe(f"{inbox}.*", take)
        for at, (subject, body, headers) in enumerate(reads):
            session.publish(subject, body, f"{inbox}.{at}", headers)
        await session.flush()
        end = self.now + ANSWERED
        while self.now < end and not all(found):
            await asyncio.sleep(0.1)
        session.unsubscribe(sid)
        return found

    def _only(self, what: str, found: list[str], *wanted: str) -> None:
        other = {said: number for said, number in Counter(found).items() if not said.startswith(wanted)}
        self.equal(what, other, {})

    async def _servers(self, session: Session) -> None:
        await self._filled(session, 3)
        cluster = (await self.ask(session, f"STREAM.INFO.{STREAM}"))["cluster"]
        await asyncio.sleep(SPREAD)
        body = json.dumps({"seq": 5}).encode()
        for name in (cluster["leader"], *(one["name"] for one in cluster["replicas"])):
            found = await self._read(session, [(f"{PEER}{STREAM}.{name}", body, headers) for headers, _ in WISHES])
            for (headers, status), said in zip(WISHES, found, strict=True):
                self._only(f"{name} with {headers}", [said], status or "asked 4")
            crowd = await self._read(session, [(f"{PEER}{STREAM}.{name}", body, {})] * CROWD)
            self._only(f"a crowd at {name}", crowd, "asked 4")
        ways = [(f"{LEADER}{STREAM}", body, "asked 4"), (f"{LEADER}{STREAM}.asked.1", b"", "asked 10")]
        for subject, wish, text in ways:
            found = await self._read(session, [(subject, wish, headers) for headers, _ in WISHES])
            for (headers, status), said in zip(WISHES, found, strict=True):
                self._only(f"the leader with {headers}", [said], status or text)
        await self.ask(session, f"STREAM.DELETE.{STREAM}")

    async def _last(self, session: Session) -> None:
        await self._filled(session, self.rng.choice([1, 3]))
        newest = f"{GET}{LAST}.{STREAM}.asked.1"
        await asyncio.sleep(SPREAD)
        self._only("LAST", await self._read(session, [(newest, b"", {})] * 3), "asked 10")
        await self.create(session, LAST, subjects=[f"{STREAM}.asked.*"], num_replicas=self.rng.choice([1, 3]))
        await self.store(session, f"{STREAM}.asked.1", "of the stream with this name")
        await asyncio.sleep(SPREAD)
        self._only("a stream LAST", await self._read(session, [(newest, b"", {})] * 3), "of the stream")
        self._only("nothing of it", await self._read(session, [(f"{newest[:-1]}2", b"", {})] * 3), "404")
        await self.ask(session, f"STREAM.DELETE.{LAST}")
        await asyncio.sleep(SPREAD)
        self._only("LAST again", await self._read(session, [(newest, b"", {})] * 3), "asked 10")
        await self.ask(session, f"STREAM.DELETE.{STREAM}")

    async def _mirrored(self, session: Session) -> None:
        """A mirror on another server; reads for its upstream come from everywhere, one by one and many at once."""
        level = self.rng.choice(["default", "weak", "session", "strong"])
        await self._filled(session, 1, read_consistency=level)
        await self.create(
            session, COPY, mirror={"name": STREAM}, mirror_direct=True, num_replicas=self.rng.choice([1, 1, 3])
        )

        async def whole() -> bool:
            return int((await session.api(f"STREAM.INFO.{COPY}"))["state"]["last_seq"]) == COUNT

        await self.until("the mirror is complete", whole, 20.0)
        await asyncio.sleep(SPREAD)
        readers = [await self.session(f"reader-{name}", name) for name in self.members]
        for at in range(3):
            text = f"newer {at}"
            await self.store(session, "asked.0", text)
            await self._crowds(readers, text, weak=level == "weak")
        await self.ask(session, f"STREAM.DELETE.{STREAM}")
        await asyncio.sleep(2 * SPREAD)
        for reader in readers:
            own: list[Read] = [(f"{GET}{COPY}", json.dumps({"seq": seq}).encode(), {}) for seq in (1, COUNT + 3)]
            self.equal("of the mirror", await self._read(reader, own), ["asked 0", "newer 2"])
            old = await self._read(
                reader, [(f"{GET}{STREAM}", own[0][1], {})] * 5 + [(f"{GET}{STREAM}.asked.0", b"", {})] * 5
            )
            self._only("for an upstream that is gone", old, "asked 0", "newer 2", "503", "404")
            await reader.close()
        await self.ask(session, f"STREAM.DELETE.{COPY}")

    async def _crowds(self, readers: list[Session], text: str, *, weak: bool) -> None:
        for reader in readers:
            seq = self.rng.randint(1, COUNT)
            by_seq: Read = (f"{GET}{STREAM}", json.dumps({"seq": seq}).encode(), {})
            self._only("by sequence", await self._read(reader, [by_seq] * CROWD), f"asked {seq - 1}")
            newest: Read = (f"{GET}{STREAM}.asked.0", b"", {})
            old = ("asked 9", "newer ") if weak else ()
            # Whoever did not write may be told less, but never something else.
            found = await self._read(reader, [newest] * CROWD + [by_seq, newest] * 3)
            self._only("the newest", found, text, f"asked {seq - 1}", "asked 9", "newer ", "503", *old)
            strong = await self._read(reader, [(newest[0], b"", {STRONG: "linearizable"})] * 5)
            self._only("what must be of now", strong, text, "503")

    async def _empty(self, session: Session) -> None:
        """Reads of a stream without messages, or without the one that is asked for."""
        await self.create(session, STREAM, subjects=["asked.*"], num_replicas=self.rng.choice([1, 3]))
        await asyncio.sleep(SPREAD)
        reads: list[Read] = [
            (f"{GET}{STREAM}.asked.1", b"", {}), (f"{GET}{STREAM}", b'{"seq":1}', {}),
            (f"{GET}{STREAM}.asked.1", b'{"no_hdr":true}', {"Nats-Read-Info": "true"}),
            (f"{GET}{STREAM}.asked.*", b"", {}), (f"{GET}{STREAM}", b'{"last_by_subj":"asked.*"}', {}),
            (f"{GET}{STREAM}", b'{"multi_last":["asked.*"]}', {}),
            (f"{GET}{STREAM}", b'{"start_time":"2020-01-01T00:00:00Z","batch":2}', {}),
        ]  # fmt: skip
        self._only("of nothing", await self._read(session, reads), "404")
        await self.store(session, "asked.1", "one")
        bare = [(subject, body, headers) for subject, body, headers in reads[:3]]
        self._only("of one message", await self._read(session, bare), "one")
        await self.ask(session, f"STREAM.DELETE.{STREAM}")

    async def _sources(self, session: Session) -> None:
        names = [f"ASKEDUP{number}" for number in range(MANY)]
        size = self.rng.choice([1, 3])
        sources = [{"name": name} for name in self.rng.sample([*names, "ASKEDNOWHERE"], MANY + 1)]
        first = self.rng.randrange(MANY)  # so many are there before, and the others come later
        for name in names[:first]:
            await self.fill(session, name, [name], subjects=[name], num_replicas=1)
        await self.create(session, STREAM, sources=sources, num_replicas=size)
        for name in names[first:]:
            await self.fill(session, name, [name], subjects=[name], num_replicas=1)

        async def whole() -> bool:
            contents = await self.contents(session, STREAM)
            return sorted(msg.headers["Nats-Subject"] for msg in contents.values()) == sorted(names)

        await self.until("each source is there once", whole, 40.0)
        for name in (STREAM, *names):
            await self.ask(session, f"STREAM.DELETE.{name}")

    async def _purged(self, session: Session) -> None:
        """The other servers stand still in the middle of it, for longer than the server that is asked waits at a time.
        With small limits it is a job of many commands."""
        await self._filled(session, 3)
        for at in range(COUNT, PURGED):
            await self.store(session, "asked.0", f"asked {at}")
        cluster = (await self.ask(session, f"STREAM.INFO.{STREAM}"))["cluster"]
        own = await self.session("purges", self.rng.choice([cluster["leader"], *self.members]))
        self.elects()
        machines = [self.deployment.machines[one["name"]] for one in cluster["replicas"]]
        purging = asyncio.ensure_future(own.api(f"STREAM.PURGE.{STREAM}", seconds=30.0))
        await asyncio.sleep(self.rng.choice([0.0, 0.005, 0.02, 0.05]))
        for machine in machines:
            machine.pause()
        await asyncio.sleep(self.rng.choice([0.5, 2.5, 3.5]))
        for machine in machines:
            machine.resume()
        try:
            self.equal("what is purged", (await purging)["purged"], PURGED)
        except PASSING as error:
            self.note(f"the purge is not answered: {error!r}")
            await self.ask(session, f"STREAM.PURGE.{STREAM}")
        state = (await self.ask(session, f"STREAM.INFO.{STREAM}"))["state"]
        self.equal("its state", (state["messages"], state["last_seq"]), (0, PURGED))
        await own.close()
        await self.ask(session, f"STREAM.DELETE.{STREAM}")
