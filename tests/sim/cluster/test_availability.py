"""The check of availability finds a missing leader, and excuses the loss of a majority."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from jetcluster.raft.api import Role
from testkit.sim.deployment import Deployment, Violation
from tests.sim.cluster.availability import LONGEST, SLOW_PACE, Availability
from tests.sim.cluster.invariants import replicas
from tests.sim.cluster.machine_faults import cut_links

pytestmark = pytest.mark.sim


def leaderless(deployment: Deployment, seconds: float = 2 * LONGEST) -> float:
    """No leader is seen for so long; the longest time without one that was counted. Raises Violation."""
    availability = Availability(deployment)
    end = deployment.scheduler.now + seconds
    while deployment.scheduler.now < end:
        roles = {one.group: one.group.role for one in replicas(deployment)}
        for group in roles:
            group.role = Role.FOLLOWER
        availability.look()
        for group, role in roles.items():
            group.role = role
        deployment.run(0.5)
    return availability.longest


def test_a_group_without_a_leader_is_missed(deployment: Deployment) -> None:
    with pytest.raises(Violation, match=r"a majority is well and connected, and nothing was committed for 10\.5 s"):
        leaderless(deployment)


def test_the_slowest_disks_have_longer(deployment: Deployment) -> None:
    deployment.machines["n1"].disk.pace = SLOW_PACE
    with pytest.raises(Violation, match=r"nothing was committed for 15\.5 s"):
        leaderless(deployment)


def test_nobody_leads_where_the_clocks_differ(deployment: Deployment) -> None:
    """Not even a stream whose only server has the right one: it cannot know that."""
    deployment.machines["n1"].clock.wall_ahead = 16.0
    assert "n2" in Availability(deployment).majorities.well()
    deployment.machines["n3"].clock.wall_ahead = -20.0
    assert Availability(deployment).majorities.well() == set()
    leaderless(deployment)


def test_a_leader_that_commits_nothing_of_what_it_has_is_missed(deployment: Deployment) -> None:
    availability = Availability(deployment)
    leader = next(one for one in replicas(deployment) if one.group.role is Role.LEADER)
    leader.group.engine.commit -= 1
    with pytest.raises(Violation, match="nothing was committed"):
        for _ in range(100):
            availability.look()
            deployment.scheduler.now += 0.5


def test_what_a_leader_committed_that_is_gone_again_counts(deployment: Deployment) -> None:
    """Between two looks it came, committed and ended; all that tells of it is that others know of more."""
    availability = Availability(deployment)
    groups = [one.group for one in replicas(deployment)]
    for group in groups:
        group.role = Role.FOLLOWER
        group.engine.commit -= 1
    for look in range(36):
        if look == 18:
            groups[0].engine.commit += 1
        availability.look()
        deployment.scheduler.now += 0.5
    assert 8.0 < availability.longest < 9.5


def clocks(deployment: Deployment) -> None:
    deployment.machines["n1"].clock.wall_ahead = 3600.0
    deployment.machines["n2"].clock.wall_ahead = -3600.0


def cut(deployment: Deployment) -> None:
    cut_links(deployment, ["n1"], ["n2", "n3"])
    cut_links(deployment, ["n2"], ["n3"])


def hung(deployment: Deployment) -> None:
    for name in ("n2", "n3"):
        deployment.machines[name].disk.hang()


def paused(deployment: Deployment) -> None:
    for name in ("n1", "n2"):
        deployment.machines[name].pause()


@pytest.mark.parametrize("strike", [clocks, cut, hung, paused])
def test_where_no_majority_is_well_nobody_has_to_lead(
    deployment: Deployment, strike: Callable[[Deployment], None]
) -> None:
    strike(deployment)
    assert leaderless(deployment) < 1.0


def alone(deployment: Deployment) -> None:
    cut_links(deployment, ["n3"], ["n1", "n2"])


def still(deployment: Deployment) -> None:
    deployment.machines["n3"].pause()


@pytest.mark.parametrize("strike", [alone, still])
def test_one_that_is_struck_leaves_a_majority(deployment: Deployment, strike: Callable[[Deployment], None]) -> None:
    strike(deployment)
    with pytest.raises(Violation, match="a majority is well"):
        leaderless(deployment)


def one_way(deployment: Deployment) -> None:
    cut_links(deployment, ["n3"], ["n1", "n2"], one_way=True)


def between_two(deployment: Deployment) -> None:
    cut_links(deployment, ["n2"], ["n3"])


@pytest.mark.parametrize("strike", [one_way, between_two])
def test_one_that_is_heard_by_some_may_disturb_the_others(
    deployment: Deployment, strike: Callable[[Deployment], None]
) -> None:
    strike(deployment)
    assert leaderless(deployment) < 1.0


def test_a_leader_that_is_cut_off_leads_nobody(deployment: Deployment) -> None:
    """It has committed all that it was given; the others, who elect nobody, are to have a leader."""
    leader = next(one for one in replicas(deployment) if one.group.role is Role.LEADER)
    cut_links(deployment, [leader.machine.name], [name for name in deployment.machines if name != leader.machine.name])
    availability = Availability(deployment)
    with pytest.raises(Violation, match="a majority is well"):
        for _ in range(50):
            availability.look()
            deployment.scheduler.now += 0.5
