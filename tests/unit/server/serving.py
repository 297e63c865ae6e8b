"""Servers of this process on real sockets, on asyncio's loop and on uvloop: from options, and from a file that is read
as `jetcluster serve` reads it.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import inspect
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from jetcluster.auth.authenticator import Authenticator
from jetcluster.clock import SystemClock
from jetcluster.config.load import load_file
from jetcluster.config.options import Options
from jetcluster.node.part_options import tls_context
from jetcluster.server.server import Server
from testkit.server_rig import options_of
from testkit.twins.time import SeededRng

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


def on_both_loops(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A test that runs on asyncio's loop and on uvloop."""

    def run(loop: str, **given: Any) -> None:
        with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
            runner.run(test(**given))
        gc.collect()  # a transport that was not closed warns here, and warnings are errors

    functools.update_wrapper(run, test)
    signature = inspect.signature(test)
    loop = inspect.Parameter("loop", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    run.__signature__ = signature.replace(parameters=[loop, *signature.parameters.values()])  # type: ignore[attr-defined]
    return pytest.mark.parametrize("loop", LOOPS)(run)


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


Reload = Callable[[], Awaitable[None]]


def _load(file: Path) -> Options:
    options, _ = load_file(str(file))
    options.host, options.port = "127.0.0.1", -1
    return options


def _share(server: Server, options: Options) -> None:
    server.share(options.accounts or {}, options.mappings, options.system_account_name)


@asynccontextmanager
async def configured(file: Path) -> AsyncIterator[tuple[Server, Reload]]:
    """(the server, what reads the file again)."""
    options = _load(file)
    loop = asyncio.get_running_loop()
    server = Server(options, Authenticator(options), SystemClock(), SeededRng(1), loop, tls_context(options.tls))
    _share(server, options)
    await server.start()

    async def reload() -> None:
        new = _load(file)
        _share(server, new)
        server.reconfigure(new, Authenticator(new), tls_context(new.tls))

    try:
        yield server, reload
    finally:
        await server.stop()
