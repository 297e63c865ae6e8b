"""Fixtures of the tests of the simulated cluster."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from testkit.sim.deployment import Deployment
from tests.sim.cluster.run import started


@pytest.fixture
def deployment() -> Iterator[Deployment]:
    """Three servers that have found each other."""
    deployment = started()
    yield deployment
    deployment.close()
