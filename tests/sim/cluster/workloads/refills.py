"""A server is removed and there is no other one: streams go on with fewer replicas, and are given another once a server
joins. Nobody has asked for fewer, so CANCEL_MOVE has nothing to take back meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

from testkit.sim.deployment import COPIES
from testkit.sim.machine import Machine
from testkit.sim.session import ApiError
from tests.sim.cluster import liveness, server_changes
from tests.sim.cluster.expendable import expendable
from tests.sim.cluster.judges import Exact
from tests.sim.cluster.server_changes import readmit
from tests.sim.cluster.workload import NOTHING_MOVES, PASSING, Workload

STREAM = "REFILLED"
FEW = 40
"""Messages beside those that were stored during the faults."""
SIZE = 20_000


class Refills(Workload):
    name = "refills"
    layout = "three"
    weight = 0
    judges = (Exact,)
    promises = (
        "a stream that has lost a server for good keeps its number of replicas, and has as many once a server joins",
        "meanwhile no other number of replicas is `desired`, and CANCEL_MOVE takes none back",
    )

    async def prepare(self) -> None:
        self.sent: list[str] = []
        self.admin = await self.session("admin")
        await self.create(self.admin, STREAM, subjects=["refilled"], num_replicas=COPIES)

    async def work(self) -> None:
        async for _ in self.turns(4.0):
            await self._write()

    async def _write(self) -> None:
        text = f"refilled-{len(self.sent)}"
        self.sent.append(text)
        await self.store(self.admin, "refilled", text, payload=text.ljust(SIZE).encode())

    async def check(self) -> None:
        config = (await self.insist("its configuration", self._info))["config"]
        await self.insist("three", lambda: self.admin.api(f"STREAM.UPDATE.{STREAM}", config | {"num_replicas": COPIES}))
        for _ in range(FEW):
            await self._write()
        await liveness.settle(self.deployment)
        machine = expendable(self.deployment, self.rng, among=self.members)
        if machine is None:  # another stream has two replicas by now, which are no majority without it
            self.count("nobody to remove")
            await self.everywhere(STREAM, len(self.sent), self._stored)
            return
        gone = machine.peer_id
        await self._remove(machine, gone)
        await self._look()
        if not machine.runs:
            readmit(self.deployment)
        self.deployment.off.discard(machine.name)
        end = self.now + liveness.SETTLES
        while not await self._is_full(gone):
            self.require(self.now < end, f"{STREAM} is not given another replica")
            await self._look()
            await asyncio.sleep(self.rng.choice([0.0, 0.02, 0.1]))
        await self.everywhere(STREAM, len(self.sent), self._stored)

    async def _remove(self, machine: Machine, peer: str) -> None:
        """While it is away, and for good."""
        self.deployment.off.add(machine.name)
        machine.kill()
        await server_changes.remove(self, machine, peer)
        self.count("removed")

    async def _info(self) -> dict[str, Any]:
        info: dict[str, Any] = await self.admin.api(f"STREAM.INFO.{STREAM}", seconds=2.0)
        return info

    async def _look(self) -> None:
        try:
            info = await self._info()
            found = await self._cancel()
        except PASSING:
            self.count("uncertain")
            return
        self.count("seen while it is filled", any(one.get("pending") for one in info["cluster"].get("replicas", [])))
        Exact.equal(f"{self.name}: number of replicas after a cancel", found, COPIES)
        if desired := info["cluster"].get("desired"):  # somewhere else: where there is a fourth server, it takes over
            numbers = desired["origin"]["replicas"], len(desired["replicas"])
            Exact.equal(f"{self.name}: numbers of replicas, before and as desired", numbers, (COPIES, COPIES))

    async def _cancel(self) -> int:
        """The number of replicas that the stream is to have after that."""
        try:
            config = (await self.admin.api(f"STREAM.CANCEL_MOVE.{STREAM}", None, 2.0))["config"]
        except ApiError as error:
            if error.err_code != NOTHING_MOVES:
                raise
            self.count("nothing to cancel")
            config = (await self._info())["config"]
        return int(config["num_replicas"])

    async def _is_full(self, gone: str) -> bool:
        """Every replica votes, and the one that is gone does not."""
        try:
            info = await self._info()
        except PASSING:
            return False
        others = info["cluster"].get("replicas", [])
        voters = [one for one in others if not one.get("pending") and one["peer"] != gone]
        return len(voters) == COPIES - 1

    def _stored(self, where: str, contents: dict[int, Any]) -> None:
        texts = [contents[seq].payload.decode().rstrip() for seq in sorted(contents)]
        Exact.equal(f"{self.name}: what {where} has", texts, self.sent)
