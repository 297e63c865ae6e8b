"""`sync_interval` that is not the same on all servers, as while it is changed by a rolling restart."""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

import pytest

from jetcluster.raft.api import Role
from testkit.sim.layout import cluster
from testkit.sim.link import Link
from testkit.sim.session import ApiError, Disconnected, NoResponders, Session
from tests.sim.cluster.invariants import Replica, replicas
from tests.sim.cluster.run import started


class Rig:
    """Three servers, of which n1 alone waits for its disk, and a stream."""

    def __init__(self, seed: int) -> None:
        servers = [replace(server, sync_interval=0.0 if server.name == "n1" else 10.0) for server in cluster(3)]
        self.deployment = started(servers, seed, keep_trace=True)
        self.loop = self.deployment.client("client")

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        task = self.deployment.spawn(self.loop, work)
        self.deployment.run_until_done(task, 60.0)
        return task.result()

    def session(self, *nodes: str) -> Session:
        async def connect() -> Session:
            session = Session("".join(nodes), self.deployment.addresses(*nodes))
            await session.connect(5.0)
            return session

        return self.do(connect())

    def cut(self, a: str, b: str) -> list[Link]:
        """Cuts the links both ways."""
        ips = self.deployment.machines[a].host.ip, self.deployment.machines[b].host.ip
        links = [self.deployment.network.link(*ips), self.deployment.network.link(*reversed(ips))]
        for link in links:
            link.cut()
        return links

    def of_stream(self) -> dict[str, Replica]:
        return {one.machine.name: one for one in replicas(self.deployment) if one.stream is not None}

    def leader(self) -> str:
        leading = [name for name, one in self.of_stream().items() if one.group.role is Role.LEADER and one.group.ready]
        return leading[0] if leading else ""


async def publish(session: Session, texts: list[str]) -> int:
    """Publishes the texts; returns how many were acknowledged."""
    acked = 0
    for text in texts:
        try:
            await session.js_publish("s.x", text.encode().ljust(3000, b"."), {}, seconds=2.0)
            acked += 1
        except (ApiError, Disconnected, NoResponders, TimeoutError):
            pass
    return acked


@pytest.mark.parametrize("seed", [2, 3, 5])
def test_a_server_that_waits_for_its_disk_follows_the_others_after_a_loss_of_power(seed: int) -> None:
    """n1 and n2 acknowledge; n2 loses its power, and goes on with n3, which had nothing of it."""
    rig = Rig(seed)
    deployment, session = rig.deployment, rig.session("n1")
    rig.do(session.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"], "num_replicas": 3}))
    deployment.run(1.0)
    for _ in range(30):
        if rig.leader() == "n1":
            break
        rig.do(session.api("STREAM.LEADER.STEPDOWN.S", {"placement": {"preferred": "n1"}}))
        deployment.run(1.0)
    assert rig.leader() == "n1"
    deployment.run(12.0)
    from_n1, from_n2 = rig.cut("n3", "n1"), rig.cut("n3", "n2")
    deployment.run(0.3)
    assert rig.do(publish(session, [f"x{i}" for i in range(5)])) == 5
    deployment.machines["n2"].lose_power()
    from_n1 += rig.cut("n1", "n2")
    deployment.run(5.0)
    for cut in from_n2:
        cut.heal()
    deployment.run(1.0)
    deployment.machines["n2"].start()
    deployment.run(10.0)
    assert rig.do(publish(rig.session("n2", "n3"), [f"y{i}" for i in range(8)])) > 0
    ahead = rig.of_stream()["n1"]
    assert ahead.group.log.term_at(ahead.group.commit_index) != rig.of_stream()["n3"].group.term
    for cut in from_n1:
        cut.heal()
    deployment.run(30.0)
    ends = {name: (one.group.applied_index, one.stream.store.last_seq) for name, one in rig.of_stream().items()}
    assert len(set(ends.values())) == 1, ends
    assert not any(one.group.refused for one in rig.of_stream().values())
    lines = deployment.trace.lines
    assert any("servers differ in sync_interval" in line for line in lines)
    assert any("does not have committed entry" in line for line in lines), "nothing was lost: the case is not shown"
