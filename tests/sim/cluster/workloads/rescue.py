"""Three of five servers are lost for good once all faults are over, and META.RESCUE makes the rest go on."""

from __future__ import annotations

import asyncio
from random import Random

from testkit.sim.deployment import COPIES, Deployment
from testkit.sim.session import ApiError, Msg, Session
from tests.sim.cluster import liveness
from tests.sim.cluster.invariants import jetstream_of
from tests.sim.cluster.judges import Exact, Log
from tests.sim.cluster.machine_faults import start
from tests.sim.cluster.replicas import replicas
from tests.sim.cluster.workload import Workload

STREAM = "SAVED"
MAJORITY = 3
"""The majority of five servers."""
STUCK = 20.0
"""Seconds after which those that are left know that nobody leads."""
ASKED = 6
"""Requests between two leaders."""
REFUSED = 10224
"""Error code of a rescue that is not due."""


class MetaRescue(Workload):
    name = "rescue"
    layout = "five"
    judges = (Log, Exact)
    promises = (
        "META.RESCUE is refused while a majority of servers is there, and makes what is left go on when none is",
        "a stream of which a majority is left goes on meanwhile, and who was lost comes back empty and is filled",
    )

    def __init__(self, deployment: Deployment, rng: Random) -> None:
        super().__init__(deployment, rng)
        self.log = Log()

    async def prepare(self) -> None:
        self.admin = await self.session("admin")
        await self.create(self.admin, STREAM, subjects=["saved"])

    async def work(self) -> None:
        async for _ in self.turns(5.0):
            await self._write()

    async def _write(self) -> None:
        await self.store_logged(self.log, self.admin, "saved", str(len(self.log.sent)))

    async def check(self) -> None:
        await self.insist("deleting what exams have made", lambda: self.delete_others(self.admin, STREAM))
        left = await self._left()
        for quorum in (len(left), MAJORITY):  # fewer could never lead alone; so many could, and are not needed
            self.equal(f"too early, for {quorum}", await self._rescue(left, quorum), REFUSED)
        lost = [name for name in self.members if name not in left]
        await self._between_leaders(left)
        self.note(f"{lost} are lost for good, {left} are left")
        if self.rng.random() < 0.7:  # else new ones take their places at once, with nothing in them
            self.deployment.off.update(lost)
        for name in lost:
            self.deployment.machines[name].lose_power()
            self.deployment.machines[name].new_disk()
        await self.admin.close()
        self.admin = await self.session("survivors", *left)
        await self._write()
        before = len(self.log.acked)
        for quorum in (1, len(left) + 1):  # two could lead at once; so many are not left
            self.equal(f"for {quorum} of {len(left)}", await self._rescue(left, quorum), REFUSED)
        await asyncio.sleep(STUCK if before % 2 else 0.0)
        for quorum in (1, len(left) + 1):
            self.equal(f"for {quorum} of {len(left)} that are stuck", await self._rescue(left, quorum), REFUSED)

        async def rescued() -> bool:
            return await self._rescue(left) == 0

        await self.until("the meta group is rescued", rescued)
        await self.insist("a stream that is made then", lambda: self._new_stream(self.admin))
        self.count("rescued")
        for name in self.rng.sample(lost, len(lost)):
            await asyncio.sleep(self.rng.uniform(0.0, 8.0))
            self.deployment.off.discard(name)
            start(self.deployment.machines[name])
        await self._write()
        self.require(len(self.log.acked) > before, "nothing is stored after the rescue")
        await liveness.settle(self.deployment)
        await self.everywhere(STREAM, max(self.log.acked, default=0), self._look)

    async def _between_leaders(self, left: list[str]) -> None:
        """Nobody leads the meta group for a moment, and four of five servers are there."""
        groups = {name: jetstream_of(self.deployment.machines[name]).meta for name in self.members}
        leading = [name for name, meta in groups.items() if meta.leading and name not in left]
        if not leading:
            return
        machine = self.deployment.machines[leading[0]]
        machine.kill()
        for _ in range(ASKED):
            self.equal("between two leaders", await self._rescue(left, MAJORITY), REFUSED)
        start(machine)
        await liveness.settle(self.deployment)

    async def _left(self) -> list[str]:
        """Two servers that have a replica. A stream of more than three would lose its majority with the others."""

        async def settled() -> bool:
            config = (await self.admin.api(f"STREAM.INFO.{STREAM}"))["config"]
            if config["num_replicas"] != COPIES:
                await self.admin.api(f"STREAM.UPDATE.{STREAM}", config | {"num_replicas": COPIES})
            found = replicas(self.deployment, STREAM)
            return len(found) == COPIES and not list(liveness.wanting(self.deployment))

        await self.until(f"{STREAM} has {COPIES} replicas", settled)
        return self.rng.sample(sorted(replicas(self.deployment, STREAM)), 2)

    async def _rescue(self, left: list[str], quorum: int = 0) -> int:
        """Code of the error; 0: done. One that is done shows with each server that is left."""
        session = await self.session("rescue", *left, user="sys")
        try:
            await session.api("META.RESCUE", {"quorum_needed": quorum or len(left)}, seconds=16.0)
        except ApiError as error:
            self.note(f"not rescued: {error}")
            return error.err_code
        finally:
            await session.close()
        for name in left:
            machine = jetstream_of(self.deployment.machines[name]).meta.group
            self.equal(f"voters by {name}", len(machine.log.config.voters), len(left))
        return 0

    async def _new_stream(self, session: Session) -> None:
        await session.api("STREAM.CREATE.AFTER", {"name": "AFTER", "subjects": ["after"], "num_replicas": 2})

    def equal(self, what: str, found: object, wanted: object) -> None:
        Exact.equal(f"{self.name}: {what}", found, wanted)

    def _look(self, where: str, contents: dict[int, Msg]) -> None:
        self.stored(self.log, where, contents)
