"""The journal of a server that has the only replica of a stream is damaged once all faults are over: it goes on
with what it has, once all others have said that they have nothing of the stream, and not before."""

from __future__ import annotations

import asyncio
from typing import Any

from testkit.sim.machine import JOURNAL, Machine
from tests.sim.cluster import disk_faults, liveness
from tests.sim.cluster.invariants import jetstream_of
from tests.sim.cluster.judges import Exact
from tests.sim.cluster.machine_faults import start
from tests.sim.cluster.replicas import replicas
from tests.sim.cluster.workload import Workload

STREAM = "LONE"
ROTS = (1, 1, 3, 8)
"""Places of the journal that change."""
SILENT = 6.0
"""Seconds for which one of the others is away meanwhile, at least."""


class LoneReplica(Workload):
    name = "lone-replica"
    layout = "three"
    judges = (Exact,)
    promises = (
        "the only replica of a stream goes on after its journal was damaged, with messages as they were stored",
        "and not while a server is away that might have the stream",
        "what the data store has is there even if the journal is damaged",
    )

    async def prepare(self) -> None:
        self.sent: dict[str, int] = {}
        """By text of a message its sequence; 0 until it is acknowledged."""
        self.admin = await self.session("admin")
        await self.create(self.admin, STREAM, subjects=["lone"], num_replicas=1)
        await self.create_consumer(self.admin, STREAM, "one")

    async def work(self) -> None:
        async for _ in self.turns(8.0):
            await self._write()

    async def _write(self) -> int:
        text = f"lone-{len(self.sent)}"
        self.sent[text] = 0
        seq = int((await self.store(self.admin, "lone", text))["seq"])
        self.sent[text] = seq
        return seq

    async def check(self) -> None:
        await self.insist("deleting what others have made", self._delete_others)
        config = (await self.insist("its configuration", lambda: self.admin.api(f"STREAM.INFO.{STREAM}")))["config"]
        await self.insist("one", lambda: self.admin.api(f"STREAM.UPDATE.{STREAM}", config | {"num_replicas": 1}))
        await self.until("there is one replica", self._is_one)
        for _ in range(self.rng.choice([1, 40])):
            await self._write()
        (name,) = self._replicas()
        machine = self.deployment.machines[name]
        clean = await self._stop(machine, clean=self.rng.random() < 0.5)
        silent = self.deployment.machines[self.rng.choice([one for one in self.members if one != name])]
        waits = self.rng.random() < 0.5
        if waits:
            # One that is killed may come back with the replica that it was just to give up, and a vote: with a damaged
            # one and one that is gone that is no majority, and an operator has to decide (docs/membership/rescue.md).
            await self._stop(silent, clean=True)
        self._damage(machine)
        stores = len(machine.lost_peers)
        self.deployment.off.discard(name)
        start(machine)
        if waits:
            await self._waits(machine)
            self.deployment.off.discard(silent.name)
            start(silent)
        await self.until("the stream goes on", lambda: self._goes_on(machine, stores))
        if len(machine.lost_peers) > stores:
            # Nothing of the meta group was left in its only segment, so an operator has moved the store away.
            self.count("moved away")
            await self.insist("its deletion", lambda: self.admin.api(f"STREAM.DELETE.{STREAM}"))
            return
        await self._look(clean=clean)
        await self._write()
        await liveness.settle(self.deployment)

    async def _stop(self, machine: Machine, *, clean: bool) -> bool:
        """True if it had time to write down all that it had applied, as far as it may have (`clean`)."""
        self.deployment.off.add(machine.name)
        if clean:
            before = machine.node
            machine.signal(15)
            for _ in range(100):
                await asyncio.sleep(0.1)
                if machine.node is not before:
                    break
        if machine.runs:
            clean = False
            machine.kill()
        return clean

    def _damage(self, machine: Machine) -> None:
        self.deployment.victims[machine.name] = None
        times = self.rng.choice(ROTS)
        for _ in range(times):
            disk_faults.rot_once(self.deployment, self.rng, machine, JOURNAL)
        self.count("damaged", times)

    async def _waits(self, machine: Machine) -> None:
        """A log that has lost something of the stream stays in doubt while one of the others is away."""
        end, doubted = self.now + SILENT + self.rng.uniform(0.0, 4.0), False
        while self.now < end:
            await asyncio.sleep(0.05)
            doubted = doubted or self._in_doubt(machine)
        if doubted:
            self.count("waited")
            self.require(self._in_doubt(machine), "a damaged replica goes on while a server is away that may have more")

    def _in_doubt(self, machine: Machine) -> bool:
        jetstream, replica = jetstream_of(machine), self._replicas().get(machine.name)
        if jetstream is None or replica is None:
            return False
        return bool(jetstream.network.raft.in_doubt(replica.assignment.gid)) and replica.group.leader is None

    async def _goes_on(self, machine: Machine, stores: int) -> bool:
        """True as well for one whose store had to be moved away: it had lost so many before."""
        if len(machine.lost_peers) > stores:
            return True
        return bool((await self.admin.api(f"STREAM.INFO.{STREAM}"))["state"] is not None)

    async def _look(self, *, clean: bool) -> None:
        found = await self.insist("its messages", lambda: self.contents(self.admin, STREAM))
        for seq, msg in found.items():
            text = msg.payload.decode()
            self.require(
                text in self.sent and self.sent[text] in (0, seq), f"{seq} is {text}, which was not stored there"
            )
        lost = [seq for seq in self.sent.values() if seq and seq not in found]
        self.count("lost", len(lost))
        Exact.equal(f"{self.name}: what is lost of what the data store had", lost if clean else [], [])
        last = max(found, default=0)
        Exact.equal(f"{self.name}: sequences", sorted(found), list(range(1, last + 1)))
        self.sent = {msg.payload.decode(): seq for seq, msg in found.items()}

    async def _delete_others(self) -> None:
        for name in (await self.admin.api("STREAM.NAMES"))["streams"]:
            if name != STREAM:
                await self.admin.api(f"STREAM.DELETE.{name}")

    async def _is_one(self) -> bool:
        return len(self._replicas()) == 1 and not list(liveness.wanting(self.deployment))

    def _replicas(self) -> dict[str, Any]:
        return replicas(self.deployment, STREAM)
