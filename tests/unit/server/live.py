"""Servers on real sockets, on asyncio's loop and on uvloop."""

from __future__ import annotations

import asyncio
import gc
import json
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvloop

from jetcluster.auth.authenticator import Authenticator
from jetcluster.clock import SystemClock
from jetcluster.server.server import Server
from testkit.server_rig import options_of
from testkit.twins.time import SeededRng

Body = Callable[[], Coroutine[Any, Any, None]]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[[Body], None]:
    factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop

    def go(body: Body) -> None:
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(body())
        gc.collect()  # a transport that was not closed warns here, and warnings are errors

    return go


@asynccontextmanager
async def serving(*, context: ssl.SSLContext | None = None, **options: Any) -> AsyncIterator[Server]:
    """`context`: of the client port, when `tls` says that it has TLS."""
    found = options_of(**{"host": "127.0.0.1", "port": -1, **options})
    server = Server(found, Authenticator(found), SystemClock(), SeededRng(1), asyncio.get_running_loop(), context)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


async def dial(server: Server) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, dict[str, Any]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    info = await reader.readline()
    return reader, writer, json.loads(info[5:])
