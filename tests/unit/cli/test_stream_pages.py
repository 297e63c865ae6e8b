"""Streams of all servers in pages, put together to one answer of each server."""

from __future__ import annotations

from typing import Any

import pytest

from jetcluster.cli import stream_pages
from jetcluster.cli.stream_pages import TRIES, all_pages, page_body

STREAMS = {"n1": ["A/a", "A/b", "A/c", "B/d", "B/e"], "n2": ["A/a"]}


@pytest.fixture(autouse=True)
def pages_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_pages, "PAGE_STREAMS", 2)


def answer(server: str, streams: list[str], offset: int) -> dict[str, Any]:
    accounts: dict[str, list[dict[str, Any]]] = {}
    for label in streams[offset : offset + 2]:
        account, _, name = label.partition("/")
        accounts.setdefault(account, []).append({"name": name, "state": {"messages": offset}})
    details = [{"name": account, "stream_detail": rows} for account, rows in accounts.items()]
    data = {"streams": len(streams), "stream_total": len(streams), "account_details": details}
    return {"server": {"name": server, "id": f"N{server}"}, "data": data}


def labels(found: dict[str, Any]) -> list[str]:
    return [
        f"{account['name']}/{stream['name']}"
        for account in found["data"]["account_details"]
        for stream in account["stream_detail"]
    ]


def test_all_streams_of_all_servers() -> None:
    asked = []

    def ask(offset: int) -> list[dict[str, Any]]:
        asked.append(offset)
        return [answer(server, streams, offset) for server, streams in STREAMS.items()]

    found = all_pages(ask(0), ask)
    assert asked == [0, 2, 4], "no page beyond the last"
    assert {one["server"]["name"]: labels(one) for one in found} == STREAMS
    assert all("error" not in one and one["data"]["streams"] == len(labels(one)) for one in found)


def test_a_server_that_has_no_pages_has_told_all() -> None:
    whole = answer("n1", STREAMS["n1"], 0)
    del whole["data"]["stream_total"]
    assert all_pages([whole], lambda _: pytest.fail("no other page")) == [whole]
    refused = {"server": {"name": "n1", "id": "Nn1"}, "error": {"code": 500, "description": "no"}}
    assert all_pages([refused], lambda _: pytest.fail("no other page")) == [refused]


def test_a_server_that_falls_silent_lacks_streams_and_says_so() -> None:
    def ask(offset: int) -> list[dict[str, Any]]:
        return [answer("n1", STREAMS["n1"], offset)] if offset < 4 else []

    (found,) = all_pages(ask(0), ask)
    assert labels(found) == ["A/a", "A/b", "A/c", "B/d"]
    assert found["error"] == {"description": "4 of its 5 have come"}


def test_a_list_that_changes_meanwhile_is_read_again() -> None:
    """A deletion in front moves a stream to the page before, which has been read."""
    streams = list(STREAMS["n1"])
    readings = []

    def ask(offset: int) -> list[dict[str, Any]]:
        if offset == 0:
            readings.append(len(streams))
        found = [answer("n1", streams, offset)]
        if offset == 0 and len(readings) < 2:
            del streams[0]
        return found

    (found,) = all_pages(ask(0), ask)
    assert readings == [5, 4] and labels(found) == STREAMS["n1"][1:]


def test_one_that_changes_all_the_time_is_told_as_it_came() -> None:
    sizes = iter(range(100, 200))
    asked = []

    def ask(offset: int) -> list[dict[str, Any]]:
        asked.append(offset)
        return [answer("n1", [f"A/{at:03d}" for at in range(next(sizes))], offset)]

    (found,) = all_pages(ask(0), ask)
    assert asked.count(0) == TRIES
    assert labels(found)[:3] == ["A/000", "A/001", "A/002"]


def test_the_request_of_a_page() -> None:
    assert page_body(0, {"config": True}) == {
        "accounts": True, "streams": True, "limit": 10_000, "stream_limit": 2, "config": True,
    }  # fmt: skip
    assert page_body(4, {})["stream_offset"] == 4
