"""A stream is to have one replica, and the server of that one is lost for good before the others have left: those go on
with all that was acknowledged, and the stream is assigned to the one that leads it."""

from __future__ import annotations

import asyncio
from typing import Any

from testkit.sim.deployment import COPIES
from testkit.sim.machine import Machine
from testkit.sim.session import Msg
from tests.sim.cluster import liveness, server_changes
from tests.sim.cluster.invariants import assignment_of
from tests.sim.cluster.judges import Exact, Log
from tests.sim.cluster.machine_faults import start
from tests.sim.cluster.replicas import replicas
from tests.sim.cluster.workload import PASSING, Workload

STREAM = "STRAY"
MOMENT = 0.0005
"""Seconds between two looks whether the meta group has decided."""


class Strays(Workload):
    name = "strays"
    layout = "five"
    examined = False
    weight = 0
    judges = (Log, Exact)
    promises = (
        "a stream whose one server is lost before the others have left it goes on with these, and belongs there then",
    )

    async def prepare(self) -> None:
        self.log = Log()
        self.admin = await self.session("admin")
        await self.create(self.admin, STREAM, subjects=["stray"], num_replicas=COPIES)

    async def work(self) -> None:
        async for count in self.turns(4.0):
            await self.store_logged(self.log, self.admin, "stray", f"stray-{count}")

    async def check(self) -> None:
        await self.insist("three", lambda: self._scale(COPIES))
        await self.store_logged(self.log, self.admin, "stray", "the last of three")
        await liveness.settle(self.deployment)
        leader, *followers = await self._replicas()
        narrowing = asyncio.ensure_future(self._narrow())
        while len(assignment_of(self.deployment, STREAM).peers) > 1 and not narrowing.done():
            await asyncio.sleep(MOMENT)
        for machine in followers:
            machine.pause()
        lost = assignment_of(self.deployment, STREAM).peers == (leader.peer_id,) and self._all_vote()
        self.note(
            f"{[one.name for one in followers]} pause; {leader.name}, which leads, is {'lost' if lost else 'kept'}"
        )
        if lost:
            self.deployment.off.add(leader.name)
            gone = leader.peer_id
            leader.lose_power()
            leader.new_disk()
        for machine in followers:
            machine.resume()
        if lost:
            await server_changes.remove(self, leader, gone)
            self.count("lost")
        await narrowing
        await self.store_logged(self.log, self.admin, "stray", "the first of one")
        await self.insist("one", lambda: self._scale(1))
        if lost:
            self.deployment.off.discard(leader.name)
            start(leader)
        await liveness.settle(self.deployment)
        Exact.equal(f"{self.name}: replicas", len(assignment_of(self.deployment, STREAM).peers), 1)
        await self.everywhere(STREAM, max(self.log.acked, default=0), self._look)

    async def _scale(self, replicas: int) -> dict[str, Any]:
        config = (await self.admin.api(f"STREAM.INFO.{STREAM}"))["config"]
        answer: dict[str, Any] = await self.admin.api(f"STREAM.UPDATE.{STREAM}", config | {"num_replicas": replicas})
        return answer

    async def _replicas(self) -> list[Machine]:
        """The leader's machine first."""
        cluster = (await self.insist("its replicas", lambda: self.admin.api(f"STREAM.INFO.{STREAM}")))["cluster"]
        names = [cluster["leader"], *(one["name"] for one in cluster["replicas"])]
        return [self.deployment.machines[name] for name in names]

    async def _narrow(self) -> None:
        try:
            await self._scale(1)
        except PASSING as error:
            self.note(f"who asked for one replica is told of none: {error!r}")

    def _all_vote(self) -> bool:
        """No replica has left, by the log of any: else the one that is to stay may have all that there is."""
        configs = [one.group.log.config for one in replicas(self.deployment, STREAM).values()]
        return all(len(config.voters) == COPIES and not config.outgoing for config in configs)

    def _look(self, where: str, contents: dict[int, Msg]) -> None:
        self.stored(self.log, where, contents)
