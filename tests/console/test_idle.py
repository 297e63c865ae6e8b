"""The cost of the console to the servers while nobody looks: none."""

from __future__ import annotations

import asyncio
import re

import pytest
from playwright.async_api import Browser, expect

from testkit.harness import Node, eventually
from tests.console.browser import Demo, Screen

pytestmark = pytest.mark.thorough
REQUESTS = r"\$SYS\.REQ|\$JS\.API"


async def test_neither_an_open_port_nor_a_hidden_page_nor_a_closed_one_asks_for_anything(
    browser: Browser, demo: Demo
) -> None:
    screen = await Screen.open(browser, demo.url(), user="sys")
    sent: list[str] = []
    screen.page.on("websocket", lambda socket: socket.on("framesent", lambda data: sent.append(_text(data))))
    await screen.go("#/cluster")
    await screen.settled()
    await expect(screen.page.locator("tbody tr")).to_have_count(3)
    await asyncio.sleep(2.2)
    assert len(re.findall(REQUESTS, "".join(sent))) > 6, "it asks while somebody looks"
    await screen.page.evaluate("Object.defineProperty(document, 'hidden', { get: () => true })")
    await asyncio.sleep(0.5)
    sent.clear()
    await asyncio.sleep(2.2)
    assert not re.findall(REQUESTS, "".join(sent)), "a round, hidden"
    await screen.close()
    screen.check()
    for node in demo.cluster.nodes:
        await eventually(lambda node=node: _is_alone(node), 5, "the page's connection is still there")
    before = [await counted(node) for node in demo.cluster.nodes]
    await asyncio.sleep(1)
    assert [await counted(node) for node in demo.cluster.nodes] == before


async def counted(node: Node) -> tuple[int, int, int]:
    """Connections, messages from clients, and requests over HTTP other than this one's."""
    found = await node.monitor("varz")
    asked = found["http_req_stats"]
    return found["connections"], found["in_client_msgs"], sum(asked.values()) - asked["/varz"]


async def _is_alone(node: Node) -> bool:
    return (await counted(node))[0] == 0


def _text(data: str | bytes) -> str:
    return data if isinstance(data, str) else data.decode("latin-1")
