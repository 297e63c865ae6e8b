"""The sink `format("jetstream")`: writers of batch and streaming queries.

A writer is created on the driver, where it checks options, columns and the stream, and is pickled for the tasks. Each
task publishes its rows over one connection; when `write` returns, all of them are acknowledged.
"""

from __future__ import annotations

import itertools
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from jetcluster.client.connection import Connection
from jetcluster.client.servers import ask
from jetcluster.errors import ApiError
from jetcluster.protocol import headers as header_block
from jetcluster.protocol.subjects import is_valid_literal, matches
from jetcluster.spark import sink_options
from jetcluster.spark.fence import MARKER, FenceError, FenceWriter
from jetcluster.spark.publish import Message, ServerLink, WindowedPublisher
from jetcluster.spark.sentence import SentenceFirst
from jetcluster.spark.sink_options import SinkError, SinkOptions

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql.types import StructType

MSG_ID: Final = b"Nats-Msg-Id"
RESERVED: Final = (b"Nats-Batch-", b"Nats-Expected-", b"Nats-Stream-Source", b"Nats-Required-Api-Level", MARKER)
"""Prefixes of headers that have a meaning for the server, which would act on them or refuse the message."""
_REMEMBERED_SUBJECTS: Final = 100_000


class RowError(SinkError):
    """A row cannot be published."""


class Row(NamedTuple):
    """A row as a message to publish."""

    message: Message
    msg_id: bytes
    """b"" when the row has none."""


class RowReader:
    """Converts record batches of one task to rows."""

    def __init__(self, options: SinkOptions, patterns: Sequence[bytes]) -> None:
        """`patterns` are the stream's subjects."""
        self._stream = options.stream
        self._subject = options.subject.encode()
        self._drop = options.drop_reserved
        self._reserved = (*RESERVED, MSG_ID) if options.idempotence == "fence" else RESERVED
        self._needles = tuple(b"\n" + name for name in self._reserved)
        self._patterns = patterns
        self._good: set[bytes] = set()

    def rows(self, batch: Any) -> Iterator[Row]:
        """Yields the rows of a `pyarrow.RecordBatch`. Raises RowError."""
        size = batch.num_rows
        names = batch.schema.names

        def column(name: str) -> list[Any]:
            return batch.column(names.index(name)).to_pylist() if name in names else [None] * size

        subjects = [self._subject] * size if self._subject else column("subject")
        if not self._subject and "subject_raw" in names:  # set where the subject is not UTF-8
            subjects = [raw or text for raw, text in zip(column("subject_raw"), subjects, strict=True)]
        columns = zip(subjects, column("data"), column("headers"), column("headers_raw"), column("msg_id"), strict=True)
        good = self._good
        for subject, data, headers, raw, msg_id in columns:
            if subject.__class__ is not bytes:
                subject = b"" if subject is None else subject.encode()
            if subject not in good:
                self._check_subject(subject)
            block = raw or (build(headers) if headers else b"")
            if block:
                block = self._checked(block, subject)
            payload = data if data.__class__ is bytes else b"" if data is None else data.encode()
            found = msg_id.encode() if msg_id else header_block.get(block, MSG_ID) or b"" if block else b""
            yield Row(Message(subject, block, payload), found)

    def _check_subject(self, subject: bytes) -> None:
        if not is_valid_literal(subject):
            raise RowError(f"subject {subject.decode(errors='replace')!r} is not one that can be published to")
        if not any(matches(subject, pattern) for pattern in self._patterns):
            shown = b", ".join(self._patterns).decode()
            raise RowError(
                f"stream {self._stream} does not take subject {subject.decode(errors='replace')}: it has {shown}"
            )
        if len(self._good) >= _REMEMBERED_SUBJECTS:
            self._good.clear()
        self._good.add(subject)

    def _checked(self, block: bytes, subject: bytes) -> bytes:
        if not header_block.is_well_formed(block):
            raise RowError(
                f"headers_raw of a row on {subject.decode(errors='replace')} is no header block: {block[:60]!r}"
            )
        if not any(needle in block for needle in self._needles):
            return block
        named = [key for key, _ in header_block.parse(block) if key.startswith(self._reserved)]
        if named and not self._drop:
            raise RowError(
                f"a row on {subject.decode(errors='replace')} has header {named[0].decode()}, "
                "which means something to the server; "
                "reservedHeaders=drop leaves such headers out"
            )
        for key in named:
            block = header_block.remove(block, key)
        return b"" if block == b"NATS/1.0\r\n\r\n" else block


def build(headers: Sequence[tuple[str, Any]]) -> bytes:
    """Returns the header block for the pairs of a map column: name and value, or values. Raises RowError."""
    pairs: list[tuple[bytes, bytes]] = []
    for name, values in headers:
        key = name.encode()
        if not key or any(c in b": \t\r\n" for c in key):
            raise RowError(f"{name!r} is no name of a header")
        for value in [values] if isinstance(values, str) else values or ():
            text = (value or "").encode()
            if b"\r" in text or b"\n" in text:
                raise RowError(f"header {name} has a line break in its value")
            pairs.append((key, text))
    return header_block.build(pairs) if pairs else b""


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
            raise SinkError("output mode complete would have to replace a whole stream: use append or update")
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
            publisher.finish()  # the next batch may take longer than the stream remembers the ids of unacked messages
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
    """Purges the stream and returns its last sequence."""
    connection.api(f"STREAM.PURGE.{stream}")
    return int(connection.api(f"STREAM.INFO.{stream}")["state"]["last_seq"])


def with_msg_id(message: Message, msg_id: bytes) -> Message:
    """Returns the message with `msg_id` as its only id."""
    if header_block.get(message.headers, MSG_ID) == msg_id:
        return message
    return message._replace(headers=header_block.set_header(message.headers, MSG_ID, msg_id))


class BatchWriter(DataSourceArrowWriter):
    """The writer of `df.write.format("jetstream")`."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        self._sink = Sink(options, schema, overwrite=overwrite, streaming=False)

    @SentenceFirst()
    def write(self, iterator: Iterator[RecordBatch]) -> WriterCommitMessage:
        return self._sink.write(iterator)


class StreamWriter(DataSourceStreamArrowWriter):
    """The writer of `df.writeStream.format("jetstream")`."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        self._sink = Sink(options, schema, overwrite=overwrite, streaming=True)

    @SentenceFirst()
    def write(self, iterator: Iterator[RecordBatch]) -> WriterCommitMessage:
        return self._sink.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Does nothing: all rows are acknowledged when the tasks end."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Does nothing: stored rows stay, and the next attempt recognizes them by their ids, or by the fence."""
