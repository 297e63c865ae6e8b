"""The judge of what clients see of a failure: a publish through each server, twice a second, of which one is
acknowledged at least every three seconds, while a majority of the stream's servers is well and connected, and knows of
the stream or can be told of it.
"""

from __future__ import annotations

import json
from random import Random

from testkit.sim.deployment import Deployment, Violation
from testkit.sim.session import Disconnected, Msg, Session
from tests.sim.cluster.availability import SLOW_PACE, SLOWEST, Majorities
from tests.sim.cluster.invariants import replicas
from tests.sim.cluster.workload import Workload, together

STREAM = "PULSE"
EVERY = 0.5
"""Seconds between two publishes, and between two looks."""
LONGEST = 3.0
SLOWED = 5.0
"""Seconds until the next ack; the second where disks or processors are slower than usual. `availability.SLOWEST` on
disks of `SLOW_PACE`."""
KEPT = 64
"""Messages that are kept."""


class Pulse(Workload):
    name = "pulse"

    def __init__(self, deployment: Deployment, rng: Random) -> None:
        super().__init__(deployment, rng)
        self.longest = 0.0
        """Seconds without an ack, while there was a majority."""
        self.last = 0.0
        """The time of the last ack, or at which there was no majority."""
        self._majorities = Majorities(deployment)
        machines = deployment.machines.values()
        slowed = any(machine.disk.pace > 1.0 or machine.usual_slowness > 1.0 for machine in machines)
        slowest = any(machine.disk.pace >= SLOW_PACE for machine in machines)
        self.most = SLOWEST if slowest else SLOWED if slowed else LONGEST

    async def prepare(self) -> None:
        admin = await self.session("admin")
        await self.create(admin, STREAM, subjects=["pulse"], max_msgs=KEPT)
        await admin.close()

    async def work(self) -> None:
        self.begin()
        await together(*(self._publish(name) for name in self.deployment.members()))

    async def check(self) -> None:
        pass

    async def _publish(self, name: str) -> None:
        """Through one server, whether it is there or not."""
        session = Session(f"pulse-{name}", self.deployment.addresses(name))
        inbox = f"_PULSE.{name}"
        session.subscribe(inbox, self.answered)
        session.dial()
        async for _ in self.turns(1 / EVERY):
            try:
                session.publish("pulse", b"", inbox)
            except Disconnected:
                self.count("not connected")
        await session.close()

    def answered(self, msg: Msg) -> None:
        if not msg.status and "error" not in json.loads(msg.payload):
            self.count("acknowledged")
            self.last = self.now

    # ---- the judge

    def begin(self) -> None:
        self.last = self.now
        self._tick()

    def _tick(self) -> None:
        if not self.stopping:
            self.look()
            self.deployment.scheduler.after(EVERY, self._tick)

    def look(self) -> None:
        """Raises Violation."""
        found = [one for one in replicas(self.deployment) if _is_pulse(one.stream) and one.cluster == "sim"]
        if not found or not self._majorities.can_serve(found, self._majorities.well()):
            self.last = self.now
            return
        gap = self.now - self.last
        self.longest = max(self.longest, gap)
        if gap > self.most:
            raise Violation(f"at {self.now:.3f}: a majority is well and connected, and no publish was acknowledged "
                            f"for {gap:.2f} s")  # fmt: skip


def _is_pulse(stream: object) -> bool:
    assignment = getattr(stream, "assignment", None)
    return assignment is not None and assignment.name == STREAM
