"""Tables in an object store, by a local S3 server and no jar of Spark's, read back from the objects of the bucket."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")
pytest.importorskip("duckdb")
pytest.importorskip("fastavro")
pytest.importorskip("boto3")
pytest.importorskip("moto.server", reason="moto is not installed: pip install 'moto[s3]' flask flask-cors")

import pyarrow as pa

from jetcluster import faults
from jetcluster.client.connection import Connection
from jetcluster.pipeline.tables import delta, iceberg
from jetcluster.pipeline.tables.files import RAW
from jetcluster.pipeline.tables.table import ConflictError, Span, Table
from tests.spark.jobs import fails, run
from tests.spark.lake import S3Lake
from tests.spark.object_store import KEYS, object_store
from tests.spark.streams import create, fill
from tests.spark.test_lakehouse_keys import Bucket
from tests.spark.test_lakehouse_rows import orders
from tests.unit.pipeline.tables.formats import ORDERS, append

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas"),
    pytest.mark.timeout(300),  # the first one starts Spark and a cluster
]


@pytest.fixture(scope="module")
def s3_process() -> Iterator[str]:
    with object_store("tables") as url:
        yield url


@pytest.fixture
def lake(s3_process: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: Any) -> Iterator[S3Lake]:
    """Workers of Spark get the environment as a setting of the session."""
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    for name, value in (KEYS | {"AWS_ENDPOINT_URL": s3_process}).items():
        monkeypatch.setenv(name, value)
        spark.sparkContext.environment[name] = os.environ[name]
    one = S3Lake(tmp_path / "lake", "tables", s3_process)
    one.clear()
    yield one
    for name in ("AWS_ENDPOINT_URL", *KEYS):
        spark.sparkContext.environment.pop(name, None)


@pytest.mark.parametrize(("point", "hit"), [("written", 2), ("committed", 1), ("committed", 4), ("committed", 6)])
def test_rows_in_a_bucket_after_a_crash(
    spark: Any, connection: Connection, servers: str, lake: S3Lake, point: str, hit: int
) -> None:
    name = f"S3{point}{hit}".upper()
    create(connection, name)
    fill(connection, [*orders(name, 60), (f"{name.lower()}.1", b"no"), *orders(name, 39, 62)])
    words = ["--stream", name, *lake.words, "--format", "json", "--max-per-batch", "55"]
    with faults.armed(f"lakehouse.{point}", faults.hits(faults.fail(errno.EIO), hit, 1)):
        text, code = fails(spark, servers, "lakehouse", *words)
    assert ("Input/output error" in text, code) == (True, 1), text
    fill(connection, orders(name, 20, 101))
    assert run(spark, servers, "lakehouse", *words).fields["end"] == 121
    assert lake.rows("_seq", "id") == [(n, n) for n in range(1, 121) if n != 61]
    assert lake.rows("seq", "data", dead=True) == [(61, b"no")]


def test_a_bucket_of_keys_in_a_bucket_of_files(spark: Any, connection: Connection, servers: str, lake: S3Lake) -> None:
    bucket = Bucket(connection, "INS3")
    for n in range(20):
        bucket.put(f"k{n}", b"%d" % n)
    words = ["--bucket", "INS3", *lake.words]
    run(spark, servers, "lakehouse", *words)
    bucket.delete("k7")
    bucket.put("k8", b"new")
    bucket.vanish("k9")
    assert run(spark, servers, "lakehouse", *words).fields["removed_without_marker"] == 2
    assert lake.rows("key", "value") == bucket.rows()


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_of_two_jobs_that_add_the_same_one_is_refused(kind: str, lake: S3Lake) -> None:
    def opened() -> Table:
        if kind == "delta":
            return delta.open_table(f"{lake.url}/delta", ORDERS, RAW)
        return iceberg.open_table(iceberg.open_catalog("x", lake.catalog), "db.t", ORDERS, RAW)

    one, other = opened(), opened()
    rows = pa.Table.from_pylist([{"seq": seq, "data": b"x"} for seq in (1, 2)], schema=RAW)
    append(one, rows, Span(1, 3))
    with pytest.raises(ConflictError):
        append(other, rows, Span(1, 3))
    assert opened().end == 3


def test_a_bucket_that_is_not_there_is_told(spark: Any, connection: Connection, servers: str, lake: S3Lake) -> None:
    create(connection, "NOWHERE")
    fill(connection, orders("NOWHERE", 2))
    text, code = fails(spark, servers, "lakehouse", "--stream", "NOWHERE", "--delta", "s3://nowhere/t")
    assert (code, "nowhere" in text) == (2, True), text
