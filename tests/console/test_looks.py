"""Every page in light and dark, on a desktop and on a phone: pictures, no sideways scrolling, contrast and names."""

from __future__ import annotations

from typing import Literal, NamedTuple

import pytest
from playwright.async_api import Browser, expect

from tests.console.browser import DESKTOP, PHONE, TOP, Demo, Screen


class Shown(NamedTuple):
    """A page: the name of its pictures, its address, the user who looks ("": before a login)."""

    name: str
    hash: str
    user: str


PAGES = [
    Shown("login", "", ""),
    Shown("cluster", "#/cluster", "sys"),
    Shown("cluster-groups", "#/cluster/groups", "sys"),
    Shown("cluster-links", "#/cluster/links", "sys"),
    Shown("cluster-upstreams", "#/cluster/upstreams", "sys"),
    Shown("cluster-history", "#/cluster/history", "sys"),
    Shown("findings", "#/findings", "sys"),
    Shown("streams", "#/streams", "app"),
    Shown("stream", "#/streams/ORDERS", "app"),
    Shown("stream-messages", "#/streams/ORDERS/messages?message=800", "app"),
    Shown("stream-subjects", "#/streams/ORDERS/subjects", "app"),
    Shown("consumers", "#/consumers", "app"),
    Shown("consumer", "#/streams/ORDERS/consumers/billing", "app"),
    Shown("buckets", "#/kv", "app"),
    Shown("keys", "#/kv/CONFIG", "app"),
    Shown("key", "#/kv/CONFIG/k/app.color", "app"),
    Shown("stream-configuration", "#/streams/ORDERS/configuration", "reader"),
]
LARGEST = 150_000
"""Bytes of a picture of the manual."""
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
SIZES = {"desktop": DESKTOP, "phone": PHONE}


ALWAYS = ("login", "cluster", "stream-messages")
"""The pages whose looks are checked in `make test`, too."""


@pytest.mark.parametrize(
    "shown",
    [pytest.param(page, id=page.name, marks=() if page.name in ALWAYS else pytest.mark.thorough) for page in PAGES],
)
async def test_page(browser: Browser, demo: Demo, shown: Shown) -> None:
    screen = await Screen.open(browser, demo.url(), user=shown.user)
    await screen.go(shown.hash)
    await screen.page.wait_for_selector("header.top" if shown.user else "form button.primary:enabled")
    await screen.settled()
    faults = await screen.faults()
    for scheme in SCHEMES:
        await screen.page.emulate_media(color_scheme=scheme)
        for size, (width, height) in SIZES.items():
            await screen.page.set_viewport_size({"width": width, "height": height})
            await screen.picture(f"{shown.name}-{scheme}-{size}")
            assert await screen.overflow() == 0, size
    faults += [f"dark, {fault}" for fault in await screen.faults(["color-contrast"], "rule")]  # on the phone
    await screen.close()
    assert not faults, "\n".join(faults)
    screen.check()


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "hash_", "user", "height"),
    [("cluster", "#/cluster", "sys", 380), ("messages", "#/streams/ORDERS/messages?message=800", "app", 700)],
)
async def test_pictures_of_the_manual(
    browser: Browser, demo: Demo, name: str, hash_: str, user: str, height: int
) -> None:
    """Those of docs/console are copies of these."""
    screen = await Screen.open(browser, demo.url(), size=(1200, height), user=user)
    await screen.go(hash_)
    await screen.page.wait_for_selector("header.top")
    await screen.settled()
    await expect(screen.page.locator("main")).not_to_contain_text("\u2013/s")
    assert (await screen.picture(f"manual-{name}")).stat().st_size < LARGEST
    assert (TOP / "docs" / "console" / f"{name}.png").stat().st_size < LARGEST
    await screen.close()
    screen.check()


async def test_what_has_no_contrast_or_no_name_is_found(screen: Screen) -> None:
    """The check itself can fail."""
    await screen.enter("sys", "#/cluster")
    await screen.settled()
    await screen.page.evaluate(
        """() => { const main = document.getElementById("main");
        main.insertAdjacentHTML("beforeend", "<p class=pale>pale</p><button></button><div class=wide></div>");
        main.querySelector(".pale").style.color = "#ccc";
        main.querySelector(".wide").style.width = "3000px"; main.querySelector(".wide").style.height = "1px"; }"""
    )
    found = {fault.partition(":")[0] for fault in await screen.faults()}
    assert {"color-contrast", "button-name"} <= found
    assert await screen.overflow() > 0
