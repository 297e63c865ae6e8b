"""Archive and live stream as one table, in batch and streaming queries, while limits move."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from jetcluster.archive import manifest
from jetcluster.archive.storage import open_archive
from jetcluster.client.connection import Connection
from testkit.harness import ProcessCluster
from tests.spark.jobs import run
from tests.spark.stored import contents, state
from tests.spark.streams import create, drain, fill, numbered, read
from tests.spark.test_archive import mixed

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas"),
    pytest.mark.timeout(400),  # the first one starts Spark and a cluster
]


def rows_of(frame: Any) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in frame.sort("seq").collect()]


def test_history_and_stream(
    spark: Any, connection: Connection, cluster: ProcessCluster, servers: str, tmp_path: Path
) -> None:
    """Rows are the same before and after the stream has lost them; filters leave files out."""
    create(connection, "UNITED")
    fill(connection, mixed("UNITED", 600))
    out, columns = str(tmp_path / "archive"), "seq,subject,time,time_ns,headers,headers_raw,data,digest"
    run(spark, servers, "archive", "--stream", "UNITED", "--out", out, "--max-per-batch", "100", "--no-compact")
    before = rows_of(read(spark, cluster, "UNITED", columns=columns))
    messages = contents(connection, "UNITED")
    connection.api("STREAM.PURGE.UNITED", {"seq": 401})
    assert state(connection, "UNITED")["first_seq"] == 401
    assert rows_of(read(spark, cluster, "UNITED", columns=columns, archive=out)) == before
    table = read(spark, cluster, "UNITED", archive=out, pushdown="once")
    found = table.where("subject = 'united.3' AND seq > 150 AND seq <= 450").select("seq", "data")
    assert [(seq, bytes(data)) for seq, data in rows_of(found)] == [
        (m.seq, m.data) for m in messages if m.subject == b"united.3" and 150 < m.seq <= 450
    ]
    at = next(row for row in before if row[0] == 250)[2]
    wanted = [row[0] for row in before if row[2] >= at]
    literal = f"TIMESTAMP'{at.isoformat(sep=' ')}'"
    table = read(spark, cluster, "UNITED", archive=out, pushdown="once")
    assert [row[0] for row in rows_of(table.where(f"time >= {literal}").select("seq"))] == wanted


def test_a_query_from_earliest_begins_in_the_archive(
    spark: Any, connection: Connection, cluster: ProcessCluster, servers: str, tmp_path: Path
) -> None:
    """Its checkpoint goes on where it was, when that has become history meanwhile as well."""
    create(connection, "UNITEDQ")
    fill(connection, numbered("UNITEDQ", 500))
    out, sink, checkpoint = (str(tmp_path / name) for name in ("archive", "sink", "checkpoint"))
    run(spark, servers, "archive", "--stream", "UNITEDQ", "--out", out, "--max-per-batch", "100")
    connection.api("STREAM.PURGE.UNITEDQ", {"seq": 301})
    words = {"archive": out, "maxOffsetsPerTrigger": 200}
    assert drain(spark, cluster, "UNITEDQ", sink, checkpoint, **words) == [200, 200, 100]
    fill(connection, numbered("UNITEDQ", 300, 501))
    run(spark, servers, "archive", "--stream", "UNITEDQ", "--out", out)
    connection.api("STREAM.PURGE.UNITEDQ", {"seq": 701})
    assert drain(spark, cluster, "UNITEDQ", sink, checkpoint, **words) == [200, 100]
    found = sorted((row.seq, int(bytes(row.data))) for row in spark.read.parquet(sink).collect())
    assert found == [(n, n) for n in range(1, 801)]


def test_limits_that_move_while_it_is_read(
    spark: Any, connection: Connection, cluster: ProcessCluster, servers: str, tmp_path: Path
) -> None:
    """Messages go, and come, and are archived, while the query runs again and again."""
    create(connection, "UNITEDM")
    count = 20_000
    fill(connection, numbered("UNITEDM", count))
    out = str(tmp_path / "archive")
    run(spark, servers, "archive", "--stream", "UNITEDM", "--out", out, "--rows-per-file", "4000")
    over = threading.Event()

    def remove() -> None:
        with Connection(cluster.urls) as other:
            for upto in range(500, count, 500):
                other.api("STREAM.PURGE.UNITEDM", {"seq": upto})
                if over.wait(0.05):
                    return

    purging = threading.Thread(target=remove)
    purging.start()
    try:
        for _ in range(4):
            table = read(
                spark, cluster, "UNITEDM", archive=out, columns="seq,data", fetchBatch=200, maxRecordsPerPartition=3000
            )
            found = table.selectExpr("count(*)", "count(DISTINCT seq)", "sum(cast(cast(data AS string) AS bigint))")
            assert tuple(found.first()) == (count, count, count * (count + 1) // 2)
    finally:
        over.set()
        purging.join()
    assert state(connection, "UNITEDM")["first_seq"] > 1


def test_limits_and_compaction_move_while_queries_begin_again(
    spark: Any, connection: Connection, cluster: ProcessCluster, servers: str, tmp_path: Path
) -> None:
    """Batch reads, and a streaming query that stops and goes on from its checkpoint, while messages come, are archived
    and removed, and while small files of the archive become large ones."""
    create(connection, "UNITEDC")
    step, rounds = 400, 6
    fill(connection, numbered("UNITEDC", step))
    out, sink, checkpoint = (str(tmp_path / name) for name in ("archive", "sink", "checkpoint"))
    words = ["--stream", "UNITEDC", "--out", out, "--max-per-batch"]
    run(spark, servers, "archive", *words, "40", "--no-compact")
    ends = [step]
    problems: list[BaseException] = []

    def move() -> None:
        try:
            with Connection(cluster.urls) as other:
                for at in range(1, rounds):
                    fill(other, numbered("UNITEDC", step, at * step + 1))
                    run(spark, servers, "archive", *words, "2000")
                    other.api("STREAM.PURGE.UNITEDC", {"seq": at * step + step // 2})
                    ends.append((at + 1) * step)
        except BaseException as error:
            problems.append(error)

    moving = threading.Thread(target=move)
    moving.start()
    try:
        while moving.is_alive():
            least = ends[-1]
            table = read(spark, cluster, "UNITEDC", archive=out, columns="seq,data", maxRecordsPerPartition=300)
            count, different, total = table.selectExpr(
                "count(*)", "count(DISTINCT seq)", "sum(cast(cast(data AS string) AS bigint))"
            ).first()
            assert least <= count == different
            assert total == count * (count + 1) // 2
            drain(spark, cluster, "UNITEDC", sink, checkpoint, archive=out, maxOffsetsPerTrigger=350)
    finally:
        moving.join()
    assert not problems, problems
    drain(spark, cluster, "UNITEDC", sink, checkpoint, archive=out)
    found = sorted((row.seq, int(bytes(row.data))) for row in spark.read.parquet(sink).collect())
    assert found == [(n, n) for n in range(1, step * rounds + 1)]
    held = manifest.load(open_archive(out))
    assert len(held) < 10 and state(connection, "UNITEDC")["first_seq"] > step
