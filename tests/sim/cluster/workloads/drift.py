"""A stream of which one replica is changed behind everybody's back, as a mistake in apply would: the others notice."""

from __future__ import annotations

import asyncio

from tests.sim.cluster import expendable, replicas
from tests.sim.cluster.judges import Log
from tests.sim.cluster.workload import Writers

STREAM = "DRIFT"
NOTICED = 50.0
"""Seconds after the last fault until a replica that has drifted apart is built anew: it is compared within seconds of
the next message, and a vote needs a majority."""


class Drift(Writers):
    name = "drift"
    stream = STREAM
    judges = (Log,)
    promises = ("a replica that has drifted apart is noticed by the others, read no more, and built anew from theirs",)

    async def prepare(self) -> None:
        self.log = Log()
        self.count_sent = 0
        self.writer = await self.session("write")
        await self.create(self.writer, STREAM, subjects=["drift"])

    async def work(self) -> None:
        at = self.now + self.rng.uniform(1.0, 6.0)
        async for _ in self.turns(6.0):
            await self._write()
            if self.now >= at and self._change_one():
                at = self.now + self.rng.uniform(10.0, 20.0)
        end = self.now + NOTICED
        while self.deployment.drifted:  # each command carries the difference on, so it is found however late it came
            self.require(self.now < end, f"{self.deployment.drifted} have drifted apart, and nobody builds them anew")
            await self._write()
            await asyncio.sleep(0.5)

    async def _write(self) -> None:
        self.count_sent += 1
        text = str(self.count_sent)
        self.log.send(text)
        ack = await self.store(self.writer, "drift", text)
        self.log.ack(int(ack["seq"]), text, self.now)

    def _change_one(self) -> bool:
        """Takes a message out of the store of one follower, and has its hash tell of another history: a command that
        comes to something else than elsewhere does both. The others have everything, and nobody else has drifted."""
        found = replicas.replicas(self.deployment, STREAM)
        names = [name for name, replica in found.items() if not replica.leading and replica.sound]
        if self.deployment.drifted or not names or len(found) != 3:
            return False
        machine = expendable.expendable(self.deployment, self.rng, among=names)
        if machine is None:
            return False
        replica = found[machine.name]
        first, last = replica.store.first_seq, replica.store.last_seq
        if last - first < 3:
            return False
        seq = self.rng.randint(first, last - 1)
        self.deployment.drifted[machine.name, replica.group.gid] = replica.machine.applied_index
        self.note(f"{machine.name} loses {seq} and does not know it")
        replica.machine.hash = bytes(byte ^ 0xFF for byte in replica.machine.hash)
        replica.store.delete(seq)
        replica.store.touch()
        self.count("drifted")
        return True
