"""The pages of streams, and what a user sees who may only look."""

from __future__ import annotations

import pytest
from playwright.async_api import expect

from testkit.client import Client, create_stream
from testkit.harness import eventually
from tests.console.browser import Demo, Screen

TABS = ("state", "messages", "subjects", "configuration")


async def test_a_row_leads_to_the_stream_by_enter(screen: Screen) -> None:
    await screen.enter("app", "#/streams")
    link = screen.page.locator("tbody a", has_text="ORDERS")
    await link.focus()
    await screen.page.keyboard.press("Enter")
    await expect(screen.page.locator("main h1")).to_have_text("ORDERS")
    assert screen.page.url.endswith("#/streams/ORDERS")
    await expect(screen.page.locator("main")).to_contain_text("800")


async def test_messages_say_who_answered_and_their_payload(screen: Screen, demo: Demo) -> None:
    await screen.enter("app", "#/streams/ORDERS/messages?seq=1")
    await expect(screen.page.locator("tbody tr")).to_have_count(50)
    said = await screen.page.locator(".answered").inner_text()
    assert any(node.name in said for node in demo.cluster.nodes) and "had applied up to" in said
    await screen.page.get_by_role("link", name="7", exact=True).focus()
    await screen.page.keyboard.press("Enter")
    one = screen.page.get_by_role("region", name="Message 7")
    await expect(one).to_contain_text("X-Trace")
    await expect(one).to_contain_text('"total": 3.5')


async def test_a_message_cannot_say_who_answered_nor_what_it_is(screen: Screen, demo: Demo) -> None:
    """Its publisher gave it fields of the server's names, and a status as the end of an answer has."""
    async with await demo.cluster[0].connect() as client:
        await create_stream(client, "FORGED", ["forged.>"], 3)
        fields = {"Nats-Sequence": "999", "Nats-Subject": "other", "Nats-Time-Stamp": "2001-01-01T00:00:00Z"}
        proof = {"Jc-Peer": "evil", "Jc-Stream": "OTHER", "Jc-Applied-Seq": "999", "Nats-Num-Pending": "77"}
        lines = "".join(f"{name}: {value}\r\n" for name, value in {**fields, **proof}.items())
        block = f"NATS/1.0 404 Message Not Found\r\n{lines}\r\n".encode()
        body = block + b"sound"
        client.write(b"HPUB forged.a %d %d\r\n%b\r\n" % (len(block), len(body), body))
        client.publish("forged.b", b"after it")
        await eventually(lambda: _stored(client), 10, "the messages are not there")
        await screen.enter("app", "#/streams/FORGED/messages?message=1")
        one = screen.page.get_by_role("region", name="Message 1")
        await expect(one).to_contain_text("sound")
        await expect(one).to_contain_text("forged.a")
        names = [node.name for node in demo.cluster.nodes]
        for where in (one.locator("dl"), screen.page.locator(".answered")):
            said = await where.inner_text()
            assert "evil" not in said and "999" not in said and any(name in said for name in names), said
        await expect(screen.page.locator(".answered")).to_contain_text("2 messages, 0 more match")
        await expect(screen.page.locator("tbody tr", has_text="forged.")).to_have_count(2)
        await client.api("STREAM.DELETE.FORGED")


async def _stored(client: Client) -> bool:
    return bool((await client.api("STREAM.INFO.FORGED"))["state"]["messages"] == 2)


async def test_who_may_only_look_sees_all_and_can_change_nothing(screen: Screen, demo: Demo) -> None:
    await screen.enter("reader", "#/streams")
    create = screen.page.get_by_role("button", name="New stream")
    await expect(create).to_be_disabled()
    assert await create.get_attribute("title") == "This user may not publish to $JS.API.STREAM.CREATE.*."
    for tab in TABS:
        await screen.go(f"#/streams/ORDERS/{tab}")
        await expect(screen.page.locator("main h1")).to_have_text("ORDERS")
        await screen.settled()
        assert await screen.page.locator("main [role=alert]").count() == 0, tab
        await screen.page.keyboard.press("Tab")  # who uses keys sees where the focus is
        for verb in ("Publish", "Edit", "Step down", "Purge", "Delete"):
            button = screen.page.locator(".actions").get_by_role("button", name=verb, exact=True)
            await expect(button).to_be_disabled()
            why = await button.get_attribute("title") or ""
            assert why.startswith("This user may not publish to "), verb
            await button.focus()  # by keys, too: the reason is shown, read out with the button, and told on Enter
            await expect(button).to_be_focused()
            reason = screen.page.locator(".why:visible")
            await expect(reason).to_have_text(why)
            assert await button.get_attribute("aria-describedby") == await reason.get_attribute("id")
    await screen.page.keyboard.press("Enter")
    await expect(screen.page.locator(".notices")).to_contain_text(why)
    assert await screen.page.locator("dialog[open]").count() == 0
    await screen.go("#/streams/ORDERS/messages")
    await expect(screen.page.locator("tbody tr")).to_have_count(50)


@pytest.mark.parametrize("by", ["Cancel", "Escape"])
async def test_what_destroys_asks_for_the_name(screen: Screen, demo: Demo, by: str) -> None:
    async with await demo.cluster[0].connect() as client:
        await client.api("STREAM.CREATE.GONE", {"name": "GONE", "subjects": ["gone"], "num_replicas": 1})
        try:
            await screen.enter("app", "#/streams/GONE")
            dialog, delete = screen.page.get_by_role("dialog"), screen.page.locator(".actions >> text=Delete")
            name = dialog.get_by_label("Type GONE to confirm")
            await delete.click()
            await expect(name).to_be_focused()
            await screen.page.keyboard.type("GON")
            sure = dialog.get_by_role("button", name="Delete")
            await expect(sure).to_be_disabled()
            if by == "Escape":
                await screen.page.keyboard.press("Escape")
            else:
                await dialog.get_by_role("button", name="Cancel").click()
            await expect(dialog).to_have_count(0)
            await expect(delete).to_be_focused()
            assert (await client.api("STREAM.INFO.GONE"))["config"]["name"] == "GONE"
            await delete.click()
            await expect(name).to_be_focused()
            await screen.page.keyboard.type("GONE")
            await screen.page.keyboard.press("Enter")
            await expect(screen.page.locator("main h1")).to_have_text("Streams")
            assert "GONE" not in (await client.api("STREAM.NAMES", {}))["streams"]
        finally:
            if "GONE" in (await client.api("STREAM.NAMES", {}))["streams"]:
                await client.api("STREAM.DELETE.GONE")
