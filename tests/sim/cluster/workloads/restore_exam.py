"""Exam of restores: archives of format V1 with any history, and counters that an archive leaves broken."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from jetcluster.protocol.stream_archive import encode
from testkit.sim.session import ApiError, Msg, Session
from testkit.twins import old_archive
from testkit.twins.old_archive import File
from tests.sim.cluster.judges import Exact
from tests.sim.cluster.restoring import RestoringExam
from tests.sim.cluster.workloads.archive_exam import BEGAN, archive, state

STREAM, SUM = "RESTORED", "RESTOREDSUM"
FAILED, GONE, FULL, BROKEN = 10062, 10059, 10002, 10172
"""Codes of errors."""
HEADERS: Final = b"NATS/1.0\r\nOld: yes\r\n\r\n"
BLOCK: Final = 1500
"""Bytes after which a block is full."""
SILENT: Final = 8.0
"""Seconds within which a restore that is not continued is over."""


@dataclass
class History:
    """The store of an old server after any history: its blocks, and the messages that are there."""

    rng: Random
    blocks: list[bytearray] = field(default_factory=lambda: [bytearray()])
    places: dict[int, int] = field(default_factory=dict)
    """Sequence -> number of its block."""
    there: dict[int, tuple[str, bytes, bool]] = field(default_factory=dict)
    """Sequence -> subject, payload, and whether it has headers."""
    last: int = 0

    @classmethod
    def of(cls, rng: Random, steps: int) -> History:
        history = cls(rng)
        for _ in range(steps):
            if history.there and rng.random() < 0.25:
                history.remove(rng.choice(sorted(history.there)))
            else:
                history.store()
        return history

    def write(self, data: bytes) -> None:
        if len(self.blocks[-1]) > BLOCK:
            self.blocks.append(bytearray())
        self.blocks[-1] += data

    def store(self) -> None:
        self.last += 1
        headed = self.rng.random() < 0.3
        subject, payload = f"restored.{self.rng.choice('ab')}", self.rng.randbytes(self.rng.randrange(200))
        self.write(
            old_archive.record(self.last, BEGAN + self.last, subject.encode(), payload, HEADERS if headed else b"")
        )
        self.places[self.last] = len(self.blocks) - 1
        self.there[self.last] = subject, payload, headed

    def remove(self, seq: int) -> None:
        del self.there[seq]
        self.write(old_archive.tombstone(seq, BEGAN + self.last))

    def index(self) -> bytes:
        """`index.db`, as old as the blocks."""
        told = []
        for number in range(len(self.blocks)):
            kept = [seq for seq, place in self.places.items() if place == number and seq in self.there]
            if kept:
                holes = tuple(seq for seq in range(kept[0], kept[-1]) if seq not in self.there)
                told.append((number + 1, kept[0], kept[-1], holes))
        return old_archive.index(told, self.last, len(self.blocks), bytes(self.blocks[-1][-8:]))

    def files(self, *consumers: str) -> list[File]:
        """All of the archive. A consumer has acknowledged the first message of the stream, if there is one."""
        config = {"subjects": ["restored.>"], "description": "old", "allow_direct": True}
        files: list[File] = [("meta.inf", old_archive.meta(STREAM, config)), ("meta.sum", b"0" * 16)]
        files += [(f"msgs/{number}.blk", bytes(block)) for number, block in enumerate(self.blocks, 1)]
        if self.rng.random() < 0.5:
            files.append(("msgs/index.db", self.index()))
        done = 1 if self.last else 0
        begun = old_archive.consumer_state((done, done), (done, done))
        for name in consumers:
            files += old_archive.consumer(name, begun)
        return files


def damaged() -> list[tuple[str, bytes]]:
    """Archives of format V1 of which no stream can be made, each with its name."""
    history = History.of(Random(5), 20)
    files = [(name, content) for name, content in history.files("kept") if "index" not in name]
    first = old_archive.record(1, 1, b"restored.a", b"x")
    return [
        ("cut off", old_archive.archive(files, end=False)),
        ("an end without its frame", old_archive.archive(files) + b"\x01\xff"),
        ("short", old_archive.framed(b"short")),
        ("no tar", old_archive.framed(b"nothing that a tar archive would begin with" * 40)),
        ("a configuration that is no JSON", old_archive.archive([("meta.inf", b"{"), *files[1:]])),
        ("a deep configuration", old_archive.archive([("meta.inf", b"[" * 100_000), *files[1:]])),
        ("a configuration that is a list", old_archive.archive([("meta.inf", b"[]"), *files[1:]])),
        ("a consumer that is a list", old_archive.archive([*files[:-3], ("obs/kept/meta.inf", b"[]"), files[-1]])),
        ("a deep consumer", old_archive.archive([*files[:-3], ("obs/kept/meta.inf", b"[" * 100_000), files[-1]])),
        ("half a state", old_archive.archive([*files[:-1], ("obs/kept/o.dat", b"\x16\x02")])),
        ("out of order", old_archive.archive([files[0], ("msgs/1.blk", old_archive.record(2, 2, b"restored.a")),
                                              ("msgs/2.blk", first)])),
        ("a damaged block", old_archive.archive([files[0], ("msgs/1.blk", first + b"\xff" * 40)])),
        ("a subject of two lines", old_archive.archive([files[0], ("msgs/1.blk",
                                                                   old_archive.record(1, 1, b"a\r\nb"))])),
        ("more behind the end", old_archive.archive(files) + old_archive.framed(b"x" * 512)[10:]),
    ]  # fmt: skip


def counters() -> list[tuple[str, bytes, bytes, int | None]]:
    """Last messages of counters in an archive: name, headers, payload, and the total; None for one that is broken from
    then on."""
    wide = b"9" * 600
    found: list[tuple[str, bytes, bytes, int | None]] = [
        ("plain", b"", b'{"val":"7"}', 7), ("long", b"", b'{"val":"%b"}' % wide, int(wide)),
        ("negative", b"", b'{"val":"-3"}', -3), ("number", b"", b'{"val":7}', None), ("list", b"", b"[]", None),
        ("text", b"", b"seven", None), ("brackets", b"", b"[" * 40, None), ("size", b"", b" " * 9000, None),
        ("letters", b"", b'{"val":"x"}', None), ("nothing", b"", b"", None),
        ("ink", b"", '{"val":"\uff17"}'.encode(), None),
    ]  # fmt: skip
    for name, sources, total in (
        ("known", b'{"S":{"s":"4"}}', 7), ("none", b'{"S":null}', 7), ("odd", b'{"S":{"s":"x"}}', 7),
        ("no-object", b"7", None), ("no-totals", b'{"S":7}', None), ("numbers", b'{"S":{"s":4}}', None),
        ("deep", b'{"S":{"s":{}}}', None), ("array", b'{"S":[]}', None), ("broken", b'{"S"', None),
        ("huge", b'{"S":{"s":"%b"}}' % (b"1" * 40_000), None),
    ):  # fmt: skip
        block = b"NATS/1.0\r\nNats-Incr: +7\r\nNats-Counter-Sources: %b\r\n\r\n" % sources
        found.append((name, block, b'{"val":"7"}', total))
    return found


class RestoreExam(RestoringExam):
    name = "exam-restores"
    restores = STREAM
    weight = 0
    judges = (Exact,)
    promises = (
        "an archive of format V1 is taken in as its messages, consumers and last sequence are, or leaves no stream",
        "what a restore sets aside has the room of its account, and whoever stops sending leaves nothing",
        "a counter whose last message an archive has broken is told so, and every other one goes on from its total",
    )

    async def check(self) -> None:
        parts = [self._histories, self._damaged, self._stopped, self._counters, self._sums]
        if not any(server.leaf_of or server.sync_interval for server in self.deployment.servers.values()):
            parts.append(self._room)  # the other layouts have no accounts
        await self.examine(parts, 4)

    # ---- archives of format V1

    async def _histories(self, session: Session) -> None:
        """With the configuration of the archive, or that of the request."""
        for own in (True, False):
            history = History.of(self.rng, self.rng.choice([0, 10, 60]))
            names = [f"c{number}" for number in range(self.rng.choice([0, 1, 3]))]
            wish = None if own else self._wanted(description="new")
            chunk = self.rng.choice([150, 3000, 60_000])
            sent = old_archive.archive(history.files(*names))
            self.equal("an old archive", await self.restored(session, sent, wish, chunk), 0)
            await self._check(session, history, "old" if own else "new")
            for name in names:
                info = await self.ask(session, f"CONSUMER.INFO.{STREAM}.{name}")
                self.equal(f"{name} waits for", info["num_pending"], sum(seq > 1 for seq in history.there))
            ack = await self.insist("one more", lambda: session.js_publish("restored.a", b"more"))
            self.equal("the next sequence", int(ack["seq"]), history.last + 1)
            await self.ask(session, f"STREAM.DELETE.{STREAM}")

    async def _check(self, session: Session, history: History, description: str) -> None:
        info = await self.ask(session, f"STREAM.INFO.{STREAM}")
        self.equal("its description", info["config"].get("description"), description)
        self.equal("its last sequence", info["state"]["last_seq"], history.last)
        contents: dict[int, Msg] = await self.insist("its messages", lambda: self.contents(session, STREAM))
        found = {
            seq: (msg.headers["Nats-Subject"], msg.payload, msg.headers.get("Old") == "yes")
            for seq, msg in contents.items()
        }
        self.equal("its messages", found, history.there)

    async def _damaged(self, session: Session) -> None:
        for what, sent in self.rng.sample(found := damaged(), min(len(found), 7)):
            wish = self._wanted() if self.rng.random() < 0.5 else None
            code = await self.restored(session, sent, wish, self.rng.choice([700, 60_000]))
            self.equal(what, code, FAILED)
            await self.until(f"{what} leaves no stream", lambda: self.is_gone(session), 20.0)

    async def _stopped(self, session: Session) -> None:
        """The sender stops in the middle; or the stream is deleted meanwhile."""
        sent = old_archive.archive(History.of(self.rng, 60).files())
        for deleted in (False, True):
            deliver = (await self.ask(session, f"STREAM.RESTORE.{STREAM}", self._wanted()))["deliver_subject"]
            self.equal("a first half", await self.taken(session, deliver, sent[: len(sent) // 2]), 0)
            if deleted:
                await self.ask(session, f"STREAM.DELETE.{STREAM}")
                code = await self.taken(session, deliver, sent[len(sent) // 2 :])
                code = code or await self.taken(session, deliver, b"")  # behind an error nobody listens
                self.equal("the end of what is gone", code, FAILED)
            await self.until("what was stopped is gone", lambda: self.is_gone(session), SILENT + 12.0)

    async def _room(self, session: Session) -> None:
        """An account with a megabyte cannot have more set aside."""
        other = await self.session("room", user="other")
        listed = (await self.ask(other, "STREAM.NAMES"))["streams"] or []
        if len(listed) < 2:
            one = old_archive.record(1, BEGAN, b"restored.a", self.rng.randbytes(50_000))
            kept: list[File] = [
                ("meta.inf", old_archive.meta(STREAM, {"subjects": ["restored.>"]})),
                ("msgs/1.blk", one),
            ]
            self.equal("what fits", await self.restored(other, old_archive.archive(kept), None, 60_000), 0)
            await self.ask(other, f"STREAM.DELETE.{STREAM}")
            big = b"".join(
                old_archive.record(seq, BEGAN + seq, b"restored.a", self.rng.randbytes(50_000)) for seq in range(1, 26)
            )
            code = await self.restored(other, old_archive.archive([kept[0], ("msgs/1.blk", big)]), None, 60_000)
            self.equal("more than the account may store", code, FULL)
            await self.until("it leaves no stream", lambda: self.is_gone(other), 20.0)
        await other.close()

    def _wanted(self, **config: Any) -> dict[str, Any]:
        size = self.rng.choice([1, 3])
        wanted = {"name": STREAM, "subjects": ["restored.>"], "num_replicas": size, "allow_direct": True}
        return {"config": wanted | config, "state": {}}

    # ---- counters

    async def _filled(
        self, session: Session, cases: Sequence[tuple[str, bytes, bytes, int | None]], **config: Any
    ) -> None:
        """A stream of counters as an archive has them, one for each case."""
        messages = [
            encode(
                f"restored.{name}".encode(), BEGAN + seq, seq, headers or b"NATS/1.0\r\nNats-Incr: +7\r\n\r\n", payload
            )
            for seq, (name, headers, payload, _) in enumerate(cases, 1)
        ]
        wish = self._wanted(allow_msg_counter=True, **config)
        code = await self.restored(session, archive(state(), *messages), wish, 60_000)
        self.equal("an archive of counters", code, 0)

    async def _counters(self, session: Session) -> None:
        """Two increments for each, the second of which finds what the first one left."""
        cases = counters()
        upstream = {"sources": [{"name": "RESTOREDNOWHERE"}]} if self.rng.random() < 0.5 else {}
        await self._filled(session, cases, **upstream)
        for name, _, _, total in cases:
            wanted = total
            for increment in (5, -2):
                wanted = None if wanted is None else wanted + increment
                code, found = await self._increment(session, f"restored.{name}", increment)
                self.equal(
                    f"{name} after {increment:+d}", (code, found), (0, wanted) if wanted is not None else (BROKEN, 0)
                )
        await self.ask(session, f"STREAM.DELETE.{STREAM}")

    async def _increment(self, session: Session, subject: str, number: int, **fields: str) -> tuple[int, int]:
        """Code of the error, 0 for none, and the total."""
        headers = {"Nats-Incr": f"{number:+d}"} | {key.replace("_", "-"): value for key, value in fields.items()}

        async def attempt() -> tuple[int, int]:
            try:
                ack = await session.js_publish(subject, b"", headers)
            except ApiError as error:
                if error.code >= 500:
                    raise
                return error.err_code, 0
            return 0, int(ack["val"])

        found: tuple[int, int] = await self.insist(f"{number:+d} on {subject}", attempt)
        return found

    async def _sums(self, session: Session) -> None:
        """A counter with a source stops at what it cannot read of it, says so, and goes on once that is gone."""
        whole = [case for case in counters() if not case[1] and case[3] is not None]
        broken = self.rng.choice([case for case in counters() if not case[1] and case[3] is None])
        place = self.rng.randint(1, len(whole))
        cases = [*whole[:place], broken, *whole[place:]]
        await self._filled(session, cases)
        source = {"name": STREAM, "subject_transforms": [{"src": "restored.*", "dest": "summed.{{wildcard(1)}}"}]}
        size = self.rng.choice([1, 3])
        config = {"subjects": ["summed.*"], "allow_msg_counter": True, "num_replicas": size}
        await self.create(session, SUM, sources=[source], **config)
        await self._increment(session, "restored.plain", 1)
        await self._summed(session, {name: total for name, _, _, total in whole[:place]})

        async def is_told() -> bool:
            (told,) = (await session.api(f"STREAM.INFO.{SUM}"))["sources"]
            return bool(told.get("error", {}).get("err_code") == BROKEN)

        await self.until("it says what is broken", is_told, 20.0)
        await self.ask(session, f"STREAM.MSG.DELETE.{STREAM}", {"seq": place + 1, "no_erase": True})
        await self._summed(session, {name: total for name, _, _, total in whole} | {"plain": 8})
        for name in (SUM, STREAM):
            await self.ask(session, f"STREAM.DELETE.{name}")

    async def _summed(self, session: Session, wanted: dict[str, int | None]) -> None:
        async def summed() -> bool:
            contents = await self.contents(session, SUM)
            found = {
                msg.headers["Nats-Subject"].rpartition(".")[2]: int(json.loads(msg.payload)["val"])
                for msg in contents.values()
            }
            return found == wanted

        await self.until(f"the sums of {sorted(wanted)} are there", summed, 20.0)
