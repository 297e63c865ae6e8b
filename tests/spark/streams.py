"""Streams for Spark tests: made, filled and read with few words."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from jetcluster.client.connection import Connection, Headers
from jetcluster.client.servers import ServerOptions, ask
from jetcluster.errors import ApiError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from testkit.harness import ProcessCluster


def create(connection: Connection, name: str, **config: Any) -> None:
    """Three replicas of `<name>.>`, readable by Direct Get."""
    whole = {"name": name, "num_replicas": 3, "allow_direct": True, "subjects": [f"{name.lower()}.>"]} | config
    config = {key: value for key, value in whole.items() if value is not None}
    ask(ServerOptions((connection.url,)), lambda link: link.api(f"STREAM.CREATE.{name}", config))


def fill(connection: Connection, rows: Iterable[tuple[str, bytes] | tuple[str, bytes, Headers]]) -> int:
    """Publishes (subject, payload[, headers]), waits for all acks; the last sequence."""
    last = 0
    for row in rows:
        connection.publish_acked(*row)
        if connection.outstanding >= 500:
            last = max(last, _checked(connection.acks(250)))
    return max(last, _checked(connection.acks()))


def _checked(acks: list[Any]) -> int:
    last = 0
    for _, reply in acks:
        found = reply.json()
        assert "error" not in found, found
        last = max(last, found["seq"])
    return last


@contextmanager
def causal_writer(cluster: ProcessCluster, streams: tuple[str, str]) -> Iterator[None]:
    """Writes to the first stream and, once that is acknowledged, to the second one, over and over."""
    stop = threading.Event()
    problems: list[Exception] = []

    def write() -> None:
        try:
            with Connection(cluster.urls) as connection:
                for n in itertools.count(1):
                    for stream in streams:
                        fill(connection, [(f"{stream.lower()}.x", b"%d" % n)])
                    if stop.is_set():
                        return
        except Exception as error:
            problems.append(error)

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(30)
    assert not problems and not thread.is_alive(), problems


def numbered(stream: str, count: int, first: int = 1) -> list[tuple[str, bytes]]:
    return [(f"{stream.lower()}.{n % 7}", b"%d" % n) for n in range(first, first + count)]


def read(spark: SparkSession, cluster: ProcessCluster, stream: str, **options: Any) -> DataFrame:
    return (
        spark.read.format("jetstream")
        .options(servers=",".join(cluster.urls), stream=stream, **{name: str(value) for name, value in options.items()})
        .load()
    )


def drain(
    spark: SparkSession, cluster: ProcessCluster, stream: str, sink: str, checkpoint: str, **options: Any
) -> list[int]:
    """Runs a streaming query to what is there now (AvailableNow), appending to Parquet files in `sink`; rows per
    micro-batch. Raises what the query raises."""
    query = (
        spark.readStream.format("jetstream")
        .options(servers=",".join(cluster.urls), stream=stream, **{name: str(value) for name, value in options.items()})
        .load()
        .writeStream.format("parquet")
        .option("path", sink)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]


def until(check: Callable[[], bool], within: float = 20.0, what: str = "it") -> None:
    deadline = time.monotonic() + within
    while not check():
        assert time.monotonic() < deadline, f"{what} did not happen in {within:g} s"
        time.sleep(0.05)


def stored(connection: Connection, stream: str) -> int:
    """Its last sequence; -1 while nobody can say."""
    try:
        return int(connection.api(f"STREAM.INFO.{stream}", timeout=2.0)["state"]["last_seq"])
    except ApiError:
        return -1
