"""`jetcluster.arrow` on real servers: what it reads is whole, whatever happens to them meanwhile (arrow/reader.py)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="pip install 'jetcluster[arrow]'")

import duckdb
import polars
import pyarrow.compute as pc

from jetcluster.arrow import read_bucket, read_stream, reader
from jetcluster.client.connection import Connection
from jetcluster.client.reply import ConnectionLostError
from jetcluster.client.stream_state import StreamError
from testkit.harness import ProcessCluster, frozen
from tests.spark.streams import causal_writer, create, fill, numbered

pytestmark = pytest.mark.cluster

COUNT = 20_000


def made(cluster: ProcessCluster, name: str, count: int, **config: Any) -> None:
    with Connection(cluster.urls) as connection:
        create(connection, name, **config)
        fill(connection, numbered(name, count))


def check_whole(table: Any, count: int) -> None:
    assert table.column("seq").to_pylist() == list(range(1, count + 1))
    assert table.column("data").to_pylist() == [b"%d" % n for n in range(1, count + 1)]


async def test_a_stream_is_read_from_all_its_replicas(shared: ProcessCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "PART_ROWS", 1000)
    await asyncio.to_thread(made, shared, "WHOLE", 5000)
    await shared.wait_current("WHOLE")
    for urls in (shared.urls, shared.urls[:1]):  # one is enough to learn of the others
        check_whole(await asyncio.to_thread(lambda: read_stream(urls, "WHOLE", fetch_batch=100).read_all()), 5000)  # noqa: B023
    some = await asyncio.to_thread(
        lambda: read_stream(shared.urls, "WHOLE", 100, 300, ["whole.3", "whole.5"], columns=["seq"]).read_all()
    )
    assert some.column("seq").to_pylist() == [n for n in range(100, 300) if n % 7 in (3, 5)]


@pytest.mark.parametrize("harm", ["killed", "frozen"])
async def test_a_server_goes_while_it_is_read(
    cluster: ProcessCluster, monkeypatch: pytest.MonkeyPatch, harm: str
) -> None:
    """Its rows are kept, and the others go on behind them. It leads, so that proofs need the next leader."""
    monkeypatch.setattr(reader, "PART_ROWS", 2000)
    await asyncio.to_thread(made, cluster, "HARMED", COUNT)
    await cluster.wait_current("HARMED")
    leader = await cluster.stream_leader("HARMED")
    slow: dict[str, Any] = {"fetch_batch": 50, "batch_rows": 50, "buffer_bytes": 10_000, "request_timeout": 2.0}
    found = await asyncio.to_thread(lambda: read_stream([leader.url, *cluster.urls], "HARMED", **slow))
    batches = [await asyncio.to_thread(found.read_next_batch) for _ in range(3)]
    assert sum(batch.num_rows for batch in batches) < COUNT / 10
    rest: Callable[[], Any] = lambda: list(found)  # noqa: E731
    if harm == "killed":
        leader.kill9()
        batches += await asyncio.to_thread(rest)
    else:
        with frozen([leader]):
            batches += await asyncio.to_thread(rest)
    check_whole(found.schema.empty_table().from_batches(batches), COUNT)


@pytest.mark.ours("nats-server proves no end")
async def test_several_streams_are_of_one_moment(shared: ProcessCluster) -> None:
    streams = ("CAUSE", "EFFECT")
    with Connection(shared.urls) as connection:
        for name in streams:
            create(connection, name)

    def read(order: tuple[str, ...]) -> Any:
        return read_stream(shared.urls, order, consistent=True, cut_timeout=40.0, columns=["stream", "seq"]).read_all()

    with causal_writer(shared, streams):
        for order in (streams, streams[::-1]) * 3:
            table = await asyncio.to_thread(read, order)
            cause, effect = (table.filter(pc.equal(table.column("stream"), name)).num_rows for name in streams)
            assert effect <= cause <= effect + 1
    assert effect > 0


async def test_a_bucket_is_a_table(shared: ProcessCluster) -> None:
    prefix = "$KV.LAMPS."
    with Connection(shared.urls) as connection:
        create(connection, "KV_LAMPS", subjects=[f"{prefix}>"], max_msgs_per_subject=5, allow_rollup_hdrs=True)
        fill(connection, [(f"{prefix}room.{n % 700}", b"%d" % n) for n in range(1500)])
        fill(connection, [(f"{prefix}room.3", b"", {"KV-Operation": "DEL"})])
    table = await asyncio.to_thread(lambda: read_bucket(shared.urls, "LAMPS").read_all())
    values = dict(zip(table.column("key").to_pylist(), table.column("value").to_pylist(), strict=True))
    assert values == {f"room.{n % 700}": b"%d" % n for n in range(800, 1500) if n % 700 != 3}
    history = await asyncio.to_thread(lambda: read_bucket(shared.urls, "LAMPS", "room.3", history=True).read_all())
    assert history.column("operation").to_pylist() == ["PUT", "PUT", "PUT", "DEL"]
    assert history.column("revision").to_pylist() == [4, 704, 1404, 1501]


async def test_other_engines_read_it(shared: ProcessCluster) -> None:
    await asyncio.to_thread(made, shared, "ENGINES", 3000)

    def opened() -> Any:
        return read_stream(shared.urls, "ENGINES")

    def queried() -> Any:
        with duckdb.connect() as connection:
            connection.register("lines", opened())
            numbers = "CAST(decode(data) AS INT)"
            return connection.execute(
                f"SELECT subject, count(*), max(seq), sum({numbers}), max(time) FROM lines GROUP BY 1"
            ).fetchall()

    found = await asyncio.to_thread(queried)
    assert {subject: count for subject, count, *_ in found} == {
        f"engines.{key}": len(range(key or 7, 3001, 7)) for key in range(7)
    }
    assert (
        sum(row[3] for row in found) == 3000 * 3001 // 2
        and abs(max(row[4] for row in found).timestamp() - time.time()) < 600
    )
    frame: Any = await asyncio.to_thread(lambda: polars.from_arrow(opened()))
    assert frame.height == 3000 and frame.schema["time"] == polars.Datetime("ns", "UTC")
    assert frame["seq"].to_list() == list(range(1, 3001))


async def test_what_is_wrong_is_said_soon(shared: ProcessCluster) -> None:
    with pytest.raises(StreamError, match=r"^there is no stream NONE"):
        await asyncio.to_thread(read_stream, shared.urls, "NONE")
    await asyncio.to_thread(made, shared, "CLOSED", 1, allow_direct=False)
    with pytest.raises(StreamError, match=r"^CLOSED has allow_direct=false"):
        await asyncio.to_thread(read_stream, shared.urls, "CLOSED")
    begun = time.monotonic()
    with pytest.raises(ConnectionLostError, match=r"^no server could be reached"):
        await asyncio.to_thread(read_stream, "nats://127.0.0.1:9", "ANY")
    assert time.monotonic() - begun < 8
