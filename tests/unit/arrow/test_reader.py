"""`read_stream` against scripted servers (arrow/reader.py)."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="pip install 'jetcluster[arrow]'")

import pyarrow as pa

from jetcluster.arrow import reader
from jetcluster.arrow.arguments import source_options
from jetcluster.arrow.fetch import ReplicaLagError
from jetcluster.arrow.planner import DataLossError, Subjects, Target
from jetcluster.arrow.resolve import Extent, tasks_of
from jetcluster.client.reply import ConnectionLostError
from jetcluster.stream.read.direct_get import Frame
from tests.unit.arrow.fake_server import T0, StreamPeer, numbered, store_of
from tests.unit.arrow.rows import BLOCK
from tests.unit.stream.fake_store import NaiveStore


def read(peers: list[StreamPeer], *places: Any, **given: Any) -> Any:
    urls = [peer.url for peer in peers]
    return reader.read_stream(urls, "S", *places, **{"connections": len(peers), "request_timeout": 0.5, **given})


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "PART_ROWS", 10)


@contextmanager
def in_turn(store: NaiveStore) -> Iterator[tuple[StreamPeer, StreamPeer]]:
    """Two servers, the first of which answers only when the second one is asked, too."""
    second = threading.Event()

    def waits(_: int, frames: list[Frame]) -> list[Frame]:
        assert second.wait(20)
        return frames

    def tells(_: int, frames: list[Frame]) -> list[Frame]:
        second.set()
        return frames

    with StreamPeer(store, spoil=waits) as one, StreamPeer(store, spoil=tells) as two:
        yield one, two


def test_a_stream_is_read_from_two_servers_in_order() -> None:
    rows = numbered(95)
    rows[4] = ("a.x", BLOCK, b"five")
    with in_turn(store_of(rows, gaps=[7, 8])) as (one, two):
        found = read([one, two], request_timeout=20.0)
        assert found.schema.names == ["subject", "seq", "time", "headers", "data"]
        table = found.read_all()
        assert one.gets and two.gets
    table.validate(full=True)
    assert table.column("seq").to_pylist() == [n for n in range(1, 96) if n not in (7, 8)]
    assert table.column("subject").to_pylist()[:3] == ["a.x", "a.y", "b.x"]
    assert table.column("headers").to_pylist()[4] == [("A", ["1", "3"]), ("b", ["2"])]
    assert table.schema.field("time").type == pa.timestamp("ns", "UTC")
    assert table.column("time").cast(pa.int64()).to_pylist()[1] == T0 + 1000


@pytest.mark.parametrize(
    ("places", "given", "wanted"),
    [
        ((20, 31), {}, range(20, 31)),
        (("latest-5",), {}, range(26, 31)),
        ((None, "latest-28"), {}, range(1, 3)),
        ((31,), {}, range(0)),
        ((9, 4), {}, range(0)),
        ((datetime.fromtimestamp(T0 / 1e9, UTC).replace(microsecond=4),), {}, range(5, 31)),
        ((None, None, "b.*"), {}, range(3, 31, 3)),
        ((None, None, ["a.x", "b.*"]), {}, [n for n in range(1, 31) if n % 3 != 2]),
        ((), {"columns": ["seq"], "batch_rows": 4, "fetch_batch": 4}, range(1, 31)),
        ((), {"min_last": 30, "max_staleness": 0, "consistent": True}, range(1, 31)),
    ],
)
def test_what_is_read(places: tuple[Any, ...], given: dict[str, Any], wanted: range | list[int]) -> None:
    with StreamPeer(store_of(numbered(30))) as peer:
        assert read([peer], *places, **given).read_all().column("seq").to_pylist() == list(wanted)


def test_nothing_is_read_before_a_batch_is_taken() -> None:
    with StreamPeer(store_of(numbered(30))) as peer:
        found = read([peer])
        assert peer.gets == 0
        assert found.read_next_batch().num_rows == 10 and peer.gets > 0


def test_a_range_is_kept_while_the_stream_grows() -> None:
    with StreamPeer(store_of(numbered(30))) as peer:
        found = read([peer])
        more = store_of(numbered(50))
        peer.leader, peer.replicas = more, [more]
        assert found.read_all().num_rows == 30


def test_what_is_gone_is_an_error() -> None:
    with StreamPeer(store_of(numbered(30), gaps=range(1, 6))) as peer:
        with pytest.raises(DataLossError, match=r"^S: messages 1 to 5 are gone"):
            read([peer], 1)
        assert read([peer], 1, fail_on_data_loss=False).read_all().num_rows == 25


def test_what_goes_while_it_is_read_is_an_error_behind_what_was_whole() -> None:
    def spoil(gets: int, frames: list[Frame]) -> list[Frame]:
        if gets == 2:
            peer.leader.delete_all(list(range(1, 25)))
        return frames

    with StreamPeer(store_of(numbered(40)), spoil=spoil) as peer:
        found = read([peer])
        rows = []
        with pytest.raises(DataLossError, match=r"^S: limits or a purge removed messages up to 24 while"):
            for batch in found:
                rows += batch.column("seq").to_pylist()
    assert rows[:10] == list(range(1, 11)) and rows == sorted(set(rows))


def test_a_replica_that_stays_behind_is_an_error() -> None:
    with StreamPeer(store_of(numbered(30)), [store_of(numbered(12))]) as peer:
        found = read([peer], replica_wait=0.2)
        with pytest.raises(ReplicaLagError, match=r"^S: the replica on n1 has nothing from 13 on and the leader does"):
            found.read_all()


def test_one_that_lags_is_left_for_another_one() -> None:
    whole = store_of(numbered(30))
    with StreamPeer(whole, [store_of(numbered(12))]) as late, StreamPeer(whole) as good:
        found = read([late, good], connections=1).read_all()
    assert found.column("seq").to_pylist() == list(range(1, 31))


def test_no_server_is_said_soon() -> None:
    begun = time.monotonic()
    with pytest.raises(ConnectionLostError, match=r"^no server could be reached: nats://127\.0\.0\.1:9: "):
        reader.read_stream("nats://127.0.0.1:9", "S", reach_timeout=0.5)
    assert time.monotonic() - begun < 4


def test_servers_that_are_not_named_are_learnt_of() -> None:
    with in_turn(store_of(numbered(30))) as (one, two):
        told = {
            "server_name": "n1",
            "headers": True,
            "go": "python3.11",
            "connect_urls": [two.url.removeprefix("nats://")],
        }
        one.greeting = b"INFO %b\r\n" % json.dumps(told).encode()
        one.info = lambda _: INFO | {"state": StreamPeer.info(one, {})["state"]}  # type: ignore[method-assign]
        assert reader.read_stream(one.url, "S", connections=2, request_timeout=20.0).read_all().num_rows == 30


INFO = {
    "config": {"name": "S", "allow_direct": True, "retention": "limits"}, "created": "2026-11-22T00:00:00Z", "total": 0,
    "cluster": {"leader": "n1", "replicas": [{"name": "n2", "current": True}]},
}  # fmt: skip


def test_parts_are_as_large_as_their_messages_let_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "PART_ROWS", 100_000)
    target = Target("S", "S", "c", "n1", ("n1",))
    options = source_options("nats://a", ["S"], None, None, ">", {})

    def parts(mean: float, count: int) -> int:
        extents = [Extent(target, 1, count + 1, Subjects(), mean)]
        return len(tasks_of(extents, reader.cut_into_parts(extents, options, 3)))

    assert (parts(100.0, 1_000_000), parts(1 << 20, 160), parts(1 << 30, 5), parts(0.0, 10)) == (10, 10, 5, 1)

    def parts_of_keys(count: int) -> int:
        extents = [Extent(target, 1, 2, Subjects(tuple(f"k{n}" for n in range(count))))]
        last = replace(options, mode="last")
        return len(tasks_of(extents, reader.cut_into_parts(extents, last, 3)))

    assert (parts_of_keys(100), parts_of_keys(5000), parts_of_keys(50_000)) == (1, 3, 5)


def test_the_functions_are_where_the_page_says() -> None:
    import jetcluster.arrow

    assert jetcluster.arrow.read_stream is reader.read_stream
    assert Path(jetcluster.arrow.read_bucket.__code__.co_filename).name == "bucket.py"
    with pytest.raises(AttributeError, match="no attribute 'read_all'"):
        jetcluster.arrow.read_all  # noqa: B018
