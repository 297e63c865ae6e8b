"""A state that comes with members of later, and a log that is given up for a state, are noticed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from testkit.sim.deployment import Deployment
from testkit.sim.rafts import machine_of
from tests.sim.cluster.installs import Installs, watched
from tests.sim.cluster.invariants import Replica, replicas

pytestmark = pytest.mark.sim


@pytest.fixture
def changed(deployment: Deployment, scale: Callable[[], None]) -> tuple[Replica, Replica]:
    """Two replicas of a stream whose members have changed."""
    scale()
    deployment.run(5.0)
    found = [one for one in replicas(deployment) if one.stream is not None]
    one = max(found, key=lambda replica: len(replica.group.log.configs))
    return one, next(other for other in found if other is not one)


def test_members_of_later_are_noticed(deployment: Deployment, changed: tuple[Replica, Replica]) -> None:
    one, other = changed
    installs = Installs(deployment)
    at, config = one.group.log.configs[-1]
    installs.members(other.machine, other.group.log, at, config)
    assert not deployment.failures
    installs.members(other.machine, other.group.log, at - 1, config)
    assert f"its state of {at - 1} comes with the members of {at}" in deployment.failures[0]


def test_who_came_later_knows_nothing_of_the_members_of_before(
    deployment: Deployment, changed: tuple[Replica, Replica]
) -> None:
    one, other = changed
    at, config = one.group.log.configs[-1]
    for replica in replicas(deployment):
        if replica.stream is not None and replica is not other:
            told = replace(config, voters=tuple(peer for peer in config.voters if peer != replica.group.me))
            replica.group.log.configs[:] = [(0, told), (at, config)]
    installs = Installs(deployment)
    installs.members(other.machine, other.group.log, at - 1, config)
    assert installs.looked == 1
    assert not deployment.failures


def test_who_came_later_gives_a_state_with_what_it_was_told(
    deployment: Deployment, changed: tuple[Replica, Replica]
) -> None:
    one, other = changed
    at, config = one.group.log.configs[-1]
    giver = next(x for x in replicas(deployment) if x.stream is not None and x.group not in (one.group, other.group))
    told = replace(config, voters=tuple(peer for peer in config.voters if peer != giver.group.me))
    one.group.log.configs[-1] = at, told  # by who was there from the beginning they are members of later
    installs = Installs(deployment)
    giver.group.log.configs[:] = [(at - 1, told)]
    installs.members(other.machine, other.group.log, at - 1, told)
    assert installs.looked == 1
    assert not deployment.failures
    giver.group.log.configs[:] = [(at - 2, told)]
    installs.members(other.machine, other.group.log, at - 1, told)
    assert f"comes with the members of {at}" in deployment.failures[0]


def test_a_log_that_is_given_up_is_noticed(deployment: Deployment, changed: tuple[Replica, Replica]) -> None:
    one, _ = changed
    installs, last = Installs(deployment), one.group.log.last_index
    installs.kept(one.machine, one.group.log, last - 1, last)
    assert not deployment.failures
    installs.kept(one.machine, one.group.log, last - 1, last + 1)
    assert "gives up what it had behind that" in deployment.failures[0]


def test_states_that_are_taken_are_looked_at(deployment: Deployment) -> None:
    with watched(deployment) as installs:
        machine = deployment.machines["n2"]
        machine.segment = 4_096
        machine.lose_power()
        machine.new_disk()
        machine.start()
        deployment.run(20.0)
        machines = deployment.machines.values()
        logs = [one.group.log for one in replicas(deployment) if one.machine is machine]
        assert [machine_of(machines, log) for log in logs] == [machine] * len(logs)
        assert machine_of([deployment.machines["n1"]], logs[0]) is None
        one = next(replica for replica in replicas(deployment) if replica.machine is machine)
        log = one.group.log
        one.group.snapshots.install(log.last_index, log.last_term, log.config)
    assert installs.looked >= 1
    assert not deployment.failures
