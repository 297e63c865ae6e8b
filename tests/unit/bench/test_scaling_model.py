"""The model of reads: what each server serves, and what is taken from others."""

from __future__ import annotations

import pytest

from bench.scaling.model import DOOR, FOLLOWER, LEADER, MIRROR, Costs, Plan, ReadCost, WriteCost, predict

OWN = ReadCost(4.0)
FREE = WriteCost(0.0, 0.0, 0.0, 0.0, 0.0)


def costs(*, follower: ReadCost = OWN, mirror: ReadCost = OWN, writes: WriteCost = FREE, rest: float = 0.0) -> Costs:
    reads = {LEADER: ReadCost(4.0), FOLLOWER: follower, MIRROR: mirror, DOOR: ReadCost(5.0, 2.0, 4.0)}
    return Costs(reads, writes, rest)


def test_replicas_and_mirrors_add_their_own_share() -> None:
    assert predict(Plan(1), costs()).total == pytest.approx(250_000)
    assert predict(Plan(3, share=0.2), costs()).total == pytest.approx(150_000)
    assert predict(Plan(3, mirrors=2), costs(mirror=ReadCost(8.0))).total == pytest.approx(1_000_000)


def test_rest_and_writes_are_taken_from_each() -> None:
    writes = WriteCost(alone=10.0, leader=30.0, follower=20.0, feeding=5.0, mirror=15.0)
    found = predict(Plan(3, mirrors=1, writes=1000.0), costs(writes=writes, rest=0.1))
    assert found.leader == pytest.approx((900_000 - 35_000) / 4)
    assert found.follower == pytest.approx((900_000 - 20_000) / 4)
    assert found.mirror == pytest.approx((900_000 - 15_000) / 4)
    assert found.total == pytest.approx(found.leader + 2 * found.follower + found.mirror)
    assert [writes.at_leader(followers, 0) for followers in (0, 1, 2, 4)] == [10, 20, 30, 50]


def test_questions_to_the_leader_are_taken_from_its_own_reads() -> None:
    found = predict(Plan(3), costs(follower=ReadCost(5.0, leader=1.0)))
    assert (found.follower, found.leader) == (pytest.approx(200_000), pytest.approx((1e6 - 400_000) / 4))


def test_a_leader_that_is_asked_too_much_slows_down_those_who_ask() -> None:
    found = predict(Plan(5), costs(follower=ReadCost(5.0, leader=5.0)))
    assert (found.leader, found.follower) == (pytest.approx(0.0), pytest.approx(50_000))


def test_servers_without_a_replica_only_pass_reads_on() -> None:
    found = predict(Plan(3, doors=1), costs())
    assert found.door == pytest.approx(200_000)
    assert found.follower == pytest.approx((1e6 - 200_000 * 2) / 4)
    assert found.total < predict(Plan(3), costs()).total + 1
    assert predict(Plan(1, doors=4), costs()).total == pytest.approx(1e6 / 6)


def test_without_any_time_left_nothing_is_served() -> None:
    assert predict(Plan(3, share=0.1), costs(rest=0.2)).total == 0.0
