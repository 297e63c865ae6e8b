"""Dead letters whose owner dies between the PubAck of their stream and BURIED in the log of its own."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from jetcluster.consumer.owner.context import DeliveryContext
from jetcluster.consumer.state.turn import BURIED, Value
from jetcluster.raft.api import Role
from testkit.sim.deployment import Deployment
from testkit.sim.session import Session
from tests.sim.cluster.invariants import Replica, replicas
from tests.sim.cluster.workload import PASSING

pytestmark = pytest.mark.sim

MESSAGES = 60
"""More than the owners that die send: 16 at a time each."""
SECOND = 1_000_000_000


class Assassin:
    """Kills the first `deaths` owners of a consumer that want to put BURIED into the log, as they have a PubAck."""

    def __init__(self, deployment: Deployment, deaths: int) -> None:
        self.deployment = deployment
        self.left = deaths
        self.victims: list[str] = []
        self._doomed: list[DeliveryContext] = []

    def arm(self, patch: pytest.MonkeyPatch) -> None:
        submit = DeliveryContext.submit

        def submitted(owner: DeliveryContext, kind: int, value: Value, token: object = None, messages: int = 0) -> None:
            if kind == BURIED and self.left and owner not in self._doomed:
                self.left -= 1
                self._doomed.append(owner)
                machine = self._home(owner).machine
                self.victims.append(machine.name)
                self.deployment.scheduler.after(0.0, machine.kill)
            if owner not in self._doomed:
                submit(owner, kind, value, token, messages)

        patch.setattr(DeliveryContext, "submit", submitted)

    def _home(self, owner: DeliveryContext) -> Replica:
        for one in replicas(self.deployment):
            hosts = () if one.stream is None else one.stream.consumers.running.values()
            if any(hosted.owner is owner for hosted in hosts):
                return one
        raise AssertionError("an owner of no server")


class Rig:
    """A work queue WORK with the consumer c, and DEAD, where its letters go."""

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment

    async def begin(self, window: float) -> None:
        self.admin = Session("admin", self.deployment.addresses("n1", "n2", "n3"))
        await self.admin.connect(5.0)
        for name, more in (
            ("WORK", {"retention": "workqueue"}),
            ("DEAD", {"duplicate_window": round(window * SECOND)}),
        ):
            config = {"name": name, "subjects": [name.lower() + ".>"], "num_replicas": 3, **more}
            await self.api(f"STREAM.CREATE.{name}", config)
        wish = {"subject": "dead.{subject}", "on_term": True}
        config = {"durable_name": "c", "ack_policy": "explicit", "ack_wait": 60 * SECOND, "dead_letter": wish}
        await self.api("CONSUMER.CREATE.WORK.c", {"stream_name": "WORK", "config": {**config, "max_deliver": 5}})
        for number in range(MESSAGES):
            await self.admin.js_publish("work.x", b"%d" % number)

    async def api(self, subject: str, body: Any = None) -> dict[str, Any]:
        """Asks until it is answered."""
        while True:
            try:
                return await self.admin.api(subject, body)
            except PASSING:
                await asyncio.sleep(0.1)

    def leader(self) -> str:
        return next(
            one.machine.name
            for one in replicas(self.deployment)
            if one.stream is not None and one.stream.assignment.name == "WORK" and one.group.role is Role.LEADER
        )

    async def owned(self, *, leads: bool) -> None:
        """Until the consumer's owner leads its stream, or does not."""
        while ((await self.api("CONSUMER.INFO.WORK.c"))["cluster"]["leader"] == self.leader()) is not leads:
            await self.api("CONSUMER.LEADER.STEPDOWN.WORK.c")
            await asyncio.sleep(0.5)

    async def give_up(self) -> None:
        with self.admin.inbox() as (inbox, got):
            self.admin.publish("$JS.API.CONSUMER.MSG.NEXT.WORK.c", b'{"batch":%d}' % MESSAGES, inbox)
            for _ in range(MESSAGES):
                async with asyncio.timeout(5.0):
                    self.admin.publish((await got.get()).reply, b"+TERM")

    async def letters(self) -> list[str]:
        """The messages whose letters are stored."""
        state = (await self.api("STREAM.INFO.DEAD"))["state"]
        found = []
        for seq in range(state["first_seq"], state["last_seq"] + 1):
            answer = await self.api("STREAM.MSG.GET.DEAD", {"seq": seq})
            found.append(answer["message"]["data"])
        return sorted(found)


@pytest.mark.parametrize("leads", [True, False])
@pytest.mark.parametrize(("deaths", "window"), [(1, 0.1), (3, 0.1), (3, 120.0)])
def test_each_letter_is_stored_once(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch, leads: bool, deaths: int, window: float
) -> None:
    """With a `duplicate_window` that ends long before the next owner begins, its search alone keeps them single."""
    rig, assassin = Rig(deployment), Assassin(deployment, deaths)

    async def go() -> list[str]:
        await rig.begin(window)
        await rig.owned(leads=leads)
        assassin.arm(monkeypatch)
        await rig.give_up()
        for number in range(deaths):
            while len(assassin.victims) <= number:
                await asyncio.sleep(0.1)
            await asyncio.sleep(3.0)
            deployment.machines[assassin.victims[number]].start()
        while (await rig.api("STREAM.INFO.WORK"))["state"]["messages"]:
            await asyncio.sleep(0.2)
        assert (await rig.api("CONSUMER.INFO.WORK.c"))["dead_letters"] == {"waiting": 0}
        return await rig.letters()

    task = deployment.spawn(deployment.client("me"), go())
    deployment.run_until_done(task, 300.0)
    assert len(task.result()) == len(set(task.result())) == MESSAGES
    assert len(assassin.victims) == deaths
