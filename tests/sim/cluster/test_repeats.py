"""A request that is carried out twice is noticed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from jetcluster.stream.log import commands
from testkit.sim.deployment import Deployment
from testkit.sim.session import Session
from tests.sim.cluster.invariants import Replica, jetstream_of, replicas
from tests.sim.cluster.repeats import Repeats, watched

pytestmark = pytest.mark.sim
PURGE = 7_777
"""Number of a request."""


async def _stored(deployment: Deployment) -> None:
    session = Session("admin", deployment.addresses())
    await session.connect()
    await session.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s"], "num_replicas": 3})
    await session.js_publish("s", b"a")
    await session.close()


def _leader(deployment: Deployment) -> Replica:
    return next(one for one in replicas(deployment) if one.stream is not None and one.stream.leading)


def _purge(deployment: Deployment) -> None:
    replica = _leader(deployment)
    command = commands.encode_purge(replica.stream.machine.clock, b"")
    replica.group.propose(commands.named(command, PURGE))
    deployment.run(1.0)


@pytest.fixture
def repeats(deployment: Deployment) -> Iterator[Repeats]:
    with watched(deployment) as found:
        deployment.run_until_done(deployment.spawn(deployment.client("me"), _stored(deployment)), 30.0)
        yield found


def test_a_purge_that_comes_again_changes_nothing(deployment: Deployment, repeats: Repeats) -> None:
    _purge(deployment)
    assert repeats.looked == 0
    deployment.run_until_done(deployment.spawn(deployment.client("me"), _stored(deployment)), 30.0)
    _purge(deployment)
    assert repeats.looked == 3, "on three servers"
    assert not deployment.failures
    machine = _leader(deployment).stream.machine
    repeats.stream(machine, 1 << 40, PURGE, 1, (0, 0, 0, 0))
    assert not deployment.failures
    repeats.stream(machine, 1 << 40, PURGE, 1, (1, 0, 0, 0))
    assert f"stream S: request {PURGE} of" in deployment.failures[0]


@pytest.mark.parametrize("second", [{"revision": 5, "gid": 9}, {"error": {"err_code": 10059}}, {"revision": 8}])
def test_an_outcome_of_the_meta_group_stays(deployment: Deployment, repeats: Repeats, second: dict[str, Any]) -> None:
    machine = jetstream_of(deployment.machines["n1"]).meta.machine
    command = json.dumps({"request": "r"}).encode()
    repeats.meta(machine, 1_001, command, {"revision": 5, "gid": 9, "assignment": {}})
    repeats.meta(machine, 1_002, command, second)
    assert repeats.looked == 1
    assert bool(deployment.failures) == ("revision" in second and second["revision"] == 8)
