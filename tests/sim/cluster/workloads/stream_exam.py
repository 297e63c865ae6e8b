"""The exam of streams, request by request: messages are kept, counted, found, refused and removed as they must be."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

from testkit.sim.session import ApiError, Session
from tests.sim.cluster.exam import Exam
from tests.sim.cluster.judges import Exact

SECOND = 1_000_000_000


class StreamExam(Exam):
    name = "exam-streams"
    judges = (Exact,)
    promises = (
        "limits, purges, deletions and rollups leave exactly what they are to, and STREAM.INFO counts it right",
        "a Direct Get and a MSG.GET find the messages that they ask for, with subject, headers, time and payload",
        "a message is transformed, refused, or known as a duplicate, as the stream's configuration says",
    )

    async def check(self) -> None:
        self.number = 0
        await self.examine(
            [self._limits, self._purges, self._reads, self._headers, self._batches, self._counters, self._transforms,
             self._names, self._update], 9
        )  # fmt: skip

    async def _stream(self, session: Session, **config: Any) -> tuple[str, str]:
        """A new one: its name and the first token of its subjects."""
        self.number += 1
        name = f"S{self.number}"
        size = self.rng.choice([1, 3])
        storage = self.rng.choice(["file", "file", "memory"])
        await self.create(
            session, name, **({"subjects": [f"{name}.>"], "num_replicas": size, "storage": storage} | config)
        )
        return name, name

    async def _put(self, session: Session, subject: str, text: str, **headers: str) -> int:
        """Its sequence, or the error's code, negative; -1 for a duplicate."""
        fields = {key.replace("_", "-"): value for key, value in headers.items()}
        try:
            ack = await session.js_publish(subject, text.encode(), fields or None)
        except ApiError as error:
            return -error.err_code
        return -1 if ack.get("duplicate") else int(ack["seq"])

    async def _state(self, session: Session, name: str, **body: Any) -> dict[str, Any]:
        info = await self.ask(session, f"STREAM.INFO.{name}", body)
        found: dict[str, Any] = info["state"]
        return found

    async def _is(self, session: Session, name: str, what: str, seqs: list[int]) -> None:
        """These messages, and no other, for whoever asks."""
        state = await self._state(session, name, deleted_details=True)
        found = await self.contents(session, name)
        self.equal(f"{what}: read", sorted(found), seqs)
        self.equal(f"{what}: counted", state["messages"], len(seqs))
        if seqs:
            gone = sorted(set(range(seqs[0], seqs[-1] + 1)) - set(seqs))
            self.equal(f"{what}: ends", (state["first_seq"], state["last_seq"] >= seqs[-1]), (seqs[0], True))
            deleted = [seq for seq in state.get("deleted") or [] if seq < seqs[-1]]
            self.equal(f"{what}: deleted", deleted, gone)

    async def _limits(self, session: Session) -> None:
        name, s = await self._stream(session, max_msgs=5)
        for number in range(7):
            await self._put(session, f"{s}.a", str(number))
        await self._is(session, name, "max_msgs", [3, 4, 5, 6, 7])
        name, s = await self._stream(session, max_msgs_per_subject=2)
        for number in range(9):
            await self._put(session, f"{s}.{number % 3}", str(number))
        await self._is(session, name, "max_msgs_per_subject", [4, 5, 6, 7, 8, 9])
        name, s = await self._stream(session, max_msgs_per_subject=1, discard="new", discard_new_per_subject=True)
        self.equal("a first one", await self._put(session, f"{s}.a", "1"), 1)
        self.require(await self._put(session, f"{s}.a", "2") < -1, "a second one of a full subject is stored")
        self.equal("another subject", await self._put(session, f"{s}.b", "2"), 2)
        name, s = await self._stream(session, max_msg_size=20)
        self.require(await self._put(session, f"{s}.a", "x" * 40) < -1, "a message above max_msg_size is stored")
        name, s = await self._stream(session, max_bytes=1200)
        for _ in range(9):
            await self._put(session, f"{s}.a", "x" * 200)
        state = await self._state(session, name)
        self.require(state["bytes"] <= 1200 and 3 <= state["messages"] <= 5, f"max_bytes leaves {state}")

    async def _purges(self, session: Session) -> None:
        name, s = await self._stream(session, allow_rollup_hdrs=True)
        for number in range(12):
            await self._put(session, f"{s}.{number % 3}", str(number))
        asked = await self.ask(session, f"STREAM.PURGE.{name}", {"filter": f"{s}.0", "keep": 1})
        self.equal("a purge that keeps one", asked["purged"], 3)
        left = [2, 3, 5, 6, 8, 9, 10, 11, 12]
        await self._is(session, name, "keep", left)
        await self.ask(session, f"STREAM.PURGE.{name}", {"filter": f"{s}.1", "seq": 8})
        left = [seq for seq in left if not (seq % 3 == 2 and seq < 8)]
        await self._is(session, name, "purged below", left)
        await self.ask(session, f"STREAM.MSG.DELETE.{name}", {"seq": 9})
        left.remove(9)
        await self._is(session, name, "deleted", left)
        self.equal("deleted again", await self.refused(session, f"STREAM.MSG.DELETE.{name}", {"seq": 9}), 10043)
        await self._put(session, f"{s}.2", "rolled up", Nats_Rollup="sub")
        left = [seq for seq in left if seq % 3] + [13]
        await self._is(session, name, "rolled up", left)
        asked = await self.ask(session, f"STREAM.PURGE.{name}")
        self.equal("all", asked["purged"], len(left))
        state = await self._state(session, name)
        found = (state["messages"], state["bytes"], state["first_seq"], state["last_seq"])
        self.equal("purged", found, (0, 0, 14, 13))
        self.equal("the next", await self._put(session, f"{s}.a", "next"), 14)
        for number in (15, 16, 17):
            await self._put(session, f"{s}.a", str(number))
        for body, left in (({"seq": 15}, [15, 16, 17]), ({"keep": 2}, [16, 17]), ({"filter": f"{s}.>"}, [])):
            asked = await self.ask(session, f"STREAM.PURGE.{name}", body)
            self.equal(f"purged by {body}", asked["purged"], {3: 1, 2: 1, 0: 2}[len(left)])
            await self._is(session, name, f"after {body}", left)

    async def _reads(self, session: Session) -> None:
        name, s = await self._stream(session)
        subjects = [f"{s}.{self.rng.choice('abc')}" for _ in range(10)]
        for at, subject in enumerate(subjects):
            await self._put(session, subject, f"text {at + 1}", Own=str(at + 1))
        last = {subject: at + 1 for at, subject in enumerate(subjects)}
        counts = (await self._state(session, name, subjects_filter=">"))["subjects"]
        self.equal("messages by subject", counts, {one: subjects.count(one) for one in set(subjects)})
        for subject, seq in last.items():
            message = (await self.ask(session, f"STREAM.MSG.GET.{name}", {"last_by_subj": subject}))["message"]
            self._same(message, seq, subject)
            start = self.rng.randint(1, seq)
            following = next(at for at in range(start, 11) if subjects[at - 1] == subject)
            body = {"seq": start, "next_by_subj": subject}
            self._same((await self.ask(session, f"STREAM.MSG.GET.{name}", body))["message"], following, subject)
            direct = await session.request(f"$JS.API.DIRECT.GET.{name}.{subject}")
            told = (direct.headers.get("Nats-Sequence"), direct.headers.get("Nats-Subject"), direct.payload.decode())
            self.equal("a Direct Get", told, (str(seq), subject, f"text {seq}"))
        found = await self.direct(session, name, {"multi_last": [f"{s}.>"]})
        seqs = sorted(int(msg.headers["Nats-Sequence"]) for msg in found)
        self.equal("the last of each", seqs, sorted(last.values()))
        found = await self.direct(session, name, {"seq": 4, "batch": 3, "next_by_subj": f"{s}.*"})
        self.equal("a batch", [int(msg.headers["Nats-Sequence"]) for msg in found], [4, 5, 6])
        self.equal("none there", await self.refused(session, f"STREAM.MSG.GET.{name}", {"seq": 11}), 10037)

    def _same(self, message: dict[str, Any], seq: int, subject: str) -> None:
        text = base64.b64decode(message["data"]).decode()
        headers = base64.b64decode(message.get("hdrs", "")).decode()
        self.equal("a message", (message["seq"], message["subject"], text), (seq, subject, f"text {seq}"))
        self.require(f"Own: {seq}\r\n" in headers, f"headers of {seq} are {headers!r}")

    async def _headers(self, session: Session) -> None:
        """Message ids and expectations."""
        _, s = await self._stream(session, duplicate_window=3 * SECOND)
        self.equal("a first id", await self._put(session, f"{s}.a", "1", Nats_Msg_Id="x"), 1)
        self.equal("the same id", await self._put(session, f"{s}.b", "2", Nats_Msg_Id="x"), -1)
        self.equal("another id", await self._put(session, f"{s}.b", "3", Nats_Msg_Id="y"), 2)
        put = self._put
        self.equal("the last id", await put(session, f"{s}.a", "4", Nats_Expected_Last_Msg_Id="y"), 3)
        self.require(await put(session, f"{s}.a", "5", Nats_Expected_Last_Msg_Id="x") < -1, "a wrong last id")
        self.require(await put(session, f"{s}.a", "5", Nats_Expected_Last_Sequence="2") < -1, "a wrong sequence")
        self.equal("the last sequence", await put(session, f"{s}.a", "5", Nats_Expected_Last_Sequence="3"), 4)
        expected = {"Nats_Expected_Last_Subject_Sequence": "1"}
        self.require(await put(session, f"{s}.b", "6", **expected) < -1, "a wrong sequence of the subject")
        expected = {"Nats_Expected_Last_Subject_Sequence": "2"}
        self.equal("the subject's sequence", await put(session, f"{s}.b", "6", **expected), 5)
        self.require(await put(session, f"{s}.b", "7", Nats_Expected_Stream="other") < -1, "another stream")
        await asyncio.sleep(5.0)  # less than twice the window, and more than it by what clocks may be apart
        self.equal("an id of long ago", await put(session, f"{s}.a", "8", Nats_Msg_Id="x"), 6)

    async def _batches(self, session: Session) -> None:
        name, s = await self._stream(session, allow_atomic=True)
        await self._put(session, f"{s}.a", "before")
        for batch, expected, stored in (("right", "1", 4), ("wrong", "7", 0)):
            headers = [{"Nats-Batch-Id": batch, "Nats-Batch-Sequence": str(at)} for at in (1, 2, 3)]
            headers[1 if batch == "wrong" else 0]["Nats-Expected-Last-Subject-Sequence"] = expected
            for at in (0, 1):
                subject = f"{s}.a" if at == (batch == "wrong") else f"{s}.b"
                session.publish(subject, f"{batch}{at}".encode(), headers=headers[at])
            try:
                ack = await session.js_publish(f"{s}.c", b"end", headers[2] | {"Nats-Batch-Commit": "1"})
                self.equal(f"a {batch} batch", (ack["seq"], ack["count"]), (stored, 3))
            except ApiError:
                self.equal(f"a {batch} batch is refused", stored, 0)
        await self._is(session, name, "after two batches", [1, 2, 3, 4])

    async def _counters(self, session: Session) -> None:
        """Increments that come together."""
        name, s = await self._stream(session, allow_msg_counter=True, storage="file")
        numbers = [self.rng.randint(-9, 99) for _ in range(8)]
        put = [session.js_publish(f"{s}.n", b"", {"Nats-Incr": f"{number:+d}"}) for number in numbers]
        acks = await asyncio.gather(*put)
        totals = [int(ack["val"]) for ack in sorted(acks, key=lambda one: int(one["seq"]))]
        self.equal("the last total", totals[-1], sum(numbers))
        self.require(len(set(totals)) > 1 or len(set(numbers)) < 2, f"totals {totals} of {numbers}")
        found = await self.contents(session, name)
        self.equal("the totals", [int(json.loads(found[seq].payload)["val"]) for seq in sorted(found)], totals)

    async def _transforms(self, session: Session) -> None:
        """Subjects change on their way in, and messages are sent on as they are stored."""
        own = f"S{self.number + 1}"
        name, s = await self._stream(
            session,
            subject_transform={"src": f"{own}.in.*", "dest": f"{own}.out.{{{{wildcard(1)}}}}"},
            republish={"src": ">", "dest": f"re{own[1:]}.>"},
        )
        got: asyncio.Queue[Any] = asyncio.Queue()
        sid = session.subscribe(f"re{name[1:]}.>", got.put_nowait)
        await session.flush()
        await asyncio.sleep(1.0)
        self.equal("transformed", await self._put(session, f"{s}.in.x", "1"), 1)
        self.equal("as it is", await self._put(session, f"{s}.other", "2"), 2)
        found = await self.contents(session, name)
        subjects = [found[seq].headers["Nats-Subject"] for seq in sorted(found)]
        self.equal("subjects", subjects, [f"{s}.out.x", f"{s}.other"])
        async with asyncio.timeout(5.0):
            told = [await got.get() for _ in range(2)]
        pairs = [(msg.subject, msg.headers.get("Nats-Sequence"), msg.payload) for msg in told]
        wanted = [(f"re{name[1:]}.{s}.out.x", "1", b"1"), (f"re{name[1:]}.{s}.other", "2", b"2")]
        self.equal("sent on", sorted(pairs), sorted(wanted))
        session.unsubscribe(sid)

    async def _names(self, session: Session) -> None:
        """Lists, and streams that are deleted and made again."""
        name, s = await self._stream(session)
        await self._put(session, f"{s}.a", "of a first life")
        found = await self.ask(session, "STREAM.NAMES", {"subject": f"{s}.a"})
        self.equal("streams of a subject", found["streams"], [name])
        config = {"name": "OVER", "subjects": [f"{s}.a"]}
        self.equal("subjects that overlap", await self.refused(session, "STREAM.CREATE.OVER", config), 10065)
        await self.ask(session, f"STREAM.DELETE.{name}")
        self.equal("a deleted stream", await self.refused(session, f"STREAM.INFO.{name}"), 10059)
        await self.create(session, name, subjects=[f"{s}.>"], num_replicas=self.rng.choice([1, 3]))
        self.equal("its second life", (await self._state(session, name))["messages"], 0)
        self.equal("its first message", await self._put(session, f"{s}.a", "of a second life"), 1)

    async def _update(self, session: Session) -> None:
        name, s = await self._stream(session, storage="file")
        for number in range(8):
            await self._put(session, f"{s}.a", str(number))
        config = (await self.ask(session, f"STREAM.INFO.{name}"))["config"]
        found = await self.ask(session, f"STREAM.UPDATE.{name}", config | {"max_msgs": 3, "description": "new"})
        self.equal("the answer", (found["config"]["max_msgs"], found["config"]["description"]), (3, "new"))

        async def is_cut() -> bool:  # in several pieces, where limits are small
            return int((await self._state(session, name))["messages"]) == 3

        await self.until("three messages are left", is_cut, 5.0)
        await self._is(session, name, "fewer messages", [6, 7, 8])
        sealed = config | {"max_msgs": 3, "sealed": True}
        await self.ask(session, f"STREAM.UPDATE.{name}", sealed)
        self.require(await self._put(session, f"{s}.a", "x") < -1, "a sealed stream takes messages")
