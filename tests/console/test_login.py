"""Logging in and out."""

from __future__ import annotations

import asyncio

from playwright.async_api import Browser, expect

from testkit.harness import ProcessCluster
from tests.console.browser import Demo, Screen


async def test_a_right_login_shows_what_the_user_sees(screen: Screen) -> None:
    for user, page, pages in (("sys", "Cluster", "Cluster"), ("app", "Streams", "Streams")):
        await screen.enter(user)
        await expect(screen.page.locator("main h1")).to_have_text(page)
        assert (await screen.page.locator("header nav").inner_text()).split("\n")[0].startswith(pages)
        await expect(screen.page.locator(".who span")).to_contain_text(user)
        await screen.page.click("text=Log out")
        await expect(screen.page.locator("form")).to_be_visible()
    await asyncio.sleep(1.6)  # what was asked before is over by then, and may find no connection any more


async def test_a_wrong_login_says_so_and_may_be_tried_again(screen: Screen) -> None:
    await screen.go()
    for user, password in (("sys", "wrong"), ("nobody", "x")):
        await screen.login(user, password)
        await expect(screen.page.get_by_role("alert")).to_have_text("The server refuses this login.")
        assert await screen.page.input_value("input[name=user]") == user
    await screen.login("sys")
    await expect(screen.page.locator("main h1")).to_have_text("Cluster")


async def test_after_the_login_the_page_of_the_link_is_shown(screen: Screen) -> None:
    await screen.enter("sys", "#/cluster/links")
    await expect(screen.page.locator(".tabs [aria-current]")).to_have_text("Links")
    assert screen.page.url.endswith("#/cluster/links")


async def test_a_page_of_others_is_explained(screen: Screen) -> None:
    await screen.enter("app", "#/cluster")
    await expect(screen.page.locator("main h1")).to_have_text("Not for this user")
    await screen.go("#/nothing/here")
    await expect(screen.page.locator("main h1")).to_have_text("No such page")


async def test_staying_logged_in_lasts_as_long_as_the_tab(screen: Screen, browser: Browser, demo: Demo) -> None:
    await screen.enter("sys")
    await screen.page.reload()
    await expect(screen.page.locator("input[name=user]")).to_be_visible()
    await screen.login("sys", keep=True)
    await screen.page.wait_for_selector("header.top")
    await screen.page.reload()
    await expect(screen.page.locator("main h1")).to_have_text("Cluster")
    other = await Screen.open(browser, demo.url())
    await other.go()
    await expect(other.page.locator("input[name=user]")).to_be_visible()
    await other.close()
    await screen.page.click("text=Log out")
    await screen.page.reload()
    await expect(screen.page.locator("input[name=user]")).to_be_visible()


async def test_no_login_where_the_server_asks_none(browser: Browser) -> None:
    async with ProcessCluster(1, config="console: true\n", monitor=True) as servers:
        screen = await Screen.open(browser, f"http://127.0.0.1:{servers[0].http_port}/ui/")
        await screen.go()
        await expect(screen.page.locator("main h1")).to_have_text("Streams")
        assert await screen.page.locator("form").count() == 0
        await screen.close()
        screen.check()
