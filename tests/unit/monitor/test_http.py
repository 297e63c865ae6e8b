"""Pages of very many lines are made in steps, so that the loop serves everybody meanwhile."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import aiohttp
import pytest

from jetcluster.clock import SystemClock
from jetcluster.monitor.http import application
from jetcluster.monitor.metrics import Metrics
from jetcluster.monitor.pages import NodeSource
from jetcluster.server.server import Server
from tests.unit.monitor import fake_node

MANY = 30_000
LONGEST = 0.15
"""Seconds of processor time between two turns of the loop; a page of so many lines takes 0.3 s and more."""


class Turns:
    """The longest time of this thread's processor between two turns of the loop, while it is watched."""

    async def __aenter__(self) -> Turns:
        self.longest = 0.0
        self._task = asyncio.create_task(self._watch())
        await asyncio.sleep(0)
        return self

    async def _watch(self) -> None:
        before = time.thread_time()
        while True:
            await asyncio.sleep(0)
            now = time.thread_time()
            self.longest, before = max(self.longest, now - before), now

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


async def subscriber(server: Server, many: int) -> asyncio.StreamWriter:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b'CONNECT {"verbose":false}\r\n')
    writer.write(b"".join(b"SUB s.%d.x %d\r\n" % (number, number) for number in range(many)) + b"PING\r\n")
    while await reader.readline() != b"PONG\r\n":
        pass
    return writer


@pytest.mark.parametrize(
    ("page", "query", "lines"),
    [
        ("subsz", {"subs": "1", "limit": str(MANY)}, lambda found: found["subscriptions_list"]),
        ("connz", {"subs": "detail"}, lambda found: found["connections"][0]["subscriptions_list_detail"]),
    ],
)
async def test_page_of_many_subscriptions_keeps_nobody_waiting(
    server: Server, page: str, query: dict[str, str], lines: Any
) -> None:
    node = fake_node.node(server, SystemClock())
    source = NodeSource(node)
    writer = await subscriber(server, MANY)
    runner = aiohttp.web.AppRunner(application(source, Metrics(node, source)))
    await runner.setup()
    site = aiohttp.web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    url = f"http://127.0.0.1:{port}/{page}?" + "&".join(f"{name}={value}" for name, value in query.items())

    def ask() -> bytes:
        import urllib.request

        with urllib.request.urlopen(url, timeout=60) as answer:
            body: bytes = answer.read()
        return body

    async with Turns() as turns:
        body = await asyncio.to_thread(ask)
    found = json.loads(body)
    assert len(lines(found)) == MANY
    assert turns.longest < LONGEST
    again = source.page(page, query)
    assert lines(found) == lines(again), "at once, and in steps"
    assert body.decode() == json.dumps(found, indent=2, ensure_ascii=False)
    await runner.cleanup()
    writer.close()


async def test_subscriptions_may_come_and_go_between_the_steps(server: Server) -> None:
    source = NodeSource(fake_node.node(server, SystemClock()))
    writer = await subscriber(server, 2000)
    steps = source.in_steps("subsz", {"subs": "1", "limit": "10000"})
    next(steps)
    writer.write(b"".join(b"UNSUB %d\r\n" % number for number in range(1000)))
    writer.write(b"".join(b"SUB t.%d q%d\r\n" % (number, number) for number in range(1000)))
    index = server.accounts["$G"].index
    while index.inserts < 3000 or index.removes < 1000:
        await asyncio.sleep(0.01)
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            found = stop.value
            break
    assert found["total"] == len(found["subscriptions_list"]) >= 1000
    writer.close()
