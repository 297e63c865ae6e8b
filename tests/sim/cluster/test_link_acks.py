"""A link that acknowledges what its stream does not have is noticed."""

from __future__ import annotations

from typing import Any

import pytest

from testkit.sim.deployment import Deployment
from testkit.sim.session import Session
from tests.sim.cluster.link_acks import watched

pytestmark = pytest.mark.sim


async def _copied(deployment: Deployment) -> None:
    """A work queue, and a stream that takes its messages."""
    session = Session("admin", deployment.addresses())
    await session.connect()
    await session.api("STREAM.CREATE.Q", {"name": "Q", "subjects": ["q"], "retention": "workqueue", "num_replicas": 3})
    await session.api("STREAM.CREATE.COPY", {"name": "COPY", "sources": [{"name": "Q"}], "num_replicas": 3})
    for text in (b"a", b"b", b"c"):
        await session.request("q", text)
    await session.close()


def test_a_link_acknowledges_what_it_has(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    came: list[tuple[Any, bytes, int]] = []
    with watched(deployment) as acks:
        usual = acks.acks

        def noted(*told: Any) -> None:
            came.append(told)
            usual(*told)

        monkeypatch.setattr(acks, "acks", noted)
        deployment.run_until_done(deployment.spawn(deployment.client("me"), _copied(deployment)), 30.0)
        deployment.run(10.0)
        assert acks.looked >= 1
        assert not deployment.failures
        router, subject, seq = came[-1]
        acks.acks(router, subject, seq + 1)
    assert f"it acknowledges {seq + 1} of Q, and has {seq}" in deployment.failures[0]
