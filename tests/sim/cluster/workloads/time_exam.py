"""The exam of time: max_age, Nats-TTL with its markers, schedules that fire once and repeatedly."""

from __future__ import annotations

import asyncio
import itertools
from datetime import datetime, timedelta

from testkit.sim.session import ApiError, Session
from tests.sim.cluster.exam import Exam
from tests.sim.cluster.judges import Exact
from tests.sim.cluster.workload import SECOND

SLACK = 1.0
"""Seconds by which something may come late."""

LEFT_OUT = "left out"
PATTERNS = (
    ("@hourly", ""), ("@daily", ""), ("@weekly", ""), ("@monthly", ""), ("@yearly", ""),
    ("0 30 2 10 3 *", "America/New_York"), ("0 30 2 31 3 *", "Europe/Berlin"),
    ("0 */20 1-3 * * *", "Australia/Lord_Howe"),
    ("0 0 0 29 2 *", ""), ("0 0 12 * JAN-MAR MON-FRI", ""), ("59 59 23 31 12 0", ""), ("0 0 12 1,15 * 1", ""),
)  # fmt: skip
"""Patterns and time zones: also of nights with an hour that is not there, or is there twice."""
WRONG: tuple[tuple[dict[str, str], int], ...] = (
    ({"Nats-Schedule": "* * * *"}, 10189),
    ({"Nats-Schedule": "61 * * * * *"}, 10189),
    ({"Nats-Schedule": "x * * * * *"}, 10189),
    ({"Nats-Schedule": "1-2-3 * * * * *"}, 10189),
    ({"Nats-Schedule": "*/0 * * * * *"}, 10189),
    ({"Nats-Schedule": "@every now"}, 10189),
    ({"Nats-Schedule": "@at noon"}, 10189),
    ({"Nats-Schedule": "0 0 * * * *", "Nats-Schedule-Time-Zone": "Moon/Base"}, 10223),
    ({"Nats-Schedule-Target": LEFT_OUT}, 10190),
    ({"Nats-Schedule-Target": "plan.wrong"}, 10190),
    ({"Nats-Schedule-Target": "elsewhere"}, 10190),
    ({"Nats-Schedule-Source": "plan.to.wrong"}, 10203),
    ({"Nats-Schedule-TTL": "soon"}, 10191),
    ({"Nats-Schedule-Rollup": "all"}, 10192),
    ({"Nats-Schedule": LEFT_OUT, "Nats-Scheduler": "plan.other"}, 10212),
    ({"Nats-Schedule": LEFT_OUT, "Nats-Schedule-Next": "purge"}, 10212),
    ({"Nats-Schedule": LEFT_OUT, "Nats-Schedule-Next": "purge", "Nats-Scheduler": "plan.wrong"}, 10212),
)


class TimeExam(Exam):
    name = "exam-times"
    judges = (Exact,)
    promises = (
        "a message goes within a second after max_age or its Nats-TTL and not before, and leaves the marker that is "
        "configured",
        "a schedule that repeats fires at its interval, one at a time fires once within a second, and a deleted one "
        "never",
        "a schedule with a cron pattern fires at the seconds that the pattern names",
        "a schedule sends the newest message of its source; one that is wrong is refused with its code",
    )

    async def check(self) -> None:
        self.planned = False
        await self.examine(
            [
                self._age,
                self._ttl,
                self._marked,
                self._repeating,
                self._cron,
                self._at,
                self._cancelled,
                self._sourced,
                self._patterns,
                self._wrong,
            ],
            4,
        )

    async def _left(self, session: Session, name: str, began: float, wanted: set[int]) -> float:
        """Seconds since `began` when the stream has these messages left."""

        async def is_so() -> bool:
            return set(await self.contents(session, name)) == wanted

        await self.until(f"{name} has {sorted(wanted)} left", is_so, 20.0)
        return self.now - began

    async def _age(self, session: Session) -> None:
        size = self.rng.choice([1, 3])
        await self.create(session, "AGE", subjects=["age"], max_age=4 * SECOND, num_replicas=size)
        began = self.now
        await self.store(session, "age", "first")
        await asyncio.sleep(2.0)
        await self.store(session, "age", "second")
        Exact.between("the first goes after", await self._left(session, "AGE", began, {2}), 3.9, 4.0 + SLACK)
        Exact.between("the second goes after", await self._left(session, "AGE", began, set()), 5.9, 6.2 + SLACK)

    async def _ttl(self, session: Session) -> None:
        size = self.rng.choice([1, 3])
        await self.create(
            session, "TTL", subjects=["ttl.*"], allow_msg_ttl=True, subject_delete_marker_ttl=2 * SECOND,
            num_replicas=size,
        )  # fmt: skip
        began = self.now
        await self.store(session, "ttl.a", "stays")
        await self.store(session, "ttl.b", "goes", {"Nats-TTL": "3s"})
        await self.store(session, "ttl.c", "goes later", {"Nats-TTL": "6s"})
        Exact.between("3 s are over after", await self._left(session, "TTL", began, {1, 3, 4}), 2.9, 3.2 + SLACK)
        marker = (await self.contents(session, "TTL"))[4]
        told = (marker.headers.get("Nats-Subject"), marker.headers.get("Nats-Marker-Reason"))
        self.equal("the marker", told, ("ttl.b", "MaxAge"))
        Exact.between("6 s are over after", await self._left(session, "TTL", began, {1, 5}), 5.9, 6.4 + SLACK)

    async def _marked(self, session: Session) -> None:
        """All of a subject that goes at once leaves one marker."""
        size = self.rng.choice([1, 3])
        await self.create(
            session, "MARKED", subjects=["marked"], max_age=3 * SECOND, allow_msg_ttl=True,
            subject_delete_marker_ttl=2 * SECOND, num_replicas=size,
        )  # fmt: skip
        began = self.now
        await asyncio.gather(*(self.store(session, "marked", text) for text in ("one", "two")))
        Exact.between("the marker comes after", await self._left(session, "MARKED", began, {3}), 2.9, 3.2 + SLACK)
        Exact.between("it goes after", await self._left(session, "MARKED", began, set()), 4.9, 5.4 + 2 * SLACK)

    async def _schedules(self, session: Session) -> None:
        if not self.planned:
            self.planned = True
            size = self.rng.choice([1, 3])
            await self.create(
                session, "PLAN", subjects=["plan.>"], allow_msg_schedules=True, allow_msg_ttl=True, num_replicas=size
            )

    async def _fired(self, session: Session, target: str) -> list[float]:
        """The times at which a schedule fired, in seconds of the stream's own time."""
        found = await self.contents(session, "PLAN", f"plan.to.{target}")
        return [_seconds(found[seq].headers["Nats-Time-Stamp"]) for seq in sorted(found)]

    async def _repeating(self, session: Session) -> None:
        await self._schedules(session)
        headers = {"Nats-Schedule": "@every 2s", "Nats-Schedule-Target": "plan.to.every"}
        await self.store(session, "plan.every", "every", headers)
        await asyncio.sleep(9.0)
        times = await self._fired(session, "every")
        Exact.between("within 9 s it fires", len(times), 3, 5)
        for before, after in itertools.pairwise(times):
            Exact.between("between two", (after - before) % 60, 1.5, 2.5)

    async def _cron(self, session: Session) -> None:
        """Every third second; the times are those of the stream's leader."""
        await self._schedules(session)
        headers = {"Nats-Schedule": "*/3 * * * * *", "Nats-Schedule-Target": "plan.to.cron"}
        await self.store(session, "plan.cron", "cron", headers)
        await asyncio.sleep(10.0)
        times = await self._fired(session, "cron")
        Exact.between("within 10 s it fires", len(times), 3, 4)
        for at in times:
            Exact.between("seconds behind a third one", at % 3, 0.0, 1.0)
        never = {"Nats-Schedule": "0 0 0 30 2 *", "Nats-Schedule-Target": "plan.to.never"}
        self.equal("a pattern that never fires", await self._refused_message(session, "plan.never", never), 10189)

    async def _sourced(self, session: Session) -> None:
        """The schedule sends the newest message of another subject; a rollup leaves only the newest one of them."""
        await self.create(
            session, "SOURCED", subjects=["sourced.>"], allow_msg_schedules=True, allow_msg_ttl=True,
            allow_rollup_hdrs=True, num_replicas=self.rng.choice([1, 3]),
        )  # fmt: skip
        headers = {
            "Nats-Schedule": "@every 2s", "Nats-Schedule-Target": "sourced.to", "Nats-Schedule-Source": "sourced.from",
            "Nats-Schedule-TTL": "60s", "Nats-Schedule-Rollup": "sub",
        }  # fmt: skip
        await self.store(session, "sourced.from", "content", {"Own": "value"})
        await self.store(session, "sourced.plan", "plan", headers)
        await asyncio.sleep(7.0)
        found = list((await self.contents(session, "SOURCED", "sourced.to")).values())
        told = [
            (msg.payload, *(msg.headers.get(key) for key in ("Own", "Nats-Scheduler", "Nats-TTL", "Nats-Rollup")))
            for msg in found
        ]
        self.equal("the newest firing", told, [(b"content", "value", "sourced.plan", "60s", "sub")])

    async def _patterns(self, session: Session) -> None:
        """All that is a pattern is taken, and waits."""
        await self._schedules(session)
        for at, (pattern, zone) in enumerate(PATTERNS):
            headers = {"Nats-Schedule": pattern, "Nats-Schedule-Target": "plan.to.far"}
            await self.store(
                session, f"plan.far.{at}", f"far {at}", headers | ({"Nats-Schedule-Time-Zone": zone} if zone else {})
            )
        found = await self.contents(session, "PLAN", "plan.far.*")
        self.equal("patterns that wait", len(found), len(PATTERNS))
        await self.ask(session, "STREAM.PURGE.PLAN", {"filter": "plan.far.*"})  # some fire once in an hour

    async def _wrong(self, session: Session) -> None:
        await self._schedules(session)
        for headers, code in WRONG:
            whole = {"Nats-Schedule": "@every 2s", "Nats-Schedule-Target": "plan.to.wrong"} | headers
            told = await self._refused_message(
                session, "plan.wrong", {key: value for key, value in whole.items() if value != LEFT_OUT}
            )
            self.equal(f"a schedule with {headers}", told, code)
        self.equal("what is stored of them", len(await self.contents(session, "PLAN", "plan.wrong")), 0)

    async def _refused_message(self, session: Session, subject: str, headers: dict[str, str]) -> int:
        """The code of the error that is to come."""
        try:
            await session.js_publish(subject, b"", headers)
        except ApiError as error:
            return error.err_code
        return 0

    async def _at(self, session: Session) -> None:
        await self._schedules(session)
        await self.store(session, "plan.now", "now")
        now = (await self.ask(session, "STREAM.MSG.GET.PLAN", {"last_by_subj": "plan.now"}))["message"]["time"]
        due = datetime.fromisoformat(now[:19] + "+00:00") + timedelta(seconds=8.0)  # clocks may have been set before
        headers = {"Nats-Schedule": f"@at {due:%Y-%m-%dT%H:%M:%SZ}", "Nats-Schedule-Target": "plan.to.at"}
        await self.store(session, "plan.at", "at", headers)
        await asyncio.sleep(1.5)
        self.equal("before its time", await self._fired(session, "at"), [])

        async def fired() -> bool:
            return len(await self._fired(session, "at")) > 0

        await self.until("it fires", fired, 20.0)
        await asyncio.sleep(3.0)
        times = await self._fired(session, "at")
        self.equal("fired", len(times), 1)
        Exact.between("it is late by", (times[0] - due.second) % 60, 0.0, SLACK)

    async def _cancelled(self, session: Session) -> None:
        """A schedule is a message; who deletes it cancels it, and a newer one of its subject takes its place."""
        await self._schedules(session)
        for target in ("no", "yes"):
            headers = {"Nats-Schedule": "@every 2s", "Nats-Schedule-Target": f"plan.to.{target}"}
            await self.store(session, "plan.replaced", f"to {target}", headers)
        headers = {"Nats-Schedule": "@every 2s", "Nats-Schedule-Target": "plan.to.deleted"}
        seq = int((await self.store(session, "plan.deleted", "deleted", headers))["seq"])
        await self.ask(session, "STREAM.MSG.DELETE.PLAN", {"seq": seq})
        await asyncio.sleep(7.0)
        fired = {target: len(await self._fired(session, target)) for target in ("no", "yes", "deleted")}
        self.require(fired["yes"] >= 2, f"fired: {fired}")
        self.equal("replaced and deleted", (fired["no"], fired["deleted"]), (0, 0))


def _seconds(time: str) -> float:
    """Within its minute."""
    return float(time.removesuffix("Z").rpartition(":")[2])
