"""A node without file descriptors: idle connections take all that its limit allows, and its journal needs new files."""

from __future__ import annotations

import asyncio
import contextlib
from urllib.parse import urlsplit

from chaos.nemeses.base import Nemesis, Trouble
from chaos.probe import probing
from chaos.replicas import api
from chaos.workloads.base import TROUBLE
from testkit.client import Client, ClientError
from testkit.harness import HarnessError, eventually

STREAM = "BULK"
PAYLOAD = 256 << 10
MESSAGES = 160
"""More than a segment of the journal (32 MiB)."""
WINDOW = 8
CLOSED_WITHIN = 15.0


async def no_descriptors(trouble: Trouble) -> None:
    """Takes the descriptors of the probed stream's leader. It must neither end nor keep the others waiting, and let
    clients in again when the idle ones are gone."""
    target = trouble.target
    victim = trouble.victim = await trouble.leader(trouble.probed)
    other = trouble.dice.choice([name for name in target.names if name != victim])
    config = {"name": STREAM, "subjects": ["bulk"], "num_replicas": 3, "max_bytes": 64 << 20, "discard": "old"}
    with contextlib.suppress(ClientError):
        await api(target, f"STREAM.CREATE.{STREAM}", config)
    idle: list[asyncio.StreamWriter] = []
    try:
        async with probing(trouble.history, target.url(other), trouble.streams):
            await _connect_all(target.url(victim), target.most_files, idle)
            sent = await _bulk(target.url(other))
            await trouble.hold(2.0, 3.0)
    finally:
        for writer in idle:
            writer.transport.abort()
    trouble.detail = f"{victim}: limit {target.most_files}, {len(idle)} idle connections, {sent} of {MESSAGES} acks"
    if not target.alive(victim):
        trouble.history.note("process", "died", replica=victim, error=target.tail(victim).splitlines()[-1][:200])
        await target.start(victim)
    with contextlib.suppress(ClientError, HarnessError):
        await api(target, f"STREAM.DELETE.{STREAM}")
    await eventually(lambda: _lets_in(target.url(victim)), CLOSED_WITHIN, f"{victim} lets nobody in")


async def _connect_all(url: str, count: int, idle: list[asyncio.StreamWriter]) -> None:
    """Opens as many connections as come through within a few seconds; a server that is full may leave the rest
    waiting."""
    parts = urlsplit(url)
    for _ in range(count):
        with contextlib.suppress(OSError, TimeoutError):
            _, writer = await asyncio.wait_for(asyncio.open_connection(parts.hostname, parts.port), 0.5)
            idle.append(writer)


async def _bulk(url: str) -> int:
    """Returns how many were acked."""
    acked = 0
    with contextlib.suppress(*TROUBLE):
        async with await Client.connect(url, within=2.0) as client:
            for _ in range(MESSAGES // WINDOW):
                futures = [client.request_soon("bulk", b"b" * PAYLOAD) for _ in range(WINDOW)]
                done, _ = await asyncio.wait(futures, timeout=2.0)
                acked += sum(future.exception() is None and b'"seq"' in future.result().data for future in done)
    return acked


async def _lets_in(url: str) -> bool:
    with contextlib.suppress(*TROUBLE):
        async with await Client.connect(url, within=1.0):
            return True
    return False


NEMESES = [Nemesis("no-descriptors", "load", no_descriptors, frozenset({"few-files"}))]
