"""Exam of archives: those that are damaged, or not as a snapshot would be, are taken in exactly or leave no stream; and
the sender of a snapshot is told how it ended."""

from __future__ import annotations

import asyncio
import json
from operator import attrgetter
from typing import Any, Final

from jetcluster.model.times import parse_rfc3339
from jetcluster.protocol import s2
from jetcluster.protocol.stream_archive import END, MAGIC, encode
from jetcluster.raft.api import Role
from testkit.sim.session import Msg, Session
from tests.sim.cluster import invariants
from tests.sim.cluster.judges import Exact
from tests.sim.cluster.restoring import RestoringExam

STREAM = "ARCHIVE"
SENT = "ARCHIVESENT"
FAILED, BAD, NO_TARGET = 10062, 10003, 10015
"""Codes of errors."""
CHUNK = 60_000
"""Bytes of an archive that are sent at a time."""
PIECES: Final = 12
"""Parts of an archive that comes slowly."""
BEGAN = 1_700_000_000 * 10**9
"""Time of the first message, in nanoseconds."""
SOON: Final = 5.0
"""Seconds within which a stream goes whose archive was refused: its own server takes it away, and the leader of the
cluster only much later."""
NO_FLOW = 8.0
"""Seconds after which a snapshot is over whose chunks nobody acknowledges."""
CONSUMER: Final[dict[str, Any]] = {"durable_name": "kept", "ack_policy": "explicit", "num_replicas": 0}
BEGUN: Final[dict[str, Any]] = {"delivered": {"consumer_seq": 0, "stream_seq": 0},
                                "ack_floor": {"consumer_seq": 0, "stream_seq": 0}}  # fmt: skip
"""The state of a consumer that has delivered nothing."""


def entry(seq: int, ts: int = 0, subject: str = "archive.x", payload: bytes = b"") -> bytes:
    """A message: `ts` is its time after the first one, in nanoseconds."""
    return encode(subject.encode(), BEGAN + ts, seq, b"", payload)


def state(payload: bytes = b"{}") -> bytes:
    return encode(b"state.json", 0, 0, b"", payload)


def consumer(name: str, content: Any) -> bytes:
    raw = content if isinstance(content, bytes) else json.dumps(content).encode()
    return encode(b"consumers/" + name.encode(), 0, 0, b"", raw)


def begun(**config: Any) -> dict[str, Any]:
    """An archive's entry of a consumer that has delivered nothing."""
    return {"config": CONSUMER | config, "state": BEGUN}


def archive(*entries: bytes, end: bytes = END) -> bytes:
    """All of it, as it is sent."""
    return s2.STREAM_ID + b"".join(s2.encode(MAGIC + b"".join(entries) + end))


def damaged() -> list[tuple[str, bytes]]:
    """Bytes that are no archive, or hold more than belongs to a stream, each with its name."""
    messages = [entry(seq, seq) for seq in (1, 2, 3)]
    whole = archive(state(), *messages)
    return [
        ("a sequence twice", archive(state(), entry(1), entry(1))),
        ("messages out of order", archive(state(), entry(2), entry(1))),
        ("a state that is no JSON", archive(state(b"{"), *messages)),
        ("a state of a megabyte", archive(state(b" " * (1 << 20) + b"{}"), *messages)),
        ("a thousand things of no stream", archive(state(), *(encode(b"any", 0, 0, b"", b"") for _ in range(1001)))),
        ("bytes behind the end", archive(state(), *messages, end=END + b"more")),
        ("no end", archive(state(), *messages, end=b"")),
        ("a tar archive", s2.STREAM_ID + b"".join(s2.encode(b"meta.inf" + bytes(600)))),
        ("a long number", archive(b"\xff" * 12)),
        ("a name of nothing", archive(b"\0\1\1\0\0")),
        ("a frame that is cut", whole[:-3]),
        ("another checksum", whole[: len(s2.STREAM_ID) + 4] + bytes(4) + whole[len(s2.STREAM_ID) + 8 :]),
        ("another beginning", b"\xff\x06\x00\x00S2sTwX" + whole[10:]),
        ("a consumer that is no JSON", archive(state(), consumer("kept", b"{"), *messages)),
        ("a consumer that is deep", archive(state(), consumer("kept", b"[" * 5000), *messages)),
        ("a consumer without a name", archive(state(), consumer("", begun()), *messages)),
        ("a consumer with a bad filter", archive(state(), consumer("kept", begun(filter_subject="a..b")), *messages)),
        ("a consumer with a bad policy", archive(state(), consumer("kept", begun(ack_policy="seldom")), *messages)),
        ("a consumer without its state", archive(state(), consumer("kept", begun() | {"state": {"x": 1}}), *messages)),
        ("consumers that are too large", archive(state(), consumer("kept", b" " * (8 << 20)))),
    ]


class ArchiveExam(RestoringExam):
    name = "exam-archives"
    restores = STREAM
    weight = 0
    judges = (Exact,)
    promises = (
        "an archive that is damaged, or has more than belongs to a stream, is refused and leaves no stream",
        "one that no snapshot would be is taken in: times that went back, sequences that are not there, no messages",
        "who takes a snapshot and does not listen, or acknowledges nothing, is told so, and holds nothing up",
        "an archive that comes slowly is taken in, whoever leads the cluster meanwhile",
    )

    async def check(self) -> None:
        await self.examine(
            [self._damaged, self._unusual, self._given_up, self._overtaken, self._snapshots, self._silent, self._slow],
            4,
        )

    # ---- archives that come

    async def _damaged(self, session: Session) -> None:
        for what, sent in self.rng.sample(found := damaged(), min(len(found), 6)):
            code = await self.restored(session, sent)
            self.equal(what, code, FAILED)
            await self.until(f"{what} leaves no stream", lambda: self.is_gone(session), SOON)

    async def _unusual(self, session: Session) -> None:
        """Times that go back are raised, as in the stream of no server they may; the last sequence is what the archive
        says, where that is above the last message's."""
        back = [entry(1, 500), entry(2, 400), entry(3, 401), entry(7, 900, payload=b"x" * 3000), entry(8, 901)]
        last = self.rng.choice([3, 8, 12])
        about = {
            "last_seq": last,
            "config": {"name": "ANOTHER", "subjects": ["archive.>"], "description": "archived", "allow_direct": True},
        }
        content = {"config": CONSUMER, "state": {"delivered": {"consumer_seq": 2, "stream_seq": 2},
                   "ack_floor": {"consumer_seq": 2, "stream_seq": 2}}, "created": "2026-01-01T00:00:00Z"}  # fmt: skip
        sent = archive(
            state(json.dumps(about).encode()), encode(b"unknown", 0, 0, b"", b"x"), consumer("kept", content), *back
        )
        told: list[Msg] = []
        session.subscribe(f"$JS.EVENT.ADVISORY.STREAM.*.{STREAM}", told.append)
        self.equal("an unusual archive", await self.restored(session, sent), 0)
        info = await self.ask(session, f"STREAM.INFO.{STREAM}")
        self.equal("its description", info["config"].get("description"), "archived")
        found = (info["state"]["messages"], info["state"]["first_seq"], info["state"]["last_seq"])
        self.equal("its state", found, (5, 1, max(last, 8)))
        contents = await self.insist("its messages", lambda: self.contents(session, STREAM))
        times = [parse_rfc3339(contents[seq].headers["Nats-Time-Stamp"]) - BEGAN for seq in sorted(contents)]
        self.equal("its times", times, [500, 501, 502, 900, 901])
        waits = (await self.ask(session, f"CONSUMER.INFO.{STREAM}.kept"))["num_pending"]
        self.equal("its consumer waits for", waits, 3)
        await asyncio.sleep(1.5)
        kinds = {json.loads(msg.payload)["type"].rpartition(".")[2] for msg in told}
        self.require({"restore_create", "restore_complete"} <= kinds, f"told of a restore: {sorted(kinds)}")
        await self.ask(session, f"STREAM.DELETE.{STREAM}")
        empty = archive(state(json.dumps(about | {"last_seq": last}).encode()))
        self.equal("no messages", await self.restored(session, empty), 0)
        info = await self.ask(session, f"STREAM.INFO.{STREAM}")
        self.equal("of no messages", (info["state"]["messages"], info["state"]["last_seq"]), (0, last))
        await self.ask(session, f"STREAM.DELETE.{STREAM}")

    async def _given_up(self, session: Session) -> None:
        """A chunk that nobody could be answered for ends a restore, and so does one that does not come."""
        for sent in (archive(state(), entry(1)), b""):
            deliver = (await self.ask(session, f"STREAM.RESTORE.{STREAM}", self._wanted()))["deliver_subject"]
            self.equal("its name is taken", await self.refused(session, f"STREAM.RESTORE.{STREAM}"), 10130)
            session.publish(deliver, sent)
            await self.until("what cannot be answered is gone", lambda: self.is_gone(session), 20.0)

    async def _overtaken(self, session: Session) -> None:
        """The stream is deleted, and perhaps made anew, before its archive is complete."""
        deliver = (await self.ask(session, f"STREAM.RESTORE.{STREAM}", self._wanted()))["deliver_subject"]
        whole = archive(state(), entry(1), entry(2, 1))
        self.equal("its first part", await self.taken(session, deliver, whole), 0)
        await self.ask(session, f"STREAM.DELETE.{STREAM}")
        anew = self.rng.random() < 0.5
        if anew:
            await self.create(session, STREAM, subjects=["archive.>"], num_replicas=1)
        self.equal("the end of what is gone", await self.taken(session, deliver, b""), FAILED)
        await asyncio.sleep(1.0)
        self.equal("the stream is gone", await self.is_gone(session), not anew)
        if anew:
            self.equal("of another one", (await self.ask(session, f"STREAM.INFO.{STREAM}"))["state"]["messages"], 0)
            await self.ask(session, f"STREAM.DELETE.{STREAM}")

    async def _slow(self, session: Session) -> None:
        """Meanwhile another server leads the cluster for longer than it waits for a restore that says nothing, and then
        the first one again."""
        first = self._meta(Role.LEADER)[0].machine.name
        other = self.rng.choice(self._meta(Role.FOLLOWER)).machine.name
        sent = archive(state(), *(entry(seq, seq, payload=bytes(2_000)) for seq in range(1, 40)))
        size = -(-len(sent) // PIECES)
        self.elects()
        deliver = (await self.ask(session, f"STREAM.RESTORE.{STREAM}", self._wanted()))["deliver_subject"]
        for at in range(PIECES):
            self.equal("a part of it", await self.taken(session, deliver, sent[at * size : (at + 1) * size]), 0)
            await asyncio.sleep(2.0)
            if at in {1, PIECES - 2}:
                await self._led_by(other if at == 1 else first)
        self.equal("its end", await self.taken(session, deliver, b""), 0)
        info = await self.ask(session, f"STREAM.INFO.{STREAM}")
        self.equal("all of it", info["state"]["messages"], 39)
        await self.ask(session, f"STREAM.DELETE.{STREAM}")

    async def _led_by(self, name: str) -> None:
        """The server leads the cluster from now on."""

        async def leads() -> bool:
            leader = self._meta(Role.LEADER)
            heirs = [one.group.me for one in self._meta(Role.FOLLOWER) if one.machine.name == name]
            if leader and heirs:
                leader[0].group.transfer(heirs[0])
            return bool(leader) and leader[0].machine.name == name

        await self.until(f"{name} leads", leads, 10.0)

    def _meta(self, role: Role) -> list[invariants.Replica]:
        """Returns the voters of the meta group that have this role."""
        found = [one for one in invariants.replicas(self.deployment) if one.stream is None]
        found = [one for one in found if one.machine.name in self.members and one.group.role is role]
        return [one for one in found if one.group.me in one.group.log.config.voters]

    def _wanted(self) -> dict[str, Any]:
        size = self.rng.choice([1, 3])
        return {"config": {"name": STREAM, "subjects": ["archive.>"], "num_replicas": size}, "state": {}}

    # ---- archives that go

    async def _filled(self, session: Session) -> None:
        await self.create(session, SENT, subjects=["sent"], num_replicas=self.rng.choice([1, 3]))
        for at in range(6):
            await self.store(session, "sent", f"sent {at}", payload=bytes([at]) * 2000)

    async def _snapshots(self, session: Session) -> None:
        """Requests that name nobody to send to."""
        await self._filled(session)
        for body in (None, {}, {"deliver_subject": "a.*"}, {"chunk_size": 9}):
            code = NO_TARGET if body else BAD
            found = await self.refused(session, f"STREAM.SNAPSHOT.{SENT}", body)
            self.equal(f"a snapshot for {body}", found, code)
        await self.ask(session, f"STREAM.DELETE.{SENT}")

    async def _silent(self, session: Session) -> None:
        """Nobody listens; somebody does and acknowledges nothing, or what was not sent, or goes away meanwhile. What
        follows is as if nobody had asked."""
        await self._filled(session)
        told: list[Msg] = []
        session.subscribe(f"$JS.EVENT.ADVISORY.STREAM.SNAPSHOT_COMPLETE.{SENT}", told.append)
        await session.flush()
        await asyncio.sleep(1.0)
        body = {"deliver_subject": "nobody.there", "chunk_size": 1024, "window_size": 1024}
        await self.ask(session, f"STREAM.SNAPSHOT.{SENT}", body)
        await self._told(told, "408 No Interest")
        got: list[Msg] = []
        sid = session.subscribe("somebody.there", got.append)
        await session.flush()
        await self.ask(session, f"STREAM.SNAPSHOT.{SENT}", body | {"deliver_subject": "somebody.there"})
        if leaves := self.rng.random() < 0.5:
            await asyncio.sleep(1.0)
            session.unsubscribe(sid)
        else:
            await asyncio.sleep(0.5)
            reply = next((msg.reply for msg in got if msg.reply), "")
            session.publish(".".join((*reply.split(".")[:-2], "x", "1")))
        await self._told(told, "408 No Flow Response")
        self.equal("what was sent says so", any(msg.status.startswith("408") for msg in got), not leaves)
        ack = await self.store(session, "sent", "after all")
        self.equal("the next message", int(ack["seq"]), 7)
        await self.ask(session, f"STREAM.DELETE.{SENT}")

    async def _told(self, told: list[Msg], wanted: str) -> None:
        end = self.now + NO_FLOW
        while not told and self.now < end:
            await asyncio.sleep(0.1)
        errors = [json.loads(msg.payload).get("error", "") for msg in told]
        told.clear()
        self.equal("how a snapshot ended", errors, [wanted])
        await self.until("no server holds what was to be sent", self._nothing_is_open, SOON)

    async def _nothing_is_open(self) -> bool:
        for machine in self.deployment.running:
            if (jetstream := invariants.jetstream_of(machine)) is None:
                continue
            handlers = attrgetter("parts.streams._more_handlers")(jetstream)
            if attrgetter("__self__._open")(handlers["snapshot"]):
                return False
        return True
