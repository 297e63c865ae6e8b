from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from jetcluster.auth.authenticator import Authenticator
from jetcluster.clock import SystemClock, SystemRng
from jetcluster.config.options import Options
from jetcluster.monitor.pages import NodeSource
from jetcluster.monitor.system import events as system_events
from jetcluster.monitor.system.events import SystemEvents
from jetcluster.monitor.view import ServerBlock
from jetcluster.server.server import Server
from testkit.twins.time import ManualTime
from tests.unit.monitor import fake_node


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    options = Options(host="127.0.0.1", port=-1, server_name="n1")
    found = Server(options, Authenticator(options), SystemClock(), SystemRng(), asyncio.get_running_loop())
    await found.start()
    yield found
    await found.stop()


@pytest.fixture
def node(server: Server) -> Any:
    """One of a cluster."""
    clock = ManualTime()
    return fake_node.node(server, clock, fake_node.engine(clock))


@pytest.fixture
def source(server: Server) -> NodeSource:
    return NodeSource(fake_node.node(server, SystemClock()))


@pytest.fixture
async def events(server: Server, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SystemEvents]:
    monkeypatch.setattr(system_events, "FIRST_STATSZ_SECONDS", 0.01)
    node = fake_node.node(server, SystemClock())
    found = SystemEvents(node, ServerBlock(node))
    found.start()
    yield found
    if server.clients.watcher is found:
        found.stop()
