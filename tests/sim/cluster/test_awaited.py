"""A leader that awaits no answer to what it has sent is noticed."""

from __future__ import annotations

import pytest

from jetcluster.raft.core.peer_progress import FlowState, PeerProgress
from testkit.sim.deployment import Deployment
from tests.sim.cluster.awaited import Awaited, forgotten, watched

pytestmark = pytest.mark.sim


def test_followers_that_are_gone_on_with_are_looked_at(deployment: Deployment) -> None:
    with watched(deployment) as awaited:
        deployment.machines["n2"].kill()
        deployment.machines["n2"].start()
        deployment.run(8.0)
    assert awaited.looked >= 1
    assert not deployment.failures


def test_an_answer_that_nobody_awaits_is_noticed(deployment: Deployment) -> None:
    awaited = Awaited(deployment)
    flow = PeerProgress("P", next=6, connected=True, state=FlowState.REPLICATE, match=3)
    flow.out.append((5, 0))
    awaited.goes_on(flow)
    flow.out.clear()
    flow.match = 5
    awaited.goes_on(flow)
    assert not deployment.failures
    flow.match = 3
    awaited.goes_on(flow)
    assert "5 was sent to P, which has 3, and no answer is awaited" in deployment.failures[0]
    flow.base_probed = 5  # it was asked whether it has the leader's base
    assert forgotten(flow) == ""
    deployment.failures.clear()
