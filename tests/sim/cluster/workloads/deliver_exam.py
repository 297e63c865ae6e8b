"""Consumers of a stream that stands still: where they begin, what their filters match, what they count."""

from __future__ import annotations

from typing import Any

from testkit.sim.session import Msg, Session
from tests.sim.cluster.exam import Exam
from tests.sim.cluster.judges import Exact
from tests.sim.cluster.workload import Delivered

STREAM = "DELIVER"
SUBJECTS = ("d.a", "d.b", "d.a.x", "d.b.x", "d.c.x.y")
MESSAGES = 24
CONSUMERS = 4
FILTERS: tuple[tuple[str, ...], ...] = (
    (), (), ("d.a",), ("d.*",), ("d.*.x",), ("d.b.>",), ("d.a", "d.c.>"), ("d.a", "d.b", "d.*.x"), ("d.none",)
)  # fmt: skip
SECOND = 1_000_000_000


def matches(subject: str, pattern: str) -> bool:
    mine, its = subject.split("."), pattern.split(".")
    if its[-1] == ">":
        return len(mine) >= len(its) and all(one in ("*", other) for one, other in zip(its[:-1], mine, strict=False))
    return len(mine) == len(its) and all(one in ("*", other) for one, other in zip(its, mine, strict=True))


class DeliverExam(Exam):
    name = "exam-deliver"
    judges = (Exact,)
    promises = (
        "a consumer begins where its deliver policy says, delivers what its filters match, and counts it right",
        "an ordered list of what is pending, delivered and acknowledged is the same for consumer and stream",
    )

    async def check(self) -> None:
        session = await self.session("fill")
        subjects = [self.rng.choice(SUBJECTS) for _ in range(MESSAGES)]
        size = self.rng.choice([1, 3])
        stored = await self.fill(session, STREAM, subjects, subjects=["d.>"], num_replicas=size)
        times = {seq: str((await self._get(session, seq))["time"]) for seq, _ in stored}
        for seq, _ in self.rng.sample(stored, 3):
            await self.ask(session, f"STREAM.MSG.DELETE.{STREAM}", {"seq": seq})
            stored = [one for one in stored if one[0] != seq]
        self.stored, self.times = stored, times
        for number in range(CONSUMERS):
            self.consumer = f"c{number}"
            await self.examine([self._consumer])
        await self.examine([self._lists])
        await session.close()

    async def _get(self, session: Session, seq: int) -> dict[str, Any]:
        found: dict[str, Any] = (await self.ask(session, f"STREAM.MSG.GET.{STREAM}", {"seq": seq}))["message"]
        return found

    async def _lists(self, session: Session) -> None:
        names = [f"c{number}" for number in range(CONSUMERS)]
        found = await self.ask(session, f"CONSUMER.NAMES.{STREAM}")
        self.equal("names of consumers", sorted(found["consumers"]), names)
        listed = await self.ask(session, f"CONSUMER.LIST.{STREAM}")
        self.equal("listed consumers", sorted(one["name"] for one in listed["consumers"]), names)
        await self.ask(session, f"CONSUMER.DELETE.{STREAM}.c0")
        found = await self.ask(session, f"CONSUMER.NAMES.{STREAM}")
        self.equal("names after a deletion", sorted(found["consumers"]), names[1:])
        self.equal("a deleted consumer", await self.refused(session, f"CONSUMER.INFO.{STREAM}.c0"), 10014)

    def _expected(
        self, config: dict[str, Any], stored: list[tuple[int, str]], times: dict[int, str]
    ) -> list[tuple[int, str]]:
        filters = config.get("filter_subjects") or [">"]
        own = [one for one in stored if any(matches(one[1], pattern) for pattern in filters)]
        policy = config["deliver_policy"]
        if policy == "last":
            return own[-1:]
        if policy == "new":
            return []
        if policy == "last_per_subject":
            last = {subject: seq for seq, subject in own}
            return sorted((seq, subject) for subject, seq in last.items())
        if policy == "by_start_sequence":
            return [one for one in own if one[0] >= config["opt_start_seq"]]
        if policy == "by_start_time":
            return [one for one in own if times[one[0]] >= config["opt_start_time"]]
        return own

    def _config(self, stored: list[tuple[int, str]], times: dict[int, str]) -> dict[str, Any]:
        policy = self.rng.choice(
            ["all", "all", "last", "new", "last_per_subject", "by_start_sequence", "by_start_time"]
        )
        config: dict[str, Any] = {"deliver_policy": policy, "ack_wait": 30 * SECOND}
        if filters := self.rng.choice(FILTERS):
            config["filter_subjects"] = list(filters)
        elif policy == "last_per_subject":
            config["filter_subjects"] = ["d.>"]
        if policy == "by_start_sequence":
            config["opt_start_seq"] = self.rng.randint(1, MESSAGES)
        if policy == "by_start_time":
            config["opt_start_time"] = times[self.rng.choice(stored)[0]]
        if self.rng.random() < 0.3:
            config["headers_only"] = True
        return config

    async def _consumer(self, session: Session) -> None:
        name, stored, times = self.consumer, self.stored, self.times
        config = self._config(stored, times)
        wanted = self._expected(config, stored, times)
        what = f"{name} {config}"
        await self.create_consumer(session, STREAM, name, **config)
        info = await self.ask(session, f"CONSUMER.INFO.{STREAM}.{name}")
        self.equal(f"{what}, pending at its beginning", info["num_pending"], len(wanted))
        found: list[Msg] = []
        while len(found) < len(wanted):
            batch = self.rng.choice([1, 4, 50])
            some = await self.take(session, STREAM, name, {"batch": batch, "expires": 2 * SECOND})
            self.require(bool(some) and not some[0].status, f"{what}: ends after {len(found)} of {len(wanted)}")
            found += [msg for msg in some if not msg.status]
        self.equal(f"{what}, delivered", [(Delivered.of(msg).seq, msg.subject) for msg in found], wanted)
        self._look_at(what, found, headers_only=bool(config.get("headers_only")))
        rest = await self.take(session, STREAM, name, {"batch": 1, "no_wait": True})
        self.equal(f"{what}, at its end", [msg.status[:3] for msg in rest], ["404"])
        await self._acks(session, name, what, found)

    def _look_at(self, what: str, found: list[Msg], *, headers_only: bool) -> None:
        for at, msg in enumerate(found):
            told = Delivered.of(msg)
            self.equal(
                f"{what}, counts", (told.count, told.consumer_seq, told.pending), (1, at + 1, len(found) - at - 1)
            )
            text = msg.headers["Nats-Msg-Id"]
            if headers_only:
                self.equal(
                    f"{what}, headers only", (msg.payload, msg.headers.get("Nats-Msg-Size")), (b"", str(len(text)))
                )
            else:
                self.equal(f"{what}, payload", msg.payload.decode(), text)

    async def _acks(self, session: Session, name: str, what: str, found: list[Msg]) -> None:
        """Some are acknowledged."""
        done = [msg for msg in found if self.rng.random() < 0.6]
        for msg in done:
            await self.insist("an ack", lambda msg=msg: session.request(msg.reply, b"+ACK"), 20.0)  # type: ignore[misc]
        info = await self.ask(session, f"CONSUMER.INFO.{STREAM}.{name}")
        floor = 0
        acked = {Delivered.of(msg).consumer_seq for msg in done}
        while floor + 1 in acked:
            floor += 1
        above = Delivered.of(found[floor - 1]).seq if floor else 0
        self.equal(f"{what}, waiting for acks", info["num_ack_pending"], len(found) - len(done))
        self.equal(f"{what}, delivered so far", info["delivered"]["consumer_seq"], len(found))
        self.equal(f"{what}, ack floor", info["ack_floor"]["consumer_seq"], floor)
        if above:
            least = above
            self.require(
                info["ack_floor"]["stream_seq"] >= least, f"{what}: ack floor {info['ack_floor']}, not {least}"
            )
        self.equal(f"{what}, pending at its end", info["num_pending"], 0)
        self.equal(f"{what}, redelivered", info["num_redelivered"], 0)
