"""A browser whose clock is wrong: ages, and times that are asked for, are by the servers' clock."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest
from playwright.async_api import expect

from testkit.client import create_stream
from tests.console.browser import Demo, Screen

HOURS = 5
SKEW = """{ const Real = Date; const skew = HOURS * 3600e3;
globalThis.Date = class extends Real {
  constructor(...given) { given.length ? super(...given) : super(Real.now() + skew); }
  static now() { return Real.now() + skew; }
}; }"""


@pytest.mark.parametrize("hours", [HOURS, -HOURS], ids=["fast", "slow"])
async def test_ages_and_pauses(screen: Screen, demo: Demo, hours: int) -> None:
    await screen.context.add_init_script(SKEW.replace("HOURS", str(hours)))
    async with await demo.cluster[0].connect() as client:
        await create_stream(client, "FRESH", ["fresh"], 1)
        try:
            await client.request("fresh", b"now")
            config = {"durable_name": "late", "ack_policy": "explicit"}
            await client.api("CONSUMER.CREATE.FRESH.late", {"stream_name": "FRESH", "config": config})
            await screen.enter("app", "#/streams")
            row = screen.page.locator("tbody tr", has_text="FRESH")
            await expect(row).to_contain_text(re.compile(r"\d (s|ms|min) ago"))
            await screen.go("#/streams/FRESH/consumers/late")
            await screen.page.click("button:text-is('Pause')")
            await screen.page.locator("dialog[open] button", has_text="1 hour").click()
            await expect(screen.page.get_by_text("Paused for")).to_be_visible()
            info = await client.api("CONSUMER.INFO.FRESH.late")
            until = datetime.fromisoformat(info["config"]["pause_until"])
            assert abs(until - datetime.now(UTC) - timedelta(hours=1)) < timedelta(minutes=5)
        finally:
            await client.api("STREAM.DELETE.FRESH")
