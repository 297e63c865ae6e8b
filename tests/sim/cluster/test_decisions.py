"""A decision about a stream's servers that was made for others is noticed."""

from __future__ import annotations

import pytest

from testkit.sim.deployment import Deployment
from testkit.sim.session import Session
from tests.sim.cluster.decisions import watched

pytestmark = pytest.mark.sim


async def _scaled(deployment: Deployment) -> None:
    session = Session("admin", deployment.addresses())
    await session.connect()
    config = {"name": "S", "subjects": ["s"], "num_replicas": 1}
    await session.api("STREAM.CREATE.S", config)
    await session.api("STREAM.UPDATE.S", config | {"num_replicas": 3})
    await session.close()


def test_a_decision_is_made_for_the_servers_that_a_stream_has(deployment: Deployment) -> None:
    with watched(deployment) as decisions:
        deployment.run_until_done(deployment.spawn(deployment.client("me"), _scaled(deployment)), 30.0)
        deployment.run(2.0)
    assert decisions.looked == 3, "on three servers"
    assert not deployment.failures
    command = {"kind": "stream_peers", "from": ["a", "b"]}
    decisions.applied(command, ("a", "b"), ("a", "c"))
    assert not deployment.failures
    decisions.applied(command, ("a", "d"), ("a", "c"))
    assert "decided for ('a', 'b'), and the stream is on ('a', 'd')" in deployment.failures[0]
