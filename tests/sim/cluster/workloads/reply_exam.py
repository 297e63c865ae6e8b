"""Exam of what JetStream answers: reads, lists, pull requests that get nothing, and acks of messages one after the
other. The cases are in `replies.toml`."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Final

from testkit.sim.session import Msg, Session
from tests.sim.cluster.exam import SPREAD, Exam
from tests.sim.cluster.judges import Exact
from tests.sim.cluster.replies import Dialogue, Read, Step, dialogues, line, reads
from tests.sim.cluster.workload import SECOND, Delivered

STREAM, TALK = "REPLIES", "TALK"
TALKS: Final = 9
"""Dialogues of one exam."""
AT_ONCE: Final = 3
"""Reads that are asked at a time."""
LOOK: Final = 0.01
LATE: Final = 8.0
"""Seconds after which an answer does not come any more, unless nobody leads."""
SILENCE: Final = 0.5
"""Seconds in which nothing more comes."""
PAGED: Final = 60
"""Subjects of a stream whose list comes in pages."""
WAITING, ROUNDS = 5, 8
"""Requests that wait at a time, and the messages that each asks for."""
UNANSWERED: Final = 0.4
"""Seconds after which a message that nobody answers was stored."""
SUBJECTS: Final = ("a", "b", "a", "c.x", "c.y", "b", "a", "c.x", "b", "a", "c.y", "b")
"""Last tokens of the stored messages, of which some are deleted."""
DELETED: Final = (1, 5, 12)
HEADERS: Final[dict[int, dict[str, str]]] = {
    2: {"One": "1"},
    3: {"One": "1\r\nOne: 2\r\nOne: 3\r\nTwo: x"},
    7: {"Nats-Sequence": "99", "Own": "\u00fc"},
}
"""Headers of some of them, by sequence."""
GROUP: Final[dict[str, Any]] = {"priority_groups": ["g"], "filter_subject": "replies.never"}
CONSUMERS: Final[dict[str, dict[str, Any]]] = {
    "idle": {"filter_subject": "replies.never"},
    "bounded": {"filter_subject": "replies.never", "max_batch": 3, "max_expires": SECOND, "max_bytes": 100},
    "over": {**GROUP, "priority_policy": "overflow"},
    "prio": {**GROUP, "priority_policy": "prioritized"},
    "pin": {**GROUP, "priority_policy": "pinned_client"},
    "newer": {"deliver_policy": "new"},
    "all": {"filter_subjects": ["replies.a", "replies.c.*"]},
    "push": {"deliver_subject": "told.replies"},
}


class ReplyExam(Exam):
    name = "exam-replies"
    newest = True
    weight = 0
    judges = (Exact,)
    promises = (
        "each read, list and pull request has the answers that it is to have, in order, and no more",
        "a list that is long comes in pages, with each subject once; a client gets what it asks for in order",
        "each message has the ack or the error that follows from those before it, and a stream has what was taken",
    )

    async def check(self) -> None:
        await self.examine([self._reads, self._dialogues, self._pages, self._inboxes], 3)

    # ---- what changes nothing

    def drawn(self) -> list[Read]:
        """All, in any order."""
        return self.rng.sample(reads(), len(reads()))

    async def _reads(self, session: Session) -> None:
        await self._filled(session)
        some = self.drawn()
        found = await self._answers(session, some)
        for read, said in zip(some, found, strict=True):
            self.judge(read, [line(msg) for msg in said])
        await self.ask(session, f"STREAM.DELETE.{STREAM}")

    def judge(self, read: Read, said: list[str]) -> None:
        """Holds the answers against what the table says."""
        self.equal(f"{read.subject} {read.body} {read.headers or ''}", said, list(read.says))

    async def _filled(self, session: Session) -> None:
        size = self.rng.choice([1, 3])
        await self.create(session, STREAM, subjects=["replies.>"], num_replicas=size)
        for number, token in enumerate(SUBJECTS, 1):
            await self.store(session, f"replies.{token}", f"reply {number}", HEADERS.get(number))
        for seq in DELETED:
            await self.ask(session, f"STREAM.MSG.DELETE.{STREAM}", {"seq": seq})
        for name, config in CONSUMERS.items():
            await self.create_consumer(session, STREAM, name, **config)
        await asyncio.sleep(SPREAD)

    async def _answers(self, session: Session, some: list[Read]) -> list[list[Msg]]:
        """All that each of them is answered with; a few are asked at a time, as a server has room for few that wait."""
        found: list[list[Msg]] = [[] for _ in some]
        inbox = session.new_inbox()

        def take(msg: Msg) -> None:
            if not msg.status.startswith("100"):  # a heartbeat
                found[int(msg.subject.rpartition(".")[2])].append(msg)

        sid = session.subscribe(f"{inbox}.*", take)
        for begin in range(0, len(some), AT_ONCE):
            asked = range(begin, min(begin + AT_ONCE, len(some)))
            for at in asked:
                session.publish(
                    f"$JS.API.{some[at].subject}", some[at].body.encode(), f"{inbox}.{at}", some[at].headers
                )
            end = self.now + LATE
            while self.now < end and any(len(found[at]) < len(some[at].says) for at in asked):
                await asyncio.sleep(LOOK)
        await asyncio.sleep(SILENCE)
        session.unsubscribe(sid)
        return found

    # ---- messages one after the other

    async def _dialogues(self, session: Session) -> None:
        for dialogue in self.rng.sample(dialogues(), min(TALKS, len(dialogues()))):
            size = self.rng.choice([1, 1, 3])
            await self.create(session, TALK, **{"subjects": ["talk.*"], "num_replicas": size, **dialogue.stream})
            for number, step in enumerate(dialogue.steps):
                self.said(dialogue, number, await self._said(session, step))
            await self._has(session, dialogue)
            await self.ask(session, f"STREAM.DELETE.{TALK}")

    async def _said(self, session: Session, step: Step) -> str:
        try:
            seconds = LATE if step.says else UNANSWERED
            msg = await session.request(f"talk.{step.token}", step.payload.encode(), seconds, step.headers)
        except TimeoutError:
            return ""
        return line(msg)

    def said(self, dialogue: Dialogue, number: int, answer: str) -> None:
        """Holds the answer to a step against what the table says."""
        step = dialogue.steps[number]
        what = f"{json.dumps(dialogue.stream)}, message {number + 1}, {step.token} {step.headers}"
        self.equal(what, answer, step.says)

    async def _has(self, session: Session, dialogue: Dialogue) -> None:
        state = (await self.ask(session, f"STREAM.INFO.{TALK}"))["state"]
        found = await self.insist("its messages", lambda: self.contents(session, TALK))
        has = [f"{seq} {msg.headers['Nats-Subject']} {len(msg.payload)}" for seq, msg in sorted(found.items())]
        self.held(dialogue, has, int(state["last_seq"]))

    def held(self, dialogue: Dialogue, has: list[str], last: int) -> None:
        """Holds what the stream has in the end against what the table says."""
        self.equal(f"{json.dumps(dialogue.stream)} has", has, list(dialogue.has))
        self.equal(f"the last sequence of {json.dumps(dialogue.stream)}", last, dialogue.last)

    # ---- what comes in more than one answer

    async def _pages(self, session: Session) -> None:
        """Subjects of a stream, page by page: each one once, with its count, however much room an answer has."""
        await self.create(session, TALK, subjects=["talk.>"], num_replicas=self.rng.choice([1, 3]))
        wanted = {f"talk.{number % 3}.{number:030}": 1 + number % 2 for number in range(PAGED)}
        for subject, count in wanted.items():
            session.publish(subject, b"x", times=count)
        total = sum(wanted.values())
        await self.until("all are stored", lambda: self._has_come(session, total))
        for subject_filter in (">", "talk.1.*", "talk.*.>"):
            of_it = {name: count for name, count in wanted.items() if subject_filter != "talk.1.*" or ".1." in name}
            found: dict[str, int] = {}
            while len(found) < len(of_it):
                body = {"subjects_filter": subject_filter, "offset": len(found)}
                info = await self.ask(session, f"STREAM.INFO.{TALK}", body)
                page = info["state"].get("subjects") or {}
                self.equal("subjects in all", info["total"], len(of_it))
                self.equal("a page of subjects", bool(page) and not page.keys() & found.keys(), True)
                self.equal("room of a page", len(page), min(info["limit"], len(of_it) - len(found)))
                found |= page
            self.equal(f"subjects of {subject_filter}", found, of_it)
        await self.ask(session, f"STREAM.DELETE.{TALK}")

    async def _has_come(self, session: Session, total: int) -> bool:
        return int((await session.api(f"STREAM.INFO.{TALK}"))["state"]["messages"]) == total

    async def _inboxes(self, session: Session) -> None:
        """Requests that wait side by side: a client gets all in order, behind one reply subject or one for each."""
        await self.create(session, TALK, subjects=["talk.*"], num_replicas=self.rng.choice([1, 3]))
        for way, alike in (("one", WAITING), ("each", 1), ("pairs", 2)):
            await self.create_consumer(session, TALK, way, max_ack_pending=-1, deliver_policy="new")
            got: list[Msg] = []
            inbox = session.new_inbox()
            sid = session.subscribe(f"{inbox}.*", got.append)
            body = json.dumps({"batch": ROUNDS, "expires": 20 * SECOND}).encode()
            for number in range(WAITING):
                reply = f"{inbox}.{number // alike}"
                session.publish(f"$JS.API.CONSUMER.MSG.NEXT.{TALK}.{way}", body, reply)
            await session.flush()
            await asyncio.sleep(SPREAD)
            count = WAITING * ROUNDS
            for number in range(count):
                session.publish("talk.a", f"{way} {number}".encode())
            end = self.now + LATE
            while self.now < end and len(got) < count:
                await asyncio.sleep(LOOK)
            texts = [msg.status or msg.payload.decode() for msg in got]
            self.equal(f"what comes by {way}", texts, [f"{way} {number}" for number in range(count)])
            self.equal("numbers", [Delivered.of(msg).consumer_seq for msg in got], list(range(1, count + 1)))
            session.unsubscribe(sid)
        await self.ask(session, f"STREAM.DELETE.{TALK}")
