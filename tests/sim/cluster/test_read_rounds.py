"""A read that a leader confirms and that lacks something is noticed."""

from __future__ import annotations

import pytest

from testkit.sim.deployment import Deployment
from testkit.sim.session import Session
from tests.sim.cluster.read_rounds import watched

pytestmark = pytest.mark.sim


async def _read(deployment: Deployment) -> None:
    session = Session("admin", deployment.addresses())
    await session.connect()
    await session.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s"], "num_replicas": 3})
    await session.js_publish("s", b"a")
    await session.api("STREAM.MSG.GET.S", {"last_by_subj": "s"})
    await session.close()


@pytest.mark.parametrize("more", [0, 1])
def test_a_read_has_what_was_committed_before(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch, more: int
) -> None:
    committed = deployment.vows.committed
    monkeypatch.setattr(deployment.vows, "committed", lambda *asked: committed(*asked) + 1_000 * more)
    with watched(deployment) as rounds:
        deployment.spawn(deployment.client("me"), _read(deployment))
        deployment.run(5.0)
    assert rounds.looked >= 1
    assert bool(deployment.failures) == bool(more)
    assert all("was committed before it was asked" in failure for failure in deployment.failures)
