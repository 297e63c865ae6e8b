"""The verdicts that the parts of a replica draw from its state (replica/replica_state.py).

The hashes that a replica remembers for comparison (replica/replica_state.py).
"""

from __future__ import annotations

import dataclasses

import pytest

from jetcluster.health.node_health import Aspect
from jetcluster.replica.replica_state import CHECKPOINT_EVERY, CHECKPOINTS, Checkpoints, Condition
from testkit.sim.nodes import Cluster
from testkit.sim.shared import virtual_time


@pytest.mark.parametrize(
    ("field", "condition", "sound", "keeps"),
    [
        ("damaged", Condition.DAMAGED, False, True),
        ("rejected", Condition.REJECTED, False, True),
        ("installing", Condition.INSTALLING, False, False),
        ("disputed", Condition.DISPUTED, True, False),
    ],
)
@virtual_time
async def test_what_speaks_against_a_state(field: str, condition: Condition, sound: bool, keeps: bool) -> None:
    async with Cluster() as cluster:
        await cluster.create("S", 1)
        replica = cluster.leader("S").replica("S")
        assert (replica.condition, replica.sound, replica.trusted) == (Condition.CONFIRMED, True, True)
        usual = getattr(replica, field)
        setattr(replica, field, "for the test")
        assert replica.condition is condition
        assert (replica.sound, replica.trusted, replica.keeps_state) == (sound, False, keeps)
        setattr(replica, field, usual)


@virtual_time
async def test_of_several_conditions_the_worst_counts() -> None:
    async with Cluster() as cluster:
        await cluster.create("S", 1)
        replica = cluster.leader("S").replica("S")
        for field, condition in (
            ("disputed", Condition.DISPUTED),
            ("installing", Condition.INSTALLING),
            ("rejected", Condition.REJECTED),
            ("damaged", Condition.DAMAGED),
        ):
            setattr(replica, field, "for the test")
            assert replica.condition is condition
        replica.disputed = replica.rejected = replica.damaged = ""
        replica.installing = False


@virtual_time
async def test_a_replica_whose_node_is_not_well_answers_only_where_no_other_is_better() -> None:
    async with Cluster() as cluster:
        await cluster.create("ONE", 1)
        await cluster.create("TWO", 2)
        alone, shared = cluster.leader("ONE").replica("ONE"), cluster.leader("TWO").replica("TWO")
        for replica in (alone, shared):
            replica.network.raft.health.watch(Aspect.STORE, lambda: "for the test")
        await cluster.until(lambda: not shared.network.raft.health.may_answer)
        assert not shared.may_answer, "B's is better"
        assert alone.may_answer, "there is no other"


@virtual_time
async def test_the_members_are_kept_with_the_state() -> None:
    async with Cluster() as cluster:
        await cluster.create("S", 3)
        replica = cluster.leader("S").replica("S")
        kept = replica.members()
        assert kept is not None and set(kept.config.voters) == {node.me for node in cluster}
        replica.keep_members()
        again = replica.members()
        assert again is not None and again.config == kept.config
        assert again.state_index == replica.machine.applied_index


@virtual_time
async def test_only_a_replica_without_a_place_retires() -> None:
    async with Cluster() as cluster:
        assignment = await cluster.create("S", 1)
        replica = cluster.leader("S").replica("S")
        assert not replica.retiring
        replica.assignment = dataclasses.replace(assignment, peers=("elsewhere",))
        assert replica.retiring
        replica.assignment = assignment


def test_checkpoints_are_bounded_and_tell_the_newest_two() -> None:
    points = Checkpoints(3, b"three")
    assert points.at(3) == b"three" and points.to_tell() == [(3, b"three")]
    for index in range(4, (CHECKPOINTS + 10) * CHECKPOINT_EVERY):
        points.note(index, b"%d" % index)
    assert len(points._hashes) == CHECKPOINTS
    newest = (CHECKPOINTS + 10) * CHECKPOINT_EVERY - 1
    checkpoint = newest - newest % CHECKPOINT_EVERY
    assert points.to_tell() == [(newest, b"%d" % newest), (checkpoint, b"%d" % checkpoint)]
    assert points.at(checkpoint) == b"%d" % checkpoint
    assert points.at(checkpoint + 1) is None and points.at(CHECKPOINT_EVERY) is None
    assert Checkpoints().to_tell() == []
