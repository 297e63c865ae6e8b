"""Arguments of `read_stream`: what they stand for, and what is wrong with them (arrow/arguments.py)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from jetcluster.arrow.arguments import Place, source_options
from jetcluster.arrow.options import EARLIEST, LATEST, OptionError, ReadPreference, SourceOptions
from jetcluster.arrow.schema import SchemaError
from jetcluster.client.servers import ServerOptions

NOON = datetime(2026, 11, 22, 12, 0, 0, 1, UTC)
NOON_NS = 1_795_348_800_000_001_000


def options(
    servers: Any = "nats://a:4222", streams: tuple[str, ...] = ("S",), start: Place = None, end: Place = None,
    filters: Any = ">", **more: Any,
) -> SourceOptions:  # fmt: skip
    return source_options(servers, streams, start, end, filters, more)


def test_servers_are_text_a_list_or_options() -> None:
    assert options("nats://a:4222, b:4222").server.servers == ("nats://a:4222", "b:4222")
    assert options(["tls://a"], domain="hub").server.api_prefix == "$JS.hub.API."
    own = ServerOptions(("nats://c",), connect_timeout=1.0, name="mine")
    assert options(own).server is not None and options(own).server.name == "mine"
    assert options("a").server.name == "jetcluster-arrow" and options("a").server.reach_timeout == 5.0
    for wrong, said in (("", "servers is missing"), ("http://a", "is no URL"), ("nats://me:secret@a", "a user or")):
        with pytest.raises(OptionError, match=said):
            options(wrong)


def test_places() -> None:
    assert (options().starting, options().ending) == (EARLIEST, LATEST)
    found = options(start=5, end="latest-10")
    assert (found.starting, found.ending) == ({"S": 5}, {"S": EARLIEST - 10})
    found = options(start=NOON, end=NOON + timedelta(hours=1))
    assert found.starting_times == {"S": NOON_NS} and found.ending_times == {"S": NOON_NS + 3600 * 10**9}
    found = options(streams=("A", "B"), start={"A": 7, "B": NOON})
    assert found.starting == {"A": 7} and found.starting_times == {"B": NOON_NS}
    assert options(streams=("A", "B"), start="latest").starting == {"A": LATEST, "B": LATEST}
    for wrong, said in (
        (-1, "not -1"), (True, "not True"), ("soon", "not 'soon'"), (datetime(2026, 1, 1), "has no zone"),
        ({"T": 5}, "start names T, which is not read"),
    ):  # fmt: skip
        with pytest.raises(OptionError, match=said):
            options(start=wrong)
    with pytest.raises(OptionError, match=r"a sequence is of one stream: write \{'A': 5\}"):
        options(streams=("A", "B"), start=5)


def test_columns() -> None:
    assert options().names == ["subject", "seq", "time", "headers", "data"]
    assert options(streams=("A", "B")).names[0] == "stream"
    assert options(columns=["digest", "seq"]).names == ["digest", "seq"] and options(columns="seq").names == ["seq"]
    with pytest.raises(SchemaError, match="did you mean seq"):
        options(columns=["sequence"])


def test_what_else_is_asked_for() -> None:
    found = options(
        filters=["a.*", "a.b", "c"], prefer="peer:n2", consistent=True, max_staleness=0.5, min_last=9, fetch_batch=100,
    )  # fmt: skip
    assert found.subjects == ("a.*", "c") and found.preference == ReadPreference("peer", "n2")
    assert (found.consistent, found.max_staleness, found.min_last) == (True, 500_000_000, {"S": 9})
    assert found.fetch_batch == 100 and found.time_unit == "ns"
    assert options(max_staleness=timedelta(milliseconds=2)).max_staleness == 2_000_000
    assert options(streams=("A", "B"), min_last={"B": 4}).min_last == {"B": 4}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"streams": ()}, "stream is the name of a stream"),
        ({"streams": ("a.b",)}, "'a.b' is no stream's name"),
        ({"filters": "a..b"}, "'a..b' is no subject"),
        ({"fetchbatch": 5}, "there is no argument 'fetchbatch'"),
        ({"consistent": True, "end": 5}, "end goes without it"),
        ({"prefer": "nearest"}, "not 'nearest'"),
        ({"prefer": "mirror:M", "streams": ("A", "B")}, "is of one stream"),
        ({"max_staleness": -1}, "max_staleness is not negative"),
        ({"min_last": {"T": 1}}, "min_last names T"),
        ({"min_last": 1, "streams": ("A", "B")}, "min_last as a number is of one stream"),
    ],
)
def test_what_is_wrong_is_said(given: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        options(**given)
