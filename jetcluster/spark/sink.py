"""The sink `format("jetstream")`: writers of batch and streaming queries.

A writer is created on the driver, where it checks options, columns and the stream, and is pickled for the tasks. Each
task publishes its rows over one connection; when `write` returns, all of them are acknowledged.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from jetcluster.client.connection import Connection
from jetcluster.client.servers import ask
from jetcluster.errors import ApiError
from jetcluster.spark import sink_options
from jetcluster.spark.fence import FenceError
from jetcluster.spark.fence_parts import FenceParts, check_apart
from jetcluster.spark.fence_writer import FenceWriter
from jetcluster.spark.publish import ServerLink, WindowedPublisher
from jetcluster.spark.render import Rows
from jetcluster.spark.rows import RowReader, runs
from jetcluster.spark.sentence import SentenceFirst
from jetcluster.spark.sink_options import SinkError, SinkOptions

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql.types import StructType

BATCH_ID: Final = "streaming.sql.batchId"
QUERY_ID: Final = "sql.streaming.queryId"
"""Local properties that Spark sets on the tasks of a streaming query; tests/spark/test_sink.py pins them."""
_SAFE_SHARE: Final = 0.8
"""The share of the duplicate window within which a message may be sent again; the rest is for clocks and queues."""


@dataclass
class Written(WriterCommitMessage):
    """The result of one task."""

    rows: int = 0
    duplicates: int = 0
    """Rows that were already stored."""
    last_seq: int = 0
    parts: tuple[int, ...] = ()
    """The numbers of the filters of `fenceSubjects` that it had rows of."""


@dataclass(frozen=True)
class TaskIdentity:
    """The identity of the rows that a task writes: every attempt to write the same rows has the same one."""

    job: str
    batch: int
    partition: int

    @classmethod
    def of(cls, context: TaskContext | None, options: SinkOptions, default: str) -> TaskIdentity:
        """Returns a task's identity; `default` is the job's name when neither the options nor Spark name one."""
        job_id = options.job_id
        batch = context.getLocalProperty(BATCH_ID) if context else None
        query = context.getLocalProperty(QUERY_ID) if context else None
        if batch is None or query is None or options.batch_id is not None:
            return cls(job_id or default, options.batch_id or 0, context.partitionId() if context else 0)
        assert context is not None
        # A query with a deleted checkpoint counts batches from 0 again, but has a new id: it needs another job name.
        job = f"{job_id}.{zlib.crc32(query.encode()):08x}" if job_id else query
        return cls(job, int(batch), context.partitionId())


class Sink:
    """The part common to both writers."""

    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool, streaming: bool) -> None:
        """Runs on the driver. Raises OptionError, SinkError, ConnectionLostError, ServerError."""
        self.options = wanted = sink_options.parse(options)
        self.default_job = os.urandom(9).hex()
        sink_options.check_columns({f.name: f.dataType.simpleString() for f in schema.fields}, wanted)
        if wanted.idempotence == "fence" and not streaming and not wanted.job_id:
            raise SinkError("idempotence=fence needs option jobId: the name under which a second try goes on")
        if overwrite and streaming:
            raise SinkError("output mode complete would have to replace a whole stream: use append")
        if overwrite and not wanted.purge:
            raise SinkError('mode("overwrite") would purge the stream: say overwriteMode=purge if that is meant')
        self.start_after = wanted.start_after
        self._look(overwrite)

    def _look(self, overwrite: bool) -> None:
        """Checks the stream, and purges it for mode("overwrite")."""
        name = self.options.stream
        try:
            server = self.options.server
            info = ask(server, lambda connection: connection.api(f"STREAM.INFO.{name}"), reach=server.reach_timeout)
            self.patterns = sink_options.check_stream(info, self.options)
            self.atomic = bool(info["config"].get("allow_atomic"))
            """Rows may share an id, as they are stored whole or not at all."""
            if self.start_after is None and (first := int(info["config"].get("first_seq") or 0)) > 1:
                self.start_after = first - 1  # the stream was created to begin there
            if overwrite:
                self.start_after = ask(server, lambda connection: _purge(connection, name))
        except ApiError as error:
            raise SinkError(f"stream {name}: {error}") from None
        self.window = int(info["config"].get("duplicate_window") or 0) / 1e9

    def write(self, batches: Iterable[RecordBatch]) -> Written:
        """Runs in a task."""
        place = TaskIdentity.of(TaskContext.get(), self.options, self.default_job)
        reader = RowReader(self.options, self.patterns)
        link = ServerLink(self.options.server, place.partition)
        try:
            found = (reader.rows(batch) for batch in batches if batch.num_rows)
            if self.options.idempotence == "fence":
                return self._write_fenced(link, place, found)
            return self._publish(link, place, found)
        finally:
            link.close()

    def _publish(self, link: ServerLink, place: TaskIdentity, batches: Iterable[Rows]) -> Written:
        options = self.options
        with_ids = options.idempotence == "msgid"
        publisher = WindowedPublisher(
            link,
            options.stream,
            window=options.publish_window,
            retry_seconds=options.retry_timeout,
            ids=f"{place.job}:{place.batch}:{place.partition}:".encode() if with_ids else None,
            atomic_batch=options.atomic_batch if self.atomic and not options.bucket else 1,
            safe_seconds=self.window * _SAFE_SHARE if with_ids else None,
        )
        for batch in batches:
            for rows in runs(batch) if options.bucket else (batch,):
                publisher.publish(rows)
                publisher.settle()  # the next batch may take longer than the stream remembers ids of unacked messages
        publisher.finish()
        return Written(publisher.stored + publisher.duplicates, publisher.duplicates, publisher.last_seq)

    def _write_parts(self, place: TaskIdentity, batches: Iterable[Rows]) -> Written:
        """Each part has a connection of its own, as a writer gives its own up when it fails."""
        options = self.options
        links: list[ServerLink] = []

        def writer_of(number: int) -> FenceWriter:
            links.append(ServerLink(options.server, number))
            return self.fence_writer(links[-1], place.job, place.batch, within=options.fence_subjects[number])

        try:
            parts = FenceParts(options.fence_subjects, writer_of)
            parts.write(batches)
        finally:
            for one in links:
                one.close()
        writers = list(parts.writers.values())
        stored, skipped = (sum(counts) for counts in ([w.stored for w in writers], [w.skipped for w in writers]))
        last = max((one.last_seq for one in writers), default=0)
        return Written(stored + skipped, skipped, last, tuple(parts.writers))

    def check_written(self, messages: Iterable[WriterCommitMessage | None]) -> None:
        """Raises FenceError when tasks that have written were not to write beside each other."""
        found = [one.parts for one in messages if isinstance(one, Written)]
        check_apart(found, self.options.fence_subjects)

    def _write_fenced(self, link: ServerLink, place: TaskIdentity, batches: Iterable[Rows]) -> Written:
        if self.options.fence_subjects:
            return self._write_parts(place, batches)
        if place.partition:
            for _ in batches:
                raise FenceError(
                    "idempotence=fence writes in order, so in one task: coalesce(1) in a streaming query, "
                    "repartition(1).sortWithinPartitions(...) in a batch query, or fenceSubjects for a fence per part"
                )
            return Written()
        writer = self.fence_writer(link, place.job, place.batch)
        writer.write(batches)
        return Written(writer.stored + writer.skipped, writer.skipped, writer.last_seq)

    def fence_writer(
        self, link: ServerLink, job: str, batch: int, *, first: int = 0, ends: bool = True, within: str = ""
    ) -> FenceWriter:
        """Returns a writer of rows of one batch of a job, as `FenceWriter` has them."""
        return FenceWriter(
            link, self.options.stream, job, batch, start_after=self.start_after,
            atomic_batch=self.options.atomic_batch, retry_seconds=self.options.retry_timeout, first=first, ends=ends,
            within=within,
        )  # fmt: skip


def _purge(connection: Connection, stream: str) -> int:
    """Purges the stream and returns its last sequence."""
    connection.api(f"STREAM.PURGE.{stream}")
    return int(connection.api(f"STREAM.INFO.{stream}")["state"]["last_seq"])


class BatchWriter(DataSourceArrowWriter):
    """The writer of `df.write.format("jetstream")`."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        self._sink = Sink(options, schema, overwrite=overwrite, streaming=False)

    @SentenceFirst()
    def write(self, iterator: Iterator[RecordBatch]) -> WriterCommitMessage:
        return self._sink.write(iterator)

    @SentenceFirst()
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """All rows are acknowledged when the tasks end. Raises FenceError."""
        self._sink.check_written(messages)


class StreamWriter(DataSourceStreamArrowWriter):
    """The writer of `df.writeStream.format("jetstream")`."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        self._sink = Sink(options, schema, overwrite=overwrite, streaming=True)

    @SentenceFirst()
    def write(self, iterator: Iterator[RecordBatch]) -> WriterCommitMessage:
        return self._sink.write(iterator)

    @SentenceFirst()
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """All rows are acknowledged when the tasks end. Raises FenceError."""
        self._sink.check_written(messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Does nothing: stored rows stay, and the next attempt recognizes them by their ids, or by the fence."""
