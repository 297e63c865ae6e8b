"""Two of the three replicas of a stream are lost for good once all faults are over, and the third one is made the whole
stream while its server is stopped: it goes on with all that it had, and never beside others that are whole."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

from testkit.sim.deployment import COPIES, Deployment
from testkit.sim.machine import Machine
from testkit.sim.session import Msg
from tests.sim.cluster import liveness, offline_rescue
from tests.sim.cluster.invariants import assignment_of
from tests.sim.cluster.judges import Exact, Log
from tests.sim.cluster.machine_faults import start
from tests.sim.cluster.replicas import replicas
from tests.sim.cluster.workload import Workload

STREAM = "KEPT"
WAYS = ("wiped", "marked", "too early")
"""Both others are lost; one is, and the other is marked; both are lost once the rescue was refused."""
TOO_EARLY = 8.0
"""Seconds in which a rescue that is not due is refused at least once."""


class StreamRescue(Workload):
    name = "stream-rescue"
    layout = "five"
    judges = (Log, Exact)
    promises = (
        "a stream whose majority is lost goes on with all that the one replica has that `jetcluster rescue` keeps",
        "a replica that was rescued is not used while a majority of the others is whole and connected",
    )

    def __init__(self, deployment: Deployment, rng: Random) -> None:
        super().__init__(deployment, rng)
        self.log = Log()

    async def prepare(self) -> None:
        self.admin = await self.session("admin")
        await self.create(self.admin, STREAM, subjects=["kept"])
        await self.create_consumer(self.admin, STREAM, "one")

    async def work(self) -> None:
        async for _ in self.turns(4.0):
            await self._write()

    async def _write(self) -> None:
        await self.store_logged(self.log, self.admin, "kept", str(len(self.log.sent)))

    async def check(self) -> None:
        await self.insist("deleting what exams have made", lambda: self.delete_others(self.admin, STREAM))
        await self._write()
        await self.until("all replicas have all of it", self._alike)
        kept, *others = self.rng.sample([self.deployment.machines[name] for name in sorted(self._replicas())], COPIES)
        way = self.rng.choice(WAYS)
        self.count(way)
        self.note(f"{kept.name} is kept, {[one.name for one in others]}: {way}")
        assignment = assignment_of(self.deployment, STREAM)
        await self._stop(kept)
        if way == "marked":
            await self._lose(others[0])
            await self._stop(others[1])
            await offline_rescue.give_up(self.deployment, others[1], assignment)
        elif way == "wiped":
            for other in others:
                await self._lose(other)
        await offline_rescue.keep(self.deployment, kept, assignment)
        if way == "too early":
            await self._refused(kept, others)
            for other in others:
                await self._lose(other)
        self.deployment.off.discard(kept.name)
        start(kept)
        if self.rng.random() < 0.5:
            await self._return(others)
        await self._goes_on()
        Exact.equal(f"{self.name}: rescues that nobody is told of", offline_rescue.untold(kept), [])
        await self._return(others)
        await self._write()
        await liveness.settle(self.deployment)
        await self.everywhere(STREAM, max(self.log.acked), self._look)

    async def _refused(self, kept: Machine, others: list[Machine]) -> None:
        """The others lead the stream, and what was rescued is not used: nobody votes with it."""
        self.deployment.off.discard(kept.name)
        start(kept)
        await asyncio.sleep(TOO_EARLY + self.rng.uniform(0.0, 4.0))
        found = self._replicas()
        Exact.equal(f"{self.name}: who has a replica that is used", sorted(found), sorted(one.name for one in others))
        await self.insist("the others answer", lambda: self.admin.api(f"STREAM.MSG.GET.{STREAM}", {"seq": 1}))

    async def _goes_on(self) -> None:
        before = len(self.log.acked)
        await self._write()
        self.require(len(self.log.acked) > before, "nothing is stored after the rescue")
        Exact.equal(f"{self.name}: rescues", assignment_of(self.deployment, STREAM).rescue, 1)
        self.count("rescued")

    async def _stop(self, machine: Machine) -> None:
        """It is off until this says otherwise; sometimes it had no time to write down what it had applied."""
        self.deployment.off.add(machine.name)
        if self.rng.random() < 0.5:
            machine.signal(15)
            await asyncio.sleep(3.0)
        if machine.runs:
            machine.kill()

    async def _lose(self, machine: Machine) -> None:
        self.deployment.off.add(machine.name)
        machine.lose_power()
        machine.new_disk()

    async def _return(self, machines: list[Machine]) -> None:
        for machine in machines:
            await asyncio.sleep(self.rng.uniform(0.0, 3.0))
            self.deployment.off.discard(machine.name)
            start(machine)

    async def _alike(self) -> bool:
        config = (await self.admin.api(f"STREAM.INFO.{STREAM}"))["config"]
        if config["num_replicas"] != COPIES:
            await self.admin.api(f"STREAM.UPDATE.{STREAM}", config | {"num_replicas": COPIES})
        found = self._replicas().values()
        ends = {(one.group.log.last_index, one.group.commit_index) for one in found}
        return len(found) == COPIES and len(ends) == 1 and not list(liveness.wanting(self.deployment))

    def _replicas(self) -> dict[str, Any]:
        return replicas(self.deployment, STREAM)

    def _look(self, where: str, contents: dict[int, Msg]) -> None:
        self.stored(self.log, where, contents)
