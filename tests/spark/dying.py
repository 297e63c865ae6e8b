"""`format("dying")`: our source and sink, whose Python workers die half-way through their first two tries of a task.

Runs as a program of its own, because a session of the tests tries no task again (`local[2]`), and there is one session
per process:

    python -m tests.spark.dying SERVERS FOLDER

counts the stream RETRIED, writes it to RETRIEDnone and RETRIEDmsgId, and in a streaming query to RETRIEDfence. Prints
what was counted. FOLDER/tries has a line per try of a task: what it did, number of the try, rows it had seen.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import InputPartition

from jetcluster.spark.datasource import JetStreamSource
from jetcluster.spark.sink import BatchWriter, StreamWriter
from jetcluster.spark.source import BatchReader
from tests.spark.session import open_session

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

SOURCE = "RETRIED"
ROWS = 3000
DEATHS = 2
"""Tries of a task that are killed; the third one is left alone."""
TRIES = "DYING_TRIES"
"""Environment variable: the file that workers write to before they die."""


def dies(batches: Iterator[Any], what: str) -> Iterator[Any]:
    """The batches, in pieces; the worker is killed by a signal in their midst."""
    context = TaskContext.get()
    assert context is not None
    attempt, seen = context.attemptNumber(), 0
    for batch in batches:
        for at in range(0, batch.num_rows, 50):
            if attempt < DEATHS and seen >= 300 * (attempt + 1):
                _note(what, attempt, seen)
                time.sleep(0.3)  # what was sent has arrived by then
                os.kill(os.getpid(), signal.SIGKILL)
            piece = batch.slice(at, 50)
            yield piece
            seen += piece.num_rows
    _note(what, attempt, seen)


def _note(what: str, attempt: int, seen: int) -> None:
    with Path(os.environ[TRIES]).open("a") as file:
        file.write(f"{what} {attempt} {seen}\n")


class DyingBatchReader(BatchReader):
    def read(self, partition: InputPartition) -> Iterator[Any]:
        return dies(super().read(partition), "read")


class DyingBatchWriter(BatchWriter):
    def write(self, iterator: Iterator[Any]) -> Any:
        return super().write(dies(iterator, f"write-{self._sink.options.idempotence}"))


class DyingStreamWriter(StreamWriter):
    def write(self, iterator: Iterator[Any]) -> Any:
        return super().write(dies(iterator, f"stream-write-{self._sink.options.idempotence}"))


class DyingSource(JetStreamSource):
    @classmethod
    def name(cls) -> str:
        return "dying"

    def reader(self, schema: StructType) -> DyingBatchReader:
        return DyingBatchReader(self._source, schema.fieldNames(), self._extents)

    def writer(self, schema: StructType, overwrite: bool) -> DyingBatchWriter:
        return DyingBatchWriter(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DyingStreamWriter:
        return DyingStreamWriter(self.options, schema, overwrite)


def target(mode: str) -> str:
    return f"{SOURCE}{mode}"


def run(servers: str, folder: Path) -> dict[str, Any]:
    os.environ[TRIES] = str(folder / "tries")
    session: Any = open_session(folder, "local[2,4]")
    session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
    session.dataSource.register(DyingSource)
    where = {"servers": servers, "stream": SOURCE, "columns": "seq,subject,data", "minPartitions": "2"}

    rows = session.read.format("dying").options(**where).load()
    counted = rows.selectExpr("count(*) n", "count(distinct seq) d", "max(seq) m", "min(seq) f").first()
    rows = session.read.format("jetstream").options(**where).load()
    for mode in ("none", "msgId"):
        writer = renamed(rows, mode).write.format("dying").mode("append")
        writer.options(servers=servers, stream=target(mode), idempotence=mode, publishWindow="100").save()
    rows = session.readStream.format("jetstream").options(**where | {"minPartitions": "1"}).load()
    writer = renamed(rows, "fence").writeStream.format("dying")
    writer = writer.options(servers=servers, stream=target("fence"), idempotence="fence", atomicBatch="120")
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()
    session.stop()
    return {"rows": counted.n, "different": counted.d, "first": counted.f, "last": counted.m}


def renamed(rows: Any, mode: str) -> Any:
    return rows.selectExpr(f"concat('{target(mode)}.', seq) AS subject", "data", "seq")


if __name__ == "__main__":
    from tests.spark import dying

    print(json.dumps(dying.run(sys.argv[1], Path(sys.argv[2]))))
