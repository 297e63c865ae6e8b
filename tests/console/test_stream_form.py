"""The form of a stream: durations with units, numbers with all their digits, and only what was touched changes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Locator, expect

from testkit.client import Client, create_stream
from tests.console.browser import Demo, Screen

BEYOND = 2**53 + 1
"""The first whole number that a browser's numbers do not have."""
YEAR_NS = 365 * 86_400 * 10**9 + 1
GIVEN: dict[str, Any] = {
    "max_age": YEAR_NS,
    "max_msgs": BEYOND,
    "duplicate_window": 90_000_000_007,
    "allow_msg_ttl": True,
    "subject_delete_marker_ttl": 5400 * 10**9,
    "allow_rollup_hdrs": True,
    "metadata": {"owner": "billing"},
    "compression": "s2",
    "consumer_limits": {"max_ack_pending": 77},
}


@pytest_asyncio.fixture(loop_scope="session")
async def odd(demo: Demo) -> AsyncIterator[Client]:
    """A stream ODD of figures that are easily rounded."""
    async with await demo.cluster[0].connect() as client:
        await create_stream(client, "ODD", ["odd.>"], 1, **GIVEN)
        yield client
        await client.api("STREAM.DELETE.ODD")


async def configuration(client: Client) -> dict[str, Any]:
    return dict((await client.api("STREAM.INFO.ODD"))["config"])


async def opened(screen: Screen) -> Locator:
    await screen.page.locator(".actions").get_by_role("button", name="Edit").click()
    box = screen.page.locator("dialog[open]")
    await expect(box.get_by_label("Description")).to_be_visible()
    return box


async def stored(screen: Screen, box: Locator) -> None:
    await box.locator("button.primary").click()
    await expect(box).to_have_count(0)
    await expect(screen.page.locator(".notices")).to_contain_text("ODD is changed.")


async def test_an_edit_changes_what_was_touched_and_nothing_else(screen: Screen, odd: Client) -> None:
    before = await configuration(odd)
    assert {name: before[name] for name in GIVEN if name != "metadata"} == {
        name: value for name, value in GIVEN.items() if name != "metadata"
    }
    await screen.enter("app", "#/streams/ODD")
    box = await opened(screen)
    for name, text in (
        ("max_age", "365d1ns"),
        ("max_msgs", str(BEYOND)),
        ("duplicate_window", "1m30s7ns"),
        ("subject_delete_marker_ttl", "90m"),
    ):
        await expect(box.locator(f"#field-{name}")).to_have_value(text)
    await box.get_by_label("Description").fill("odd figures")
    await stored(screen, box)
    assert await configuration(odd) == {**before, "description": "odd figures"}
    box = await opened(screen)
    await box.locator("#field-max_age").fill("1h30m")
    await box.get_by_label("Messages at most", exact=True).fill(str(BEYOND + 2))
    await stored(screen, box)
    assert await configuration(odd) == {
        **before,
        "description": "odd figures",
        "max_age": 5400 * 10**9,
        "max_msgs": BEYOND + 2,
    }


async def test_the_configuration_as_json_has_all_digits(screen: Screen, odd: Client) -> None:
    before = await configuration(odd)
    await screen.enter("app", "#/streams/ODD/configuration")
    await expect(screen.page.get_by_label("Configuration", exact=True)).to_contain_text(f'"max_msgs": {BEYOND}')
    box = await opened(screen)
    await box.get_by_role("button", name="All as JSON").click()
    text = await box.get_by_label("Configuration").input_value()
    assert f'"max_age": {YEAR_NS},' in text
    await box.get_by_label("Configuration").fill(text.replace('"odd.>"', '"odd.>", "even.>"'))
    await stored(screen, box)
    assert await configuration(odd) == {**before, "subjects": ["odd.>", "even.>"]}


async def test_who_edits_at_the_same_time_loses_nothing(screen: Screen, odd: Client) -> None:
    """Changes of others in other fields stay; of one field the later is told."""
    before = await configuration(odd)
    await screen.enter("app", "#/streams/ODD")
    box = await opened(screen)
    others = {**before, "max_msg_size": 1000}
    await odd.api("STREAM.UPDATE.ODD", others)
    await box.get_by_label("Description").fill("mine")
    await stored(screen, box)
    assert await configuration(odd) == {**others, "description": "mine"}
    box = await opened(screen)
    await odd.api("STREAM.UPDATE.ODD", {**others, "description": "theirs"})
    await box.get_by_label("Description").fill("mine again")
    await box.locator("button.primary").click()
    await expect(box.get_by_role("alert")).to_contain_text('description has been changed meanwhile, to "theirs"')
    assert (await configuration(odd))["description"] == "theirs"


async def test_a_new_stream_has_the_subjects_of_the_lines(screen: Screen, demo: Demo) -> None:
    async with await demo.cluster[0].connect() as client:
        await screen.enter("app", "#/streams")
        await screen.page.get_by_role("button", name="New stream").click()
        box = screen.page.locator("dialog[open]")
        await box.get_by_label("Name", exact=True).fill("FRESH")
        await box.get_by_label("Subjects, one per line").press_sequentially("fresh.a\nfresh.b")
        await box.get_by_label("Replicas", exact=True).fill("1")
        await box.locator("#field-max_age").fill("soon")
        await expect(box.locator(".reason")).to_have_text("not a duration: try 30s, 5m, 2h, 7d")
        await expect(box.locator("button.primary")).to_be_disabled()
        await box.locator("#field-max_age").fill("7 d")
        await box.locator("button.primary").click()
        await expect(screen.page.locator("main h1")).to_have_text("FRESH")
        config = (await client.api("STREAM.INFO.FRESH"))["config"]
        assert (config["subjects"], config["max_age"]) == (["fresh.a", "fresh.b"], 7 * 86_400 * 10**9)
        await client.api("STREAM.DELETE.FRESH")


@pytest.mark.thorough
async def test_how_it_looks(screen: Screen, odd: Client) -> None:
    await screen.enter("app", "#/streams/ODD")
    box = await opened(screen)
    faults = await screen.looks("stream-form")
    await box.get_by_role("button", name="Cancel").click()
    await screen.page.locator(".actions").get_by_role("button", name="Publish").click()
    await expect(screen.page.locator("dialog[open]")).to_contain_text("Publish to ODD")
    faults += await screen.looks("publish")
    assert not faults, "\n".join(faults)


async def test_json_and_durations_lose_nothing(screen: Screen) -> None:
    await screen.go()
    texts = [
        '{"a":9007199254740993,"b":[18446744073709551615,-9223372036854775808],"c":"9007199254740993","d":1.5e300}',
        '{"\\"9007199254740993":{"e":31536000000000000},"f":"\\\\","g":12345678901234567.5,"h":-9007199254740993}',
    ]
    found = await screen.page.evaluate(
        """async (texts) => { const { parse, stringify } = await import('./json.js');
        return texts.map((text) => [stringify(parse(text)), typeof parse(text).a, typeof parse(text).c]); }""",
        texts,
    )
    assert [one[0] for one in found] == [texts[0].replace("1.5e300", "1.5e+300"), texts[1].replace("67.5", "68")]
    assert found[0][1:] == ["bigint", "string"]
    durations = {"90": 90 * 10**9, "1.5s": 15 * 10**8, "1h30m": 5400 * 10**9, "10min": 600 * 10**9, "3 µs": 3000}
    wrong = ["", "soon", "1x", "-5s", "1.0000000001s", "1h 30"]
    values = [1, 10**9, 90_000_000_007, YEAR_NS, 2**63 - 1, 7 * 86_400 * 10**9]
    found = await screen.page.evaluate(
        """async ([texts, values]) => { const { durationOf, durationText } = await import('./duration.js');
        return [texts.map((one) => String(durationOf(one))), values.map((one) => durationText(BigInt(one)))]; }""",
        [[*durations, *wrong], [str(one) for one in values]],
    )
    assert found[0] == [*(str(one) for one in durations.values()), *("NaN" for _ in wrong)]
    again = await screen.page.evaluate(
        "async (texts) => { const { durationOf } = await import('./duration.js');"
        " return texts.map((one) => String(durationOf(one))); }",
        found[1],
    )
    assert again == [str(one) for one in values]
