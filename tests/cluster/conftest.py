"""Fixtures of the consumer tests: one cluster per module, a stream of its own per test and number of replicas."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from testkit.consumer_client import Jet
from testkit.harness import ProcessCluster


@pytest.fixture(params=[1, 3], ids=["R1", "R3"])
async def jet(shared: ProcessCluster, server: str, request: pytest.FixtureRequest) -> AsyncIterator[Jet]:
    """A fresh stream; its client is connected to a node that is as likely its leader as not. Marker `stream(**config)`
    adds to the stream's configuration."""
    marker = request.node.get_closest_marker("stream")
    name = f"{request.node.originalname.removeprefix('test_')[:40].upper()}_R{request.param}"
    async with await shared[0].connect() as client:
        yield await Jet.start(client, name, request.param, server, **(marker.kwargs if marker else {}))
        await client.api(f"STREAM.DELETE.{name}")
