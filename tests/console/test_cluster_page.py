"""The page of the cluster: servers, groups, links, mirrors; and one that is killed."""

from __future__ import annotations

import re
import time

from playwright.async_api import Locator, expect

from tests.console.browser import Demo, Screen

REPLICA_LOST_S, BACK_S = 10, 15


def row(screen: Screen, name: str) -> Locator:
    return screen.page.locator(
        "tbody tr", has=screen.page.locator("td:first-child b", has_text=re.compile(f"^{name}$"))
    )


def figure(screen: Screen, name: str) -> Locator:
    return screen.page.locator(".figure", has=screen.page.locator("dt", has_text=re.compile(f"^{name}$"))).locator("dd")


async def test_three_servers_and_their_figures(screen: Screen, demo: Demo) -> None:
    await screen.enter("sys", "#/cluster")
    await expect(figure(screen, "Servers")).to_have_text("3 of 3")
    await expect(figure(screen, "Not healthy")).to_have_text("0")
    await expect(figure(screen, "Meta leader")).to_have_text(re.compile("^n[123]$"))
    for node in demo.cluster.nodes:
        assert (await row(screen, node.name).locator("td").nth(1).inner_text()).strip() == "ok"
    assert await screen.page.locator("tbody tr").count() == 3
    # A rate needs two looks; this page itself is the traffic.
    await expect(figure(screen, "Messages in")).to_have_text(re.compile(r"^[\d.]+ ?[KM]?/s$"))
    columns = await screen.page.locator("th").all_inner_texts()
    at = next(at for at, name in enumerate(columns) if name.startswith("Free disk"))
    for cell in await screen.page.locator("tbody tr").locator(f"td:nth-child({at + 1})").all():
        await expect(cell.locator("span")).to_have_attribute(
            "title", re.compile(r"^[\d.]+ [GT]iB of [\d.]+ [GT]iB are free$")
        )
    hints = await screen.page.locator(".figure").evaluate_all("(found) => found.map((one) => one.title)")
    assert hints and all(hints), "every figure names its metric"


async def test_a_killed_server_is_absent_with_the_reason_and_comes_back(screen: Screen, demo: Demo) -> None:
    await screen.enter("sys", "#/cluster")
    await expect(figure(screen, "Servers")).to_have_text("3 of 3")
    victim = demo.cluster[2]
    health = row(screen, victim.name).locator("td").nth(1)
    began = time.monotonic()
    victim.kill9()
    try:
        await expect(health).to_contain_text("absent", timeout=REPLICA_LOST_S * 1000)
        await expect(health).to_contain_text(re.compile("the meta leader has lost it|it does not answer"))
        await expect(health).to_contain_text("last heard")
        await expect(figure(screen, "Servers")).to_have_text("2 of 3")
        assert time.monotonic() - began < REPLICA_LOST_S
        await screen.go("#/cluster/groups")
        chip = row(screen, "ORDERS").locator(".chip", has_text=victim.name)
        offline = re.compile("^offline, .* last heard ")
        await expect(chip).to_have_attribute("title", offline, timeout=REPLICA_LOST_S * 1000)
        await screen.picture("cluster-groups-one-lost")
        silent = screen.page.locator("main").get_by_role("alert")
        await expect(silent).to_contain_text(f"No answer from {victim.name}: ")
        await screen.go("#/cluster/links")
        await expect(silent).to_contain_text(f"No answer from {victim.name}: ")
        cells = screen.page.locator(".matrix tbody tr", has_text=victim.name).locator("td:not(.self)")
        await expect(cells).to_have_text(["not known"] * 2)
        await screen.go("#/cluster/history")
        await expect(silent).to_contain_text(f"No answer from {victim.name}: ")
    finally:
        await victim.start()
    await demo.cluster.wait_current("ORDERS")
    await screen.go("#/cluster")
    await expect(figure(screen, "Servers")).to_have_text("3 of 3", timeout=BACK_S * 1000)
    await expect(health).to_have_text("ok", timeout=BACK_S * 1000)


async def test_groups_say_who_leads_and_what_replicas_lack(screen: Screen, demo: Demo) -> None:
    leader = await demo.cluster.stream_leader("ORDERS")
    await screen.enter("sys", "#/cluster/groups")
    orders = row(screen, "ORDERS")
    await expect(orders.locator(".chip.lead")).to_have_text(leader.name)
    await expect(orders.locator(".chip.good")).to_have_count(2)
    await expect(orders).to_contain_text("800")
    await expect(figure(screen, "Streams")).to_have_text("3")
    await screen.page.fill("input[type=search]", "config")
    await expect(screen.page.locator("tbody tr")).to_have_count(1)
    await screen.page.fill("input[type=search]", "nothing like it")
    await expect(screen.page.locator(".empty")).to_have_text("Nothing matches the filter.")


async def test_links_between_the_servers(screen: Screen) -> None:
    await screen.enter("sys", "#/cluster/links")
    cells = screen.page.locator(".matrix td:not(.self)")
    await expect(cells).to_have_count(6)
    for text in await cells.all_inner_texts():
        assert re.fullmatch(r"[\d.]+ (µs|ms)", text), text


async def test_mirrors_and_leaf_links(screen: Screen) -> None:
    await screen.enter("sys", "#/cluster/upstreams")
    await expect(row(screen, "COPY")).to_contain_text("ORDERS")
    await expect(screen.page.locator(".empty")).to_have_text("There are no leaf links.")


async def test_who_may_only_ask_sees_all_of_it(screen: Screen) -> None:
    await screen.enter("watcher", "#/cluster")
    for tab in ("servers", "groups", "links", "upstreams"):
        await screen.go(f"#/cluster/{tab}")
        await screen.settled()
        await expect(screen.page.locator("main table").first).to_be_visible()
        assert await screen.page.locator("[role=alert]").count() == 0, tab
