"""A command of the meta group that raises something is noticed, also where nobody tells a client."""

from __future__ import annotations

from typing import Any

import pytest

from jetcluster.meta.machine import MetaMachine
from testkit.sim.answers import BAD_META_COMMAND
from testkit.sim.deployment import Deployment
from testkit.sim.session import Session
from tests.sim.cluster import mistakes

pytestmark = pytest.mark.sim

BAD = b'{"request": "r", "kind": "nothing"}'


@pytest.mark.parametrize("expected", [False, True])
def test_a_command_that_raises_is_noticed_unless_a_workload_makes_it(deployment: Deployment, expected: bool) -> None:
    if expected:
        deployment.expected.add(BAD_META_COMMAND)
    with mistakes.watched(deployment):
        MetaMachine().apply(1, 1, BAD)
    said = [f"at {deployment.scheduler.now:.3f}: the meta group: bad meta command: KeyError, at 1: {BAD!r}"]
    assert deployment.failures == ([] if expected else said)


async def _stream(deployment: Deployment) -> None:
    session = Session("admin", deployment.addresses())
    await session.connect()
    await session.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s"], "num_replicas": 3})
    await session.close()


def test_the_commands_of_a_cluster_at_work_raise_nothing(deployment: Deployment) -> None:
    with mistakes.watched(deployment) as found:
        work: Any = deployment.spawn(deployment.client("me"), _stream(deployment))
        deployment.run_until_done(work, 30.0)
        deployment.run(1.0)
    assert found.looked >= 3 and deployment.failures == []
