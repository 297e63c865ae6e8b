"""JSZ of all servers with all their streams, which come in pages: a server puts 8 MiB into one answer at most."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from jetcluster.client.survey import Answers

MAX_ACCOUNTS: Final = 10_000
PAGE_STREAMS: Final = 4000
"""Streams of one answer; a stream takes some 700 bytes, with its configuration 2000."""
TRIES: Final = 3
"""Readings from the first page on, as long as the number of streams changes in between: one may have been missed."""


def page_body(offset: int, more: Mapping[str, Any]) -> dict[str, Any]:
    """The request of the page from the stream `offset` on. nats-server, which has no pages, answers with all of it."""
    body = {"accounts": True, "streams": True, "limit": MAX_ACCOUNTS, "stream_limit": PAGE_STREAMS, **more}
    return body | ({"stream_offset": offset} if offset else {})


def all_pages(first: Answers, ask: Callable[[int], Answers]) -> Answers:
    """Returns one answer for each of `first`, which are the first pages, with the streams of all pages of its server.
    `ask(offset)` returns the servers' answers to a later page. An answer that lacks streams has an `error`."""
    for tries in range(TRIES):
        found = _read(first if tries == 0 else ask(0), ask)
        if found is not None:
            return found
    return _read(first, ask, still=False) or first


def _read(first: Answers, ask: Callable[[int], Answers], *, still: bool = True) -> Answers | None:
    """Returns None when the number of streams of a server has changed meanwhile and they are to be `still`."""
    by_id = {str(answer["server"]["id"]): answer for answer in first}
    totals = {server: _total(answer) for server, answer in by_id.items()}
    streams = {server: _streams(answer) for server, answer in by_id.items()}
    for offset in range(PAGE_STREAMS, max(totals.values(), default=0), PAGE_STREAMS):
        for answer in ask(offset):
            server = str(answer["server"]["id"])
            if server not in by_id or "error" in answer:
                continue
            if _total(answer) != totals[server] and still:
                return None
            for account, of in _streams(answer).items():
                streams[server].setdefault(account, {}).update(of)
    return [_whole(answer, streams[server], totals[server]) for server, answer in by_id.items()]


def _whole(answer: Mapping[str, Any], streams: Mapping[str, Mapping[str, Any]], total: int) -> dict[str, Any]:
    if not total:
        return dict(answer)
    accounts = [{"name": name, "stream_detail": list(of.values())} for name, of in streams.items()]
    listed = sum(len(of) for of in streams.values())
    short = {"error": {"description": f"{listed:,} of its {total:,} have come"}} if listed < total else {}
    return {**answer, "data": {**answer["data"], "account_details": accounts}, **short}


def _total(answer: Mapping[str, Any]) -> int:
    """Streams of the server; 0 where the answer is no page of them."""
    return int(answer.get("data", {}).get("stream_total", 0))


def _streams(answer: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Streams by account and name."""
    return {
        str(account["name"]): {str(stream["name"]): stream for stream in account.get("stream_detail") or ()}
        for account in answer.get("data", {}).get("account_details") or ()
    }
