"""Messages that live for a while (Nats-TTL), and such that are sent at a time (Nats-Schedule)."""

from __future__ import annotations

import math

from testkit.sim.session import ApiError, Msg
from tests.sim.cluster.punctuality import Punctuality
from tests.sim.cluster.time_judges import Firings, Lifetimes
from tests.sim.cluster.workload import NOT_FOUND, PASSING, SETTLE, Workload, together

STREAM = "TIMES"
LATEST = 12.0
"""Seconds by which anything may come late, with clocks that are as far apart as they may be."""


class Times(Workload):
    name = "times"
    judges = (Lifetimes, Firings)
    promises = (
        "a message with Nats-TTL goes within a second after its time and not before, whatever the clocks of a minority "
        "say, unless nobody could lead then",
        "a scheduled message is stored once, not before its time, and within a second after it under the same terms",
    )

    async def prepare(self) -> None:
        self.lifetimes = Lifetimes()
        self.punctuality = Punctuality(self.deployment, self.deployment.servers[self.members[0]].cluster, STREAM)
        self.fires: dict[str, float] = {}
        """When a schedule that was acknowledged is to fire, in true seconds."""
        self.mortal: set[int] = set()
        self.firings = Firings()
        self.clocks = {name: self.deployment.machines[name].clock.wall_ahead for name in self.members}
        self.trusted = True
        admin = await self.session("admin")
        await self.create(
            admin, STREAM, subjects=["times.>"], allow_msg_ttl=True, allow_msg_schedules=True, num_replicas=3
        )
        self.punctuality.begin()

    def _told_right(self) -> bool:
        """A majority's clocks were never set."""
        moved = [
            name for name, ahead in self.clocks.items() if self.deployment.machines[name].clock.wall_ahead != ahead
        ]
        self.trusted = self.trusted and 2 * len(moved) < len(self.clocks)
        return self.trusted

    async def work(self) -> None:
        await together(self._write(), self._schedule(), self._look())

    async def _write(self) -> None:
        session = await self.session("write")
        async for count in self.turns(5.0):
            seconds = self.rng.choice([2, 16, 20, 30, 0])
            sent = self.now
            headers = {"Nats-TTL": f"{seconds}s"} if seconds else None
            ack = await self.store(session, "times.ttl", f"ttl-{count}", headers)
            seq = int(ack["seq"])
            self.lifetimes.ack(seq, sent, self.now, seconds or math.inf)
            if seconds:
                self.mortal.add(seq)

    async def _schedule(self) -> None:
        session = await self.session("schedule")
        async for count in self.turns(2.0):
            ahead = self.rng.uniform(0.5, 15.0)
            at, due = self.wall(ahead), self.now + ahead
            self.firings.put(str(count), at)
            headers = {"Nats-Schedule": f"@at {at}", "Nats-Schedule-Target": f"times.fired.{count}"}
            await self.store(session, f"times.schedule.{count}", f"schedule-{count}", headers)
            self.fires[str(count)] = max(due, self.now)

    async def _look(self) -> None:
        session = await self.session("look")
        async for _ in self.turns(5.0):
            seqs = list(self.lifetimes.seqs)
            if not seqs:
                continue
            seq, began, there = self.rng.choice(seqs[-100:]), self.now, True
            try:
                await session.api(f"STREAM.MSG.GET.{STREAM}", {"seq": seq}, seconds=2.0)
            except ApiError as error:
                if error.err_code != NOT_FOUND:
                    continue
                there = False
            except PASSING:
                continue
            if self._told_right() and not (there and seq in self.mortal):  # nobody removes it while nobody leads
                self.count("looked")
                punctuality = self.punctuality
                self.lifetimes.look(seq, began, self.now, there, punctuality.early, punctuality.latest)

    async def check(self) -> None:
        if not self._told_right():
            self.count("clocks were set")
            return
        session = await self.session("check")

        async def all_done() -> bool:
            found = await self.contents(session, STREAM)
            fired = self._fired("the cluster", found)
            return not self.mortal & found.keys() and fired == self.firings.due.keys()

        await self.until("everything has expired and fired", all_done, SETTLE + LATEST + 30.0)
        await self.everywhere(STREAM, 0, self._look_at)

    def _fired(self, where: str, contents: dict[int, Msg]) -> set[str]:
        messages = []
        for msg in contents.values():
            subject = msg.headers["Nats-Subject"]
            if subject.startswith("times.fired."):
                messages.append((subject.rpartition(".")[2], _micros(msg.headers["Nats-Time-Stamp"])))
        latest = {name: self.wall(self.punctuality.latest(due) - self.now) for name, due in self.fires.items()}
        return self.firings.fired(where, messages, latest)

    def _look_at(self, where: str, contents: dict[int, Msg]) -> None:
        self._fired(where, contents)
        staying = set(self.lifetimes.seqs) - self.mortal
        self.require(staying <= contents.keys(), f"{where}: {sorted(staying - contents.keys())[:5]} are gone")


def _micros(time: str) -> str:
    """RFC 3339 in microseconds, of one in UTC with any precision."""
    whole, _, fraction = time.removesuffix("Z").partition(".")
    return f"{whole}.{fraction[:6]:0<6}Z"
