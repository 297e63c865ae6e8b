"""A bucket as a table: one row per key, with the bucket's values and none of its deleted keys."""

from __future__ import annotations

import errno
import json
import random
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")
pytest.importorskip("duckdb")
pytest.importorskip("fastavro")

from jetcluster import faults
from jetcluster.client.connection import Connection
from tests.spark.jobs import fails, run
from tests.spark.lake import Lake
from tests.spark.streams import create, fill

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas"),
    pytest.mark.timeout(300),
]

DELETE = b"NATS/1.0\r\nKV-Operation: DEL\r\n\r\n"


class Bucket:
    """A bucket and, beside it, the values that it has."""

    def __init__(self, connection: Connection, name: str, **config: Any) -> None:
        self._connection, self.name = connection, name
        more = {"subjects": [f"$KV.{name}.>"], "max_msgs_per_subject": 1, "allow_rollup_hdrs": True}
        create(connection, f"KV_{name}", **(more | config))
        self.values: dict[str, bytes] = {}

    def put(self, key: str, value: bytes) -> None:
        fill(self._connection, [(f"$KV.{self.name}.{key}", value)])
        self.values[key] = value

    def delete(self, key: str) -> None:
        fill(self._connection, [(f"$KV.{self.name}.{key}", b"", DELETE)])
        self.values.pop(key, None)

    def vanish(self, key: str) -> None:
        """Removes a key and leaves no marker, as limits do."""
        self._connection.api(f"STREAM.PURGE.KV_{self.name}", {"filter": f"$KV.{self.name}.{key}"})
        self.values.pop(key, None)

    def rows(self) -> list[tuple[str, bytes]]:
        return sorted(self.values.items())


@pytest.mark.parametrize("hit", [0, 1, 2, 3])
def test_a_table_has_what_the_bucket_has(
    spark: Any, connection: Connection, servers: str, tmp_path: Path, hit: int
) -> None:
    """Wherever batches are cut, and with a crash before (1) or after a commit."""
    bucket, rng = Bucket(connection, f"LAKEKV{hit}"), random.Random(hit)
    lake = Lake(tmp_path / "lake")
    words = ["--bucket", bucket.name, *lake.words, "--max-per-batch", "40"]
    for turn in range(3):
        for _ in range(60):
            key = f"k.{rng.randrange(20)}"
            if rng.random() < 0.3:
                bucket.delete(key)
            else:
                bucket.put(key, rng.randbytes(8))
        if hit and turn:
            point = "written" if hit == 1 else "committed"
            with faults.armed(f"lakehouse.{point}", faults.hits(faults.fail(errno.EIO), max(hit - 1, 1), 1)):
                text, code = fails(spark, servers, "lakehouse", *words)
            assert ("Input/output error" in text, code) == (True, 1), text
        run(spark, servers, "lakehouse", *words)
        assert lake.rows("key", "value") == bucket.rows()


def test_keys_that_went_without_a_marker(spark: Any, connection: Connection, servers: str, tmp_path: Path) -> None:
    bucket = Bucket(connection, "LAKEGONE")
    for n in range(10):
        bucket.put(f"k{n}", b"%d" % n)
    lake = Lake(tmp_path / "lake")
    words = ["--bucket", "LAKEGONE", *lake.words]
    run(spark, servers, "lakehouse", *words)
    bucket.vanish("k3")
    bucket.vanish("k9")
    bucket.put("k9", b"again")
    done = run(spark, servers, "lakehouse", *words).fields
    assert done["removed_without_marker"] == 2, "k3, of both tables"
    assert lake.rows("key", "value") == bucket.rows()


def test_values_parsed_and_those_that_do_not_parse(
    spark: Any, connection: Connection, servers: str, tmp_path: Path
) -> None:
    bucket = Bucket(connection, "LAKEKVJSON")
    for n in range(5):
        bucket.put(f"k{n}", json.dumps({"key": n, "name": f"n{n}"}).encode())
    lake = Lake(tmp_path / "lake")
    words = ["--bucket", "LAKEKVJSON", *lake.words, "--format", "json"]
    run(spark, servers, "lakehouse", *words)
    assert lake.rows("_key", "key", "name") == [(f"k{n}", n, f"n{n}") for n in range(5)]
    bucket.put("k1", b"no more")
    bucket.put("k2", json.dumps({"key": 22, "name": "n", "more": [1]}).encode())
    done = run(spark, servers, "lakehouse", *words).fields
    assert (done["rows"], done["dead_letters"]) == (1, 1)
    kept = [(f"k{n}", 22 if n == 2 else n) for n in (0, 2, 3, 4)]
    assert lake.rows("_key", "key") == kept, "a key whose value does not parse has no row"
    assert [(seq, data) for seq, data in lake.rows("seq", "data", dead=True)] == [(6, b"no more")]
