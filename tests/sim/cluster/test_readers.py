"""The judge of who answers reads notices a replica that must not."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from jetcluster.raft.api import Role
from testkit.sim.deployment import Deployment, Violation
from tests.sim.cluster.invariants import Replica, replicas
from tests.sim.cluster.machine_faults import cut_links
from tests.sim.cluster.readers import LOST, Readers, unfit
from tests.sim.cluster.workloads.churn import Churn

pytestmark = pytest.mark.sim


@pytest.fixture
def follower(deployment: Deployment) -> Iterator[Replica]:
    """A follower of a stream with a message."""
    churn = Churn(deployment, Random(1))

    async def fill() -> None:
        session = await churn.session("one")
        await churn.create(session, "S", subjects=["s"])
        await churn.store(session, "s", "first")
        await session.close()

    deployment.run_until_done(deployment.spawn(churn.loop, fill()), 30.0)
    deployment.run(3.0)
    yield next(one for one in replicas(deployment) if one.stream is not None and one.group.role is Role.FOLLOWER)


def test_all_replicas_answer_and_may(deployment: Deployment, follower: Replica) -> None:
    readers = Readers(deployment)
    for _ in range(int(2 * LOST)):
        readers.look()
        deployment.run(1.0)
    assert readers.looks == 3 * int(2 * LOST)


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("installing", True, "only half there"),
        ("rejected", "it drifted", "not the others'"),
        ("damaged", "a row", "cannot be read"),
    ],
)
def test_one_that_knows_it_must_not(follower: Replica, name: str, value: Any, why: str) -> None:
    assert unfit(follower) == ""
    planted = SimpleNamespace(**{"installing": False, "rejected": "", "damaged": "", name: value})
    assert why in unfit(follower._replace(stream=planted))


def store_without(deployment: Deployment, follower: Replica) -> None:
    """The others store a message, and the judge looks for twice the time that it allows."""
    churn = Churn(deployment, Random(2))
    others = [name for name in deployment.members() if name != follower.machine.name]

    async def store() -> None:
        session = await churn.session("two", *others)
        await churn.store(session, "s", "second")

    Readers(deployment).begin()
    deployment.run_until_done(deployment.spawn(churn.loop, store()), 30.0)
    deployment.run(2 * LOST)


def test_one_that_was_left_behind(deployment: Deployment, follower: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    """It reaches a majority, but not the leader, and stays in the group of readers, while the others go on."""
    monkeypatch.setattr(follower.stream.reads.own, "leave", lambda: None)
    leader = next(one for one in replicas(deployment) if one.gid == follower.gid and one.group.role is Role.LEADER)
    cut_links(deployment, [follower.machine.name], [leader.machine.name])
    with pytest.raises(Violation, match="it answers reads, and has heard of no commit for"):
        store_without(deployment, follower)


def test_one_that_is_cut_off_may_read(deployment: Deployment, follower: Replica) -> None:
    """Its data may be all there is, as far as it knows (docs/reads.md)."""
    me = follower.machine.name
    cut_links(deployment, [me], [name for name in deployment.machines if name != me])
    store_without(deployment, follower)
    assert follower.stream.reads.own.joined
