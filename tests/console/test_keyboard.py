"""The console without a mouse."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.async_api import expect

from tests.console.browser import Screen

CONTROLS = "a[href], button:not(:disabled), input:not(:disabled), select, textarea, summary, [tabindex='0']"
FOCUSED = """(controls) => { const one = document.activeElement; const box = one.getBoundingClientRect();
  const shown = getComputedStyle(one);
  return { at: [...document.querySelectorAll(controls)].indexOf(one),
    text: one.innerText || one.getAttribute("aria-label") || one.name,
    ring: shown.outlineStyle !== "none" && parseFloat(shown.outlineWidth) > 0,
    inside: box.right > 0 && box.bottom > 0 && box.left < innerWidth && box.top < innerHeight }; }"""
"""The control that has the focus: its place among all, and whether it is seen and shows the focus."""
VISIBLE = """(selector) => [...document.querySelectorAll(selector)].map((one, at) => [one, at])
  .filter(([one]) => one.checkVisibility({ visibilityProperty: true })
    && (one.type !== "radio" || one.checked || !document.querySelector(`input[name="${one.name}"]:checked`)))
  .map(([, at]) => at)"""
"""The places of those that can be used; of radio buttons Tab comes to the chosen one."""


async def tabbed(screen: Screen) -> list[dict[str, Any]]:
    """The controls that Tab comes to, from the page's begin until it leaves the page or begins again."""
    found: list[dict[str, Any]] = []
    for _ in range(200):
        await screen.page.keyboard.press("Tab")
        now = await screen.page.evaluate(FOCUSED, CONTROLS)
        if now["at"] < 0 or (found and now["at"] == found[0]["at"]):
            return found
        found.append(now)
    raise AssertionError("Tab does not come round")


@pytest.mark.parametrize("user", ["", "sys", "app"])
@pytest.mark.parametrize("hash_", ["", "#/cluster/groups"])
async def test_every_control_is_reached_by_tab_and_shows_it(screen: Screen, user: str, hash_: str) -> None:
    if user:
        await screen.enter(user, hash_)
    else:
        await screen.go(hash_)
        await screen.page.wait_for_selector("form button.primary:enabled")
    await screen.settled()
    await screen.page.evaluate("document.activeElement.blur()")
    found = await tabbed(screen)
    wanted = set(await screen.page.evaluate(VISIBLE, CONTROLS))
    assert {one["at"] for one in found} == wanted
    for one in found:
        assert one["ring"] and one["inside"], one


async def test_the_skip_link_is_first_and_leads_to_the_content(screen: Screen) -> None:
    await screen.enter("sys", "#/cluster")
    await screen.page.evaluate("document.activeElement.blur()")
    await screen.page.keyboard.press("Tab")
    skip = screen.page.locator(".skip")
    await expect(skip).to_be_focused()
    await expect(skip).to_be_in_viewport()
    await screen.page.keyboard.press("Enter")
    assert await screen.page.evaluate("document.activeElement.id") == "main"
    await screen.page.keyboard.press("Tab")
    assert await screen.page.evaluate("document.getElementById('main').contains(document.activeElement)")


async def test_a_login_and_another_page_by_keys_alone(screen: Screen) -> None:
    await screen.go()
    await screen.page.wait_for_selector("form button.primary:enabled")
    await screen.page.focus("input[name=user]")
    await screen.page.keyboard.type("sys")
    await screen.page.keyboard.press("Tab")
    await screen.page.keyboard.type("sys-pw")
    await screen.page.keyboard.press("Enter")
    await expect(screen.page.locator("main h1")).to_have_text("Cluster")
    await screen.page.focus(".tabs a:nth-child(3)")
    await screen.page.keyboard.press("Enter")
    await expect(screen.page.locator(".tabs [aria-current]")).to_have_text("Links")


async def test_tables_sort_and_scroll_by_keys(screen: Screen) -> None:
    await screen.enter("sys", "#/cluster")
    await screen.settled()
    header = screen.page.locator("th", has_text="Server")
    await expect(header).to_have_attribute("aria-sort", "ascending")
    await header.locator("button").focus()
    await screen.page.keyboard.press("Enter")
    await expect(header).to_have_attribute("aria-sort", "descending")
    names = await screen.page.locator("tbody td:first-child b").all_inner_texts()
    assert names == ["n3", "n2", "n1"]
    await screen.page.keyboard.press("Space")
    await expect(header).to_have_attribute("aria-sort", "ascending")
