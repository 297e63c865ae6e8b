"""Exam of requests with one field that is wrong, extreme or of another type: each is answered at once, with a reason
where it is refused, and afterwards there is all that was there."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Final

from testkit.sim.deployment import Violation
from testkit.sim.session import Msg, Session
from tests.sim.cluster.exam import Exam
from tests.sim.cluster.judges import Exact

STREAM = "REFUSED"
OTHER = "REFUSEDB"
NEW = "REFUSEDC"
NO_LEADER = 10008
ATTEMPTS = 4
"""Times that a request may be told that nobody can answer now."""
PAUSE = 1.0
"""Seconds between two of them."""
MANY: Final = 14
"""Requests of a part of the exam."""
DEEP: Final[Any] = json.loads("[" * 60 + "]" * 60)
VALUES: Final[tuple[Any, ...]] = (
    None, "", "x",
    "a..b", "a b", ">", "*", "\u0000", "\ud800", "x" * 300, 0, -1, 1, 1 << 31, (1 << 63) - 1, 1 << 64, -(1 << 63),
    1.5, True, [], ["a", "a"], ["a", 7], [[]], {}, {"name": 7}, {"src": "a.*", "dest": "b"}, DEEP,
    "2026-01-01T00:00:00Z", "2026-13-01T00:00:00Z", "0001-01-01T00:00:00Z",
)  # fmt: skip
STREAM_WORDS: Final = """
name subjects retention max_consumers max_msgs max_bytes max_age max_msgs_per_subject max_msg_size discard
storage num_replicas duplicate_window placement mirror sources sealed deny_delete deny_purge allow_rollup_hdrs
allow_direct mirror_direct republish subject_transform compression first_seq consumer_limits metadata
allow_msg_ttl subject_delete_marker_ttl allow_msg_counter allow_atomic allow_batched allow_msg_schedules
discard_new_per_subject description template_owner no_ack persist_mode read_consistency
"""
CONSUMER_WORDS: Final = """
name durable_name description deliver_policy opt_start_seq opt_start_time ack_policy ack_wait max_deliver
backoff filter_subject filter_subjects replay_policy rate_limit_bps sample_freq max_waiting max_ack_pending
headers_only max_batch max_expires max_bytes inactive_threshold num_replicas mem_storage metadata pause_until
priority_groups priority_policy priority_timeout deliver_subject deliver_group flow_control idle_heartbeat
direct
"""
STREAM_FIELDS, CONSUMER_FIELDS = STREAM_WORDS.split(), CONSUMER_WORDS.split()
REQUESTS: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (
    (f"STREAM.INFO.{STREAM}", ("offset", "deleted_details", "subjects_filter")),
    ("STREAM.NAMES", ("offset", "subject", "limit")),
    ("STREAM.LIST", ("offset", "subject")),
    (f"STREAM.MSG.GET.{STREAM}", ("seq", "last_by_subj", "next_by_subj", "batch", "max_bytes", "start_time",
                                  "multi_last", "up_to_seq", "up_to_time", "no_hdr")),
    (f"DIRECT.GET.{STREAM}", ("seq", "last_by_subj", "next_by_subj", "batch", "max_bytes", "start_time", "multi_last",
                              "up_to_seq", "up_to_time", "min_last_seq")),
    (f"DIRECT.GET.{STREAM}.{STREAM}.1", ("seq", "no_hdr")),
    (f"CONSUMER.INFO.{STREAM}.one", ("x",)),
    (f"CONSUMER.NAMES.{STREAM}", ("offset", "subject")),
    (f"CONSUMER.LIST.{STREAM}", ("offset",)),
    (f"CONSUMER.PAUSE.{STREAM}.two", ("pause_until",)),
    (f"CONSUMER.UNPIN.{STREAM}.one", ("group",)),
    (f"CONSUMER.RESET.{STREAM}.two", ("seq",)),
    (f"CONSUMER.LEADER.STEPDOWN.{STREAM}.two", ("placement",)),
    (f"CONSUMER.MSG.NEXT.{STREAM}.two", ("batch", "expires", "no_wait", "max_bytes", "idle_heartbeat", "group",
                                         "min_pending", "min_ack_pending", "id", "priority")),
    (f"STREAM.PURGE.{OTHER}", ("filter", "seq", "keep")),
    (f"STREAM.MSG.DELETE.{OTHER}", ("seq", "no_erase")),
    (f"STREAM.PEER.REMOVE.{OTHER}", ("peer",)),
    (f"STREAM.PEER.EVACUATE.{OTHER}", ("peer",)),
    (f"CONSUMER.PEER.EVACUATE.{STREAM}.two", ("peer",)),
    (f"STREAM.LEADER.STEPDOWN.{OTHER}", ("placement",)),
    (f"STREAM.SNAPSHOT.{OTHER}", ("deliver_subject", "chunk_size", "window_size", "no_consumers", "jsck")),
    (f"STREAM.RESTORE.{NEW}", ("config", "state", "deliver_subject")),
    ("ACCOUNT.INFO", ("x",)),
    ("INFO", ("x",)),
)  # fmt: skip


class RefusalExam(Exam):
    name = "exam-refusals"
    judges = (Exact,)
    promises = (
        "a request with a field that is wrong, extreme or of another type is answered, with a reason if it is refused",
        "and what it is not about is there as before",
    )

    async def check(self) -> None:
        await self.examine([self._creations, self._updates, self._consumers, self._others], 3)

    async def _begin(self, session: Session) -> None:
        subjects = [f"{STREAM}.{at}" for at in range(4)]
        self.stored = await self.fill(session, STREAM, subjects, subjects=[f"{STREAM}.>"])
        await self.create(session, OTHER, subjects=[f"{OTHER}.>"], num_replicas=self.rng.choice([1, 3]))
        await self.create_consumer(session, STREAM, "one")
        await self.create_consumer(session, STREAM, "two")

    async def _end(self, session: Session) -> None:
        """All messages are there, and the consumer that nobody spoke of is as it was."""
        found = await self.insist("its messages", lambda: self.contents(session, STREAM))
        there = [(seq, found[seq].headers["Nats-Subject"]) for seq in sorted(found)]
        self.equal("its messages", there, self.stored)
        info = await self.ask(session, f"CONSUMER.INFO.{STREAM}.one")
        self.equal("its consumer waits for", info["num_pending"], len(self.stored))
        for name in (await self.ask(session, "STREAM.NAMES"))["streams"] or ():
            if name.startswith(STREAM):
                await self.ask(session, f"STREAM.DELETE.{name}")

    def _values(self) -> list[Any]:
        return self.rng.sample(VALUES, 2)

    async def _creations(self, session: Session) -> None:
        await self._begin(session)
        for field in self.rng.sample(STREAM_FIELDS, MANY):
            for value in self._values():
                body = {"name": NEW, "subjects": [f"{NEW}.>"], "num_replicas": 1} | {field: value}
                if await self.answered(session, f"STREAM.CREATE.{NEW}", body):
                    await self.answered(session, f"STREAM.DELETE.{NEW}", None)
        await self._end(session)

    async def _updates(self, session: Session) -> None:
        """A thing that was taken is taken back, where that is permitted."""
        await self._begin(session)
        before = (await self.ask(session, f"STREAM.INFO.{OTHER}"))["config"]
        for field in self.rng.sample(STREAM_FIELDS, MANY):
            for value in self._values():
                if await self.answered(session, f"STREAM.UPDATE.{OTHER}", before | {field: value}):
                    await self.answered(session, f"STREAM.UPDATE.{OTHER}", before)
        await self._end(session)

    async def _consumers(self, session: Session) -> None:
        await self._begin(session)
        for field in self.rng.sample(CONSUMER_FIELDS, MANY):
            for value in self._values():
                config = {"ack_policy": "explicit", self.rng.choice(["name", "durable_name"]): "three"} | {field: value}
                body: dict[str, Any] = {"stream_name": STREAM, "config": config}
                if self.rng.random() < 0.2:
                    body["action"] = self.rng.choice(["create", "update", "x", 7])
                if await self.answered(session, f"CONSUMER.CREATE.{STREAM}.three", body):
                    await self.answered(session, f"CONSUMER.DELETE.{STREAM}.three", None)
        await self._end(session)

    async def _others(self, session: Session) -> None:
        await self._begin(session)
        for subject, fields in self.rng.sample(REQUESTS, MANY):
            for field in self.rng.sample(fields, min(2, len(fields))):
                for value in self._values():
                    await self.answered(session, subject, {field: value})
        await self._end(session)

    async def answered(self, session: Session, subject: str, body: Any) -> bool:
        """True when it was done. Raises Violation where nothing comes, or no reason."""
        for _ in range(ATTEMPTS):
            found = await self._first(session, subject, body)
            error = self._error(subject, body, found)
            self.count("asked")
            if error is None:
                return True
            if error.get("err_code") != NO_LEADER:
                said = int(error.get("err_code", 0)), str(error.get("description", ""))
                if not all(said):
                    raise Violation(f"{self.name}: {subject} {body} is refused without a reason: {error}")
                return False
            await asyncio.sleep(PAUSE)
        raise Violation(f"{self.name}: {subject} {body} is answered by nobody")

    async def _first(self, session: Session, subject: str, body: Any) -> Msg | None:
        """The first answer. A pull waits for as long as it says, where nothing is wrong with it."""
        payload = b"" if body is None else json.dumps(body).encode()
        try:
            return await session.request(f"$JS.API.{subject}", payload, seconds=8.0)
        except TimeoutError:
            if ".MSG.NEXT." in subject:
                return None
            raise

    def _error(self, subject: str, body: Any, msg: Msg | None) -> dict[str, Any] | None:
        if msg is None or subject.startswith(("DIRECT.", "CONSUMER.MSG.NEXT.")):
            return None  # its answers are a message or a status
        answer = json.loads(msg.payload)
        error: dict[str, Any] | None = answer.get("error")
        return error
