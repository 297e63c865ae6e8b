"""`format("jetstream")` as a sink: each row once, whatever dies in between."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jetcluster.client.connection import Connection
from jetcluster.pipeline.result import explain
from jetcluster.protocol import headers as header_block
from testkit.harness import ProcessCluster
from tests.spark.stored import contents, state
from tests.spark.streams import create, fill

pytestmark = [
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas"),
    pytest.mark.timeout(300),  # the first one starts Spark and a cluster
]

ROWS = 2500


def make(connection: Connection, name: str, **config: Any) -> None:
    create(connection, name, subjects=[f"{name}.>"], **config)


def numbers(spark: Any, name: str, count: int = ROWS, partitions: int = 2) -> Any:
    """Rows 0, 1, 2, ... as messages of stream `name`."""
    return spark.range(0, count, 1, partitions).selectExpr(
        f"concat('{name}.', id % 5) AS subject", "cast(rpad(id, 500, ' ') AS binary) AS data"
    )


def save(rows: Any, servers: str, name: str, **options: str) -> None:
    rows.write.format("jetstream").mode("append").options(servers=servers, stream=name, **options).save()


def written(connection: Connection, name: str) -> list[int]:
    return [int(message.data) for message in contents(connection, name)]


def test_rows_become_messages(spark: Any, connection: Connection, servers: str) -> None:
    make(connection, "SINKROWS")
    rows = spark.createDataFrame(
        [
            ("SINKROWS.a", bytearray(b"one"), {"K": ["1", "2"]}, None, "id-1"),
            ("SINKROWS.b", bytearray(), None, bytearray(b"NATS/1.0\r\nx:1\r\nX:  2\r\n\r\n"), "id-2"),
            ("SINKROWS.c", None, None, None, "id-3"),
        ],
        "subject string, data binary, headers map<string,array<string>>, headers_raw binary, msg_id string",
    )
    save(rows.drop("msg_id").coalesce(1), servers, "SINKROWS", idempotence="none")
    found = contents(connection, "SINKROWS")
    assert [(m.subject, m.block, m.data) for m in found] == [
        (b"SINKROWS.a", b"NATS/1.0\r\nK: 1\r\nK: 2\r\n\r\n", b"one"),
        (b"SINKROWS.b", b"NATS/1.0\r\nx:1\r\nX:  2\r\n\r\n", b""),
        (b"SINKROWS.c", b"", b""),
    ]
    save(rows, servers, "SINKROWS")
    save(rows, servers, "SINKROWS")
    ids = [header_block.get(m.block, b"Nats-Msg-Id") for m in contents(connection, "SINKROWS")]
    assert sorted(filter(None, ids)) == [b"id-1", b"id-2", b"id-3"]


def test_wrong_uses_are_refused_before_anything_is_written(spark: Any, connection: Connection, servers: str) -> None:
    make(connection, "SINKWRONG")
    rows = numbers(spark, "SINKWRONG", 10)
    for options, says in (
        ({"name": "NOWHERE"}, "stream NOWHERE: stream not found"),
        ({"idempotence": "fence", "jobId": "j"}, "does not take atomic batches"),
        ({"idempotence": "fence"}, "needs option jobId"),
        ({"retryHorizon": "10m"}, "remembers message ids for 120 s"),
        ({"publishWindows": "3"}, "did you mean publishWindow"),
    ):
        with pytest.raises(Exception, match=says):
            save(rows, servers, **{"name": "SINKWRONG", **options})
    with pytest.raises(Exception, match="overwriteMode=purge"):
        rows.write.format("jetstream").mode("overwrite").options(servers=servers, stream="SINKWRONG").save()
    with pytest.raises(Exception, match="does not take subject ELSEWHERE"):
        save(numbers(spark, "ELSEWHERE", 10), servers, "SINKWRONG")
    assert state(connection, "SINKWRONG")["last_seq"] == 0


def test_overwrite_purges_when_it_is_meant(spark: Any, connection: Connection, servers: str) -> None:
    make(connection, "SINKPURGE", allow_atomic=True)
    fill(connection, [("SINKPURGE.x", b"old")] * 5)
    options = {
        "servers": servers,
        "stream": "SINKPURGE",
        "overwriteMode": "purge",
        "idempotence": "fence",
        "jobId": "j",
    }
    numbers(spark, "SINKPURGE", 10, 1).write.format("jetstream").mode("overwrite").options(**options).save()
    assert written(connection, "SINKPURGE") == list(range(10))


@pytest.mark.parametrize("mode", ["msgId", "fence"])
def test_a_second_run_adds_nothing(spark: Any, connection: Connection, servers: str, mode: str) -> None:
    name = f"SINKTWICE{mode}"
    make(connection, name, allow_atomic=True)
    rows = numbers(spark, name, partitions=2 if mode == "msgId" else 1)
    for _ in range(2):
        save(rows, servers, name, idempotence=mode, jobId="nightly")
    assert sorted(written(connection, name)) == list(range(ROWS))
    assert state(connection, name)["last_seq"] == ROWS


def dies_once(flag: str, after: int) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """The worker is killed in the middle of its rows, the first time."""

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        seen = 0
        for batch in batches:
            for at in range(0, batch.num_rows, 100):
                part = batch.slice(at, 100)
                seen += part.num_rows
                if seen > after and not Path(flag).exists():
                    Path(flag).touch()
                    time.sleep(0.5)  # what was sent is stored by then
                    os.kill(os.getpid(), signal.SIGKILL)
                yield part

    return run


@pytest.mark.parametrize("mode", ["msgId", "fence"])
def test_a_worker_that_is_killed_half_way(
    spark: Any, connection: Connection, servers: str, mode: str, tmp_path: Path
) -> None:
    """Spark tries the task again, from its first row."""
    name = f"SINKTASK{mode}"
    make(connection, name, allow_atomic=True)
    flag = str(tmp_path / "died")
    rows = numbers(spark, name, partitions=1)
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
    deadly = rows.mapInArrow(dies_once(flag, 1900), rows.schema)
    options = {"idempotence": mode, "atomicBatch": "300", "publishWindow": "200", "jobId": "j"}
    with pytest.raises(Exception, match=r"died|crashed|EOF|exited|aborted"):
        save(deadly, servers, name, **options)
    assert Path(flag).exists()
    partly = state(connection, name)["last_seq"]
    assert 0 < partly < ROWS
    save(deadly, servers, name, **options)
    spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert sorted(written(connection, name)) == list(range(ROWS))
    if mode == "fence":
        assert written(connection, name) == list(range(ROWS))


def run_query(spark: Any, servers: str, source: str, target: str, checkpoint: Path, **options: str) -> Any:
    rows = spark.readStream.format("jetstream").options(
        servers=servers, stream=source, maxOffsetsPerTrigger="1000", minPartitions="1"
    )
    messages = rows.load().selectExpr(f"concat('{target}.', subject) AS subject", "data", "seq")
    if options["idempotence"] == "fence":
        messages = messages.coalesce(1)
    query = (
        messages.writeStream.format("jetstream").option("checkpointLocation", str(checkpoint))
        .options(servers=servers, stream=target, **options).trigger(availableNow=True).start()
    )  # fmt: skip
    query.awaitTermination()
    return query


@pytest.mark.parametrize("mode", ["msgId", "fence"])
def test_a_driver_that_dies_before_spark_commits(
    spark: Any, connection: Connection, servers: str, mode: str, tmp_path: Path
) -> None:
    """The last commit file is removed, as if the driver had died before it wrote it: the micro-batch is run again."""
    source, target = f"SINKFROM{mode}", f"SINKTO{mode}"
    make(connection, source)
    make(connection, target, allow_atomic=True)
    fill(connection, [(f"{source}.x", b"%d" % i) for i in range(ROWS)])
    checkpoint = tmp_path / "checkpoint"
    query = run_query(spark, servers, source, target, checkpoint, idempotence=mode)
    assert sorted(written(connection, target)) == list(range(ROWS))
    commits = sorted(one for one in (checkpoint / "commits").iterdir() if one.name.isdigit())
    assert len(commits) == 3
    commits[-1].unlink()
    (checkpoint / "commits" / f".{commits[-1].name}.crc").unlink()
    again = run_query(spark, servers, source, target, checkpoint, idempotence=mode)
    assert again.id == query.id
    assert again.lastProgress["numInputRows"] == 500  # it was run again
    found = contents(connection, target)
    assert len(found) == state(connection, target)["last_seq"] == ROWS
    last = found[-1].block
    if mode == "fence":
        assert [int(m.data) for m in found] == list(range(ROWS))
        assert header_block.get(last, b"Jc-Pipeline") == f"{query.id}/2/500".encode()
    else:  # Spark's internal names of query and batch, which these ids rest on
        assert header_block.get(found[0].block, b"Nats-Msg-Id") == f"{query.id}:0:0:0".encode()


def test_writing_in_foreach_batch_has_the_querys_names(
    spark: Any, connection: Connection, servers: str, tmp_path: Path
) -> None:
    make(connection, "SINKEACH")
    fill(connection, [("SINKEACH.x", b"%d" % i) for i in range(10)])
    make(connection, "SINKEACHTO")
    rows = spark.readStream.format("jetstream").options(servers=servers, stream="SINKEACH", maxOffsetsPerTrigger="5")

    def write(batch: Any, batch_id: int) -> None:
        for _ in range(2):
            save(batch.selectExpr("'SINKEACHTO.x' AS subject", "data").coalesce(1), servers, "SINKEACHTO")

    query = (
        rows.load().writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True).start()
    )  # fmt: skip
    query.awaitTermination()
    ids = [header_block.get(m.block, b"Nats-Msg-Id") for m in contents(connection, "SINKEACHTO")]
    assert ids == [f"{query.id}:{at // 5}:0:{at % 5}".encode() for at in range(10)]


def test_another_writer_stops_a_fenced_job(spark: Any, connection: Connection, servers: str) -> None:
    make(connection, "SINKGUEST", allow_atomic=True)
    options = {"idempotence": "fence", "jobId": "j"}
    save(numbers(spark, "SINKGUEST", 10, 1), servers, "SINKGUEST", batchId="0", **options)
    connection.request("SINKGUEST.x", b"guest")
    with pytest.raises(Exception, match="written by another writer") as caught:
        save(numbers(spark, "SINKGUEST", 10, 1), servers, "SINKGUEST", batchId="1", **options)
    text, code = explain(caught.value)
    assert code == 4
    assert text.startswith("SINKGUEST: the last message, 11, was written by another writer")
    save(numbers(spark, "SINKGUEST", 10, 1), servers, "SINKGUEST", batchId="1", startAfter="11", **options)
    assert state(connection, "SINKGUEST")["last_seq"] == 21


@pytest.mark.parametrize("mode", ["msgId", "fence"])
async def test_a_node_that_dies_while_rows_are_written(
    spark: Any, connection: Connection, cluster: ProcessCluster, mode: str
) -> None:
    """The leader is killed in the middle; the tasks go on with another server, without loss or duplicate."""
    name, count = f"SINKKILL{mode}", 12_000
    make(connection, name, allow_atomic=True)
    victim = await cluster.stream_leader(name)
    others = [node.url for node in cluster.nodes if node is not victim]

    def kill() -> None:
        with Connection(others) as other:
            deadline = time.monotonic() + 60
            while state(other, name)["last_seq"] < 2000 and time.monotonic() < deadline:
                time.sleep(0.01)
        victim.kill9()

    thread = threading.Thread(target=kill)
    thread.start()
    rows = numbers(spark, name, count, 2 if mode == "msgId" else 1)
    servers = ",".join([victim.url, *others])
    save(rows, servers, name, idempotence=mode, jobId="j", atomicBatch="500", publishWindow="500")
    assert not victim.alive
    thread.join()
    with Connection(others) as other:
        found = written(other, name)
    await victim.start()
    await cluster.wait_current(name)
    assert sorted(found) == list(range(count))
    if mode == "fence":
        assert found == list(range(count))
