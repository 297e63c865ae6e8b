"""Only what nobody could have done in time may be late."""

from __future__ import annotations

from random import Random

import pytest

from testkit.sim.deployment import Deployment
from testkit.twins.storage.sim_disk import TAIL
from tests.sim.cluster.invariants import jetstream_of, replicas
from tests.sim.cluster.machine_faults import cut_links
from tests.sim.cluster.punctuality import AGREED, EVERY, SLACK, SYNCS, Punctuality
from tests.sim.cluster.workloads.times import Times

pytestmark = pytest.mark.sim


def begun(deployment: Deployment) -> Punctuality:
    times = Times(deployment, Random(1))
    deployment.run_until_done(deployment.spawn(times.loop, times.prepare()), 30.0)
    deployment.run(3.0)
    return times.punctuality


def test_all_is_well_and_nothing_may_be_late(deployment: Deployment) -> None:
    punctuality, began = begun(deployment), deployment.scheduler.now
    deployment.run(5.0)
    assert punctuality.early == pytest.approx(SLACK, abs=0.01)
    assert punctuality.latest(began) == pytest.approx(began + SLACK, abs=0.01)
    deployment.machines["n3"].pause()  # two of three are a majority, and one of them leads soon
    deployment.run(10.0)
    now = deployment.scheduler.now
    assert punctuality.latest(now) == pytest.approx(now + SLACK, abs=0.01)


def test_who_cannot_be_led_is_late_until_it_is(deployment: Deployment) -> None:
    punctuality, began = begun(deployment), deployment.scheduler.now
    deployment.run(5.0)
    for name in ("n1", "n2"):
        deployment.machines[name].pause()
    deployment.run(8.0)
    for name in ("n1", "n2"):
        deployment.machines[name].resume()
    resumed = deployment.scheduler.now
    deployment.run(10.0)
    now = deployment.scheduler.now
    assert punctuality.latest(began) < began + 1.1 * SLACK, "it was due long before"
    for due in (began + 4.5, began + 9.0):
        assert resumed + SLACK - 2 * EVERY < punctuality.latest(due) < resumed + 6.0
    assert punctuality.latest(now) < now + 1.1 * SLACK, "it is led again"


def test_a_leader_that_is_cut_off_leads_nobody(deployment: Deployment) -> None:
    """Until another one does the majority may be late, however long the old one takes itself for the leader."""
    punctuality = begun(deployment)
    leader = next(one for one in replicas(deployment) if one.stream is not None and one.stream.leading)
    others = [name for name in deployment.machines if name != leader.machine.name]
    due = deployment.scheduler.now
    cut_links(deployment, [leader.machine.name], others)
    punctuality.look()
    assert leader.stream.leading
    assert punctuality.latest(due - EVERY / 2) > due + SLACK
    deployment.run(10.0)
    now = deployment.scheduler.now
    assert punctuality.latest(now) == pytest.approx(now + SLACK, abs=0.01), "another one leads the majority"


def test_disks_that_have_room_again_excuse_until_their_servers_have_looked(deployment: Deployment) -> None:
    punctuality = begun(deployment)
    machines = [deployment.machines[name] for name in ("n1", "n2")]
    for machine in machines:
        machine.disk.ballast = machine.disk.free
    deployment.run(4.0)
    due = deployment.scheduler.now
    deployment.run(2.0)
    for machine in machines:
        machine.disk.ballast = 0
    room = looked = deployment.scheduler.now
    while not all(jetstream_of(machine).network.raft.health.well for machine in machines):
        deployment.run(EVERY)
        looked = deployment.scheduler.now
    deployment.run(5.0)
    assert room + 5 * EVERY < looked < room + 3.0
    assert looked + SLACK - 2 * EVERY < punctuality.latest(due) < looked + 1.1 * SLACK + 2 * EVERY


def test_a_leader_that_does_not_know_which_streams_there_are_excuses_too(deployment: Deployment) -> None:
    punctuality = begun(deployment)
    leader = next(one for one in replicas(deployment) if one.stream is not None and one.stream.leading)
    known = jetstream_of(leader.machine).known
    due = deployment.scheduler.now
    known.current = False  # as after a start, while the meta group has no majority
    deployment.run(5.0)
    known.current = True
    knew = deployment.scheduler.now
    deployment.run(5.0)
    assert knew + SLACK - 2 * EVERY < punctuality.latest(due) < knew + SLACK + 2 * EVERY


@pytest.mark.parametrize("wrong", [0.5, -20.0])
def test_clocks_that_are_wrong_excuse_by_how_much(deployment: Deployment, wrong: float) -> None:
    punctuality = begun(deployment)
    deployment.machines["n2"].clock.wall_ahead = wrong
    deployment.run(1.0)
    assert punctuality.early == pytest.approx(SLACK + min(2 * abs(wrong), AGREED), abs=0.01)


def test_slow_disks_excuse_what_was_due_while_they_were_slow(deployment: Deployment) -> None:
    punctuality, began = begun(deployment), deployment.scheduler.now
    deployment.run(5.0)
    slowed, pace = deployment.scheduler.now, 20.0
    for machine in deployment.machines.values():
        machine.disk.pace = pace
    deployment.run(8.0)
    for machine in deployment.machines.values():
        machine.disk.pace = 1.0  # as an exam does before the workloads after it are checked
    quick = deployment.scheduler.now
    deployment.run(8.0)
    slow = SYNCS * TAIL[1] * pace
    for due in (slowed + 1.0, quick, quick + 0.9 * TAIL[1] * pace):
        assert punctuality.latest(due) >= due + SLACK + slow, "a write that was begun before is as slow"
    for due in (began, quick + TAIL[1] * pace + 2 * EVERY):
        assert punctuality.latest(due) < due + SLACK + slow, "the disks were quick then"
