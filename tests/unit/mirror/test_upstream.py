from __future__ import annotations

import pytest

from jetcluster.mirror.upstream import Upstream
from jetcluster.store.api import Msg
from jetcluster.stream.rules import short_hash
from tests.unit.stream.fake_store import block


def message(value: str) -> Msg:
    return Msg(1, 1, b"s", block(f"Nats-Stream-Source: {value}") if value else b"", b"")


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("UP 7", (7, b"")),
        ("UP 7 a.* >", (7, b"")),
        ("UP 7 a.* > a.b", (7, b"")),
        ("UP 7 a.* > a.b WmqCfK4c", (7, b"WmqCfK4c")),
        ("UP 7 > > a.b", None),
        ("UP 7 a.* b.* a.b", None),
        ("UPS 7 a.* > a.b", None),
        ("UP:abc 7 a.* > a.b", None),
        ("UP x a.* > a.b", None),
        ("UP", None),
        ("", None),
    ],
)
def test_where_a_message_comes_from(value: str, found: tuple[int, bytes] | None) -> None:
    origin = Upstream({"name": "UP", "filter_subject": "a.*"}, "S", mirror=False).origin_of(message(value))
    assert (origin[:2] if origin is not None else None) == found


def test_what_is_written_is_read() -> None:
    external = {"api": "$JS.hub.API", "deliver": "d"}
    transforms = [{"src": "a.*", "dest": "b.$1"}, {"src": "c", "dest": ""}]
    for config in ({}, {"external": external}, {"subject_transforms": transforms}, {"filter_subject": "x.>"}):
        upstream = Upstream({"name": "UP", **config}, "S", mirror=False)
        headers = upstream.headers(block("Own: 1", "Nats-Stream-Source: OTHER 5"), 9, b"a.b", b"12345678")
        assert headers.startswith(block("Own: 1")[:-2])
        assert headers.count(b"Nats-Stream-Source") == 1
        found = upstream.origin_of(Msg(1, 1, b"s", headers, b""))
        assert found is not None and found[:2] == (9, b"12345678")
        other = Upstream({"name": "UP", "filter_subject": "else", "external": external}, "S", mirror=False)
        assert other.origin_of(Msg(1, 1, b"s", headers, b"")) is None


def test_an_identity_is_nats_servers() -> None:
    """Seen on nats-server 2.15.2 for a stream with this time of creation."""
    assert short_hash(b"2026-11-22T00:00:05.096908286Z") == b"WmqCfK4c"


def test_the_first_transform_that_takes_a_subject_counts() -> None:
    transforms = [{"src": "a.*", "dest": "x.{{wildcard(1)}}"}, {"src": "b.>", "dest": ""}, {"src": "c", "dest": "z"}]
    upstream = Upstream({"name": "UP", "subject_transforms": transforms}, "S", mirror=True)
    assert [upstream.mapped(s, 1) for s in (b"a.1", b"b.c.d", b"c", b"e")] == [b"x.1", b"b.c.d", b"z", b"e"]
    assert upstream.filters == ["a.*", "b.>", "c"]


@pytest.mark.parametrize(("ts", "same"), [(4_999, False), (5_000, True), (5_019, True)])
def test_a_copy_may_be_later_than_its_original(ts: int, same: bool) -> None:
    """Seed 21000509: of twenty messages with one time each copy is a nanosecond later than the one before, and their
    upstream, restored, was not recognized."""
    upstream = Upstream({"name": "UP"}, "S", mirror=True)
    answer = {"subject": "s", "seq": 1, "data": "eA==", "time": "1970-01-01T00:00:00.000005Z"}
    assert upstream.is_same(answer, Msg(1, ts, b"s", b"", b"x")) is same
    assert not upstream.is_same(answer | {"data": "eQ=="}, Msg(1, ts, b"s", b"", b"x"))
