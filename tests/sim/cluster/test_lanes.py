"""Frames that wait for a connection that takes more are noticed."""

from __future__ import annotations

from operator import attrgetter

import pytest

from testkit.sim.deployment import Deployment
from tests.sim.cluster.lanes import Lanes, watched

pytestmark = pytest.mark.sim


def test_what_waits_is_noticed(deployment: Deployment) -> None:
    mesh = attrgetter("node.jetstream.jetstream.network.mesh")(deployment.machines["n1"])
    link = next(iter(mesh.links.values()))
    with watched(deployment) as lanes:
        link.pause_writing()
        link.send(b"\0\0\0\1\0")
        link.resume_writing()
    assert lanes.looked == 1
    assert not deployment.failures
    attrgetter("_ordered")(link).append(b"\0\0\0\1\0")
    setattr(link, "_scheduled", False)  # noqa: B010
    Lanes(deployment).resumed(link)
    assert "2 frames for" in deployment.failures[0]
