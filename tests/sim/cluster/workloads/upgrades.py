"""A cluster of two versions: some servers are older while there are faults, and are upgraded one after the other. What
they do not understand is refused, or waits, and goes on once none is left."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

from jetcluster.stream.log.levels import (
    DEAD_LETTER_LEVEL,
    LEVEL,
    MANY_MEMBERS_LEVEL,
    ORDER_PER_KEY_LEVEL,
    RETENTION_GUARD_LEVEL,
)
from testkit.sim.deployment import Deployment
from testkit.sim.machine import Machine
from testkit.sim.session import ApiError, Msg, Session
from tests.sim.cluster.judges import Log
from tests.sim.cluster.machine_faults import restart
from tests.sim.cluster.replicas import replicas
from tests.sim.cluster.workload import PASSING, SECOND, SETTLE, Workload, together

STREAM, LETTERS = "UPGRADED", "UPGRADEDLETTERS"
KEYS = 3
GUARD = {"retention_guard": {"consumer": "archive", "max_bytes": 1 << 30}}
NEW: dict[str, tuple[int, dict[str, Any]]] = {
    "keys": (ORDER_PER_KEY_LEVEL, {"max_ack_pending_per_subject": 1}),
    "letters": (DEAD_LETTER_LEVEL, {"max_deliver": 1, "dead_letter": {"subject": "buried.{subject}", "on_term": True}}),
}
"""By name what consumers may have of newer versions: its level, and fields of the configuration."""


class Upgrades(Workload):
    name = "upgrades"
    judges = (Log,)
    promises = (
        "a server of an older version never gets a command that it does not understand",
        "what needs a newer version is refused while a server is older, and works once none is",
    )

    @classmethod
    def before(cls, deployment: Deployment, rng: Random) -> None:
        names = [name for name in deployment.members() if deployment.servers[name].jetstream]
        for name in rng.sample(names, rng.randint(1, len(names))):
            deployment.machines[name].level = rng.randint(MANY_MEMBERS_LEVEL, LEVEL - 1)

    async def prepare(self) -> None:
        self.log = Log()
        self.made: set[str] = set()
        self.taken: dict[str, set[str]] = {what: set() for what in NEW}
        """By consumer the messages that were delivered."""
        self.admin = await self.session("admin")
        await self.create(self.admin, STREAM, subjects=["upgraded.>"])
        await self.create(self.admin, LETTERS, subjects=["buried.>"], num_replicas=1)

    async def work(self) -> None:
        await together(self._write(), self._administer(), self._consume(), self._upgrade_some())

    async def _write(self) -> None:
        session = await self.session("write")
        async for count in self.turns(6.0):
            await self.store_logged(self.log, session, f"upgraded.{count % KEYS}", f"up-{count}")

    # ---- versions

    def _members(self) -> set[str]:
        """Those that all replicas count as members of the stream."""
        members = [set(one.group.log.config.electorate) for one in replicas(self.deployment, STREAM).values()]
        return set.intersection(*members) if members else set()

    def _oldest(self) -> int:
        """The lowest level among members."""
        members, machines = self._members(), self.deployment.machines.values()
        return min((one.level or LEVEL for one in machines if one.peer_id in members), default=LEVEL)

    async def _upgrade_some(self) -> None:
        """One after the other, until the faults are over; the rest comes in `check`, but for one that was removed: it
        may be too old to become a member again."""
        async for _ in self.turns(0.1):
            await self._upgrade_one()
        while left := [machine for machine in self._old() if machine.peer_id not in self._members()]:
            await self._upgrade_one(left)

    def _old(self) -> list[Machine]:
        """Machines to upgrade; one that stands still cannot start."""
        machines = [self.deployment.machines[name] for name in self.members]
        return [machine for machine in machines if machine.level and not machine.paused]

    async def _upgrade_one(self, old: list[Machine] | None = None) -> bool:
        """One of `old`, or of all that are."""
        old = self._old() if old is None else old
        if not old:
            return False
        machine = self.rng.choice(old)
        machine.level = self.rng.choice([0, 0, min(machine.level + 1, LEVEL - 1)]) if not self.stopping else 0
        self.note(f"{machine.name} is upgraded to {machine.level or LEVEL}")
        self.count("upgraded")
        if machine.runs:
            await restart(machine, self.rng)
        return True

    # ---- what is new

    async def _administer(self) -> None:
        session = await self.session("changes")
        async for _ in self.turns(1.0):
            try:
                await self._ask_for_one(session, self.rng.choice([*NEW, "guard"]))
            except PASSING:
                self.count("unknown")

    async def _ask_for_one(self, session: Session, what: str) -> None:
        """Makes a consumer or the guard. Raises Violation where it is made, and no older version could have it."""
        level = RETENTION_GUARD_LEVEL if what == "guard" else NEW[what][0]
        oldest = self._oldest()
        try:
            if what == "guard":
                config = (await session.api(f"STREAM.INFO.{STREAM}"))["config"]
                await session.api(f"STREAM.UPDATE.{STREAM}", config | GUARD)
            else:
                await self._make(session, what)
        except ApiError as error:
            self.count(f"refused: {error.err_code}")
            raise
        self.count(f"made: {what}")
        self.require(self._oldest() >= level or oldest >= level, f"{what} is made while a server has level {oldest}")
        self.made.add(what)

    async def _make(self, session: Session, what: str) -> None:
        config = {"durable_name": what, "ack_policy": "explicit", "ack_wait": SECOND} | NEW[what][1]
        await session.api(f"CONSUMER.CREATE.{STREAM}.{what}", {"stream_name": STREAM, "config": config})

    async def _consume(self) -> None:
        session = await self.session("consume")
        while not self.stopping:
            if not self.made & NEW.keys():
                await asyncio.sleep(0.2)
                continue
            await self._pull_some(session)

    async def _pull_some(self, session: Session) -> None:
        for what in sorted(self.made & NEW.keys()):

            async def take(msg: Msg, what: str = what) -> None:
                self.taken[what].add(msg.payload.decode())
                session.publish(msg.reply, b"+TERM" if what == "letters" else b"+ACK")

            await self.pull(session, STREAM, what, take, 20)

    async def check(self) -> None:
        while await self._upgrade_one():
            pass
        session = await self.session("rest")
        for what in (*NEW, "guard"):
            await self.insist(f"{what} of this version", lambda what=what: self._ask_for_one(session, what))

        async def done() -> bool:
            await self._pull_some(session)
            letters = await self.contents(session, LETTERS)
            buried = {msg.payload.decode() for msg in letters.values()}
            self.require(len(buried) == len(letters), "a dead letter is there twice")
            wanted = set(self.log.acked.values())
            return wanted <= buried and wanted <= self.taken["keys"]

        await self.until("both consumers have had everything", done, SETTLE)
        await self.everywhere(STREAM, max(self.log.acked, default=0), self._look)

    def _look(self, where: str, contents: dict[int, Msg]) -> None:
        self.stored(self.log, where, contents)
