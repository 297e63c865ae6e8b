"""Consumers: the list, the page of one, its actions; and what a reset would deliver again."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Locator, expect

from testkit.client import Client, Msg, create_stream
from testkit.harness import eventually
from tests.console.browser import Demo, Screen

MESSAGES, TAKEN = 60, 10
MANY = 300
"""More than a page of CONSUMER.LIST has."""


@pytest_asyncio.fixture(loop_scope="session")
async def jobs(demo: Demo) -> AsyncIterator[Client]:
    """A stream JOBS of two subjects in turns and its consumer `odd`, of the second: 10 acknowledged, 20 delivered."""
    async with await demo.cluster[0].connect() as client:
        await create_stream(client, "JOBS", ["jobs.>"], 3)
        for at in range(MESSAGES):
            client.publish(f"jobs.{'even' if at % 2 == 0 else 'odd'}", b'{"job": %d}' % (at + 1))
        await eventually(lambda: _stored(client), 10, "the messages are not there")
        config = {"durable_name": "odd", "ack_policy": "explicit", "filter_subject": "jobs.odd", "max_ack_pending": 10}
        await client.api("CONSUMER.CREATE.JOBS.odd", {"stream_name": "JOBS", "config": config})
        taken: list[Msg] = []
        client.subscribe("taken", taken.append)
        for wants_ack in (True, False):
            client.publish("$JS.API.CONSUMER.MSG.NEXT.JOBS.odd", b"%d" % TAKEN, b"taken")
            await eventually(lambda: _all(taken), 10, "the consumer does not deliver")
            for message in taken if wants_ack else ():
                await client.request(message.reply.decode(), b"+ACK")
            taken.clear()
        yield client
        await client.api("STREAM.DELETE.JOBS")


async def _all(taken: list[Msg]) -> bool:
    return len(taken) == TAKEN


async def _stored(client: Client) -> bool:
    return bool((await client.api("STREAM.INFO.JOBS"))["state"]["messages"] == MESSAGES)


async def _info(client: Client, name: str = "odd") -> dict[str, Any]:
    return dict(await client.api(f"CONSUMER.INFO.JOBS.{name}"))


def dialog(screen: Screen) -> Locator:
    return screen.page.locator("dialog[open]")


async def told(screen: Screen, words: str) -> None:
    await expect(screen.page.locator(".notices")).to_contain_text(words)


async def test_the_slowest_come_first_with_what_they_wait_for(screen: Screen, jobs: Client) -> None:
    await screen.enter("app", "#/consumers")
    await expect(screen.page.locator("tbody tr")).to_have_count(3)
    names = await screen.page.locator("tbody tr td:first-child").all_inner_texts()
    assert names[-1] == "odd", names
    odd = screen.page.locator("tbody tr", has_text="odd")
    await expect(odd.locator(".chip").first).to_have_text("waits for acks")
    cells = await odd.locator("td").all_inner_texts()
    assert cells[3:6] == ["20", "10", "10"], cells
    await screen.page.fill("input[type=search]", "odd jobs")
    await expect(screen.page.locator("tbody tr")).to_have_count(1)
    await odd.locator("a").first.press("Enter")
    await expect(screen.page.locator("h1")).to_have_text("JOBS / odd")
    await screen.go("#/streams/JOBS/consumers")
    await expect(screen.page.locator("tbody tr")).to_have_count(1)


async def test_a_reset_says_what_comes_again_before_it_does(screen: Screen, jobs: Client) -> None:
    await screen.enter("app", "#/streams/JOBS/consumers/odd")
    await screen.page.click("button:text-is('Reset')")
    box = dialog(screen)
    await expect(box.locator(".panel p")).to_have_text(
        re.compile("^10 messages come again, from sequence 22 to 40.* 10 that it has not delivered yet follow.$")
    )
    await box.get_by_label("Sequence", exact=True).fill("5")
    await expect(box.locator(".panel p")).to_contain_text("18 messages come again, from sequence 6 to 40")
    assert (await box.locator("tbody td:first-child").all_inner_texts()) == ["6", "8", "10", "12", "14"]
    await box.get_by_label("Sequence", exact=True).fill("51")
    await expect(box.locator(".panel p")).to_contain_text("5 that it has not delivered yet are skipped")
    assert (await _info(jobs))["num_ack_pending"] == 10, "a preview changes nothing"
    await box.get_by_label("Sequence", exact=True).fill("5")
    await expect(box.locator(".panel p")).to_contain_text("18 messages")
    await box.locator("button.danger").click()
    await told(screen, "odd goes on at sequence 5.")
    info = await _info(jobs)
    assert (info["num_pending"], info["num_ack_pending"], info["delivered"]["stream_seq"]) == (28, 0, 4)


async def test_dead_letters_that_wait_are_seen_in_the_list_and_on_the_page(screen: Screen, jobs: Client) -> None:
    wish = {"subject": "nowhere.{subject}", "on_term": True}
    config = {"durable_name": "quits", "ack_policy": "explicit", "max_deliver": 3, "dead_letter": wish}
    await jobs.api("CONSUMER.CREATE.JOBS.quits", {"stream_name": "JOBS", "config": config})
    taken: list[Msg] = []
    jobs.subscribe("given", taken.append)
    jobs.publish("$JS.API.CONSUMER.MSG.NEXT.JOBS.quits", b"1", b"given")
    await eventually(lambda: bool(taken), 10, "the consumer does not deliver")
    await jobs.request(taken[0].reply.decode(), b"+TERM")
    await screen.enter("app", "#/streams/JOBS/consumers")
    await expect(screen.page.locator("tbody tr", has_text="quits").locator(".chip").first).to_have_text("letters wait")
    await screen.go("#/streams/JOBS/consumers/quits")
    page = screen.page.locator("main")
    await expect(page).to_contain_text("1, the first given up")
    await expect(page).to_contain_text("no stream takes their subject")
    await expect(page).to_contain_text("nowhere.{subject}")


async def test_pause_and_resume_and_another_leader(screen: Screen, jobs: Client) -> None:
    await screen.enter("app", "#/streams/JOBS/consumers/odd")
    await screen.page.click("button:text-is('Pause')")
    await dialog(screen).locator("button", has_text="1 hour").click()
    await told(screen, "odd is paused until")
    assert (await _info(jobs))["paused"]
    await screen.page.click("button:text-is('Resume')")
    await told(screen, "odd delivers again.")
    leader = (await _info(jobs))["cluster"]["leader"]
    await screen.page.click("button:text-is('Step down')")
    await dialog(screen).locator("button.danger").click()
    await told(screen, "odd has another leader.")
    assert (await _info(jobs))["cluster"]["leader"] != leader


async def test_a_form_shows_the_servers_word_beside_the_field(screen: Screen, jobs: Client) -> None:
    await screen.enter("app", "#/streams/JOBS/consumers")
    await screen.page.click("button:text-is('New consumer')")
    box = dialog(screen)
    await box.get_by_label("Name", exact=True).fill("late")
    await box.get_by_label("Waits between deliveries").fill("1s\n5s")
    await box.get_by_label("Deliveries of a message at most").fill("1")
    await box.locator("button.primary").click()
    field = box.get_by_label("Deliveries of a message at most")
    await expect(field).to_have_attribute("aria-invalid", "true")
    await expect(box.locator("#field-max_deliver-error")).to_have_text(
        "max deliver is required to be > length of backoff values"
    )
    await expect(field).to_be_focused()
    await field.fill("4")
    await box.get_by_label("Wait for an ack").fill("soon")
    await expect(box.locator("button.primary")).to_be_disabled()
    await box.get_by_label("Wait for an ack").fill("90s")
    await box.get_by_label("Filter subjects").fill("jobs.odd")
    await box.locator("button.primary").click()
    await expect(screen.page.locator("h1")).to_have_text("JOBS / late")
    config = (await _info(jobs, "late"))["config"]
    assert (config["backoff"], config["max_deliver"]) == ([10**9, 5 * 10**9], 4)
    assert (config["filter_subject"], config["durable_name"]) == ("jobs.odd", "late")
    await screen.page.click("button:text-is('Edit')")
    await box.get_by_label("Description").fill("of the night")
    await box.locator("button.primary").click()
    await told(screen, "late is changed.")
    changed = (await _info(jobs, "late"))["config"]
    assert changed == {**config, "description": "of the night"}


async def test_a_consumer_goes_only_by_its_name(screen: Screen, jobs: Client) -> None:
    await screen.enter("app", "#/streams/JOBS/consumers/odd")
    await screen.page.click("button:text-is('Delete')")
    button = dialog(screen).locator("button.danger")
    await dialog(screen).locator("input").fill("od")
    await expect(button).to_be_disabled()
    await dialog(screen).locator("input").fill("odd")
    await button.click()
    await told(screen, "odd is deleted.")
    await expect(screen.page.locator("h1")).to_have_text("Consumers")
    assert (await jobs.api("CONSUMER.NAMES.JOBS"))["consumers"] == []


async def test_who_may_only_look_can_do_nothing(screen: Screen, jobs: Client) -> None:
    await screen.enter("reader", "#/streams/JOBS/consumers/odd")
    buttons = screen.page.locator(".actions button")
    await expect(buttons).to_have_count(5)
    for button in await buttons.all():
        assert await button.is_disabled() and "may not publish to $JS.API" in (
            await button.get_attribute("title") or ""
        )


@pytest.mark.thorough
async def test_how_they_look(screen: Screen, jobs: Client) -> None:
    faults: list[str] = []
    await screen.enter("app")
    for name, hash_ in (
        ("consumers", "#/consumers"),
        ("consumer", "#/streams/JOBS/consumers/odd"),
        ("stream-consumers", "#/streams/JOBS/consumers"),
    ):
        await screen.go(hash_)
        await screen.settled()
        faults += await screen.looks(name)
    await screen.page.click("button:text-is('New consumer')")
    faults += await screen.looks("consumer-form")
    await screen.go("#/streams/JOBS/consumers/odd")
    await screen.page.keyboard.press("Escape")
    await screen.page.click("button:text-is('Reset')")
    await expect(dialog(screen).locator(".panel p")).to_contain_text("come again")
    faults += await screen.looks("consumer-reset")
    assert not faults, "\n".join(faults)


async def test_many_consumers_are_loaded_page_by_page(screen: Screen, jobs: Client) -> None:
    names = [f"c{at:03}" for at in range(MANY)]
    for name in names:
        jobs.publish(f"$JS.API.CONSUMER.CREATE.JOBS.{name}", _created(name), b"made")
    await eventually(lambda: _made(jobs), 20, "the consumers are not there")
    await screen.enter("app", "#/streams/JOBS/consumers")
    await expect(screen.page.locator(".bar")).to_contain_text(f"{MANY + 1} consumers")
    assert await screen.page.locator("tbody tr").count() < MANY, "only rows in sight are drawn"
    await screen.page.fill("input[type=search]", names[-1])
    await expect(screen.page.locator("tbody tr")).to_have_count(1)
    await screen.go("#/consumers")
    await expect(screen.page.locator(".bar")).to_contain_text(f"{MANY + 3} consumers")


def _created(name: str) -> bytes:
    return json.dumps({"stream_name": "JOBS", "config": {"durable_name": name, "ack_policy": "explicit"}}).encode()


async def _made(client: Client) -> bool:
    return bool((await client.api("STREAM.INFO.JOBS"))["state"]["consumer_count"] == MANY + 1)


async def test_a_pinned_client_is_unpinned(screen: Screen, jobs: Client) -> None:
    config = {
        "durable_name": "pin",
        "ack_policy": "explicit",
        "priority_policy": "pinned_client",
        "priority_groups": ["g"],
    }
    await jobs.api("CONSUMER.CREATE.JOBS.pin", {"stream_name": "JOBS", "config": config})
    jobs.subscribe("pinned", lambda message: None)
    jobs.publish("$JS.API.CONSUMER.MSG.NEXT.JOBS.pin", b'{"batch":1,"group":"g","expires":30000000000}', b"pinned")
    await screen.enter("app", "#/streams/JOBS/consumers/pin")
    await expect(screen.page.locator(".terms").first).to_contain_text("pinned to")
    await screen.page.click("button:text-is('Unpin')")
    await dialog(screen).locator("button.danger").click()
    await told(screen, "Nobody is pinned in g.")
    await expect(screen.page.locator(".terms").first).to_contain_text("nobody is pinned")
