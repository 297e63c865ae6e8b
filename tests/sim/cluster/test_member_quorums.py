"""A change of members without a majority that is well, and a voter that is not heard, are noticed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from jetcluster.raft.api import Role
from testkit.sim.deployment import Deployment
from tests.sim.cluster.invariants import Replica, jetstream_of, replicas
from tests.sim.cluster.member_quorums import NOTICED, watched

pytestmark = pytest.mark.sim


def _leader(deployment: Deployment) -> Replica:
    return next(one for one in replicas(deployment) if one.group.role is Role.LEADER and one.stream is None)


def test_a_change_among_servers_that_are_well_is_looked_at(deployment: Deployment, scale: Callable[[], None]) -> None:
    with watched(deployment) as quorums:
        scale()
        deployment.run(5.0)
    assert quorums.looked >= 1
    assert not deployment.failures


def test_a_change_to_servers_that_are_away_is_noticed(deployment: Deployment) -> None:
    with watched(deployment) as quorums:
        leader = _leader(deployment)
        config = leader.group.log.config
        one, other = (machine for machine in deployment.machines.values() if machine is not leader.machine)
        joint = config.joint((leader.group.me, one.peer_id))
        one.kill()
        deployment.run(2.0)
        quorums.begins(leader.group, joint)
        assert not deployment.failures, "its leader may not know yet"
        deployment.run(NOTICED)
        quorums.begins(leader.group, joint)
        assert f"and only {sorted({leader.group.me, other.peer_id})} are well" in deployment.failures.pop()
        quorums.begins(leader.group, config.joint((leader.group.me, other.peer_id)))
        assert not deployment.failures


def test_a_change_to_a_damaged_journal_is_noticed(deployment: Deployment) -> None:
    with watched(deployment) as quorums:
        leader = _leader(deployment)
        follower = next(one for one in replicas(deployment) if one.machine is not leader.machine)
        joint = leader.group.log.config.joint((leader.group.me, follower.group.me))
        follower.group.log.damaged = True
        quorums.look()
        before = deployment.scheduler.now
        deployment.scheduler.now += NOTICED + 1.0
        quorums.begins(leader.group, joint)
        assert "are well" in deployment.failures.pop()
        deployment.scheduler.now = before
        follower.group.log.damaged = False


def test_a_voter_that_is_not_heard_is_noticed(deployment: Deployment) -> None:
    with watched(deployment):
        leader = _leader(deployment)
        admission = jetstream_of(leader.machine).network.raft.admission
        follower = next(one for one in replicas(deployment) if one.machine is not leader.machine)
        admission.refuse("a stranger", leader.gid)
        assert not deployment.failures
        admission.refuse(follower.group.me, leader.gid)
        assert f"does not hear {follower.group.me}, which decides by" in deployment.failures.pop()
