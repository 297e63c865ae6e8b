"""Archives in an object store: written, read back and restored through a local S3 server, without a jar for it."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jetcluster import faults
from jetcluster.archive import manifest
from jetcluster.archive.storage import open_archive
from jetcluster.client.connection import Connection
from testkit.harness import TOP
from tests.spark import archives
from tests.spark.jobs import fails, run
from tests.spark.stored import contents, delete
from tests.spark.streams import create, fill, numbered
from tests.spark.test_archive import mixed
from tests.unit.backup.conftest import _s3_server, s3_endpoint

__all__ = ["_s3_server", "s3_endpoint"]

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas"),
    pytest.mark.timeout(300),  # the first one starts Spark and a cluster
]


@pytest.fixture
def bucket(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch, spark: Any) -> str:
    """URL of an empty bucket. Workers of Spark have the environment of the session's start, so the server's place is
    given to them as a setting of the executors."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_endpoint)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    for name in ("AWS_ENDPOINT_URL", "AWS_REGION", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        spark.sparkContext.environment[name] = os.environ[name]
    return "s3://backups/kept"


def test_archive_and_restore(spark: Any, connection: Connection, servers: str, bucket: str) -> None:
    create(connection, "INS3")
    fill(connection, mixed("INS3", 900))
    delete(connection, "INS3", [1, 500, 900])
    words = ["--stream", "INS3", "--out", bucket, "--max-per-batch", "400"]
    done = run(spark, servers, "archive", *words).fields
    assert (done["rows"], done["batches"], done["out"]) == (897, 3, bucket)
    fill(connection, mixed("INS3", 100, 900))
    assert run(spark, servers, "archive", *words).fields["rows"] == 100
    messages = contents(connection, "INS3")
    restored = run(spark, servers, "restore", "--from", bucket, "--stream", "FROMS3", "--subjects", "froms3.>").fields
    assert (restored["rows"], restored["verified"]) == (997, True)
    assert contents(connection, "FROMS3") == messages
    connection.api("STREAM.PURGE.INS3", {"seq": 501})
    assert archives.rows(bucket) == [(m.seq, m.subject, m.block, m.data) for m in messages]
    text, code = fails(spark, servers, "restore", "--from", "s3://nowhere/x", "--stream", "FROMS3")
    assert (code, "there is no such bucket" in text) == (2, True), text


@pytest.mark.parametrize("point", ["archive.compacted", "archive.written"])
def test_small_batches_become_one(spark: Any, connection: Connection, servers: str, bucket: str, point: str) -> None:
    """Also after a crash in between: all old ones are there, or the new one."""
    name = f"SMALL{point[-4:]}".upper()
    create(connection, name)
    fill(connection, mixed(name, 1000))
    words = ["--stream", name, "--out", bucket]
    run(spark, servers, "archive", *words, "--max-per-batch", "50", "--no-compact")
    assert len(manifest.load(open_archive(bucket))) == 20
    fill(connection, mixed(name, 50, 1000))
    rows = [(m.seq, m.subject, m.block, m.data) for m in contents(connection, name)]
    with faults.armed(point, faults.fail(errno.EIO)):
        text, code = fails(spark, servers, "archive", *words)
    assert ("Input/output error" in text, code) == (True, 1), text
    assert archives.rows(bucket) == rows[: 1050 if point == "archive.compacted" else 1000]
    assert run(spark, servers, "archive", *words).fields["compacted"] >= 10
    held = manifest.load(open_archive(bucket))
    assert len(held) < 10 and archives.rows(bucket) == rows
    files = {file.path for one in held for file in one.files}
    assert {one.path for one in open_archive(bucket).list(f"stream={name}")} == files, "replaced files are gone"


QUERIES = """
import sys
from jetcluster.pipeline.session import open_session

servers, url, folder = sys.argv[1:]
spark = open_session("local[2]", quick=True)
where = {"servers": servers, "stream": "UNITED3", "archive": url}
rows = spark.read.format("jetstream").options(columns="seq,data", **where).load()
print(*rows.selectExpr("count(*)", "count(DISTINCT seq)", "sum(cast(cast(data AS string) AS bigint))").first())
old = spark.read.format("jetstream").options(pushdown="once", **where).load()
old = old.where("subject = 'united3.3' AND seq < 60")
print(old.count())
query = spark.readStream.format("jetstream").options(maxOffsetsPerTrigger="200", **where).load()
query = query.writeStream.format("parquet").option("path", f"{folder}/sink").trigger(availableNow=True)
query = query.option("checkpointLocation", f"{folder}/checkpoint").start()
query.awaitTermination()
print(*[one.numInputRows for one in query.recentProgress if one.numInputRows])
print(*[row.seq for row in spark.read.parquet(f"{folder}/sink").orderBy("seq").select("seq").collect()])
"""


def queried(servers: str, url: str, folder: Path) -> list[list[int]]:
    """The numbers that a session of its own prints: Spark plans queries in the environment of its start."""
    words = [sys.executable, "-c", QUERIES, servers, url, str(folder)]
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(TOP), str(TOP / "jetcluster/spark/shim")])}
    done = subprocess.run(words, env=env, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return [[int(word) for word in line.split()] for line in done.stdout.splitlines()]


def test_history_and_stream_as_one_table(
    spark: Any, connection: Connection, servers: str, bucket: str, tmp_path: Path
) -> None:
    """In batch, and in a streaming query that goes on in what has become history meanwhile."""
    create(connection, "UNITED3")
    fill(connection, numbered("UNITED3", 500))
    words = ["--stream", "UNITED3", "--out", bucket, "--max-per-batch", "100"]
    run(spark, servers, "archive", *words)
    connection.api("STREAM.PURGE.UNITED3", {"seq": 301})
    wanted = [n for n in range(1, 60) if n % 7 == 3]
    assert queried(servers, bucket, tmp_path) == [
        [500, 500, 500 * 501 // 2], [len(wanted)], [200, 200, 100], [*range(1, 501)]
    ]  # fmt: skip
    with Connection(servers.split(",")) as late:  # the other one was silent for long
        fill(late, numbered("UNITED3", 300, 501))
        run(spark, servers, "archive", *words)
        late.api("STREAM.PURGE.UNITED3", {"seq": 701})
    assert queried(servers, bucket, tmp_path) == [
        [800, 800, 800 * 801 // 2], [len(wanted)], [200, 100], [*range(1, 801)]
    ]  # fmt: skip
