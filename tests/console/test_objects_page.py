"""Objects: buckets, uploads that other clients read, downloads that are verified, of both layouts."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import FilePayload, Locator, expect

from testkit.client import Client, create_stream
from tests.console.browser import Demo, Screen

CHUNK = 128 * 1024
SUBJECTS = {"stock": ["$O.DOCS.C.>", "$O.DOCS.M.>"], "service": ["$OBJ.DOCS.>"]}


@pytest_asyncio.fixture(loop_scope="session", params=list(SUBJECTS))
async def docs(demo: Demo, request: pytest.FixtureRequest) -> AsyncIterator[Client]:
    """A bucket DOCS of the stock clients' layout, and once more of the object service's."""
    async with await demo.cluster[0].connect() as client:
        await create_stream(
            client, "OBJ_DOCS", SUBJECTS[request.param], 3, allow_rollup_hdrs=True, metadata={"layout": request.param}
        )
        yield client
        await client.api("STREAM.DELETE.OBJ_DOCS")


def dialog(screen: Screen) -> Locator:
    return screen.page.locator("dialog[open]")


async def upload(screen: Screen, name: str, data: bytes) -> None:
    await upload_all(screen, {name: data})


async def upload_all(screen: Screen, files: dict[str, bytes]) -> None:
    chosen: list[FilePayload] = [
        {"name": name, "mimeType": "text/plain", "buffer": data} for name, data in files.items()
    ]
    await screen.page.set_input_files("input[type=file]", chosen)


async def put_metadata(client: Client, name: str, **fields: object) -> None:
    """Publishes metadata of an object, as anybody may who may publish to the bucket."""
    meta = {"name": name, "bucket": "DOCS", "size": 0, "chunks": 0, "digest": "", **fields}
    await client.request(f"$O.DOCS.M.{base64.urlsafe_b64encode(name.encode()).decode()}", json.dumps(meta).encode())


def row(screen: Screen, name: str) -> Locator:
    return screen.page.locator("tbody tr", has=screen.page.locator(f"td b[title='{name}']"))


async def download(screen: Screen, name: str) -> bytes:
    async with screen.page.expect_download() as found:
        await row(screen, name).locator("button", has_text="Download").click()
    assert (await found.value).suggested_filename == name
    return Path(await (await found.value).path()).read_bytes()


async def test_what_goes_up_comes_down(screen: Screen, docs: Client) -> None:
    await screen.enter("app", "#/objects")
    await screen.page.locator("tbody a", has_text="DOCS").press("Enter")
    await screen.page.wait_for_selector(".actions")
    for name, data in (("three chunks.bin", os.urandom(2 * CHUNK + 5)), ("empty", b""), ("one", os.urandom(CHUNK))):
        await upload(screen, name, data)
        await expect(row(screen, name)).to_have_count(1)
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode()
        await expect(row(screen, name).locator("[title^='sha-256=']")).to_have_text(digest)
        assert await download(screen, name) == data
        await expect(screen.page.locator(".transfer").last).to_contain_text("SHA-256 verified")
    listed = {one["name"]: one for one in (await docs.request("$OBJ.DOCS", b"")).json()["objects"]}
    assert {name: one["size"] for name, one in listed.items()} == {
        "three chunks.bin": 2 * CHUNK + 5,
        "empty": 0,
        "one": CHUNK,
    }


async def test_an_object_is_replaced_after_a_question_and_goes_by_its_name(screen: Screen, docs: Client) -> None:
    await screen.enter("app", "#/objects/DOCS")
    await screen.page.wait_for_selector(".actions")
    await upload(screen, "note", b"old")
    await expect(row(screen, "note")).to_contain_text("3 B")
    await upload(screen, "note", b"newer")
    await dialog(screen).locator("button", has_text="Replace").click()
    await expect(row(screen, "note")).to_contain_text("5 B")
    assert await download(screen, "note") == b"newer"
    assert (await docs.api("STREAM.INFO.OBJ_DOCS"))["state"]["messages"] == 2, "the chunks of the old one are gone"
    await row(screen, "note").locator("button", has_text="Delete").click()
    await dialog(screen).locator("input").fill("note")
    await dialog(screen).locator("button.danger").click()
    await expect(row(screen, "note")).to_have_count(0)


async def test_files_whose_names_are_taken_are_one_question(screen: Screen, docs: Client) -> None:
    await screen.enter("app", "#/objects/DOCS")
    await screen.page.wait_for_selector(".actions")
    await upload_all(screen, {"one": b"old", "two": b"old"})
    await expect(screen.page.locator("tbody tr")).to_have_count(2)
    await upload_all(screen, {"one": b"newer", "two": b"newer", "three": b"newer"})
    await expect(row(screen, "three")).to_contain_text("5 B")
    await expect(dialog(screen).locator("li b")).to_have_text(["one", "two"])
    await dialog(screen).locator("button", has_text="Replace").click()
    for name in ("one", "two"):
        await expect(row(screen, name)).to_contain_text("5 B")
    await expect(dialog(screen)).to_have_count(0)


@pytest.mark.parametrize("docs", ["stock"], indirect=True)
async def test_metadata_cannot_have_the_chunks_of_other_objects_removed(screen: Screen, docs: Client) -> None:
    await docs.request("$O.DOCS.C.n", b"hi")
    await put_metadata(docs, "note", nuid="n", size=2, chunks=1)
    await put_metadata(docs, "all", nuid=">")
    await put_metadata(docs, "same", nuid="n", size=2, chunks=1)
    await screen.enter("app", "#/objects/DOCS")
    for name, why in (("all", "not one plain token"), ("same", "the chunks of another object")):
        await row(screen, name).locator("button", has_text="Delete").click()
        await dialog(screen).locator("input").fill(name)
        await dialog(screen).locator("button.danger").click()
        await expect(dialog(screen).get_by_role("alert")).to_contain_text(why)
        await screen.page.keyboard.press("Escape")
    await upload(screen, "all", b"mine")
    await dialog(screen).locator("button", has_text="Replace").click()
    await expect(row(screen, "all")).to_contain_text("4 B")
    assert await download(screen, "note") == b"hi"


@pytest.mark.parametrize("docs", ["stock"], indirect=True)
async def test_metadata_of_other_types_are_no_trouble(screen: Screen, docs: Client) -> None:
    for at, wrong in enumerate(({"digest": None}, {"size": "x", "chunks": {}}, {"nuid": 3}, {"options": {"link": 7}})):
        await put_metadata(docs, f"odd{at}", **wrong)
    await docs.request("$O.DOCS.M.bnVsbA==", b"null")
    await screen.enter("app", "#/objects/DOCS")
    await expect(screen.page.locator("tbody tr")).to_have_count(4)


@pytest.mark.parametrize("docs", ["stock"], indirect=True)
async def test_a_damaged_object_is_not_saved(screen: Screen, docs: Client) -> None:
    sent = base64.urlsafe_b64encode(hashlib.sha256(b"what was sent").digest()).decode()
    for name, size, body in (("damaged", 13, b"what is there"), ("cut", 26, b"only the half")):
        meta = {"name": name, "bucket": "DOCS", "nuid": name, "size": size, "chunks": 1, "digest": f"SHA-256={sent}"}
        await docs.request(f"$O.DOCS.C.{name}", body)
        await docs.request(f"$O.DOCS.M.{base64.urlsafe_b64encode(name.encode()).decode()}", json.dumps(meta).encode())
    downloads: list[object] = []
    screen.page.on("download", lambda one: downloads.append(one))
    await screen.enter("app", "#/objects/DOCS")
    for name, why in (("damaged", "damaged is damaged: its SHA-256 is"), ("cut", "13 of 26 bytes are there")):
        await row(screen, name).locator("button", has_text="Download").click()
        await expect(screen.page.locator(".transfer .reason").last).to_contain_text(why)
    assert not downloads


@pytest.mark.parametrize("docs", ["stock"], indirect=True)
async def test_who_may_only_look_downloads_and_changes_nothing(screen: Screen, docs: Client) -> None:
    meta = {"name": "note", "bucket": "DOCS", "nuid": "n", "size": 2, "chunks": 1, "digest": ""}
    await docs.request("$O.DOCS.C.n", b"hi")
    await docs.request("$O.DOCS.M.bm90ZQ==", json.dumps(meta).encode())
    await screen.enter("reader", "#/objects/DOCS")
    assert await download(screen, "note") == b"hi"
    for button in await screen.page.locator(".actions button, td button.danger").all():
        assert await button.is_disabled() and "may not publish to" in (await button.get_attribute("title") or "")


async def test_plain_http_has_no_crypto_subtle_and_needs_none(screen: Screen, docs: Client) -> None:
    """A page that came by http from another machine has none; here it is taken away."""
    await screen.context.add_init_script("Object.defineProperty(crypto, 'subtle', { value: undefined })")
    await screen.enter("app", "#/objects/DOCS")
    await screen.page.wait_for_selector(".actions")
    await upload(screen, "note", b"text")
    await expect(row(screen, "note")).to_have_count(1)
    assert await download(screen, "note") == b"text"


@pytest.mark.thorough
@pytest.mark.parametrize("docs", ["stock"], indirect=True)
async def test_how_they_look(screen: Screen, docs: Client) -> None:
    await screen.enter("app", "#/objects")
    await screen.settled()
    faults = await screen.looks("objects")
    await screen.go("#/objects/DOCS")
    await screen.page.wait_for_selector(".actions")
    await upload(screen, "a rather long name of a picture of somebody's holidays.jpeg", os.urandom(CHUNK))
    await expect(screen.page.locator(".transfer")).to_contain_text("stored")
    await expect(screen.page.locator("tbody tr")).to_have_count(1)
    faults += await screen.looks("objects-bucket")
    assert not faults, "\n".join(faults)
