"""`bounds`: first, last and count of a stream by the server's word, as Spark gives a Python source no aggregates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from jetcluster.arrow.options import OptionError, SourceOptions
from jetcluster.arrow.resolve import streams_of
from jetcluster.client.connection import Connection
from jetcluster.client.servers import ask
from jetcluster.client.stream_state import leader_message, stream_state
from jetcluster.model.times import parse_rfc3339
from jetcluster.spark.options import SERVER_OPTIONS, source_options

TAKEN: Final = {
    *SERVER_OPTIONS,
    "stream",
    "subscribe",
    "subscribepattern",
    "subjects",
    "requesttimeout",
    "retrytimeout",
}
"""Options that mean something here, in lower case."""


@dataclass(frozen=True)
class StreamBounds:
    """The ends of the messages of a stream that a filter matches. Without any, all but `count` is None."""

    count: int
    first_seq: int | None = None
    last_seq: int | None = None
    first_time_ns: int | None = None
    """The time of the first message, Unix nanoseconds."""
    last_time_ns: int | None = None
    """The time of the last message, which need not be the latest one: clocks of leaders differ."""


def bounds(options: Mapping[str, str]) -> dict[str, StreamBounds]:
    """Returns the bounds of each stream that the options of the source name. Raises OptionError, StreamError, and what
    `client.servers.ask` raises."""
    source = source_options(options)
    for name in options:
        if name.lower() not in TAKEN:
            raise OptionError(f"bounds are of all that the stream has: {name} goes without them")
    if len(source.subjects) != 1:
        raise OptionError("bounds take one filter in subjects")
    server = source.server
    return ask(server, partial(_bounds, source=source), source.retry_timeout, reach=server.reach_timeout)


def _bounds(link: Connection, source: SourceOptions) -> dict[str, StreamBounds]:
    (subject,) = source.subjects
    timeout = source.request_timeout
    return {
        name: whole(link, name, timeout) if subject == ">" else filtered(link, name, subject, timeout)
        for name in streams_of(link, source)
    }


def whole(link: Connection, stream: str, timeout: float) -> StreamBounds:
    """Raises as `stream_state`."""
    state = stream_state(link, stream, timeout, linearizable=True)
    if not state.messages:
        return StreamBounds(0)
    times = parse_rfc3339(state.first_time), parse_rfc3339(state.last_time)
    return StreamBounds(state.messages, state.first, state.last, *times)


def filtered(link: Connection, stream: str, subject: str, timeout: float) -> StreamBounds:
    """Raises as `stream_state`."""
    state = stream_state(link, stream, timeout, linearizable=True)
    first = leader_message(link, stream, {"seq": max(state.first, 1), "next_by_subj": subject}, timeout)
    last = leader_message(link, stream, {"last_by_subj": subject}, timeout)
    if first is None or last is None:
        return StreamBounds(0)
    times = parse_rfc3339(str(first["time"])), parse_rfc3339(str(last["time"]))
    return StreamBounds(_count(link, stream, subject, timeout), int(first["seq"]), int(last["seq"]), *times)


def _count(link: Connection, stream: str, subject: str, timeout: float) -> int:
    """Returns the number of messages, subject by subject, as STREAM.INFO pages them."""
    count = offset = 0
    while True:
        body = {"subjects_filter": subject, "offset": offset}
        info: dict[str, Any] = link.api(f"STREAM.INFO.{stream}", body, timeout=timeout)
        page = info["state"].get("subjects") or {}
        count += sum(map(int, page.values()))
        offset += len(page)
        if not page or offset >= int(info.get("total") or 0):
            return count
