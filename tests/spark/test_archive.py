"""Archives: what is in them, that a crash between any two writes is mended, and that loss is reported."""

from __future__ import annotations

import copy
import errno
import shutil
from pathlib import Path
from typing import Any

import pytest

from jetcluster import faults
from jetcluster.client.connection import Connection
from jetcluster.pipeline import manifest
from jetcluster.pipeline.archive import Archive
from jetcluster.pipeline.folder import HadoopFolder, LocalFolder, TakenError
from tests.spark.jobs import fails, run
from tests.spark.stored import contents, delete, state
from tests.spark.streams import create, fill

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


def rows_of(spark: Any, out: Path) -> list[tuple[int, bytes, bytes, bytes]]:
    files = [str(out / one.directory) for one in manifest.load(LocalFolder(out))]
    found = spark.read.parquet(*files).select("seq", "subject", "headers_raw", "data").sort("seq").collect()
    return [(r.seq, r.subject.encode(), bytes(r.headers_raw or b""), bytes(r.data)) for r in found]


def stored(connection: Connection, name: str) -> list[tuple[int, bytes, bytes, bytes]]:
    return [(m.seq, m.subject, m.block, m.data) for m in contents(connection, name)]


def test_what_is_counted_was_written(
    spark: Any, connection: Connection, servers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where Spark calls a copy of the job's object, as Spark Connect does."""
    create(connection, "ARCCOPY")
    fill(connection, mixed("ARCCOPY", 250))
    twins: dict[int, Any] = {}
    write: Any = getattr(Archive, "_write")  # noqa: B009 - what Spark is given

    def on_a_copy(self: Archive, rows: Any, batch_id: int) -> None:
        if id(self) not in twins:
            twins[id(self)] = twin = copy.copy(self)
            twin.manifests = list(self.manifests)
        write(twins[id(self)], rows, batch_id)

    monkeypatch.setattr(Archive, "_write", on_a_copy)
    words = ["--stream", "ARCCOPY", "--out", tmp_path / "archive", "--max-per-batch", "100"]
    found = run(spark, servers, "archive", *words).fields
    assert [found[name] for name in ("rows", "batches", "start", "end", "manifests")] == [250, 3, 1, 251, 3]
    assert found["bytes"] > 0
    fill(connection, mixed("ARCCOPY", 10, 250))
    found = run(spark, servers, "archive", *words).fields
    assert [found[name] for name in ("rows", "batches", "start", "end", "manifests")] == [10, 1, 251, 261, 4]


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
    shutil.rmtree(out / "_checkpoint")  # the manifests are enough
    assert run(spark, servers, "archive", *words).fields["rows"] == 300
    assert rows_of(spark, out) == stored(connection, "ARC")
    last = manifest.load(LocalFolder(out))[-1]
    assert (last.number, last.start, last.end, last.rows) == (3, 2501, 2801, 300)
    assert last.config["name"] == "ARC"
    table = spark.read.parquet(str(out / "stream=ARC"))
    assert {"batch", "seq", "subject", "time", "headers", "data"} <= set(table.columns)
    assert table.where("headers['A'] = array('1', '2')").count() == sum(
        m.block != b"" for m in contents(connection, "ARC")
    )


def test_workers_that_write_elsewhere_are_noticed(
    spark: Any, connection: Connection, servers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those do that do not share the folder: all rows pass through Spark, and no file comes."""
    from pyspark.sql import DataFrameWriter

    create(connection, "ELSEWHERE")
    fill(connection, mixed("ELSEWHERE", 50))
    out, other = tmp_path / "archive", tmp_path / "other"
    words = ["--stream", "ELSEWHERE", "--out", out]
    parquet = DataFrameWriter.parquet
    with monkeypatch.context() as patch:
        patch.setattr(DataFrameWriter, "parquet", lambda self, path: parquet(self, path.replace(str(out), str(other))))
        message, code = fails(spark, servers, "archive", *words)
    assert (code, "wrote 50 rows and " in message, "has 0: --out has to be a folder" in message) == (4, True, True)
    assert manifest.load(LocalFolder(out)) == []
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
    assert len(manifest.load(LocalFolder(out))) == made
    fill(connection, mixed(name, 100, 900))
    done = run(spark, servers, "archive", *words).fields
    assert done["rows"] == 1000 - 300 * made
    assert rows_of(spark, out) == stored(connection, name)
    assert [(m.start, m.end) for m in manifest.load(LocalFolder(out))] == [
        (1, 301),
        (301, 601),
        (601, 901),
        (901, 1001),
    ]


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


def test_small_files_through_hadoop(spark: Any, tmp_path: Path) -> None:
    """The way to hdfs and s3a, tried on Hadoop's own view of this disk."""
    folder = HadoopFolder(spark, f"file://{tmp_path}/archive/")
    assert folder.list("manifest") == {}
    folder.create("manifest/0.json", "é")
    folder.create("manifest/1.json", "")
    assert (folder.list("manifest"), folder.read("manifest/0.json")) == ({"0.json": 2, "1.json": 0}, "é")
    with pytest.raises(TakenError):
        folder.create("manifest/0.json", "other")
    assert folder.read("manifest/0.json") == "é"
    with pytest.raises(OSError, match=r"2\.json"):
        folder.read("manifest/2.json")
    folder.remove("manifest")
    assert folder.list("manifest") == {}


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
