"""STREAM.INFO of a stream with many subjects and many holes: pages, offsets and totals, the same on nats-server."""

from __future__ import annotations

import json
from typing import Any

import pytest

from testkit.client import Client, create_stream
from testkit.harness import ProcessCluster, eventually

pytestmark = pytest.mark.cluster

SUBJECTS = 100_250
LIMIT = 100_000


async def fill(client: Client, count: int) -> None:
    await create_stream(client, "S", ["s.>"], 1)
    for n in range(count):
        client.publish(f"s.{n:06d}")
        if n % 5000 == 0:
            await client.flush()
    await client.flush()

    async def stored() -> bool:
        return bool((await client.api("STREAM.INFO.S"))["state"]["messages"] == count)

    await eventually(stored, 30.0, "not all is stored", every=0.2)


async def info(client: Client, **body: Any) -> dict[str, Any]:
    found: dict[str, Any] = (await client.request("$JS.API.STREAM.INFO.S", json.dumps(body).encode(), 15.0)).json()
    assert "error" not in found, found
    return found


async def page(client: Client, **body: Any) -> tuple[tuple[int, int, int], list[str]]:
    """(total, offset, limit) and the subjects, sorted; none where the map is missing."""
    found = await info(client, **body)
    subjects = found["state"].get("subjects")
    assert subjects is None or set(subjects.values()) == {1}
    assert found["state"]["num_subjects"] == SUBJECTS
    return (found["total"], found["offset"], found["limit"]), sorted(subjects or ())


def named(first: int, end: int) -> list[str]:
    return [f"s.{n:06d}" for n in range(first, end)]


async def test_pages_of_subjects(server: str) -> None:
    async with ProcessCluster(1, server) as nodes, await nodes[0].connect() as client:
        await fill(client, SUBJECTS)
        assert await page(client, subjects_filter=">") == ((SUBJECTS, 0, LIMIT), named(0, LIMIT))
        assert await page(client, subjects_filter="s.*", offset=LIMIT) == (
            (SUBJECTS, LIMIT, LIMIT), named(LIMIT, SUBJECTS),
        )  # fmt: skip
        assert await page(client, subjects_filter=">", offset=50) == ((SUBJECTS, 50, LIMIT), named(50, LIMIT + 50))
        for behind in (SUBJECTS, 2 * SUBJECTS):
            assert await page(client, subjects_filter=">", offset=behind) == ((SUBJECTS, behind, LIMIT), [])
        assert await page(client, subjects_filter=">", offset=-1) == ((SUBJECTS, 0, LIMIT), named(0, LIMIT))
        assert await page(client, subjects_filter="s.000007") == ((1, 0, LIMIT), ["s.000007"])
        assert await page(client, subjects_filter="s.000007", offset=1) == ((1, 1, LIMIT), [])
        for nothing in ({"subjects_filter": "t.*"}, {"subjects_filter": "t.*", "offset": 5}, {"offset": 5}, {},
                        {"subjects_filter": ""}):  # fmt: skip
            assert await page(client, **nothing) == ((0, 0, 0), [])


async def test_deleted_details(server: str) -> None:
    async with ProcessCluster(1, server) as nodes, await nodes[0].connect() as client:
        await fill(client, 2000)
        assert "deleted" not in (await info(client, deleted_details=True))["state"]
        gone = [*range(2, 1990, 2)]
        for seq in gone:
            client.publish("$JS.API.STREAM.MSG.DELETE.S", json.dumps({"seq": seq}).encode())
        await client.flush()

        async def deleted() -> bool:
            return bool((await info(client))["state"].get("num_deleted") == len(gone))

        await eventually(deleted, 15.0, "not all is deleted", every=0.2)
        assert "deleted" not in (await info(client))["state"]
        # They are not paged: neither the offset nor the filter is about them, and they do not count in the total.
        for body in ({}, {"offset": 3}, {"subjects_filter": "s.*", "offset": 1000}, {"subjects_filter": "none"}):
            found = await info(client, deleted_details=True, **body)
            assert (found["state"]["deleted"], found["state"]["num_deleted"]) == (gone, len(gone))
            left = 2000 - len(gone)
            expected = (left, 1000, LIMIT) if body.get("subjects_filter") == "s.*" else (0, 0, 0)
            assert (found["total"], found["offset"], found["limit"]) == expected
        await client.api("STREAM.PURGE.S", {"seq": 101})  # holes before the first message are none
        found = await info(client, deleted_details=True)
        assert found["state"]["deleted"] == [seq for seq in gone if seq > 101]
        await client.api("STREAM.PURGE.S")
        state = (await info(client, deleted_details=True, subjects_filter=">"))["state"]
        assert not {"deleted", "num_deleted", "subjects", "num_subjects"} & set(state)
        assert (state["messages"], state["first_seq"], state["last_seq"]) == (0, 2001, 2000)


async def test_names_by_subject(server: str) -> None:
    async with ProcessCluster(1, server) as nodes, await nodes[0].connect() as client:
        await client.api("STREAM.CREATE.U", {"name": "U", "subjects": ["u.>"]})
        await client.api("STREAM.CREATE.M", {"name": "M", "mirror": {"name": "U"}})
        await client.api("STREAM.CREATE.Q", {"name": "Q", "sources": [{"name": "U"}]})
        for subject, names in (("M", []), ("*", []), (">", ["U"]), ("u.*", ["U"]), ("", ["M", "Q", "U"])):
            assert ((await client.api("STREAM.NAMES", {"subject": subject}))["streams"] or []) == names
            found = (await client.api("STREAM.LIST", {"subject": subject}))["streams"]
            assert [stream["config"]["name"] for stream in found] == names
