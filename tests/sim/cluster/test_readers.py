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
    """Of a stream with a message."""
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


def test_one_that_was_left_behind(deployment: Deployment, follower: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is cut off and stays in the group of readers, while the others go on."""
    me = follower.machine.name
    monkeypatch.setattr(follower.stream.reads.own, "leave", lambda: None)
    cut_links(deployment, [me], [name for name in deployment.machines if name != me])
    churn = Churn(deployment, Random(2))
    others = [name for name in deployment.members() if name != me]

    async def store() -> None:
        session = await churn.session("two", *others)
        await churn.store(session, "s", "second")

    readers = Readers(deployment)
    readers.begin()
    with pytest.raises(Violation, match="it answers reads, and has heard of no commit for"):
        deployment.run_until_done(deployment.spawn(churn.loop, store()), 30.0)
        deployment.run(2 * LOST)
