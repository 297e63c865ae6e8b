"""A server in this process by a configuration file, as `jetcluster serve` would make its client-facing half."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from jetcluster.auth.authenticator import Authenticator
from jetcluster.clock import SystemClock
from jetcluster.config.load import load_file
from jetcluster.config.options import Options
from jetcluster.node.part_options import tls_context
from jetcluster.server.server import Server
from testkit.twins.time import SeededRng

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
