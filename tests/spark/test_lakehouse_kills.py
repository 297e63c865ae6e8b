"""The driver of `lakehouse` is killed inside of a MERGE, between the commits of two tables, and between their growths:
its next run makes both tables what the bucket and the stream have."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")
pytest.importorskip("duckdb")
pytest.importorskip("fastavro")

from jetcluster.client.connection import Connection
from tests.spark import driver
from tests.spark.driver import dies_at, landed
from tests.spark.lake import Lake
from tests.spark.streams import create, fill

pytestmark = [
    pytest.mark.thorough(shared=False),
    pytest.mark.timeout(1500),  # it starts Spark some eight times
]

KEYS = 1500
TRIES = 4
"""Kills by which one has to be inside: a MERGE may end between the look and the kill."""
MARKER = b"NATS/1.0\r\nKV-Operation: DEL\r\n\r\n"


class Bucket:
    """A bucket, and what a table of it must have."""

    def __init__(self, servers: str, name: str) -> None:
        self._servers, self._name, self._rng = servers.split(","), name, random.Random(name)
        self.model: dict[str, tuple[int, dict[str, Any]]] = {}
        with Connection(self._servers) as connection:
            create(connection, f"KV_{name}", subjects=[f"$KV.{name}.>"], max_msgs_per_subject=1, allow_rollup_hdrs=True)
        self._last = 0

    def change(self, count: int, **more: Any) -> None:
        """Puts and deletes at random; `more`: fields that values have from now on."""
        rows: list[Any] = []
        for _ in range(count):
            key = f"k{self._rng.randrange(KEYS)}"
            self._last += 1
            if self._rng.random() < 0.2:
                rows.append((f"$KV.{self._name}.{key}", b"", MARKER))
                self.model.pop(key, None)
            else:
                value = {"n": self._last, "blob": self._rng.randbytes(2000).hex(), **more}
                rows.append((f"$KV.{self._name}.{key}", json.dumps(value).encode()))
                self.model[key] = (self._last, value)
        with Connection(self._servers) as connection:
            assert fill(connection, rows) == self._last

    def rows(self, *fields: str) -> list[tuple[Any, ...]]:
        return sorted((key, rev, *(value.get(name) for name in fields)) for key, (rev, value) in self.model.items())


def test_a_driver_dies_inside_of_a_merge_and_between_two_tables(
    spark_there: None, cluster: Any, servers: str, tmp_path: Path
) -> None:
    lake, log = Lake(tmp_path / "lake"), tmp_path / "log"
    words = ["--bucket", "MERGED", "--format", "json", *lake.words]
    bucket = Bucket(servers, "MERGED")
    bucket.change(2 * KEYS)
    landed(servers, log, *words)
    assert lake.rows("_key", "_revision", "n", "blob") == bucket.rows("n", "blob")
    hits, fields = {}, ["n", "blob"]
    moments = (driver.in_delta_merge, driver.in_iceberg_merge, driver.between_commits, driver.between_growths)
    for moment in moments:
        for attempt in range(TRIES):
            more = {f"{moment.__name__}{attempt}": attempt} if moment is driver.between_growths else {}
            bucket.change(KEYS // 2, **more)
            fields += more
            if dies_at(moment, servers, lake, log, *words):
                hits[moment.__name__] = attempt + 1
                break
    assert len(hits) == len(moments), hits
    landed(servers, log, *words)
    expected = bucket.rows(*fields)
    assert lake.rows("_key", "_revision", *fields) == expected
    assert lake.by_libraries("_key", "_revision", *fields) == expected


def test_a_driver_dies_between_the_growths_of_a_streams_tables(
    spark_there: None, cluster: Any, servers: str, tmp_path: Path
) -> None:
    lake, log = Lake(tmp_path / "lake"), tmp_path / "log"
    words = ["--stream", "GROWING", "--format", "json", "--max-per-batch", "400", *lake.words]
    wanted: list[tuple[Any, ...]] = []
    fields = ["n"]

    def publish(count: int, **more: Any) -> None:
        first = len(wanted) + 1
        values = [{"n": n, **more} for n in range(first, first + count)]
        with Connection(servers.split(",")) as late:
            fill(late, [("growing.x", json.dumps(value).encode()) for value in values])
        wanted.extend((value["n"], value) for value in values)

    with Connection(servers.split(",")) as connection:
        create(connection, "GROWING")
    publish(300)
    landed(servers, log, *words)
    for attempt in range(TRIES):
        publish(500, **{f"late{attempt}": {"deep": f"{attempt}"}})
        fields.append(f"late{attempt}")
        if dies_at(driver.between_growths, servers, lake, log, *words):
            break
    else:
        raise AssertionError("no kill was between the two")
    landed(servers, log, *words)
    expected = [(n, *(value.get(name) for name in fields)) for n, value in wanted]
    assert lake.rows("_seq", *fields) == expected
    assert lake.by_libraries("_seq", *fields) == expected
