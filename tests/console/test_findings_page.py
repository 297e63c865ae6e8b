"""The page of findings, as the servers tell them, and the charts of their history."""

from __future__ import annotations

import re

from playwright.async_api import expect

from tests.console.browser import Demo, Screen
from tests.console.test_cluster_page import figure

CHARTS = 14


async def test_findings_of_all_servers(screen: Screen, demo: Demo) -> None:
    await screen.enter("sys", "#/findings")
    await expect(figure(screen, "Servers that answered")).to_have_text("3")
    lonely = screen.page.locator(".finding", has_text="JC312")
    await expect(lonely).to_contain_text(re.compile("COPY has one replica, on n[123]"))
    await expect(lonely).to_contain_text("What to do:")
    await expect(lonely.locator("a", has_text="COPY")).to_have_attribute("href", "#/cluster/groups")
    await screen.page.fill("input[type=search]", "copy one replica")
    await expect(screen.page.locator(".finding")).to_have_count(1)
    await screen.page.fill("input[type=search]", "nothing like it")
    await expect(screen.page.locator("main")).to_contain_text("Nothing matches.")


async def test_the_count_stands_in_the_navigation_and_a_severity_in_the_link(screen: Screen) -> None:
    await screen.enter("sys", "#/findings?severity=warn")
    warnings = await figure(screen, "Warnings").inner_text()
    assert int(warnings) > 0, "the stores of tests are in a temporary folder"
    await expect(screen.page.locator("nav[aria-label=Pages] .chip")).to_have_text(warnings)
    await expect(screen.page.locator(".finding", has_text="JC505").locator("b", has_text="temporary")).to_have_count(3)
    await expect(screen.page.locator(".finding", has_text="JC312")).to_have_count(0)
    await screen.page.select_option("select", "note")
    assert "severity=note" in screen.page.url
    await expect(screen.page.locator(".finding", has_text="JC312")).to_have_count(1)


async def test_other_accounts_do_not_see_them(screen: Screen) -> None:
    await screen.enter("app", "#/findings")
    await expect(screen.page.locator("h1")).to_have_text("Not for this user")
    await expect(screen.page.locator("nav[aria-label=Pages] a", has_text="Findings")).to_have_count(0)


async def test_charts_of_the_last_hours(screen: Screen) -> None:
    await screen.enter("sys", "#/cluster/history?hours=6")
    await expect(screen.page.locator(".chart canvas")).to_have_count(CHARTS)
    await expect(screen.page.locator("main")).to_contain_text("one point each")
    await screen.page.select_option("select >> nth=0", "n2")
    assert "server=n2" in screen.page.url
    await expect(screen.page.locator(".chart canvas")).to_have_count(CHARTS)
    await expect(screen.page.locator(".notice")).to_have_count(0)
