from __future__ import annotations

from collections.abc import AsyncIterator

import nats
import pytest
from nats.aio.client import Client as NATS

from testkit.harness import ProcessCluster


@pytest.fixture
async def nc(shared: ProcessCluster) -> AsyncIterator[NATS]:
    connection = await nats.connect(shared.urls, dont_randomize=True)
    yield connection
    await connection.close()
