"""Archives: what is in them, that a crash between any two writes is mended, and that loss is reported."""

from __future__ import annotations

import errno
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from jetcluster import faults
from jetcluster.archive import manifest
from jetcluster.archive.places import xored
from jetcluster.archive.storage import ArchiveFolder
from jetcluster.client.connection import Connection
from jetcluster.pipeline import archive_tasks
from testkit.harness import ProcessCluster
from tests.spark.jobs import fails, run
from tests.spark.stored import contents, delete, state
from tests.spark.streams import create, fill, until

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas"),
    pytest.mark.timeout(300),  # the first one starts Spark and a cluster
]

BLOCK = b"NATS/1.0\r\nA: 1\r\nb:x\r\nA:  2\r\n\r\n"


def mixed(name: str, count: int, first: int = 0) -> list[Any]:
    """Messages with and without headers, of several subjects and sizes, also empty and not of text."""
    return [
        (f"{name.lower()}.{i % 7}", b"\x00\xff%d" % i * (i % 11), BLOCK if i % 3 == 0 else b"")
        for i in range(first, first + count)
    ]


def manifests(out: Path) -> list[manifest.Manifest]:
    return manifest.load(ArchiveFolder(str(out)))


def rows_of(spark: Any, out: Path) -> list[tuple[int, bytes, bytes, bytes]]:
    files = [str(out / file.path) for one in manifests(out) for file in one.files]
    found = spark.read.parquet(*files).select("seq", "subject", "headers_raw", "data").sort("seq").collect()
    return [(r.seq, r.subject.encode(), bytes(r.headers_raw or b""), bytes(r.data)) for r in found]


def stored(connection: Connection, name: str) -> list[tuple[int, bytes, bytes, bytes]]:
    return [(m.seq, m.subject, m.block, m.data) for m in contents(connection, name)]


def test_all_of_a_stream_and_then_what_came(spark: Any, connection: Connection, servers: str, tmp_path: Path) -> None:
    create(connection, "ARC")
    fill(connection, mixed("ARC", 2500))
    delete(connection, "ARC", [1, 2, 700, 2500])
    out = tmp_path / "archive"
    words = ["--stream", "ARC", "--out", out, "--max-per-batch", "1000"]
    first = run(spark, servers, "archive", *words).fields
    assert (first["rows"], first["batches"], first["start"], first["end"]) == (2496, 3, 3, 2501)
    assert rows_of(spark, out) == stored(connection, "ARC")
    assert run(spark, servers, "archive", *words).fields["rows"] == 0
    fill(connection, mixed("ARC", 300, 2500))
    assert run(spark, servers, "archive", *words).fields["rows"] == 300
    assert rows_of(spark, out) == stored(connection, "ARC")
    last = manifests(out)[-1]
    assert (last.number, last.start, last.end, last.rows) == (3, 2501, 2801, 300)
    assert last.config["name"] == "ARC"
    table = spark.read.parquet(str(out / "stream=ARC"))
    assert {"day", "seq", "subject", "time", "headers", "data"} <= set(table.columns)
    assert table.where("headers['A'] = array('1', '2')").count() == sum(
        m.block != b"" for m in contents(connection, "ARC")
    )


def test_the_root_is_a_table_for_spark_pyarrow_and_duckdb(
    spark: Any, connection: Connection, servers: str, tmp_path: Path
) -> None:
    import duckdb
    import pyarrow.dataset

    create(connection, "ROOT")
    fill(connection, mixed("ROOT", 500))
    out = tmp_path / "archive"
    words = ["--stream", "ROOT", "--out", out, "--max-per-batch", "40", "--rows-per-file", "30"]
    assert run(spark, servers, "archive", *words, "--no-compact").fields["batches"] == 13
    wanted = [(m.seq, m.subject.decode(), m.data) for m in contents(connection, "ROOT")]

    def by_all() -> None:
        by_spark = spark.read.parquet(str(out)).sort("seq").collect()
        assert [(r.seq, r.subject, bytes(r.data)) for r in by_spark] == wanted
        assert {r.stream for r in by_spark} == {"ROOT"}
        by_pyarrow = pyarrow.dataset.dataset(str(out), partitioning="hive").to_table().sort_by("seq").to_pylist()
        assert [(r["seq"], r["subject"], r["data"]) for r in by_pyarrow] == wanted
        query = f"SELECT seq, subject, data FROM read_parquet('{out}/**/*.parquet') ORDER BY seq"
        assert duckdb.sql(query).fetchall() == wanted

    by_all()
    assert rows_of(spark, out) == stored(connection, "ROOT")
    places = spark.read.parquet(str(out)).selectExpr("bit_xor(xxhash64(seq, time_ns, digest))").first()[0]
    assert xored([int(one.places, 16) - (int(one.places, 16) >> 63 << 64) for one in manifests(out)]) == places
    with faults.armed("archive.compacted", faults.fail(errno.EIO)):
        text, code = fails(spark, servers, "archive", "--stream", "ROOT", "--out", out)
    assert ("Input/output error" in text, code) == (True, 1)
    assert rows_of(spark, out) == stored(connection, "ROOT")
    done = run(spark, servers, "archive", "--stream", "ROOT", "--out", out).fields
    assert (done["rows"], done["compacted"], done["manifests"]) == (0, 13, 1)
    assert sorted(path.name for path in (out / "_manifest").iterdir()) == ["0-12.json"]
    assert len(list(out.rglob("*.parquet"))) == 1
    by_all()
    fill(connection, mixed("ROOT", 20, 500))
    wanted = [(m.seq, m.subject.decode(), m.data) for m in contents(connection, "ROOT")]
    assert run(spark, servers, "archive", "--stream", "ROOT", "--out", out).fields["batches"] == 1
    by_all()
    assert [(one.since, one.number) for one in manifests(out)] == [(0, 12), (13, 13)]


def test_workers_that_write_elsewhere_are_noticed(
    spark: Any, connection: Connection, servers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those do that do not share the folder: all rows pass through the tasks, and no file comes."""
    create(connection, "ELSEWHERE")
    fill(connection, mixed("ELSEWHERE", 50))
    out, other = tmp_path / "archive", tmp_path / "other"
    words = ["--stream", "ELSEWHERE", "--out", out]
    writer = archive_tasks.writer
    with monkeypatch.context() as patch:
        patch.setattr(archive_tasks, "writer", lambda options, url, rows: writer(options, str(other), rows))
        message, code = fails(spark, servers, "archive", *words)
    assert (code, "wrote 50 rows and " in message, "has 0 of them: it has to be a folder" in message) == (4, True, True)
    assert manifests(out) == []
    assert run(spark, servers, "archive", *words).fields["rows"] == 50


@pytest.mark.parametrize("point", ["archive.written", "archive.committed"])
def test_a_crash_between_two_writes(
    spark: Any, connection: Connection, servers: str, tmp_path: Path, point: str
) -> None:
    """After the rows and before the manifest; after the manifest and before Spark's own commit."""
    name = point.replace("archive.", "CRASH").upper()
    create(connection, name)
    fill(connection, mixed(name, 900))
    out = tmp_path / "archive"
    words = ["--stream", name, "--out", out, "--max-per-batch", "300"]
    with faults.armed(point, faults.hits(faults.fail(errno.EIO), 2, 1)):
        text, code = fails(spark, servers, "archive", *words)
    assert ("Input/output error" in text, code) == (True, 1)
    made = 1 if point == "archive.written" else 2
    assert len(manifests(out)) == made
    fill(connection, mixed(name, 100, 900))
    done = run(spark, servers, "archive", *words).fields
    assert done["rows"] == 1000 - 300 * made
    assert rows_of(spark, out) == stored(connection, name)
    assert [(m.start, m.end) for m in manifests(out)] == [
        (1, 301),
        (301, 601),
        (601, 901),
        (901, 1001),
    ]


def test_a_job_that_follows_ends_in_order(
    spark: Any, cluster: ProcessCluster, connection: Connection, servers: str, tmp_path: Path
) -> None:
    create(connection, "FOLLOWED")
    fill(connection, mixed("FOLLOWED", 100))
    out = tmp_path / "archive"

    def publish_and_stop() -> None:
        try:
            with Connection(cluster.urls) as other:
                until(lambda: bool(manifests(out)), 120, "the first batch")
                fill(other, mixed("FOLLOWED", 50, 100))
                until(lambda: manifests(out)[-1].end == 151, 120, "the second batch")
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    writing = threading.Thread(target=publish_and_stop)
    writing.start()
    done = run(spark, servers, "archive", "--stream", "FOLLOWED", "--out", out, "--follow", "--every", "200ms").fields
    writing.join()
    assert (done["rows"], done["end"]) == (150, 151)
    assert rows_of(spark, out) == stored(connection, "FOLLOWED")
    assert not (out / "_lock.json").exists()


def test_what_was_removed_before_it_was_archived_is_reported(
    spark: Any, connection: Connection, servers: str, tmp_path: Path
) -> None:
    create(connection, "ARCLOSS")
    fill(connection, mixed("ARCLOSS", 100))
    out = tmp_path / "archive"
    words = ["--stream", "ARCLOSS", "--out", out]
    run(spark, servers, "archive", *words)
    fill(connection, mixed("ARCLOSS", 100, 100))
    connection.api("STREAM.PURGE.ARCLOSS", {"seq": 151})
    text, code = fails(spark, servers, "archive", *words)
    assert code == 4, text
    assert "ARCLOSS" in text
    done = run(spark, servers, "archive", *words, "--allow-loss").fields
    assert (done["rows"], done["end"]) == (50, 201)


def test_an_archive_is_of_one_stream(spark: Any, connection: Connection, servers: str, tmp_path: Path) -> None:
    for name in ("ARCONE", "ARCTWO"):
        create(connection, name)
        fill(connection, mixed(name, 10))
    out = tmp_path / "archive"
    run(spark, servers, "archive", "--stream", "ARCONE", "--out", out)
    text, code = fails(spark, servers, "archive", "--stream", "ARCTWO", "--out", out)
    assert (code, "one archive, one stream" in text) == (2, True), text
    connection.api("STREAM.DELETE.ARCONE")
    create(connection, "ARCONE")
    fill(connection, mixed("ARCONE", 20))
    text, code = fails(spark, servers, "archive", "--stream", "ARCONE", "--out", out)
    assert (code, "its sequences mean other messages" in text) == (4, True), text
    text, code = fails(spark, servers, "archive", "--stream", "NOWHERE", "--out", out)
    assert (text, code) == ("there is no stream NOWHERE", 2)
    assert state(connection, "ARCONE")["messages"] == 20
