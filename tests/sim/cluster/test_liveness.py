"""Servers and replicas that are not back are missed, and the supervisor helps as the documentation has it."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from jetcluster.raft.api import Role
from testkit.sim.deployment import Deployment, Violation
from tests.sim.cluster import liveness
from tests.sim.cluster.invariants import replicas
from tests.sim.cluster.workloads.churn import Churn

pytestmark = pytest.mark.sim


def test_who_is_not_back_is_missed(deployment: Deployment) -> None:
    wanting = liveness.wanting
    assert list(wanting(deployment)) == []
    deployment.machines["n2"].kill()
    assert next(wanting(deployment)) == "n2 does not serve"
    deployment.machines["n2"].start()
    deployment.run(8.0)
    assert list(wanting(deployment)) == []


def test_what_a_replica_cannot_read_and_who_answers_no_reads_is_missed(deployment: Deployment) -> None:
    churn = Churn(deployment, Random(1))

    async def create() -> None:
        session = await churn.session("one")
        await churn.create(session, "S", subjects=["s"])
        await session.close()

    deployment.run_until_done(deployment.spawn(churn.loop, create()), 10.0)
    deployment.run(5.0)
    assert list(liveness.wanting(deployment)) == list(liveness.ailing(deployment)) == []
    one = next(one for one in replicas(deployment) if one.stream is not None)
    one.stream.damaged = "a block"
    assert f"{one.machine.name} has not repaired what it cannot read: a block" in next(liveness.wanting(deployment))
    assert next(liveness.ailing(deployment)).startswith(f"{one.machine.name} is not healthy: JetStream stream")
    one.stream.damaged = ""
    one.stream.reads.leave()
    assert next(liveness.wanting(deployment)).endswith(f"{one.machine.name} answers no reads")


def test_a_server_that_ends_again_and_again_is_not_started_for_ever(deployment: Deployment) -> None:
    supervisor = deployment.spawn(deployment.client("supervisor"), liveness.supervise(deployment), "the supervisor")
    for _ in range(4):
        deployment.machines["n2"].kill()
        deployment.run(10.0)
        assert deployment.machines["n2"].ready
    deployment.machines["n2"].kill()
    with pytest.raises(Violation, match="n2 ends again and again"):
        deployment.run_until_done(supervisor, 10.0)


@pytest.mark.parametrize("damaged", [True, False])
def test_only_the_damaged_server_gets_an_empty_store(deployment: Deployment, damaged: bool) -> None:
    machine = deployment.machines["n2"]
    deployment.victims["n2" if damaged else "n3"] = None
    machine.kill()
    for path, file in list(machine.disk.tree("/data/jetstream/journal")):
        if file.sectors and path.endswith(".wal"):
            machine.disk.rot(path, 0, 512)
    deployment.spawn(deployment.client("supervisor"), liveness.supervise(deployment), "the supervisor")
    deployment.run(30.0)
    assert machine.ready is damaged


@pytest.mark.parametrize("damaged", [True, False])
def test_a_damaged_server_that_knows_nobody_any_more_gets_an_empty_store(deployment: Deployment, damaged: bool) -> None:
    """The others have lost theirs before, one after the other, and came back as new nodes."""
    for name in ("n2", "n3"):
        deployment.machines[name].lose_power()
        deployment.machines[name].new_disk()
        deployment.machines[name].start()
        deployment.run(15.0)
    machine = deployment.machines["n1"]
    deployment.victims["n1" if damaged else "n2"] = None
    machine.lose_power()
    for path, file in list(machine.disk.tree("/data/jetstream")):
        if file.sectors and path.endswith(".wal"):
            machine.disk.cut(path, 1000)
        elif "MANIFEST" in path:
            machine.disk.rot(path, 64, 8)
    machine.start()
    deployment.spawn(deployment.client("supervisor"), liveness.supervise(deployment), "the supervisor")
    deployment.run(25.0)
    assert len(machine.lost_peers) == damaged
    assert ([*liveness.wanting(deployment)] == []) is damaged


def test_members_that_are_not_committed_yet_do_not_count(deployment: Deployment, scale: Callable[[], None]) -> None:
    """The others have the joint configuration alone: without the leader they may be no majority of it."""
    scale()
    deployment.run(5.0)
    assert list(liveness.wanting(deployment)) == []
    leader = next(one for one in replicas(deployment) if one.stream is not None and one.group.role is Role.LEADER)
    configs = leader.group.log.configs
    configs[-1] = leader.group.commit_index + 1, configs[-1][1]
    assert "belong on" in next(liveness.wanting(deployment))
