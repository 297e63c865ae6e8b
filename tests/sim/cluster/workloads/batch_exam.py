"""Exam of batches: what the messages of an atomic batch see of each other, what refuses the whole of it, and what
becomes of fast-ingest batches with messages that are refused or lost."""

from __future__ import annotations

import asyncio
import json
from typing import Any, ClassVar

from testkit.sim.session import ApiError, Msg, Session
from tests.sim.cluster.exam import Exam
from tests.sim.cluster.judges import Exact

Part = tuple[str, str, dict[str, str]]
"""Subject, text and headers of one message."""


def plain(*subjects: str) -> list[Part]:
    return [(subject, f"text {at}", {}) for at, subject in enumerate(subjects)]


class BatchExam(Exam):
    name = "exam-batches"
    stream: ClassVar[str] = "B"
    """The beginning of the names of its streams."""
    judges = (Exact,)
    promises: ClassVar[tuple[str, ...]] = (
        "a message of an atomic batch is checked as if those before it were stored; the first error refuses all",
        "a fast-ingest batch stores what is not refused and tells the rest, or ends with the first that is refused",
    )

    async def check(self) -> None:
        self.number = 0
        await self.examine(
            [self._room, self._room_of_a_subject, self._ids, self._rollups, self._expected, self._counters, self._times,
             self._sizes, self._order, self._long, self._fast, self._fast_refusals, self._fast_pings,
             self._fast_wrong], 8
        )  # fmt: skip

    async def _stream(self, session: Session, **config: Any) -> tuple[str, str]:
        """A new one, and the first token of its subjects."""
        self.number += 1
        name = f"{self.stream}{self.number}"
        own = {"subjects": [f"{name}.>"], "num_replicas": self.rng.choice([1, 3]), "allow_atomic": True}
        own |= {"storage": self.rng.choice(["file", "file", "memory"])}
        await self.create(session, name, **(own | config))
        return name, name

    async def _batch(self, session: Session, parts: list[Part], end: str = "1") -> tuple[int, int]:
        """(last sequence, number of messages), or (-code, 0) where the commit is refused."""
        self.number += 1
        batch = f"batch{self.number}"
        for at, (subject, text, more) in enumerate(parts, 1):
            headers = {"Nats-Batch-Id": batch, "Nats-Batch-Sequence": str(at)} | more
            if at < len(parts):
                session.publish(subject, text.encode(), headers=headers)
                continue
            try:
                ack = await session.js_publish(subject, text.encode(), headers | {"Nats-Batch-Commit": end})
            except ApiError as error:
                return -error.err_code, 0
            return int(ack["seq"]), int(ack["count"])
        raise AssertionError("no messages")

    async def _put(self, session: Session, subject: str, text: str, **headers: str) -> int:
        fields = {key.replace("_", "-"): value for key, value in headers.items()}
        return int((await session.js_publish(subject, text.encode(), fields or None))["seq"])

    async def _is(self, session: Session, name: str, what: str, seqs: list[int]) -> dict[int, Msg]:
        found = await self.contents(session, name)
        self.equal(what, sorted(found), seqs)
        return found

    async def _room(self, session: Session) -> None:
        name, s = await self._stream(session, max_msgs=4, discard="new")
        await self._put(session, f"{s}.a", "before")
        three = plain(f"{s}.a", f"{s}.b", f"{s}.c")
        self.equal("one too many", (await self._batch(session, [*three, *plain(f"{s}.d")]))[0], -10077)
        await self._is(session, name, "nothing of it", [1])
        self.equal("as many as have room", await self._batch(session, three), (4, 3))
        await self._is(session, name, "all of it", [1, 2, 3, 4])
        name, s = await self._stream(session, max_bytes=1_500, discard="new")
        large = [(f"{s}.a", "x" * 400, {})] * 3
        self.equal("too many bytes", (await self._batch(session, [*large, large[0]]))[0], -10077)
        self.equal("fewer bytes", (await self._batch(session, large[:2]))[1], 2)
        name, s = await self._stream(session, max_msgs=3)
        self.equal("more than stay", await self._batch(session, plain(*[f"{s}.a"] * 5)), (5, 5))
        await self._is(session, name, "the newest", [3, 4, 5])

    async def _room_of_a_subject(self, session: Session) -> None:
        config = {"max_msgs_per_subject": 2, "discard": "new", "discard_new_per_subject": True, "max_msgs": 100}
        name, s = await self._stream(session, **config)
        await self._put(session, f"{s}.a", "1")
        self.equal("a full subject", (await self._batch(session, plain(f"{s}.b", f"{s}.a", f"{s}.a")))[0], -10077)
        self.equal("the last place", await self._batch(session, plain(f"{s}.b", f"{s}.a")), (3, 2))
        self.equal("none is left", (await self._batch(session, plain(f"{s}.c", f"{s}.a")))[0], -10077)
        await self._is(session, name, "what has had room", [1, 2, 3])
        name, s = await self._stream(session, max_msgs_per_subject=2)
        self.equal("older ones go", await self._batch(session, plain(*[f"{s}.a"] * 3, f"{s}.b")), (4, 4))
        await self._is(session, name, "two of a subject", [2, 3, 4])

    async def _ids(self, session: Session) -> None:
        name, s = await self._stream(session)
        await self._put(session, f"{s}.a", "1", Nats_Msg_Id="known")
        known, new = {"Nats-Msg-Id": "known"}, {"Nats-Msg-Id": "new"}
        self.equal(
            "a known id", (await self._batch(session, [(f"{s}.a", "2", new), (f"{s}.b", "3", known)]))[0], -10201
        )
        twice = [(f"{s}.a", "2", new), (f"{s}.b", "3", new)]
        self.equal("an id twice", (await self._batch(session, twice))[0], -10201)
        self.equal("a new one", await self._batch(session, [(f"{s}.a", "2", new), *plain(f"{s}.b")]), (3, 2))
        again = await session.js_publish(f"{s}.c", b"4", {"Nats-Msg-Id": "new"})
        self.equal("its duplicate", (again["seq"], again.get("duplicate")), (2, True))
        await self._is(session, name, "with ids", [1, 2, 3])

    async def _rollups(self, session: Session) -> None:
        name, s = await self._stream(session, allow_rollup_hdrs=True)
        for at in range(4):
            await self._put(session, f"{s}.{'ab'[at % 2]}", str(at))
        sub, whole = {"Nats-Rollup": "sub"}, {"Nats-Rollup": "all"}
        late = [(f"{s}.a", "5", {}), (f"{s}.a", "6", sub)]
        self.equal("of a subject of the batch", (await self._batch(session, late))[0], -10111)
        late = [(f"{s}.a", "5", {}), (f"{s}.b", "6", whole)]
        self.equal("of all, not at first", (await self._batch(session, late))[0], -10111)
        parts = [(f"{s}.a", "5", sub), *plain(f"{s}.a", f"{s}.c")]
        self.equal("of a subject", await self._batch(session, parts), (7, 3))
        await self._is(session, name, "after it", [2, 4, 5, 6, 7])
        self.equal("of all", await self._batch(session, [(f"{s}.a", "8", whole), *plain(f"{s}.b")]), (9, 2))
        await self._is(session, name, "after all", [8, 9])
        name, s = await self._stream(session)
        refused = await self._batch(session, [(f"{s}.a", "1", sub), *plain(f"{s}.b")])
        self.equal("where there are none", refused[0], -10111)

    async def _expected(self, session: Session) -> None:
        name, s = await self._stream(session)
        await self._put(session, f"{s}.a", "1")
        last, of_subject = "Nats-Expected-Last-Sequence", "Nats-Expected-Last-Subject-Sequence"
        right = [(f"{s}.a", "2", {last: "1", of_subject: "1"}), (f"{s}.b", "3", {of_subject: "0"})]
        self.equal("what is expected", await self._batch(session, right), (3, 2))
        wrong = [(f"{s}.a", "4", {last: "1"}), *plain(f"{s}.b")]
        self.equal("another sequence", (await self._batch(session, wrong))[0], -10071)
        wrong = [(f"{s}.a", "4", {}), (f"{s}.b", "5", {last: "4"})]
        self.equal("of the stream, not at first", (await self._batch(session, wrong))[0], -10164)
        wrong = [(f"{s}.a", "4", {}), (f"{s}.a", "5", {of_subject: "4"})]
        self.equal("of the batch's own subject", (await self._batch(session, wrong))[0], -10164)
        wild = {of_subject: "3", f"{of_subject}-Subject": f"{s}.*"}
        self.equal("of a wildcard", await self._batch(session, [(f"{s}.c", "4", wild), *plain(f"{s}.d")]), (5, 2))
        wrong = [(f"{s}.a", "6", {"Nats-Expected-Stream": "OTHER"}), *plain(f"{s}.b")]
        self.equal("another stream", (await self._batch(session, wrong))[0], -10060)
        wrong = [(f"{s}.a", "6", {"Nats-Expected-Last-Msg-Id": "x"}), *plain(f"{s}.b")]
        self.equal("a last id", (await self._batch(session, wrong))[0], -10177)
        await self._is(session, name, "as expected", [1, 2, 3, 4, 5])

    async def _counters(self, session: Session) -> None:
        name, s = await self._stream(session, allow_msg_counter=True, storage="file")
        up = lambda number: {"Nats-Incr": f"{number:+d}"}  # noqa: E731
        parts = [(f"{s}.n", "", up(5)), (f"{s}.m", "", up(1)), (f"{s}.n", "", up(-2))]
        self.equal("increments", await self._batch(session, parts), (3, 3))
        found = await self._is(session, name, "their messages", [1, 2, 3])
        self.equal("totals", [int(json.loads(found[seq].payload)["val"]) for seq in (1, 2, 3)], [5, 1, 3])
        refused = await self._batch(session, [(f"{s}.n", "", up(1)), (f"{s}.n", "", {})])
        self.require(refused[0] < 0, f"a message without an increment is stored: {refused}")
        await self._is(session, name, "nothing more", [1, 2, 3])

    async def _times(self, session: Session) -> None:
        name, s = await self._stream(session, allow_msg_ttl=True, allow_msg_schedules=True, storage="file")
        wrong = [(f"{s}.a", "1", {"Nats-TTL": "soon"}), *plain(f"{s}.b")]
        self.equal("a wrong TTL", (await self._batch(session, wrong))[0], -10165)
        at = {"Nats-Schedule": f"@at {self.wall(3.0).split('.', maxsplit=1)[0]}Z", "Nats-Schedule-Target": f"{s}.fired"}
        parts = [(f"{s}.short", "1", {"Nats-TTL": "2s"}), (f"{s}.plan", "2", at), *plain(f"{s}.b")]
        self.equal("a TTL and a schedule", await self._batch(session, parts), (3, 3))

        async def is_over() -> bool:
            found = await self.contents(session, name)
            return sorted(msg.headers["Nats-Subject"] for msg in found.values()) == [f"{s}.b", f"{s}.fired"]

        await self.until("one is gone, and the other fired", is_over, 15.0)

    async def _sizes(self, session: Session) -> None:
        name, s = await self._stream(session, max_msg_size=300)
        large = [*plain(f"{s}.a"), (f"{s}.b", "x" * 400, {})]
        self.equal("a message that is too large", (await self._batch(session, large))[0], -10054)
        own = f"B{self.number + 1}"
        transform = {"src": f"{own}.in.*", "dest": f"{own}.out.{{{{wildcard(1)}}}}"}
        name, s = await self._stream(session, subject_transform=transform)
        self.equal("with a transform", await self._batch(session, plain(f"{s}.in.x", f"{s}.y", f"{s}.in.z")), (3, 3))
        found = await self._is(session, name, "its messages", [1, 2, 3])
        subjects = [found[seq].headers["Nats-Subject"] for seq in (1, 2, 3)]
        self.equal("subjects", subjects, [f"{s}.out.x", f"{s}.y", f"{s}.out.z"])

    async def _order(self, session: Session) -> None:
        """Faults of a batch itself."""
        name, s = await self._stream(session)
        gap = [(f"{s}.a", "1", {}), (f"{s}.b", "2", {"Nats-Batch-Sequence": "3"})]
        self.equal("a gap", (await self._batch(session, gap))[0], -10176)
        self.equal(
            "an unknown one", (await self._batch(session, [(f"{s}.a", "1", {"Nats-Batch-Sequence": "2"})]))[0], -10176
        )
        self.equal(
            "no sequence", (await self._batch(session, [(f"{s}.a", "1", {"Nats-Batch-Sequence": "x"})]))[0], -10175
        )
        self.equal("a long id", (await self._batch(session, [(f"{s}.a", "1", {"Nats-Batch-Id": "x" * 65})]))[0], -10179)
        self.equal("another commit", (await self._batch(session, plain(f"{s}.a", f"{s}.b"), "2"))[0], -10200)
        self.equal("without its last one", await self._batch(session, plain(f"{s}.a", f"{s}.b"), "eob"), (1, 1))
        name_of_none, t = await self._stream(session, allow_atomic=False)
        self.equal("where there are none", (await self._batch(session, plain(f"{t}.a")))[0], -10174)
        await self._is(session, name, "one", [1])
        await self._is(session, name_of_none, "none", [])

    async def _long(self, session: Session) -> None:
        """A batch of several entries of the log, where limits are small; refused as a whole, too."""
        name, s = await self._stream(session, max_msgs=40, discard="new")
        subjects = [f"{s}.{at % 3}" for at in range(30)]
        self.equal("a long one", await self._batch(session, plain(*subjects)), (30, 30))
        self.equal("a second one", (await self._batch(session, plain(*subjects)))[0], -10077)
        self.equal("what has room", await self._batch(session, plain(*subjects[:10])), (40, 10))
        found = await self._is(session, name, "all", list(range(1, 41)))
        self.equal("the text of the last", found[40].payload, b"text 9")

    # ---- fast ingest

    async def _ingest(self, session: Session, parts: list[Part], gap: str, flow: int = 1) -> list[dict[str, Any]]:
        """Sends them all and returns all answers, up to the last one."""
        self.number += 1
        got: asyncio.Queue[Msg] = asyncio.Queue()
        inbox = session.new_inbox()
        sid = session.subscribe(f"{inbox}.>", got.put_nowait)
        stem = f"{inbox}.fast{self.number}.{flow}.{gap}"
        for at, (subject, text, headers) in enumerate(parts, 1):
            operation = 2 if at == len(parts) else min(at - 1, 1)
            session.publish(subject, text.encode(), f"{stem}.{at}.{operation}.$FI", headers=headers or None)
        answers: list[dict[str, Any]] = []
        async with asyncio.timeout(5.0):
            while not answers or ("type" in answers[-1] and answers[-1]["type"] != "end"):
                answers.append(json.loads((await got.get()).payload))
        session.unsubscribe(sid)
        return answers

    async def _fast(self, session: Session) -> None:
        name, s = await self._stream(session, allow_batched=True)
        for count in (1, 2, 12):
            answers = await self._ingest(session, plain(*[f"{s}.a"] * count), "fail", self.rng.choice([1, 3, 10]))
            self.equal(f"the end of {count}", answers[-1].get("count"), count)
        await self._is(session, name, "three batches", list(range(1, 16)))

    async def _fast_refusals(self, session: Session) -> None:
        """The third of five is refused: the rest is stored, or nothing from there on."""
        for gap in ("ok", "fail"):
            name, s = await self._stream(session, allow_batched=True)
            parts = plain(*[f"{s}.{at}" for at in range(5)])
            parts[2] = (f"{s}.2", "refused", {"Nats-Expected-Last-Subject-Sequence": "77"})
            answers = await self._ingest(session, parts, gap)
            refused = [one for one in answers if "error" in one]
            self.require(bool(refused), f"with {gap} nobody says that one was refused: {answers}")
            found = await self.contents(session, name)
            texts = [found[seq].payload.decode() for seq in sorted(found)]
            self.require("refused" not in texts, f"what was refused is stored: {texts}")
            self.equal(f"stored with {gap}", texts, [f"text {at}" for at in ((0, 1, 3, 4) if gap == "ok" else (0, 1))])

    async def _fast_pings(self, session: Session) -> None:
        """A client that has heard nothing asks how far its batch is."""
        name, s = await self._stream(session, allow_batched=True)
        self.number += 1
        inbox = session.new_inbox()
        got: asyncio.Queue[Msg] = asyncio.Queue()
        sid = session.subscribe(f"{inbox}.>", got.put_nowait)
        stem = f"{inbox}.ping{self.number}.1.fail"
        for at in (1, 2):
            session.publish(f"{s}.a", str(at).encode(), f"{stem}.{at}.{at - 1}.$FI")

        async def heard(kind: str) -> dict[str, Any]:
            async with asyncio.timeout(5.0):
                while True:
                    answer: dict[str, Any] = json.loads((await got.get()).payload)
                    if answer.get("type", "end") == kind:
                        return answer

        await heard("ack")  # it has begun
        told = 0
        for _ in range(20):
            if told == 2:
                break
            await asyncio.sleep(0.1)
            session.publish(f"{s}.a", b"", f"{stem}.2.4.$FI")
            told = int((await heard("ack"))["seq"])
        self.equal("both are stored", told, 2)
        session.publish(f"{s}.a", b"", f"{stem}.3.4.$FI")  # the third one was lost
        gap = await heard("gap")
        self.equal("the gap", (gap["last_seq"], gap["seq"]), (3, 4))
        self.equal("the end", (await heard("end")).get("count"), 2)
        session.unsubscribe(sid)
        await self._is(session, name, "what was sent", [1, 2])

    async def _fast_wrong(self, session: Session) -> None:
        """Faults of a batch itself; and one that ends without its last message."""
        name, s = await self._stream(session, allow_batched=True)
        none, t = await self._stream(session)
        inbox = session.new_inbox()
        got: asyncio.Queue[Msg] = asyncio.Queue()
        sid = session.subscribe(f"{inbox}.>", got.put_nowait)
        for subject, reply, code in (
            (f"{t}.a", "off.1.ok.1.0.$FI", 10205),
            (f"{s}.a", "wrong.1.ok.1.9.$FI", 10206),
            (f"{s}.a", "wrong.1.maybe.1.0.$FI", 10206),
            (f"{s}.a", f"{'x' * 65}.1.ok.1.0.$FI", 10207),
            (f"{s}.a", "unknown.1.ok.2.1.$FI", 10208),
        ):
            session.publish(subject, b"refused", f"{inbox}.{reply}")
            async with asyncio.timeout(5.0):
                self.equal(reply, json.loads((await got.get()).payload)["error"]["err_code"], code)
        stem = f"{inbox}.ends.1.ok"
        for at, operation in ((1, 0), (2, 1), (3, 3)):
            session.publish(f"{s}.a", str(at).encode(), f"{stem}.{at}.{operation}.$FI")
        async with asyncio.timeout(5.0):
            while (answer := json.loads((await got.get()).payload)).get("type", "end") != "end":
                pass
        self.equal("without its last one", answer.get("count"), 2)
        session.unsubscribe(sid)
        await self._is(session, name, "two of three", [1, 2])
        await self._is(session, none, "none", [])
