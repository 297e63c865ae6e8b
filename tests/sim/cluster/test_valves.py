"""A client that waits at a valve that is open is noticed."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import pytest

from jetcluster.mesh import interest
from testkit.sim.deployment import Deployment, Violation
from testkit.sim.session import Session
from tests.sim.cluster.invariants import Replica, replicas
from tests.sim.cluster.valves import LATE, UNTOLD, Valves

pytestmark = pytest.mark.sim


async def _stream(deployment: Deployment) -> None:
    session = Session("admin", deployment.addresses())
    await session.connect()
    await session.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s"], "num_replicas": 3})
    await session.close()


@pytest.fixture
def leader(deployment: Deployment) -> Replica:
    deployment.run_until_done(deployment.spawn(deployment.client("me"), _stream(deployment)), 30.0)
    deployment.run(1.0)
    return next(one for one in replicas(deployment) if one.stream is not None and one.stream.leading)


def _interest(deployment: Deployment, leader: Replica) -> Any:
    """Interest of the stream, as another server knows it."""
    name = next(name for name in deployment.machines if name != leader.machine.name)
    for router in attrgetter("node.server.accounts")(deployment.machines[name]):
        for wants in attrgetter("_wants")(router.peers).values():
            if (b"s", None) in wants:
                return wants[b"s", None]
    raise AssertionError("nobody knows of the stream")


def test_a_valve_that_is_closed_is_waited_for(deployment: Deployment, leader: Replica) -> None:
    valves = Valves(deployment)
    valves.begin()
    leader.stream.ingest.valve.close()
    deployment.run(3 * LATE)
    assert valves.closed > 0
    leader.stream.ingest.valve.open()
    deployment.run(3 * LATE)


@pytest.mark.parametrize("usual", [1.0, 10.0])
def test_a_valve_that_is_open_is_not(deployment: Deployment, leader: Replica, usual: float) -> None:
    """Also where all processors are slow, as they are in a third of the seeds."""
    for machine in deployment.machines.values():
        machine.clock.slowness = machine.usual_slowness = usual
    valves = Valves(deployment)
    _interest(deployment, leader).set_valve(closed=True)
    valves.look()
    deployment.run(1.5 * LATE)
    with pytest.raises(Violation, match=r"waits for a valve of n\d at s, which is open for 1\.\d s"):
        valves.look()


def test_a_valve_that_is_closed_and_nobody_knows_is_noticed(deployment: Deployment, leader: Replica) -> None:
    valves = Valves(deployment)
    leader.stream.ingest.valve.close()
    deployment.run(LATE)
    attrgetter("_told_valve._repeat")(leader.stream).cancel()
    deployment.run(3.5)  # what is not said again counts no more
    valves.look()
    deployment.run(UNTOLD + 0.1)
    with pytest.raises(Violation, match=r"n\d does not wait for a valve of n\d at s, which is closed for 2\.6 s"):
        valves.look()


def test_of_two_servers_that_do_not_wait_the_first_is_told(deployment: Deployment, leader: Replica) -> None:
    """The same in each process: a digest of the run has what is told."""
    valves = Valves(deployment)
    leader.stream.ingest.valve.close()
    attrgetter("_told_valve._repeat")(leader.stream).cancel()
    deployment.run(3.5)
    valves.look()
    deployment.run(UNTOLD + 0.1)
    first = next(name for name in sorted(deployment.machines) if name != leader.machine.name)
    with pytest.raises(Violation, match=f"{first} does not wait"):
        valves.look()


def test_more_valves_than_others_respect_are_excused(
    deployment: Deployment, leader: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interest, "MAX_CLOSED_VALVES", 0)
    valves = Valves(deployment)
    leader.stream.ingest.valve.close()
    deployment.run(LATE)
    valves.look()
    deployment.run(UNTOLD + 0.1)
    valves.look()
