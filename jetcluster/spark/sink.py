"""The sink `format("jetstream")`: writers of batch and streaming queries.

A writer is made on the driver, where options, columns and the stream are checked, and travels to the tasks as a pickle.
Each task publishes its rows over one connection; when `write` returns, all of them are acknowledged.
"""

from __future__ import annotations

import itertools
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from jetcluster.errors import ApiError
from jetcluster.protocol import headers as header_block
from jetcluster.spark import sink_options
from jetcluster.spark.connection import Connection
from jetcluster.spark.fence import FenceError
from jetcluster.spark.fence_writer import FenceWriter
from jetcluster.spark.publish import Message, ServerLink, WindowedPublisher
from jetcluster.spark.sink_options import SinkError, SinkOptions
from jetcluster.spark.sink_rows import MSG_ID, Row, RowReader
from jetcluster.spark.stream_state import ask

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql.types import StructType

BATCH_ID: Final = "streaming.sql.batchId"
QUERY_ID: Final = "sql.streaming.queryId"
"""Local properties that Spark sets on the tasks of a streaming query; tests/spark/test_sink.py pins them."""
_SAFE_SHARE: Final = 0.8
"""The share of the duplicate window within which a message may be sent a second time: clocks and queues need the
rest."""


@dataclass
class Written(WriterCommitMessage):
    """The result of one task."""

    rows: int = 0
    duplicates: int = 0
    """Rows that the stream had already."""
    last_seq: int = 0


@dataclass(frozen=True)
class TaskIdentity:
    """The identity of the rows that a task writes: a second try of the same rows has the same one."""

    job: str
    batch: int
    partition: int

    @classmethod
    def of(cls, context: TaskContext | None, options: SinkOptions, default: str) -> TaskIdentity:
        """`default`: the job's name when neither the option nor Spark gives one."""
        job_id = options.job_id
        batch = context.getLocalProperty(BATCH_ID) if context else None
        query = context.getLocalProperty(QUERY_ID) if context else None
        if batch is None or query is None or options.batch_id is not None:
            return cls(job_id or default, options.batch_id or 0, context.partitionId() if context else 0)
        assert context is not None
        # A checkpoint that was deleted counts batches from 0 again: it must not look like the old one.
        job = f"{job_id}.{zlib.crc32(query.encode()):08x}" if job_id else query
        return cls(job, int(batch), context.partitionId())


class Sink:
    """The common part of both writers."""

    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool, streaming: bool) -> None:
        """Runs on the driver. Raises OptionError, SinkError, ConnectionLostError, ServerError."""
        self.options = wanted = sink_options.parse(options)
        self.default_job = os.urandom(9).hex()
        sink_options.check_columns({f.name: f.dataType.simpleString() for f in schema.fields}, wanted)
        if wanted.idempotence == "fence" and not streaming and not wanted.job_id:
            raise SinkError("idempotence=fence needs option jobId: the name under which a second try goes on")
        if overwrite and streaming:
            raise SinkError("output mode complete would have to replace a whole stream: use append or update")
        if overwrite and not wanted.purge:
            raise SinkError('mode("overwrite") would purge the stream: say overwriteMode=purge if that is meant')
        self.start_after = wanted.start_after
        self._look(overwrite)

    def _look(self, overwrite: bool) -> None:
        """Checks the stream, and empties it if that is asked for."""
        name = self.options.stream
        try:
            info = ask(self.options.server, lambda connection: connection.api(f"STREAM.INFO.{name}"))
            self.patterns = sink_options.check_stream(info, self.options)
            if self.start_after is None and (first := int(info["config"].get("first_seq") or 0)) > 1:
                self.start_after = first - 1  # it was created to begin there
            if overwrite:
                self.start_after = ask(self.options.server, lambda connection: _purge(connection, name))
        except ApiError as error:
            raise SinkError(f"stream {name}: {error}") from None
        self.window = int(info["config"].get("duplicate_window") or 0) / 1e9

    def write(self, batches: Iterable[RecordBatch]) -> Written:
        """Runs in a task."""
        place = TaskIdentity.of(TaskContext.get(), self.options, self.default_job)
        reader = RowReader(self.options, self.patterns)
        link = ServerLink(self.options.server, place.partition)
        try:
            found = map(reader.rows, batches)
            if self.options.idempotence == "fence":
                return self._write_fenced(link, place, itertools.chain.from_iterable(found))
            return self._publish(link, place, found)
        finally:
            link.close()

    def _publish(self, link: ServerLink, place: TaskIdentity, batches: Iterable[Iterable[Row]]) -> Written:
        options = self.options
        with_ids = options.idempotence == "msgid"
        publisher = WindowedPublisher(
            link,
            options.stream,
            window=options.publish_window,
            retry_seconds=options.retry_timeout,
            safe_seconds=self.window * _SAFE_SHARE if with_ids else None,
        )
        prefix = f"{place.job}:{place.batch}:{place.partition}:".encode()
        number = 0
        for rows in batches:
            for message, msg_id in rows:
                if with_ids:
                    message = with_msg_id(message, msg_id or prefix + b"%d" % number)
                publisher.publish(message)
                number += 1
            publisher.finish()  # the next rows may be long in coming; by then ids of what has no ack may be forgotten
        return Written(publisher.stored + publisher.duplicates, publisher.duplicates, publisher.last_seq)

    def _write_fenced(self, link: ServerLink, place: TaskIdentity, rows: Iterator[Row]) -> Written:
        if place.partition:
            for _ in rows:
                raise FenceError(
                    "idempotence=fence writes in order, so in one task: repartition(1).sortWithinPartitions(...) first"
                )
            return Written()
        writer = FenceWriter(
            link,
            self.options.stream,
            place.job,
            place.batch,
            start_after=self.start_after,
            atomic_batch=self.options.atomic_batch,
            retry_seconds=self.options.retry_timeout,
        )
        writer.write(row.message for row in rows)
        return Written(writer.stored + writer.skipped, writer.skipped, writer.last_seq)


def _purge(connection: Connection, stream: str) -> int:
    """The stream's last sequence, with nothing up to it left."""
    connection.api(f"STREAM.PURGE.{stream}")
    return int(connection.api(f"STREAM.INFO.{stream}")["state"]["last_seq"])


def with_msg_id(message: Message, msg_id: bytes) -> Message:
    """The message with that id, and no other one."""
    if header_block.get(message.headers, MSG_ID) == msg_id:
        return message
    return message._replace(headers=header_block.set_header(message.headers, MSG_ID, msg_id))


class BatchWriter(DataSourceArrowWriter):
    """The writer of `df.write.format("jetstream")`."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        self._sink = Sink(options, schema, overwrite=overwrite, streaming=False)

    def write(self, iterator: Iterator[RecordBatch]) -> WriterCommitMessage:
        return self._sink.write(iterator)


class StreamWriter(DataSourceStreamArrowWriter):
    """The writer of `df.writeStream.format("jetstream")`."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        self._sink = Sink(options, schema, overwrite=overwrite, streaming=True)

    def write(self, iterator: Iterator[RecordBatch]) -> WriterCommitMessage:
        return self._sink.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Everything is acknowledged when the tasks end."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Does nothing: stored rows stay, and the next try knows them by their ids, or by the fence."""
