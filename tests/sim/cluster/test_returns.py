"""A replica with a damaged journal that returns before enough others have confirmed it is noticed."""

from __future__ import annotations

import pytest

from jetcluster.raft.api import META_GROUP, Role
from testkit.sim.deployment import Deployment
from tests.sim.cluster.invariants import replicas
from tests.sim.cluster.returns import Question, watched

pytestmark = pytest.mark.sim


def test_a_return_that_others_have_confirmed_is_looked_at(deployment: Deployment) -> None:
    with watched(deployment) as returns:
        follower = next(one for one in replicas(deployment) if one.group.role is Role.FOLLOWER)
        machine, log = follower.machine, follower.group.log
        log.mark_damaged()
        deployment.vows.marked(machine, META_GROUP)
        deployment.run(1.0)
        machine.kill()
        machine.start()
        deployment.run(8.0)
        found = next(one for one in replicas(deployment) if one.machine is machine)
        assert not found.group.log.damaged
    assert returns.looked >= 1
    assert not returns.open
    assert not deployment.failures


def test_a_return_that_nobody_else_confirms_is_noticed(deployment: Deployment) -> None:
    with watched(deployment) as returns:
        leader = next(one for one in replicas(deployment) if one.group.role is Role.LEADER)
        group = leader.group
        one, other = (voter for voter in group.log.config.voters if voter != group.me)
        question = Question(group.reads, one)
        returns.open.append(question)
        returns.answers(group.reads, other, question.context)  # to what was asked before
        returns.answers(group.reads, one, question.context + 1)
        returns.granted(question)
        assert f"{one} returns, and of " in deployment.failures.pop()
        returns.answers(group.reads, other, question.context + 1)
        returns.granted(question)
        assert not deployment.failures
