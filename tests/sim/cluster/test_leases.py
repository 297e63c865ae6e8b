"""Leases and clocks that are wrong by more than their bound: reads are stale then, which the judge finds; a clock that
stays so wrong is noticed, and its server gives and uses no leases."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from jetcluster.pipeline.checkers.fresh import LINEARIZABLE, Demand, FinalMessage, Look
from jetcluster.raft.api import Role
from testkit.sim.deployment import Deployment, Violation
from testkit.sim.rafts import raft_of
from testkit.sim.session import Session
from tests.sim.cluster.invariants import Replica, replicas
from tests.sim.cluster.judges import Fresh
from tests.sim.cluster.machine_faults import cut_links
from tests.sim.cluster.workload import PASSING

pytestmark = pytest.mark.sim

NOTICED = 5.0 / 0.3 + 10.0
"""Seconds until a clock whose rate is wrong by 0.3 or more is noticed."""


class Rig:
    """A stream that is read at its leader."""

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment
        self.loop = deployment.client("me")
        self.judge = Fresh()
        self.contents: dict[int, FinalMessage] = {}

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        task = self.deployment.spawn(self.loop, work)
        self.deployment.run_until_done(task, 90.0)
        return task.result()

    @property
    def now(self) -> float:
        return self.deployment.scheduler.now

    def leader(self) -> Replica:
        return next(one for one in replicas(self.deployment) if one.stream and one.group.role is Role.LEADER)

    async def session(self, name: str, server: str) -> Session:
        session = Session(name, self.deployment.addresses(server))
        await session.connect(5.0)
        return session

    async def begin(self) -> None:
        """A stream, a client of its leader, and one of another server."""
        admin = await self.session("admin", "n1")
        await admin.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s"], "num_replicas": 3})
        await asyncio.sleep(2.0)
        old = self.leader().machine.name
        self.reader = await self.session("reader", old)
        self.writer = await self.session("writer", next(name for name in self.deployment.machines if name != old))
        await self.write("before")

    async def write(self, text: str) -> None:
        """Sends it until it is acknowledged."""
        self.judge.send(text, self.now)
        while True:
            try:
                ack = await self.writer.js_publish("s", text.encode(), {"Nats-Msg-Id": text}, seconds=0.2)
            except PASSING:
                continue
            self.judge.ack(ack["seq"], text, self.now)
            self.contents[ack["seq"]] = FinalMessage("s", text)
            return

    async def read(self) -> bool:
        """MSG.GET at the old leader; False when that refuses."""
        began = self.now
        try:
            answer = await self.reader.api("STREAM.MSG.GET.S", {"last_by_subj": "s"}, seconds=0.2)
        except PASSING:
            return False
        seq = int(answer["message"]["seq"])
        found = ((seq, self.contents[seq].text),)
        self.judge.looks.append(Look("reader", began, self.now, Demand(LINEARIZABLE), 0, ("s",), found=found))
        return True

    async def read_for(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            await self.read()
            await asyncio.sleep(0.02)

    async def deposed(self, rate: float) -> None:
        """The leader, which reads by a lease, is cut off from the others when its clock begins to run at another rate;
        another one leads, acknowledges a message, and then the old one is read from."""
        await self.begin()
        await self.read_for(0.4)
        leader = self.leader()
        assert leader.group.reads_now(), "there is a lease"
        leader.machine.clock.set_rate(rate)
        others = [name for name in self.deployment.machines if name != leader.machine.name]
        cut_links(self.deployment, [leader.machine.name], others)
        await self.write("after")
        await self.read_for(0.5)


@pytest.mark.parametrize("rate", [1.0, 0.9, 1.1])
def test_a_lease_holds_for_clocks_within_the_bound(deployment: Deployment, rate: float) -> None:
    rig = Rig(deployment)
    rig.do(rig.deposed(rate))
    rig.judge.complete(rig.contents)
    assert len(rig.judge.looks) > 10


def test_a_lease_by_a_clock_far_beyond_its_bound_is_stale_and_that_is_found(deployment: Deployment) -> None:
    """Its clock all but stands still, as that of a virtual machine that its host pauses."""
    rig = Rig(deployment)
    rig.do(rig.deposed(0.01))
    with pytest.raises(Violation, match="stale: it lacks 2, and 2 was known before it began"):
        rig.judge.complete(rig.contents)


@pytest.mark.parametrize("rate", [0.7, 1.4])
def test_a_clock_that_stays_wrong_is_noticed_and_its_server_uses_no_leases(deployment: Deployment, rate: float) -> None:
    """Wall clocks may differ by five seconds. A fast one is noticed later, as it makes the others look delayed."""
    rig = Rig(deployment)

    async def go() -> None:
        await rig.begin()
        await rig.read_for(0.4)
        leader = rig.leader()
        assert leader.group.reads_now()
        leader.machine.clock.set_rate(rate)
        began = rig.now
        while raft_of(leader.machine).health.keeps_time:
            assert rig.now < began + NOTICED
            await rig.read_for(0.5)
        assert not leader.group.reads_now()
        others = [machine for machine in rig.deployment.running if machine is not leader.machine]
        assert all(raft_of(machine).health.keeps_time for machine in others)
        await rig.write("after")
        await rig.read_for(0.5)

    rig.do(go())
    rig.judge.complete(rig.contents)
    assert rig.judge.looks[-1].found[0][1] == "after"
