"""A publisher that waits, and an eye on the leaders, through one node: how long is nobody served while others suffer?

Its messages are those of the queue workload and are accounted for as such; `client` is `PROBE`."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Sequence
from typing import Any

from chaos.history import History
from chaos.workloads.base import TROUBLE, outcome
from chaos.workloads.queue import Queue
from testkit.client import Client, Msg

PROBE = "probe"
PROBED = "probed"
"""From when to when."""
PATIENCE = 0.3
"""Seconds until it asks again."""
EVERY = 0.03
LOOK = 0.1
_numbers = itertools.count(1)


@contextlib.asynccontextmanager
async def probing(
    history: History, url: str, streams: Sequence[str], patience: float = PATIENCE, write: bool = True
) -> AsyncIterator[None]:
    """While the body runs. `write=False`: only the leaders are looked at."""
    since = history.now()
    tasks = [asyncio.create_task(_look(history, url, streams))]
    if write:
        tasks.append(asyncio.create_task(_publish(history, url, patience)))
    try:
        yield
    finally:
        if write:
            history.note(Queue.name, PROBED, PROBE, since=since)
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def _publish(history: History, url: str, patience: float) -> None:
    """One message at a time, each until it is acked."""
    while True:
        with contextlib.suppress(*TROUBLE):
            async with await Client.connect(url, within=1.0) as client:
                while not client.closed.is_set():
                    await _until_acked(history, client, f"{PROBE}-{next(_numbers)}", patience)
                    await asyncio.sleep(EVERY)
        await asyncio.sleep(EVERY)


async def _until_acked(history: History, client: Client, value: str, patience: float) -> None:
    kind = ""
    while kind != "ok" and not client.closed.is_set():
        subject = f"{Queue.name}.{PROBE}"
        invoked = history.invoke(Queue.name, "publish", PROBE, subject=subject, msg_id=value)
        more: dict[str, Any] = {}
        kind = "info"
        try:
            answer: Msg = await client.request(subject, value.encode(), patience, {"Nats-Msg-Id": value})
            kind, more = outcome(answer)
        except TROUBLE as error:
            more = {"error": type(error).__name__}
        finally:
            history.end(invoked, kind, **more)
        if kind == "fail":
            await asyncio.sleep(EVERY)


async def _look(history: History, url: str, streams: Sequence[str]) -> None:
    known: dict[str, str] = {}
    while True:
        with contextlib.suppress(*TROUBLE):
            async with await Client.connect(url, within=1.0) as client:
                while not client.closed.is_set():
                    for stream in streams:
                        await _leader(history, client, stream, known)
                    await asyncio.sleep(LOOK)
        await asyncio.sleep(LOOK)


async def _leader(history: History, client: Client, stream: str, known: dict[str, str]) -> None:
    leader = ""
    with contextlib.suppress(*TROUBLE):
        info = await client.api(f"STREAM.INFO.{stream}", within=0.5)
        leader = str((info.get("cluster") or {}).get("leader") or "")
    if known.get(stream) != leader:
        known[stream] = leader
        history.note(stream.lower(), "leader", PROBE, replica=leader)
