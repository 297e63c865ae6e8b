"""A server that goes on before all others have heard whom it sends messages to is noticed."""

from __future__ import annotations

import pytest

from jetcluster.monitor.view import mesh_of
from testkit.sim.deployment import Deployment
from testkit.sim.session import Session
from tests.sim.cluster.spread import watched

pytestmark = pytest.mark.sim


async def _created(deployment: Deployment) -> None:
    session = Session("admin", deployment.addresses())
    await session.connect()
    await session.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s"], "num_replicas": 1})
    await session.close()


def test_who_goes_on_too_early_is_noticed(deployment: Deployment) -> None:
    with watched(deployment) as spread:
        deployment.run_until_done(deployment.spawn(deployment.client("me"), _created(deployment)), 30.0)
        assert spread.looked
        assert not deployment.failures
        node = deployment.machines["n1"].node
        mesh = None if node is None else mesh_of(node)
        assert node is not None and mesh is not None
        account = next(iter(node.server.accounts))
        account.subscribe(b"nobody.has.heard", lambda *message: None)
        spread.goes_on(mesh, *spread.told(mesh))
    assert "n1 goes on, and n2 has not heard of" in deployment.failures[0]
    deployment.failures.clear()


def test_what_is_withdrawn_meanwhile_may_be_told_again_later(deployment: Deployment) -> None:
    with watched(deployment) as spread:
        machine = deployment.machines["n1"]
        machine.kill()
        machine.start()  # one that tells while it is watched
        deployment.run(5.0)
        node = machine.node
        mesh = None if node is None else mesh_of(node)
        assert node is not None and mesh is not None
        account = next(iter(node.server.accounts))
        first = account.subscribe(b"in.and.out", lambda *message: None)
        deployment.run(1.0)
        told, links = spread.told(mesh)
        account.unsubscribe(first)
        deployment.run(0.5)
        account.subscribe(b"in.and.out", lambda *message: None)
        spread.ends(told)
        spread.goes_on(mesh, told, links)
    assert deployment.failures == []
