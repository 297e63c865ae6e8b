"""A command for whom nobody waits any more is noticed."""

from __future__ import annotations

import pytest

from testkit.sim.deployment import Deployment
from testkit.sim.session import Session
from tests.sim.cluster.invariants import replicas
from tests.sim.cluster.wanted import watched

pytestmark = pytest.mark.sim


async def _purged(deployment: Deployment) -> None:
    session = Session("admin", deployment.addresses())
    await session.connect()
    await session.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s"], "num_replicas": 3})
    await session.api("STREAM.PURGE.S")
    await session.close()


def test_who_asks_still_waits(deployment: Deployment) -> None:
    with watched(deployment) as wanted:
        deployment.run_until_done(deployment.spawn(deployment.client("me"), _purged(deployment)), 30.0)
        assert wanted.looked >= 2, "the creation and the purge"
        assert not deployment.failures
        group = next(replicas(deployment)).group
        wanted.begins(group, group.now() + 0.1)
        assert not deployment.failures
        wanted.begins(group, group.now() - 0.1)
    assert "a command is proposed 0.100 s after whoever asked has given up" in deployment.failures[0]
