"""Fixtures of the tests of the simulated cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from testkit.sim.deployment import Deployment
from testkit.sim.session import Session
from tests.sim.cluster.run import started


@pytest.fixture
def deployment() -> Iterator[Deployment]:
    """Three servers that have found each other."""
    deployment = started()
    yield deployment
    deployment.close()


@pytest.fixture
def scale(deployment: Deployment) -> Callable[[], None]:
    """Makes the stream S with one replica, and gives it two more."""

    async def scaled() -> None:
        session = Session("admin", deployment.addresses())
        await session.connect()
        config = {"name": "S", "subjects": ["s"], "num_replicas": 1}
        await session.api("STREAM.CREATE.S", config)
        await session.api("STREAM.UPDATE.S", config | {"num_replicas": 3})
        await session.close()

    return lambda: deployment.run_until_done(deployment.spawn(deployment.client("me"), scaled()), 30.0)
