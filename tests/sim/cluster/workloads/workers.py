"""Servers that are workers of one machine: one of each machine votes in the meta group, and another one in its place
when it is away for long; no two replicas of a stream are on one machine."""

from __future__ import annotations

import asyncio
import dataclasses
from random import Random
from typing import Any

from jetcluster.raft.api import Role
from testkit.sim.deployment import COPIES, Deployment
from testkit.sim.session import Msg
from tests.sim.cluster import liveness
from tests.sim.cluster.invariants import replicas
from tests.sim.cluster.judges import Log, Places
from tests.sim.cluster.machine_faults import start
from tests.sim.cluster.replicas import replicas as replicas_of
from tests.sim.cluster.workload import Workload

STREAM = "WORKED"
MACHINES = {"n1": ("a", 0), "n2": ("a", 1), "n3": ("b", 0), "n4": ("b", 1)}
"""Machine and number of the servers that are workers; the others are machines of their own."""
REPLACED = 40.0
"""Seconds within which another worker votes in the place of one that is away."""


class Workers(Workload):
    name = "workers"
    layout = "five"
    examined = False
    weight = 0
    judges = (Log, Places)
    promises = (
        "of the workers of a machine one votes in the meta group, and another one once that is away for long",
        "no two replicas of a stream are on one machine",
    )

    @classmethod
    def before(cls, deployment: Deployment, rng: Random) -> None:
        for name, (machine, number) in MACHINES.items():
            server = deployment.servers[name]
            deployment.servers[name] = dataclasses.replace(server, worker_of=machine, worker=number)

    async def prepare(self) -> None:
        self.log = Log()
        self.admin = await self.session("admin")
        await self.create(self.admin, STREAM, subjects=["worked"])
        await self.create_consumer(self.admin, STREAM, "one")

    async def work(self) -> None:
        async for count in self.turns(4.0):
            await self.store_logged(self.log, self.admin, "worked", f"worked-{count}")

    async def check(self) -> None:
        await self.insist("three", self._three)
        await self.until("all workers are there", self._are_there)
        self._apart("at first")
        voters = self._voters()
        pairs = [(one, other) for one, other in self._pairs() if one in voters]
        voter, follower = self.rng.choice(pairs)
        self.deployment.off.add(voter)
        self.deployment.machines[voter].kill()
        self.note(f"{voter} is away, and {follower} is to vote")

        async def votes() -> bool:
            return follower in self._voters() and voter not in self._voters()

        await self.until(f"{follower} votes in the place of {voter}", votes, REPLACED)
        self._apart("while one is away")
        await self.store_logged(self.log, self.admin, "worked", "while one is away")
        await asyncio.sleep(self.rng.uniform(0.0, 3.0))
        self.deployment.off.discard(voter)
        start(self.deployment.machines[voter])
        await liveness.settle(self.deployment)
        await self.until("all workers are there again", self._are_there)
        self._apart("in the end")
        self.count("replaced")
        await self.everywhere(STREAM, max(self.log.acked, default=0), self._look)

    async def _three(self) -> None:
        """A fault may have left one replica, which may be on the server that is to go."""
        config = (await self.admin.api(f"STREAM.INFO.{STREAM}"))["config"]
        await self.admin.api(f"STREAM.UPDATE.{STREAM}", config | {"num_replicas": COPIES})

    def _look(self, where: str, contents: dict[int, Msg]) -> None:
        self.stored(self.log, where, contents)

    async def _are_there(self) -> bool:
        return not list(liveness.wanting(self.deployment))

    def _pairs(self) -> list[tuple[str, str]]:
        return [
            (one, other)
            for one, (machine, _) in MACHINES.items()
            for other, (another, _) in MACHINES.items()
            if one != other and machine == another
        ]

    def _voters(self) -> set[str]:
        """Names of the meta group's voters, by its leader."""
        metas = [one for one in replicas(self.deployment) if one.stream is None]
        leading: list[Any] = [one for one in metas if one.group.role is Role.LEADER]
        if not leading:
            return set()
        voters = leading[0].group.log.config.voters
        return {name for name, machine in self.deployment.machines.items() if machine.peer_id in voters}

    def _apart(self, when: str) -> None:
        for what, names in (("the meta group", self._voters()), (STREAM, set(replicas_of(self.deployment, STREAM)))):
            places = {name: (f"machine:{MACHINES[name][0] if name in MACHINES else name}",) for name in names}
            Places.placed(f"{self.name}, {when}, {what}", places, len(names), (), "machine:")
