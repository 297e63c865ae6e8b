"""Exam of the headers of messages that servers make of others: copies in mirrors and through sources, republished
messages, and those that a schedule produces. Each has its own fields and those of its origin, and none that were
meant for the origin alone."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from testkit.sim.session import Msg, Session
from tests.sim.cluster.judges import Exact
from tests.sim.cluster.workloads.batch_exam import BatchExam, Part

OF_READS: Final = frozenset(
    ("Nats-Stream", "Nats-Subject", "Nats-Sequence", "Nats-Time-Stamp", "Nats-Num-Pending", "Nats-Last-Sequence")
)
"""Fields that a Direct Get adds."""
FOR_THE_ORIGIN: Final = ("Nats-Expected-", "Nats-Batch-")
"""Beginnings of fields that are an instruction to the stream of which a copy is made."""
COMES: Final = 30.0
"""Seconds within which a copy is complete."""
KEYS: Final = ("a", "b")


class CarriedExam(BatchExam):
    name = "exam-carried"
    stream = "CARRIED"
    weight = 0
    judges = (Exact,)
    promises = (
        "a copy has the headers of its upstream's message without instructions to that, and a source's says whence",
        "a republished message names its stream, subject, sequence, time and the one before it on its subject",
        "what a schedule produces has its fields and those that are for it, and none that are for the schedule itself",
    )

    number = 0

    async def check(self) -> None:
        await self.examine([self._copies, self._republished, self._headers_only, self._scheduled], 3)

    # ---- copies

    async def _copies(self, session: Session) -> None:
        name, s = await self._stream(session, allow_msg_ttl=True, allow_rollup_hdrs=True)
        parts: list[Part] = [(f"{s}.{key}", f"batch {key}", {"Own": key, "Nats-Expected-Stream": name}) for key in KEYS]
        await self._batch(session, parts)
        rows: list[dict[str, str]] = [
            {}, {"Own": "1"}, {"Nats-Msg-Id": "id", "Own": "2"}, {"Nats-TTL": "1h"},
            {"Nats-Expected-Last-Sequence": "6"}, {"Nats-Expected-Last-Subject-Sequence": "0", "Other": "x"},
            {"Nats-Rollup": "sub", "Own": "3"},
        ]  # fmt: skip
        for at, headers in enumerate(rows):
            await session.js_publish(f"{s}.row.{at}", b"row %d" % at, headers or None)
        wanted = [msg for _, msg in sorted((await self.contents(session, name)).items())]
        source = {"name": name, "subject_transforms": [{"src": f"{s}.>", "dest": f"to.{s}.>"}]}
        size = self.rng.choice([1, 3])
        await self.create(session, f"{name}M", mirror={"name": name}, num_replicas=size, allow_msg_ttl=True)
        await self.create(session, f"{name}S", sources=[source], num_replicas=size, allow_msg_ttl=True,
                          allow_rollup_hdrs=True)  # fmt: skip
        for copy in (f"{name}M", f"{name}S"):
            found = await self._copied(session, copy, len(wanted))
            self.equal(f"payloads of {copy}", [msg.payload for msg in found], [msg.payload for msg in wanted])
            for msg, origin in zip(found, wanted, strict=True):
                own = _own(msg)
                came = own.pop("Nats-Stream-Source", "").split(" ")
                kept = {key: value for key, value in _own(origin).items() if not key.startswith(FOR_THE_ORIGIN)}
                self.equal(f"headers of a message of {copy}", own, kept)
                if copy.endswith("S"):
                    told = came[0], came[1], came[4]
                    subject, seq = origin.headers["Nats-Subject"], origin.headers["Nats-Sequence"]
                    self.equal("whence it came", told, (name, seq, subject))
        for one in (f"{name}M", f"{name}S", name):
            await self.ask(session, f"STREAM.DELETE.{one}")

    async def _copied(self, session: Session, copy: str, count: int) -> list[Msg]:
        async def is_so() -> bool:
            return len(await self.contents(session, copy)) >= count

        await self.until(f"{copy} has {count} messages", is_so, COMES)
        found = await self.insist("the copies", lambda: self.contents(session, copy))
        return [msg for _, msg in sorted(found.items())]

    # ---- republished messages

    async def _republished(self, session: Session) -> None:
        await self._republishes(session, headers_only=False)

    async def _headers_only(self, session: Session) -> None:
        await self._republishes(session, headers_only=True)

    async def _republishes(self, session: Session, *, headers_only: bool) -> None:
        """Several at once, so that one command has more than one of a subject."""
        out = f"out{self.number}"
        got: list[Msg] = []
        sid = session.subscribe(f"{out}.>", got.append)
        await session.flush()
        await asyncio.sleep(1.0)
        rule: dict[str, Any] = {"src": "R.>", "dest": f"{out}.>", "headers_only": headers_only}
        name, s = await self._stream(session, subjects=[f"R.{out}.>"], republish=rule)
        s = f"R.{out}"
        texts = [(self.rng.choice(KEYS), f"text {at}", {"Own": str(at)} if at % 2 else None) for at in range(12)]
        for key, text, headers in texts:
            session.publish(f"{s}.{key}", text.encode(), headers=headers)
        await self._batch(session, [(f"{s}.{key}", "in a batch", {}) for key in (*KEYS, *KEYS)])
        await self._stored(session, name, len(texts) + 2 * len(KEYS))
        await asyncio.sleep(1.0)
        stored = sorted((await self.insist("what is stored", lambda: self.contents(session, name))).items())
        self.equal("republished", len(got), len(stored))
        before: dict[str, int] = {}
        for copy, (seq, msg) in zip(sorted(got, key=_seq), stored, strict=True):
            subject = msg.headers["Nats-Subject"]
            wanted = _own(msg) | {
                "Nats-Stream": name,
                "Nats-Subject": subject,
                "Nats-Sequence": str(seq),
                "Nats-Time-Stamp": msg.headers["Nats-Time-Stamp"],
                "Nats-Last-Sequence": str(before.get(subject, 0)),
            }
            wanted |= {"Nats-Msg-Size": str(len(msg.payload))} if headers_only else {}
            before[subject] = seq
            told = copy.subject, copy.headers, copy.payload
            place = f"{out}.{subject.partition('.')[2]}"
            self.equal("a republished message", told, (place, wanted, b"" if headers_only else msg.payload))
        session.unsubscribe(sid)
        await self.ask(session, f"STREAM.DELETE.{name}")

    async def _stored(self, session: Session, stream: str, count: int) -> None:
        async def is_so() -> bool:
            return bool((await session.api(f"STREAM.INFO.{stream}"))["state"]["last_seq"] == count)

        await self.until(f"{stream} has {count} messages", is_so, 10.0)

    # ---- schedules

    async def _scheduled(self, session: Session) -> None:
        ttl = self.rng.choice(["", "90s"])
        rollup = self.rng.choice(["", "sub"])
        name, s = await self._stream(session, allow_msg_schedules=True, allow_msg_ttl=True, allow_rollup_hdrs=True)
        own = {"Own": "1", "Nats-Msg-Id": f"plan of {name}", "Nats-TTL": "1h"}
        rule = {"Nats-Schedule": "@every 2s", "Nats-Schedule-Target": f"{s}.made"}
        rule |= {"Nats-Schedule-TTL": ttl} if ttl else {}
        rule |= {"Nats-Schedule-Rollup": rollup} if rollup else {}
        await session.js_publish(f"{s}.plan", b"planned", own | rule)
        made: list[Msg] = []

        async def fired() -> bool:
            made[:] = (await self.contents(session, name, f"{s}.made")).values()
            return len(made) >= (1 if rollup else 2)

        await self.until("it has fired", fired, 12.0)
        wanted: dict[str, str | None] = {"Own": "1", "Nats-Scheduler": f"{s}.plan"}
        wanted |= {"Nats-TTL": ttl} if ttl else {}
        wanted |= {"Nats-Rollup": rollup} if rollup else {}
        for msg in made:
            found = dict(_own(msg))
            self.require(bool(found.pop("Nats-Schedule-Next", "")), "it does not say when the next one comes")
            self.equal("a produced message", (found, msg.payload), (wanted, b"planned"))
        await self.ask(session, f"STREAM.DELETE.{name}")


def _own(msg: Msg) -> dict[str, str]:
    return {key: value for key, value in msg.headers.items() if key not in OF_READS}


def _seq(msg: Msg) -> int:
    return int(msg.headers["Nats-Sequence"])
