from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from jetcluster.auth.authenticator import Authenticator
from jetcluster.clock import SystemClock, SystemRng
from jetcluster.config.options import Options
from jetcluster.server.server import Server


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    options = Options(host="127.0.0.1", port=-1, server_name="n1")
    found = Server(options, Authenticator(options), SystemClock(), SystemRng(), asyncio.get_running_loop())
    await found.start()
    yield found
    await found.stop()
