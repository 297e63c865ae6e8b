"""No answer is not "all well": what nobody told is not known, old data say so, a page that throws leaves the others."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator

import pytest
from playwright.async_api import WebSocketRoute, expect

from tests.console.browser import Screen

pytestmark = pytest.mark.thorough


class Line:
    """The console's WebSocket, on which requests to `lost` subjects get no answer."""

    def __init__(self) -> None:
        self.lost: tuple[bytes, ...] = ()
        self.slow, self.seconds = b"-", 0.0

    def connect(self, page: WebSocketRoute) -> None:
        server = page.connect_to_server()

        def sent(frame: str | bytes) -> None:
            data = frame if isinstance(frame, bytes) else frame.encode()
            for subject in self.lost:  # the request goes to somebody who only stands by
                data = data.replace(b"PUB " + subject, b"PUB " + b"$" + b"x" * (len(subject) - 1))
            if self.slow in data:
                asyncio.get_running_loop().call_later(self.seconds, server.send, data)
            else:
                server.send(data)

        page.on_message(sent)


@pytest.fixture
def line() -> Iterator[Line]:
    yield Line()


async def test_a_list_that_was_never_told_is_no_empty_list(screen: Screen, line: Line) -> None:
    await screen.page.route_web_socket(re.compile("/ui/nats"), line.connect)
    line.lost = (b"$JS.API.STREAM.LIST",)
    await screen.enter("app", "#/streams")
    for page in ("streams", "kv", "objects", "consumers"):
        await screen.go(f"#/{page}")
        alert = screen.page.locator("main").get_by_role("alert")
        await expect(alert).to_contain_text("$JS.API.STREAM.LIST", timeout=10_000)
        assert await screen.page.locator(".empty").count() == 0, "nobody says that there is nothing"
        assert await screen.page.locator("main .figure dd", has_text=re.compile("^0")).count() == 0, page


async def test_a_long_list_is_waited_for(screen: Screen, line: Line) -> None:
    """A server with thousands of streams takes seconds for a page of them."""
    await screen.page.route_web_socket(re.compile("/ui/nats"), line.connect)
    line.slow, line.seconds = b"stream_limit", 4.0
    await screen.enter("sys", "#/cluster/groups")
    await expect(screen.page.locator("tbody tr")).to_have_count(3, timeout=20_000)
    assert await screen.page.locator("main").get_by_role("alert").count() == 0
    line.seconds = 0.0


async def test_what_is_old_says_so_with_its_age_until_it_is_new_again(screen: Screen, line: Line) -> None:
    await screen.page.route_web_socket(re.compile("/ui/nats"), line.connect)
    await screen.enter("app", "#/streams")
    await expect(screen.page.locator("tbody").get_by_role("link", name="ORDERS")).to_be_visible()
    line.lost = (b"$JS.API.STREAM.LIST",)
    stale = screen.page.locator(".stale")
    await expect(stale).to_contain_text("$JS.API.STREAM.LIST", timeout=15_000)
    await expect(stale).to_contain_text(re.compile(r"What is shown is [\d.]+ s old"))
    await expect(screen.page.locator("tbody").get_by_role("link", name="ORDERS")).to_be_visible()
    line.lost = ()
    await expect(stale).to_have_count(0, timeout=15_000)


async def test_jetstream_is_there_or_not_or_not_known(screen: Screen, line: Line) -> None:
    await screen.page.route_web_socket(re.compile("/ui/nats"), line.connect)
    banner = screen.page.locator(".notice.wide", has_text="Not known whether this account has JetStream")
    streams = screen.page.locator("header nav a", has_text="Streams")
    line.lost = (b"$JS.API.INFO",)
    await screen.enter("app", "#/streams")
    await expect(banner).to_be_visible(timeout=10_000)
    await expect(streams).to_be_visible()
    line.lost = ()
    await expect(banner).to_have_count(0, timeout=15_000)
    await expect(streams).to_be_visible()
    await screen.page.click("text=Log out")
    await screen.enter("sys")  # the system account has none
    await expect(screen.page.locator("main h1")).to_have_text("Cluster")
    await expect(banner).to_have_count(0)
    await expect(streams).to_have_count(0)


async def test_a_page_that_throws_leaves_the_others(screen: Screen) -> None:
    broken = (
        'export function Findings() { throw new Error("of this page"); }\nexport const FindingsCount = () => null;\n'
    )
    await screen.page.route(
        "**/view/findings.js", lambda route: route.fulfill(body=broken, content_type="text/javascript")
    )
    await screen.enter("sys", "#/findings")
    await expect(screen.page.locator("main h1")).to_have_text("This page cannot be shown")
    await expect(screen.page.locator("main").get_by_role("alert")).to_have_text("of this page")
    await screen.page.get_by_role("button", name="Try again").click()
    await expect(screen.page.locator("main h1")).to_have_text("This page cannot be shown")
    await screen.page.locator("header nav a", has_text="Cluster").click()
    await expect(screen.page.locator("main h1")).to_have_text("Cluster")
    await expect(screen.page.locator("tbody tr")).to_have_count(3)
