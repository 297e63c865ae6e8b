"""Fixtures: three servers with users of three kinds and some data, the browser, a page of its own for each test.

All is of one event loop, that of the session, because the browser and the servers live as long.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, async_playwright

from testkit.client import Client, create_stream
from testkit.harness import Node, ProcessCluster, eventually
from tests.console.browser import BROWSERS, Demo, Screen, configuration, find_browser

HERE = Path(__file__).parent
ABSENT = f"no Chromium on this machine ({', '.join(BROWSERS)}); Debian: apt-get install chromium"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the tests of this folder: one loop for all, and none without a browser. Those of scale come last."""
    items.sort(key=lambda item: item.path == HERE / "test_scale.py")
    absent = find_browser() is None
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)
            if absent:
                item.add_marker(pytest.mark.skip(reason=ABSENT))


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        # Servers of tests run as root in containers, where Chromium's own sandbox cannot.
        found = await playwright.chromium.launch(executable_path=find_browser(), args=["--no-sandbox", "--disable-gpu"])
        yield found
        await found.close()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def demo(request: pytest.FixtureRequest) -> AsyncIterator[Demo]:
    """Three servers and a little data. A test that ends one starts it again."""
    Node.forked = True
    cluster = ProcessCluster(3, name="demo", config=configuration(), monitor=True)
    found = Demo(cluster)
    async with cluster:
        await fill(found)
        yield found
        cluster.failed = request.session.testsfailed > 0


async def fill(demo: Demo) -> None:
    """A stream of 800 messages with headers, its mirror, a bucket, an object, two consumers."""
    async with await demo.cluster[0].connect() as client:
        await create_stream(client, "ORDERS", ["orders.>"], 3)
        await client.api("STREAM.CREATE.COPY", {"name": "COPY", "mirror": {"name": "ORDERS"}, "num_replicas": 1})
        bucket = {"max_msgs_per_subject": 5, "allow_rollup_hdrs": True, "deny_delete": True, "discard": "new"}
        await create_stream(client, "KV_CONFIG", ["$KV.CONFIG.>"], 3, **bucket)
        for at in range(800):
            region = ("eu", "us", "ap")[at % 3]
            body = b'{"id": %d, "total": 3.5, "region": "%s"}' % (at, region.encode())
            client.publish(f"orders.{region}.{at % 7}", body, headers={"X-Trace": f"t{at}"})
        for at in range(3):
            client.publish("$KV.CONFIG.app.color", b"blue%d" % at)
        for name in ("billing", "audit"):
            config = {"durable_name": name, "ack_policy": "explicit"}
            await client.api(f"CONSUMER.CREATE.ORDERS.{name}", {"stream_name": "ORDERS", "config": config})
        await eventually(lambda: _has(client, "ORDERS", 800), 10, "the messages are not there")


async def _has(client: Client, stream: str, messages: int) -> bool:
    return bool((await client.api(f"STREAM.INFO.{stream}"))["state"]["messages"] == messages)


@pytest_asyncio.fixture(loop_scope="session")
async def screen(browser: Browser, demo: Demo) -> AsyncIterator[Screen]:
    """A page on the first server, at a desktop's size. At the end nothing may have gone wrong on it."""
    found = await Screen.open(browser, demo.url())
    yield found
    await found.close()
    found.check()
