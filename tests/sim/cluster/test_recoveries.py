"""A log that is another one when it is read again is noticed, and one that is the same is not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from testkit.sim.deployment import Deployment
from testkit.sim.session import Session
from tests.sim.cluster.invariants import jetstream_of
from tests.sim.cluster.recoveries import Recoveries, watched

pytestmark = pytest.mark.sim


async def _stored(deployment: Deployment) -> None:
    session = Session("admin", deployment.addresses())
    await session.connect()
    await session.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s"], "num_replicas": 3})
    for number in range(5):
        await session.js_publish("s", b"%d" % number)
    await session.close()


@pytest.fixture
def recoveries(deployment: Deployment) -> Iterator[Recoveries]:
    """All servers have started once more than at first, so that each one's journal is known."""
    with watched(deployment) as found:
        for name in ("n1", "n2", "n3"):
            _again(deployment, name)
        deployment.run_until_done(deployment.spawn(deployment.client("me"), _stored(deployment)), 30.0)
        deployment.run(1.0)
        yield found


def _again(deployment: Deployment, name: str) -> None:
    machine = deployment.machines[name]
    machine.kill()
    machine.start()
    deployment.run(8.0)


def _log(deployment: Deployment) -> Any:
    groups = jetstream_of(deployment.machines["n2"]).network.raft.journal.groups
    return groups[max(groups)]


def test_a_log_that_is_the_same_is_looked_at(deployment: Deployment, recoveries: Recoveries) -> None:
    before = recoveries.looked
    _again(deployment, "n2")
    assert recoveries.looked >= before + 2, "of the meta group and of the stream"
    assert not deployment.failures


@pytest.mark.parametrize(
    ("field", "value", "noticed"),
    [
        ("credit", 7, "on credit up to 7, and when it is read again: False"),
        ("voted_for", "somebody", "has voted_for"),
        ("kept", None, "has kept"),
        ("fetching", True, "has fetching"),
        ("configs", [], "its members are"),
    ],
)
def test_a_log_that_has_changed_is_noticed(
    deployment: Deployment, recoveries: Recoveries, field: str, value: Any, noticed: str
) -> None:
    log = _log(deployment)
    deployment.machines["n2"].kill()
    setattr(log, field, not log.kept if field == "kept" else value)
    deployment.machines["n2"].start()
    deployment.run(3.0)
    assert noticed in deployment.failures[0]
    deployment.failures.clear()


def test_a_group_of_which_nothing_is_left_is_noticed(deployment: Deployment, recoveries: Recoveries) -> None:
    machine = deployment.machines["n2"]
    before = jetstream_of(machine).network.raft.journal
    machine.kill()
    before.groups[99] = _log_of_nobody(before)
    machine.start()
    deployment.run(3.0)
    assert "group 99: nothing of it is left when its journal is read again" in deployment.failures[0]
    deployment.failures.clear()


def _log_of_nobody(journal: Any) -> Any:
    log = journal.groups[max(journal.groups)]
    return type("Log", (), {"durable_gseq": log.durable_gseq})()
