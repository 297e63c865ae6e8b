"""Lame duck mode: a server that is about to go sends its clients elsewhere, a few at a time."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jetcluster.server.server import Server

log = logging.getLogger("jetcluster.server")

_MAX_STEP = 1.0


async def enter_lame_duck(server: Server) -> None:
    """Stops accepting, tells the clients, waits the grace period, closes them spread over the duration.

    Raft leaderships and JetStream are to be moved before by the caller. The process may exit when this returns.
    """
    options = server.options
    log.info("Entering lame duck mode, stop accepting new clients")
    await server.stop_accepting()
    server.announce_lame_duck()
    await asyncio.sleep(options.lame_duck_grace_period)
    clients = list(server.clients)
    if not clients:
        return
    # In whole groups when there are more clients than a timer can tell apart.
    interval = min(_MAX_STEP, options.lame_duck_duration / len(clients))
    group = max(1, int(0.001 / interval) if interval else len(clients))
    for start in range(0, len(clients), group):
        for client in clients[start : start + group]:
            client.close("Server Shutdown")
        if start + group < len(clients):
            await asyncio.sleep(interval * group)
