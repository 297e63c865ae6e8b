"""More than a cluster can take: connections that publish without waiting."""

from __future__ import annotations

import asyncio
import contextlib
import sys

from chaos.nemeses.base import Nemesis, Trouble
from chaos.probe import probing
from chaos.replicas import api
from testkit.client import ClientError
from testkit.harness import HarnessError

CONNECTIONS = 50
SECONDS = 10.0
SPARE = 5.0
"""Seconds after which the flooding process is ended."""
STREAM = "FLOOD"
ROOM = 64 << 20
PATIENCE = 3.0
AFTER = 2.0


async def flood(trouble: Trouble) -> None:
    """Into a stream of its own, while a publisher of another one waits for each ack."""
    target = trouble.target
    config = {"name": STREAM, "subjects": ["flood"], "num_replicas": 3, "max_bytes": ROOM, "discard": "old"}
    with contextlib.suppress(ClientError):
        await api(target, f"STREAM.CREATE.{STREAM}", config)
    urls = [target.url(name) for name in target.names]
    arguments = ["-m", "chaos.flooder", str(CONNECTIONS), str(SECONDS), "flood", *urls]
    async with probing(trouble.history, target.url(trouble.one()), trouble.streams, PATIENCE):
        process = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=asyncio.subprocess.PIPE)
        try:
            async with asyncio.timeout(SECONDS + SPARE):
                out, _ = await process.communicate()
                trouble.detail = f"{CONNECTIONS} connections, {int(out or 0) >> 20} MiB"
        except TimeoutError:
            trouble.detail = f"{CONNECTIONS} connections, ended after {SECONDS + SPARE:.0f} s"
            process.kill()
            await process.wait()
        await asyncio.sleep(AFTER)
    with contextlib.suppress(ClientError, HarnessError):
        await api(target, f"STREAM.DELETE.{STREAM}")


NEMESES = [Nemesis("flood", "load", flood)]
