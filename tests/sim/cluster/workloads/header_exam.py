"""Exam of headers, subjects and bodies that are wrong, extreme or for another kind of stream: each publish, read and
pull is answered at once, with a reason where it is refused, and streams have what was acknowledged, nothing else."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Final

from testkit.sim.deployment import Violation
from testkit.sim.session import Msg, NoResponders, Session
from tests.sim.cluster.exam import Exam
from tests.sim.cluster.judges import Exact

STREAM = "HEADED"
MANY: Final = 40
"""Requests of a part of the exam."""
ATTEMPTS, PAUSE = 4, 1.0
"""Times that a request may find nobody, and seconds between two of them."""
PATIENCE: Final = 4.0
"""Seconds for which a pull waits for its first answer."""
TOO_HIGH: Final = {"Nats-Required-Api-Level": "99"}
NUMBERS: Final = ("", "0", "1", "x", "-1", "1.5", "9" * 25)
STREAMS: Final[dict[str, dict[str, Any]]] = {
    "plain": {},
    "counted": {"allow_msg_counter": True},
    "timed": {"allow_msg_ttl": True, "allow_msg_schedules": True, "subject_delete_marker_ttl": 1_000_000_000},
    "batched": {"allow_atomic": True, "allow_batched": True},
    "full": {"max_msgs_per_subject": 1, "discard": "new", "discard_new_per_subject": True, "max_msg_size": 2_000},
    "rolled": {"allow_rollup_hdrs": True},
}
"""By name what a stream has besides subjects. What is in them in the end is known of the plain one only."""
HEADERS: Final[dict[str, tuple[str, ...]]] = {
    "Nats-Expected-Stream": ("", "OTHER", STREAM),
    "Nats-Expected-Last-Sequence": NUMBERS,
    "Nats-Expected-Last-Subject-Sequence": NUMBERS,
    "Nats-Expected-Last-Subject-Sequence-Subject": ("", "a b", "headed.*", "other.x", "a..b"),
    "Nats-Expected-Last-Msg-Id": ("", "nobody"),
    "Nats-Msg-Id": ("", "m" * 300),
    "Nats-Rollup": ("", "x", "sub", "all", "SUB"),
    "Nats-TTL": (*NUMBERS, "never", "NEVER", "1s", "1h", "500ms", "1x"),
    "Nats-Incr": (*NUMBERS, "+1", "-7", "1" * 90, "9" * 2_000),
    "Nats-Counter-Sources": ("", "{", "[]", '{"a": 1}', '{"a": {"b": "x"}}', '{"a": {"b": "7"}}', '{"a":' * 9, "[" * 9),
    "Nats-Schedule": ("", "x", "@every 1s", "@every x", "@every 1ms", "@at x", "@at 2099-01-01T00:00:00Z", "0 0 1 1 1",
                      "0 0 0 31 2 *", "* * * * * *", "@hourly", "@" + "y" * 700, "1-,2 * * * * *", "0 0 1 * * 9"),
    "Nats-Schedule-Target": ("", "a b", "headed.>", "other.x", "headed.timed.target", "x" * 600),
    "Nats-Schedule-Source": ("", "a b", "headed.timed.x", "headed.*"),
    "Nats-Schedule-TTL": (*NUMBERS, "1s", "never"),
    "Nats-Schedule-Rollup": ("", "x", "sub"),
    "Nats-Schedule-Time-Zone": ("", "x", "Europe/Berlin", "Europe/Nowhere", "Local"),
    "Nats-Schedule-Next": ("", "x", "purge"),
    "Nats-Scheduler": ("", "a b", "headed.timed.x"),
    "Nats-Batch-Id": ("", "b", "b" * 70),
    "Nats-Batch-Sequence": NUMBERS,
    "Nats-Batch-Commit": ("", "0", "1", "eob", "x"),
    "Nats-Required-Api-Level": ("", "0", "1", "99", "x", "9" * 25),
    "Nats-Request-Info": ("", "{}"),
    "KV-Operation": ("", "PURGE", "DEL", "x"),
}  # fmt: skip
SUBJECTS: Final = ("x", "y", "x.y", "t." * 70 + "t", "l" * 900, "*", ">", "a..b", "target")
WISHES: Final[dict[str, tuple[str, ...]]] = {
    "Nats-Read-Consistency": ("", "x", "eventual", "session", "linearizable"),
    "Nats-Min-Last-Sequence": NUMBERS,
    "Nats-Max-Staleness": ("", "x", "-1s", "0s", "1h", "5"),
    "Nats-Read-Info": ("", "x", "true", "false"),
    "Nats-Required-Api-Level": ("", "0", "99", "x"),
}
BODIES: Final[tuple[bytes, ...]] = (
    b"", b"null", b"[]", b"{", b"7", b"{}", b'{"seq": 1}', b'{"SEQ": 1, "no_hdr": true}', b'{"seq": 1, "foo": 1}',
    b'{"seq": "x"}', b'{"max_staleness": "x", "seq": 1}', b'{"min_last_seq": -1, "seq": 1}',
    b'{"read_info": 7, "seq": 1}', b'{"batch": 2, "seq": 0}',
    b'{"min_last_seq": null, "seq": 1}', b'{"consistency": "x", "seq": 1}', b'{"last_by_subj": ""}', b'{"seq": 99999}',
    b'{"last_by_subj": "headed.plain.x", "seq": 1}', b'{"multi_last": ["headed.>"], "batch": 5}',
    b'{"multi_last": []}', b'{"seq": 1, "batch": 5, "max_bytes": 1}', b'{"seq": 18446744073709551616}',
)  # fmt: skip
PULLS: Final[tuple[dict[str, Any], ...]] = (
    {}, {"batch": -1}, {"batch": 1, "no_wait": True}, {"batch": 1, "expires": -1}, {"batch": 1, "priority": 10},
    {"batch": 1, "group": "x"}, {"batch": 1, "min_pending": 1}, {"batch": 1, "min_ack_pending": 1},
    {"batch": 1, "id": "x"}, {"batch": 1, "max_bytes": 1, "no_wait": True},
    {"batch": 1, "expires": 1_000_000_000, "idle_heartbeat": 900_000_000},
    {"batch": 1 << 40, "no_wait": True}, {"batch": "x"}, {"batch": 1, "group": "", "no_wait": True},
    {"batch": 5, "max_bytes": 200, "no_wait": True}, {"batch": 1, "max_bytes": -1}, {"batch": 1, "idle_heartbeat": -1},
)  # fmt: skip
CONSUMERS: Final[dict[str, dict[str, Any]]] = {
    "plain": {},
    "over": {"priority_groups": ["a"], "priority_policy": "overflow"},
    "pinned": {"priority_groups": ["a"], "priority_policy": "pinned_client", "priority_timeout": 1_000_000_000},
    "first": {"priority_groups": ["a"], "priority_policy": "prioritized"},
    "narrow": {"max_waiting": 1, "max_batch": 2, "max_expires": 1_000_000_000, "max_bytes": 300},
}


class HeaderExam(Exam):
    name = "exam-headers"
    judges = (Exact,)
    promises = (
        "a publish, read or pull with a header or body that is wrong is answered, with a reason if it is refused",
        "and a stream has what was acknowledged, in that order, and nothing else",
        "whoever requires a higher level of the API than this version has is refused",
    )

    async def check(self) -> None:
        self.number = 0
        await self.examine([self._publishes, self._reads, self._pulls, self._levels], 3)

    def _of(self, kind: str) -> str:
        return f"{STREAM}{self.number}{kind.upper()}"

    async def _begin(self, session: Session) -> None:
        self.number += 1  # new names: what was told of a stream counts for the next one of its name, if clocks differ
        self.stored: list[tuple[int, bytes]] = []
        replicas = self.rng.choice([1, 3])
        for kind, config in STREAMS.items():
            name, subjects = self._of(kind), [f"headed.{kind}.>"]
            await self.create(session, name, subjects=subjects, num_replicas=replicas, **config)
        for kind, config in CONSUMERS.items():
            await self.create_consumer(session, self._of("plain"), kind, **config)

    async def _end(self, session: Session) -> None:
        found = await self.insist("its messages", lambda: self.contents(session, self._of("plain")))
        there = [(seq, found[seq].payload) for seq in sorted(found)]
        self.equal("messages of the plain stream", there, self.stored)
        for kind in STREAMS:
            name = self._of(kind)
            headers = {"Nats-Incr": "1"} if kind == "counted" else {}
            ack = await self.insist(
                f"{name} goes on",
                lambda kind=kind, headers=headers: session.js_publish(f"headed.{kind}.end", b"", headers),
            )
            self.equal("who has it", ack["stream"], name)
            await self.ask(session, f"STREAM.DELETE.{name}")

    async def _publishes(self, session: Session) -> None:
        await self._begin(session)
        for number in range(3 * MANY):
            kind = self.rng.choice(list(STREAMS))
            names = self.rng.sample(list(HEADERS), self.rng.choice([1, 1, 2, 3]))
            if self.rng.random() < 0.3:  # they go together
                beginning = self.rng.choice(
                    ["Nats-Schedule", "Nats-Batch", "Nats-Expected", "Nats-Incr", "Nats-Counter"]
                )
                names += [name for name in HEADERS if name.startswith(beginning) and self.rng.random() < 0.6]
            headers = {name: self.rng.choice(HEADERS[name]) for name in names}
            payload = self.rng.choice([b"%d" % number, b"", b"p" * 3_000, b'{"val": "7"}', b'{"val": [', b"[" * 90])
            await self._publish(session, kind, headers, payload)
        await self._end(session)

    async def _publish(self, session: Session, kind: str, headers: dict[str, str], payload: bytes) -> None:
        subject = f"headed.{kind}.{self.rng.choice(SUBJECTS if self.rng.random() < 0.3 else SUBJECTS[:2])}"
        try:
            msg = await session.request(subject, payload, 3.0, headers)
        except NoResponders:
            self.count("nobody")
            return
        except TimeoutError:  # a part of a batch that is not the last one has no answer, nor has what ends a connection
            self.require(any(name.startswith("Nats-Batch") for name in headers) or any(c in subject for c in "*>") or
                         ".." in subject, f"no answer to {subject} {headers} {payload[:20]!r}")  # fmt: skip
            return
        self.count("asked")
        if not msg.payload:
            self.require("Nats-Batch-Id" in headers, f"an empty answer to {subject} {headers}")
            return
        answer = json.loads(msg.payload)
        if error := answer.get("error"):
            self._reasoned(f"{subject} {headers}", error)
        elif kind == "plain" and not answer.get("duplicate"):
            self.stored.append((int(answer["seq"]), payload))

    def _reasoned(self, what: str, error: Any) -> None:
        said = int(error.get("code", 0)), int(error.get("err_code", 0)), str(error.get("description", ""))
        self.require(all(said), f"{what} is refused without a reason: {error}")
        self.count("refused")

    async def _reads(self, session: Session) -> None:
        await self._begin(session)
        name = self._of("plain")
        for number in range(3):
            await session.js_publish(f"headed.plain.{number}", b"%d" % number)
            self.stored.append((number + 1, b"%d" % number))
        direct = f"DIRECT.GET.{name}"
        others = (f"DIRECT_LEADER.GET.{name}", f"STREAM.MSG.GET.{name}")
        subjects = (direct, f"{direct}.headed.plain.1", f"{direct}.headed.*.1", *others)
        for _ in range(2 * MANY):
            names = self.rng.sample(list(WISHES), self.rng.choice([0, 1, 1, 2]))
            headers = {one: self.rng.choice(WISHES[one]) for one in names}
            subject, body = self.rng.choice(subjects), self.rng.choice(BODIES)
            msg = await self._answer(session, f"$JS.API.{subject}", body, headers)
            if ".MSG.GET." in subject:
                if error := json.loads(msg.payload).get("error"):
                    self._reasoned(f"{subject} {headers} {body!r}", error)
            else:
                known = msg.status[:3] in ("", "204", "400", "404", "408", "412", "413", "503")
                self.require(known, f"{subject} {headers} {body!r}: {msg.status}")
        await self._end(session)

    async def _pulls(self, session: Session) -> None:
        await self._begin(session)
        for number in range(3):
            await session.js_publish(f"headed.plain.{number}", b"%d" % number)
            self.stored.append((number + 1, b"%d" % number))
        for _ in range(MANY):
            consumer, request = self.rng.choice(list(CONSUMERS)), dict(self.rng.choice(PULLS))
            if self.rng.random() < 0.5:
                request["group"] = "a"
            headers = TOO_HIGH if self.rng.random() < 0.1 else {}
            request.setdefault("expires", 300_000_000)
            subject = f"$JS.API.CONSUMER.MSG.NEXT.{self._of('plain')}.{consumer}"
            msg = await self._pulled(session, subject, request, headers)
            self.count("asked")
            self.require(not headers or msg.status.startswith("412"), f"{subject} of a higher level: {msg.status}")
        await self._end(session)

    async def _pulled(self, session: Session, subject: str, request: Any, headers: dict[str, str]) -> Msg:
        """The first answer: messages keep their subject, so they come by an inbox of their own."""
        with session.inbox() as (inbox, got):
            session.publish(subject, json.dumps(request).encode(), inbox, headers)
            try:
                async with asyncio.timeout(PATIENCE):
                    return await got.get()
            except TimeoutError:
                raise Violation(f"{self.name}: no answer to {subject} {request}") from None

    async def _levels(self, session: Session) -> None:
        await self._begin(session)
        name = self._of("plain")
        for subject in (
            "INFO",
            f"STREAM.INFO.{name}",
            f"CONSUMER.INFO.{name}.plain",
            f"STREAM.PURGE.{name}",
            "STREAM.LIST",
        ):
            msg = await self._answer(session, f"$JS.API.{subject}", b"", TOO_HIGH)
            self.equal(f"{subject} of a higher level", json.loads(msg.payload)["error"]["err_code"], 10185)
        msg = await self._answer(session, f"$JS.API.DIRECT.GET.{name}", b'{"seq": 1}', TOO_HIGH)
        self.equal("a Direct Get of a higher level", msg.status[:3], "412")
        await self._end(session)

    async def _answer(self, session: Session, subject: str, body: bytes, headers: dict[str, str]) -> Msg:
        for _ in range(ATTEMPTS):
            try:
                msg = await session.request(subject, body, 8.0, headers)
            except NoResponders:
                await asyncio.sleep(PAUSE)
                continue
            self.count("asked")
            return msg
        raise Violation(f"{self.name}: {subject} {body!r} {headers} is answered by nobody")
