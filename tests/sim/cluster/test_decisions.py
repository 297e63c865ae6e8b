"""A decision about a stream's servers that was made for others is noticed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from testkit.sim.deployment import Deployment
from tests.sim.cluster.decisions import watched

pytestmark = pytest.mark.sim


def test_a_decision_is_made_for_the_servers_that_a_stream_has(
    deployment: Deployment, scale: Callable[[], None]
) -> None:
    with watched(deployment) as decisions:
        scale()
        deployment.run(2.0)
    assert decisions.looked == 3, "on three servers"
    assert not deployment.failures
    command = {"kind": "stream_peers", "from": ["a", "b"]}
    decisions.applied(command, ("a", "b"), ("a", "c"))
    assert not deployment.failures
    decisions.applied(command, ("a", "d"), ("a", "c"))
    assert "decided for ('a', 'b'), and the stream is on ('a', 'd')" in deployment.failures[0]
