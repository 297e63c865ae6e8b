"""The judge of acks notices when none comes, and does not ask for one without a majority."""

from __future__ import annotations

from random import Random

import pytest

from testkit.sim.deployment import Deployment, Violation
from testkit.sim.session import Msg
from tests.sim.cluster.availability import SLOWEST, Majorities
from tests.sim.cluster.invariants import replicas
from tests.sim.cluster.machine_faults import cut_links
from tests.sim.cluster.pulse import LONGEST, SLOWED, Pulse
from tests.sim.cluster.run import started

pytestmark = pytest.mark.sim


@pytest.fixture
def pulse(deployment: Deployment) -> Pulse:
    """One that publishes."""
    pulse = Pulse(deployment, Random(1))
    deployment.run_until_done(deployment.spawn(pulse.loop, pulse.prepare()), 30.0)
    deployment.spawn(pulse.loop, pulse.work())
    deployment.run(2.0)
    return pulse


def test_acks_come_through_each_server_all_the_time(deployment: Deployment, pulse: Pulse) -> None:
    deployment.run(10.0)
    assert pulse.counts["acknowledged"] > 50
    assert pulse.longest < 1.0 and pulse.most == LONGEST


def test_missing_acks_are_noticed(deployment: Deployment, pulse: Pulse) -> None:
    last = deployment.scheduler.now
    with pytest.raises(Violation, match=r"a majority is well and connected, and no publish was acknowledged for 3\.\d"):
        for _ in range(80):
            deployment.run(0.125)
            pulse.last = last  # none of what came since counts as an ack
            pulse.look()


def test_errors_are_no_acks(pulse: Pulse) -> None:
    before = pulse.last = -1.0
    pulse.answered(Msg("_PULSE.n1", "", {}, "503", b""))
    pulse.answered(Msg("_PULSE.n1", "", {}, "", b'{"error": {"code": 503}}'))
    assert pulse.last == before
    pulse.answered(Msg("_PULSE.n1", "", {}, "", b'{"stream": "PULSE", "seq": 3}'))
    assert pulse.last > before


def test_where_no_majority_is_well_no_ack_is_owed(deployment: Deployment, pulse: Pulse) -> None:
    for name in ("n1", "n2"):
        deployment.machines[name].pause()
    deployment.run(3 * LONGEST)
    assert pulse.longest < 1.0


def test_acks_come_soon_where_a_majority_is_apart_from_the_leader(deployment: Deployment, pulse: Pulse) -> None:
    leader = next(one for one in replicas(deployment) if one.stream is not None and one.stream.leading)
    others = [name for name in deployment.machines if name != leader.machine.name]
    began = deployment.scheduler.now
    cut_links(deployment, [leader.machine.name], others)
    deployment.run(3 * LONGEST)
    assert 0.5 < pulse.longest < LONGEST, "until the majority has another leader"
    assert pulse.last > began + 2 * LONGEST


def test_who_started_again_counts_once_somebody_can_tell_it_of_its_streams() -> None:
    deployment = started("five")
    pulse = Pulse(deployment, Random(1))
    deployment.run_until_done(deployment.spawn(pulse.loop, pulse.prepare()), 30.0)
    found = [one for one in replicas(deployment) if one.stream is not None]
    here = [one.machine for one in found]
    rest = [machine for machine in deployment.machines.values() if machine not in here]

    def judged() -> tuple[bool, bool]:
        majorities = Majorities(deployment)
        now = [one for one in replicas(deployment) if one.stream is not None]
        return majorities.has_one(now, majorities.well()), majorities.can_serve(now, majorities.well())

    for machine in (*rest, here[0]):
        machine.kill()
    deployment.run(8.0)
    assert judged() == (True, True), "two of three, which know of the stream; the meta group has two of five"
    here[1].kill()
    here[1].start()
    deployment.run(8.0)
    assert judged() == (True, False)
    rest[0].start()
    deployment.run(8.0)
    assert judged() == (True, True)
    deployment.close()


def test_slow_disks_have_longer(deployment: Deployment) -> None:
    deployment.machines["n2"].disk.pace = 5.0
    assert Pulse(deployment, Random(1)).most == SLOWED
    deployment.machines["n1"].disk.pace = 20.0
    assert Pulse(deployment, Random(1)).most == SLOWEST
