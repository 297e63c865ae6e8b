"""Key-value: buckets, keys as a tree, a key's history and differences, edits by revision, changes live."""

from __future__ import annotations

import difflib
import random
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Locator, expect

from testkit.client import Client, create_stream
from testkit.harness import eventually
from tests.console.browser import Demo, Screen

KEYS = 300


@pytest_asyncio.fixture(loop_scope="session")
async def bucket(demo: Demo) -> AsyncIterator[Client]:
    """A bucket SETTINGS: 300 keys below three regions, a number, and `mode` with three revisions."""
    async with await demo.cluster[0].connect() as client:
        more: dict[str, Any] = {"max_msgs_per_subject": 5, "allow_rollup_hdrs": True, "deny_delete": True}
        await create_stream(client, "KV_SETTINGS", ["$KV.SETTINGS.>"], 3, **more)
        for at in range(KEYS):
            client.publish(f"$KV.SETTINGS.region{at % 3}.user{at % 30}.k{at}", b"%d" % at)
        for body in (b'{"a":1,"b":9007199254740993}', b'{"a":2,"b":9007199254740993}', b"plain"):
            client.publish("$KV.SETTINGS.mode", body)
        await eventually(lambda: _stored(client, KEYS + 3), 10, "the keys are not there")
        yield client
        await client.api("STREAM.DELETE.KV_SETTINGS")


async def _stored(client: Client, messages: int) -> bool:
    return bool((await client.api("STREAM.INFO.KV_SETTINGS"))["state"]["messages"] == messages)


def dialog(screen: Screen) -> Locator:
    return screen.page.locator("dialog[open]")


async def told(screen: Screen, words: str) -> None:
    await expect(screen.page.locator(".notices")).to_contain_text(words)


async def test_keys_are_a_tree_with_values_and_a_filter(screen: Screen, bucket: Client) -> None:
    await screen.enter("app", "#/kv")
    await screen.page.locator("tbody a", has_text="SETTINGS").press("Enter")
    rows = screen.page.locator("table.keys tbody tr")
    await expect(rows).to_have_count(4)
    assert [re.sub(r"\s+", " ", text).strip() for text in await rows.all_inner_texts()][1:] == [
        f"▸ region{at} 100 keys" for at in range(3)
    ]
    await expect(rows.first).to_contain_text("plain")
    await screen.page.click("button.branch:has-text('region1')")
    await expect(rows).to_have_count(14)
    await screen.page.click("button.branch:has-text('user10')")
    await expect(screen.page.locator("tr", has=screen.page.locator("a", has_text="k10")).first).to_contain_text("10")
    await screen.page.get_by_label("Filter keys").fill("user7 k7")
    await expect(screen.page.locator("table.keys a")).to_have_text(["k7"])
    assert "filter=user7+k7" in screen.page.url, "a page is a link"


async def test_a_key_has_a_history_and_differences(screen: Screen, bucket: Client) -> None:
    await screen.enter("app", "#/kv/SETTINGS/k/mode")
    await expect(screen.page.locator(".payload pre")).to_have_text("plain")
    revisions = screen.page.locator(".history tbody tr")
    await expect(revisions).to_have_count(3)
    await revisions.nth(1).locator("td:nth-child(4) a").first.click()
    difference = screen.page.locator("pre.difference")
    await expect(difference.locator(".minus")).to_have_text([re.compile('"a": 1,')])
    await expect(difference.locator(".plus")).to_have_text([re.compile('"a": 2,')])
    await revisions.nth(2).locator("td a").first.click()
    await expect(screen.page.locator(".payload pre")).to_contain_text("9007199254740993")
    await screen.page.reload()
    await screen.page.wait_for_selector("form")
    await screen.login("app")
    await expect(screen.page.locator(".payload pre")).to_contain_text('"a": 1')


async def test_who_was_slower_sees_both_values(screen: Screen, bucket: Client) -> None:
    await screen.enter("app", "#/kv/SETTINGS/k/mode")
    await screen.page.click("button:text-is('Edit')")
    await dialog(screen).locator("textarea").fill("mine")
    await bucket.request("$KV.SETTINGS.mode", b"theirs")
    await dialog(screen).locator("button.primary").click()
    await expect(dialog(screen).locator(".notice.bad")).to_have_text("mode has been changed meanwhile")
    await expect(dialog(screen).locator("pre .minus")).to_contain_text("theirs")
    await expect(dialog(screen).locator("pre .plus")).to_contain_text("mine")
    assert await _value(bucket) == b"theirs"
    await dialog(screen).locator("button", has_text="Go on with mine").click()
    await dialog(screen).locator("button.primary").click()
    await told(screen, "mode is stored as revision")
    assert await _value(bucket) == b"mine"
    await expect(screen.page.locator(".payload pre")).to_have_text("mine")


async def _value(client: Client) -> bytes:
    return bytes((await client.request("$JS.API.DIRECT.GET.KV_SETTINGS", b'{"last_by_subj":"$KV.SETTINGS.mode"}')).data)


async def test_a_key_is_put_deleted_put_again_and_purged(screen: Screen, bucket: Client) -> None:
    await screen.enter("app", "#/kv/SETTINGS")
    await screen.page.click("button:text-is('New key')")
    await dialog(screen).locator("input").first.fill("mode")
    await dialog(screen).locator("textarea").fill("x")
    await dialog(screen).locator("button.primary").click()
    await expect(dialog(screen).locator(".notice.bad")).to_have_text("mode has been changed meanwhile")
    await dialog(screen).locator("button", has_text="Cancel").click()
    await screen.page.click("button:text-is('New key')")
    await dialog(screen).locator("input").first.fill("new.one")
    await dialog(screen).locator("textarea").fill("first")
    await dialog(screen).locator("button.primary").click()
    await expect(screen.page.locator("h1")).to_contain_text("new.one")
    state = screen.page.locator(".heading .chip")
    for verb, after in (("Delete", "deleted"), ("Put a value", "value"), ("Purge", "purged")):
        await screen.page.click(f".actions button:text-is('{verb}')")
        await dialog(screen).locator("button.danger, button.primary").click()
        await expect(state).to_have_text(after)
    await expect(screen.page.locator(".history tbody tr")).to_have_count(1)


async def test_a_link_to_a_key_that_is_a_wildcard_shows_and_takes_nothing(screen: Screen, bucket: Client) -> None:
    before = (await bucket.api("STREAM.INFO.KV_SETTINGS"))["state"]
    await screen.enter("app", "#/kv")
    for key in (">", "*", "region1.*"):
        await screen.go(f"#/kv/SETTINGS/k/{key}")
        await expect(screen.page.locator("main").get_by_role("alert")).to_contain_text(
            "would be another subject, or many"
        )
        await expect(screen.page.locator(".actions")).to_have_count(0)
    for link in ("#/kv/SETTINGS.x", "#/streams/*", "#/streams/KV_SETTINGS/consumers/a.b", "#/objects/>"):
        await screen.go(link)
        await expect(screen.page.locator("main").get_by_role("alert")).to_contain_text("is not one plain token")
    assert (await bucket.api("STREAM.INFO.KV_SETTINGS"))["state"] == before


async def test_changes_come_live(screen: Screen, bucket: Client) -> None:
    await screen.enter("app", "#/kv/SETTINGS/live")
    await eventually(lambda: _watched(bucket), 10, "nobody watches")
    bucket.publish("$KV.SETTINGS.mode", b"now")
    bucket.publish("$KV.SETTINGS.mode", b"", headers={"KV-Operation": "DEL"})
    rows = screen.page.locator("tbody tr")
    await expect(rows).to_have_count(2)
    await expect(rows.first).to_contain_text("deleted")
    await expect(rows.last).to_contain_text("now")
    await screen.go("#/kv")
    await eventually(lambda: _watched(bucket, wanted=False), 10, "it goes on watching")


async def _watched(client: Client, wanted: bool = True) -> bool:
    """A consumer without a subscriber goes by itself, later."""
    found = (await client.api("CONSUMER.LIST.KV_SETTINGS"))["consumers"]
    return any(one.get("push_bound", False) for one in found) == wanted


async def test_a_mirror_of_another_name_shows_the_keys_of_its_origin(screen: Screen, bucket: Client) -> None:
    config = {"name": "KV_COPIED", "mirror": {"name": "KV_SETTINGS"}, "num_replicas": 1, "mirror_direct": True}
    await bucket.api("STREAM.CREATE.KV_COPIED", config)
    try:
        await eventually(lambda: _mirrored(bucket), 10, "the mirror does not follow")
        await screen.enter("app", "#/kv/COPIED?filter=mode")
        row = screen.page.locator("table.keys tbody tr")
        await expect(row).to_have_count(1)
        await expect(row).to_contain_text("plain")
        await row.locator("a").click()
        await expect(screen.page.locator(".history tbody tr")).to_have_count(3)
        for button in await screen.page.locator(".actions button").all():
            assert await button.get_attribute("title") == "A mirror takes its values from KV_SETTINGS."
    finally:
        await bucket.api("STREAM.DELETE.KV_COPIED")


async def _mirrored(client: Client) -> bool:
    return bool((await client.api("STREAM.INFO.KV_COPIED"))["state"]["messages"] == KEYS + 3)


async def test_a_bucket_is_made_and_goes_by_its_name(screen: Screen, demo: Demo) -> None:
    await screen.enter("app", "#/kv")
    await screen.page.click("button:text-is('New bucket')")
    await dialog(screen).get_by_label("Name", exact=True).fill("short")
    await dialog(screen).get_by_label("Replicas").fill("7")
    await dialog(screen).locator("button.primary").click()
    await expect(dialog(screen).locator("#field-num_replicas-error")).to_have_text("maximum replicas is 5")
    await dialog(screen).get_by_label("Replicas").fill("3")
    await dialog(screen).get_by_label("Keys are kept for").fill("2h")
    await dialog(screen).locator("button.primary").click()
    await expect(screen.page.locator("h1")).to_have_text("short")
    async with await demo.cluster[0].connect() as client:
        config = (await client.api("STREAM.INFO.KV_short"))["config"]
        assert (config["max_age"], config["num_replicas"], config["subjects"]) == (7200 * 10**9, 3, ["$KV.short.>"])
        assert (config["allow_rollup_hdrs"], config["deny_delete"], config["discard"]) == (True, True, "new")
        await screen.page.click("button:text-is('Delete the bucket')")
        await dialog(screen).locator("input").fill("short")
        await dialog(screen).locator("button.danger").click()
        await told(screen, "The bucket short is deleted.")
        assert "KV_short" not in (await client.api("STREAM.NAMES"))["streams"]


async def test_differences_are_the_fewest_lines_and_give_both_texts(screen: Screen) -> None:
    """Against difflib on random texts: what is left without "+" is the old one, without "-" the new one."""
    random.seed(5)
    pairs = [["\n".join(random.choices("abc", k=random.randrange(9))) for _ in range(2)] for _ in range(300)]
    await screen.go()
    found = await screen.page.evaluate(
        "async (pairs) => { const { diff } = await import('./diff.js'); return pairs.map(([a, b]) => diff(a, b)); }",
        pairs,
    )
    for (old, now), lines in zip(pairs, found, strict=True):
        assert "\n".join(line for sign, line in lines if sign != "+") == old
        assert "\n".join(line for sign, line in lines if sign != "-") == now
        theirs = [line for line in difflib.ndiff(old.split("\n"), now.split("\n")) if line[0] in "+-"]
        assert sum(sign != " " for sign, _ in lines) <= len(theirs)


@pytest.mark.thorough
async def test_how_they_look(screen: Screen, bucket: Client) -> None:
    faults: list[str] = []
    await screen.enter("app")
    pages = {
        "kv": "#/kv", "kv-live": "#/kv/SETTINGS/live", "kv-configuration": "#/kv/SETTINGS/configuration",
        "kv-key": "#/kv/SETTINGS/k/mode", "kv-difference": "#/kv/SETTINGS/k/mode?rev=302&against=301",
        "kv-keys": "#/kv/SETTINGS?filter=user7",
    }  # fmt: skip
    for name, hash_ in pages.items():
        await screen.go(hash_)
        await screen.settled()
        faults += await screen.looks(name)
    await screen.page.click("button:text-is('New key')")
    faults += await screen.looks("kv-new-key")
    assert not faults, "\n".join(faults)


async def test_the_tree_of_any_keys_has_each_once(screen: Screen) -> None:
    """All open, the rows are all keys in order, each below its branches, and each branch counts what is below it."""
    random.seed(7)
    sets = [
        sorted({".".join(random.choices(["a", "ab", "a-b", "b"], k=random.randrange(1, 4))) for _ in range(12)})
        for _ in range(200)
    ]
    await screen.go()
    found = await screen.page.evaluate(
        """async (sets) => { const { branches, rowsOf } = await import("./key_tree.js");
        return sets.map((keys) => rowsOf(keys, branches(keys))); }""",
        sets,
    )
    for keys, rows in zip(sets, found, strict=True):
        assert [row["key"] for row in rows if "key" in row] == keys
        assert {row["path"]: row["count"] for row in rows if "path" in row} == {
            path: sum(key.startswith(path) for key in keys)
            for key in keys
            for path in (key[: dot + 1] for dot, letter in enumerate(key) if letter == ".")
        }


async def test_a_hundred_thousand_keys_are_drawn_in_no_time(screen: Screen) -> None:
    await screen.go()
    took = await screen.page.evaluate(
        """async () => { const { rowsOf } = await import("./key_tree.js");
        const keys = Array.from({ length: 100000 }, (_, at) => `r${at % 20}.u${at % 500}.k${at}`).sort();
        let least = 1e9;
        for (let round = 0; round < 5; round += 1) {
          const began = performance.now();
          const rows = rowsOf(keys, new Set(["r0.", "r7.", "r7.u107."]));
          least = Math.min(least, performance.now() - began);
          if (rows.length !== 270) throw new Error(`${rows.length} rows`);
        }
        return least; }"""
    )
    assert took < 50, took
