"""A thousand streams, and a stream of 100,000 subjects: how long the browser takes from an input to the next paint, and
how long it is busy at a stretch. These tests come last, as they leave their streams to the servers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from testkit.client import Client, create_stream
from testkit.harness import eventually
from tests.console.browser import Demo, Screen

STREAMS, SUBJECTS, TOKENS = 1000, 100_000, 400
MOST_MS, ROUNDS = 200, 3
AT_A_TIME = 50
WATCH = """window.spent = [];
new PerformanceObserver((list) => { for (const one of list.getEntries()) window.spent.push([one.name, one.duration]); })
  .observe({ type: "event", durationThreshold: 16 });
new PerformanceObserver((list) => { for (const one of list.getEntries()) window.spent.push(["busy", one.duration]); })
  .observe({ type: "longtask" });"""
"""From each input to the next paint (Event Timing), and tasks of more than 50 ms (Long Tasks)."""
PAINTED = "new Promise((done) => requestAnimationFrame(() => setTimeout(done, 0)))"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def much(demo: Demo) -> AsyncIterator[Demo]:
    """The streams of the account BIG, on one server each. Half of the subjects have the same parent."""
    async with await Client.connect(f"nats://big:big-pw@127.0.0.1:{demo.cluster[0].port}") as client:
        for start in range(0, STREAMS - 1, AT_A_TIME):
            names = [f"S{at:04}" for at in range(start, min(start + AT_A_TIME, STREAMS - 1))]
            await asyncio.gather(*(create_stream(client, name, [f"s.{name}.>"], 1) for name in names))
        await create_stream(client, "SUBJECTS", ["d.>"], 1)
        for at in range(SUBJECTS):
            client.publish(f"d.{min(at % (2 * TOKENS), TOKENS)}.{at}", b"{}")
            if at % 5000 == 0:
                await client.flush()
        await eventually(lambda: _has_all(client), 30, "the subjects are not there")
        yield demo


async def _has_all(client: Client) -> bool:
    return bool((await client.api("STREAM.INFO.SUBJECTS"))["state"]["messages"] == SUBJECTS)


class Stopwatch:
    """The milliseconds that each interaction took: the least of the rounds, as other work can only add to it."""

    def __init__(self) -> None:
        self.screen: Screen
        self.took: dict[str, float] = {}

    @asynccontextmanager
    async def of(self, what: str) -> AsyncIterator[None]:
        """Measures what is done within, up to the paint after it."""
        page = self.screen.page
        await page.evaluate("window.spent.length = 0")
        yield
        await page.evaluate(PAINTED)
        await asyncio.sleep(0.1)  # entries come with the next idle moment
        spent = await page.evaluate("window.spent")
        took = max((duration for _, duration in spent), default=0.0)
        self.took[what] = min(took, self.took.get(what, took))

    @property
    def slow(self) -> dict[str, float]:
        return {what: took for what, took in self.took.items() if took >= MOST_MS}


async def looking(
    browser: Browser, demo: Demo, user: str, hash_: str, look: Callable[[Page, Stopwatch], Awaitable[None]]
) -> None:
    """Looks once, and again where something took too long."""
    watch = Stopwatch()
    for _ in range(ROUNDS):
        watch.screen = screen = await Screen.open(browser, demo.url(), user=user)
        await screen.context.add_init_script(WATCH)
        await screen.go(hash_)
        await screen.page.wait_for_selector("header.top")
        await screen.settled()
        await look(screen.page, watch)
        await screen.close()
        screen.check()
        print({what: round(took) for what, took in watch.took.items()})
        if not watch.slow:
            break
    assert not watch.slow, watch.slow


async def test_a_thousand_streams_of_an_account(browser: Browser, much: Demo) -> None:
    async def look(page: Page, watch: Stopwatch) -> None:
        rows = page.locator("tbody tr:not([aria-hidden])")
        await expect(page.locator(".table [role=status]")).to_have_text(f"{STREAMS:,} streams")
        assert await rows.count() < 60, "only those in sight are drawn"
        async with watch.of("refreshed"):
            await asyncio.sleep(0.7)
        async with watch.of("filter"):
            await page.locator("input[type=search]").press_sequentially("s099")
            await expect(rows).to_have_count(9)
        await page.fill("input[type=search]", "")
        for column in ("Messages", "Size", "Stream"):
            async with watch.of(f"sort by {column}"):
                await page.click(f"th button:has-text('{column}')")
                await expect(page.locator(f"th:has-text('{column}')")).not_to_have_attribute("aria-sort", "none")
        async with watch.of("scroll"):
            await page.hover(".scroll")
            for _ in range(5):
                await page.mouse.wheel(0, 4000)
                await page.evaluate(PAINTED)
        async with watch.of("to the end"):
            await page.focus(".scroll")
            await page.keyboard.press("End")
            await expect(rows.last.locator("a")).to_have_text("SUBJECTS")
        async with watch.of("open a stream"):
            await rows.last.locator("a").focus()
            await page.keyboard.press("Enter")
            await expect(page.locator("h1")).to_have_text("SUBJECTS")
            await expect(page.locator("main")).to_contain_text("100,000")
        async with watch.of("back"):
            await page.go_back()
            await expect(page.locator(".table [role=status]")).to_have_text(f"{STREAMS:,} streams")

    await looking(browser, much, "big", "#/streams", look)


async def test_a_hundred_thousand_subjects(browser: Browser, much: Demo) -> None:
    async def look(page: Page, watch: Stopwatch) -> None:
        status = page.locator("main [role=status]")
        async with watch.of("messages"):
            await page.click(".tabs a:has-text('Messages')")
            await expect(page.locator("tbody tr")).to_have_count(50)
        async with watch.of("earlier"):
            await page.click("button:has-text('Earlier')")
            await expect(page.locator("tbody tr:first-child td:first-child")).to_have_text("99,950")
        async with watch.of("one message"):
            await page.click("tbody tr:first-child a")
            await expect(page.locator("h2", has_text="Message 99,950")).to_be_visible()
        async with watch.of("subjects"):
            await page.click(".tabs a:has-text('Subjects')")
            await expect(status.first).to_have_text("100,000 subjects, 100,000 messages")
        async with watch.of("open a token"):
            await page.click("summary >> nth=1")
            await expect(page.locator("details details[open] li >> nth=0")).to_be_visible()
        async with watch.of("filter subjects"):
            await page.locator("input[type=search]").press_sequentially("99999")
            await expect(status.first).to_have_text("1 subject, 1 message")
        async with watch.of("clear the filter"):
            await page.fill("input[type=search]", "")
            await expect(status.first).to_have_text("100,000 subjects, 100,000 messages")

    await looking(browser, much, "big", "#/streams/SUBJECTS", look)


async def test_a_thousand_groups_of_the_cluster(browser: Browser, much: Demo) -> None:
    async def look(page: Page, watch: Stopwatch) -> None:
        rows = page.locator("tbody tr:not([aria-hidden])")
        async with watch.of("groups"):
            await page.click(".tabs a:has-text('Streams and replicas')")
            await expect(page.locator(".table [role=status]")).to_have_text(f"{STREAMS + 3:,} streams")
        async with watch.of("filter"):
            await page.locator("input[type=search]").press_sequentially("orders")
            await expect(rows).to_have_count(1)
        await page.fill("input[type=search]", "")
        async with watch.of("sort"):
            await page.click("th button:has-text('Messages')")
            await expect(rows.first).to_contain_text("SUBJECTS")
        async with watch.of("scroll"):
            await page.hover(".scroll")
            for _ in range(5):
                await page.mouse.wheel(0, 4000)
                await page.evaluate(PAINTED)
        async with watch.of("refreshed"):
            await asyncio.sleep(5.5)
        async with watch.of("back to servers"):
            await page.click(".tabs a:has-text('Servers')")
            await expect(page.locator("tbody tr")).to_have_count(3)

    await looking(browser, much, "sys", "#/cluster", look)
