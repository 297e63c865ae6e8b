"""The plan of a restore: the batches of an archive, and the configuration of the new stream.

Tasks read the archived rows as Arrow batches, check them against their digests and convert them to rows for the sink,
or to pieces of the server's own archive format for STREAM.RESTORE.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from jetcluster.archive import manifest
from jetcluster.archive.manifest import Manifest
from jetcluster.archive.storage import open_archive
from jetcluster.client.restore_transfer import framed
from jetcluster.errors import PeerError
from jetcluster.model import retention_guard
from jetcluster.pipeline import archive_tasks
from jetcluster.pipeline.archive_tasks import FilePart
from jetcluster.pipeline.result import DataLoss, UsageError
from jetcluster.protocol import stream_archive

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BLOB_BYTES: Final = 512 * 1024
BLOB_SCHEMA: Final = "blob binary, rows bigint, bytes bigint, digest bigint, places bigint"
COLUMNS: Final = ("seq", "time_ns", "subject", "headers_raw", "data", "digest", "subject_raw")
SINK_SCHEMA: Final = "seq bigint, subject string, headers_raw binary, data binary, msg_id string"


class ArchiveDamagedError(PeerError):
    """A row does not match its digest. Raised in tasks; only its name reaches the driver, where it means data loss."""


class RowTotals(NamedTuple):
    """Totals over rows, independent of their order and grouping."""

    rows: int = 0
    bytes: int = 0
    """Bytes of subjects, headers and payloads."""
    digest: int = 0
    places: int = 0
    """XOR of the rows' `digest`, and of their `place`."""

    def plus(self, other: RowTotals) -> RowTotals:
        return RowTotals(
            self.rows + other.rows, self.bytes + other.bytes, self.digest ^ other.digest, self.places ^ other.places
        )


def checked(batch: Any) -> Iterator[tuple[int, int, bytes, bytes, bytes, int, int]]:
    """Yields (seq, time_ns, subject, header block, payload, digest, place) of each row. Raises ArchiveDamagedError."""
    from jetcluster.arrow.convert import digest  # imports pyarrow

    columns = [
        batch.column(name).to_pylist()
        for name in ("seq", "time_ns", "subject", "headers_raw", "data", "digest", "place", "subject_raw")
    ]
    for seq, ns, subject, block, payload, held, place, raw in zip(*columns, strict=True):
        name, block = subject.encode() if raw is None else raw, block or b""
        if digest(name, block, payload) != held:
            raise ArchiveDamagedError(f"the archived message {seq} is damaged: it does not match its digest")
        yield seq, ns, name, block, payload, held, place


def blobs(batches: Iterable[Any]) -> Iterator[Any]:
    """Converts ascending rows to BLOB_SCHEMA, for `mapInArrow`. The blobs joined are the middle of one archive."""
    import pyarrow as pa

    schema = pa.schema([("blob", pa.binary()), *((name, pa.int64()) for name in ("rows", "bytes", "digest", "places"))])
    entries: list[bytes] = []
    totals, size = RowTotals(), 0

    def made() -> Any:
        blob = framed(b"".join(entries))
        return pa.RecordBatch.from_pylist([{"blob": blob, **totals._asdict()}], schema=schema)

    for batch in batches:
        for seq, ns, subject, block, payload, held, place in checked(batch):
            entry = stream_archive.encode(subject, ns, seq, block, payload)
            entries.append(entry)
            size += len(entry)
            totals = totals.plus(RowTotals(1, len(subject) + len(block) + len(payload), held, place))
            if size >= BLOB_BYTES:
                yield made()
                entries, totals, size = [], RowTotals(), 0
    if entries:
        yield made()


def rows_for_sink(batches: Iterable[Any], stream: str, *, source_seq: bool) -> Iterator[Any]:
    """Converts rows to SINK_SCHEMA in the same order, for `mapInArrow`. `source_seq` adds the header Jc-Source-Seq."""
    import pyarrow as pa

    schema = pa.schema(
        [
            ("seq", pa.int64()), ("subject", pa.string()), ("headers_raw", pa.binary()), ("data", pa.binary()),
            ("msg_id", pa.string()),
        ]
    )  # fmt: skip
    for batch in batches:
        seqs, subjects, blocks, payloads, ids = [], [], [], [], []
        for seq, _, subject, block, payload, _, _ in checked(batch):
            seqs.append(seq)
            subjects.append(_text(subject, seq))
            blocks.append(with_source_seq(block, seq) if source_seq else block or None)
            payloads.append(payload)
            ids.append(f"{stream}/{seq}")
        yield pa.RecordBatch.from_arrays(
            [
                pa.array(column, kind)
                for column, kind in zip((seqs, subjects, blocks, payloads, ids), schema.types, strict=True)
            ],
            schema=schema,
        )


def _text(subject: bytes, seq: int) -> str:
    """Decodes a subject. Raises SinkError if it is not UTF-8."""
    try:
        return subject.decode()
    except UnicodeDecodeError:
        from jetcluster.spark.sink_options import SinkError  # imports pyarrow

        raise SinkError(f"message {seq} has subject {subject!r}, no UTF-8: only --mode exact restores that") from None


def with_source_seq(block: bytes, seq: int) -> bytes:
    """Returns the header block with `Jc-Source-Seq` appended."""
    return b"%bJc-Source-Seq: %d\r\n\r\n" % (block[:-2] if block else b"NATS/1.0\r\n", seq)


_ROWS_PER_TASK: Final = 50_000
_BYTES_PER_TASK: Final = 8 << 20
"""Compressed Parquet of one task. The driver holds a task's output until it is sent."""


class RestorePlan:
    """The manifests of the batches to restore, the totals of their rows, and the new stream's configuration."""

    def __init__(self, session: SparkSession, args: argparse.Namespace) -> None:
        """Raises UsageError, DataLoss, NotAnArchiveError, ArchiveLossError."""
        storage = open_archive(args.source)
        found = manifest.load(storage)
        upto = args.upto_seq
        self.url = storage.url
        self.manifests = [one for one in found if upto is None or one.start <= upto]
        if not self.manifests:
            raise UsageError(f"{self.url} holds no manifest" + (f" up to sequence {upto}" if found else ""))
        held = {file.path: file.size for file in storage.list(f"stream={found[0].stream}")}
        for file in (file for one in self.manifests for file in one.files):
            if held.get(file.path) != file.size:
                raise DataLoss(f"{self.url}/{file.path} is missing or cut off")
        last = self.manifests[-1]
        self.stream = last.stream
        self.created = last.created
        self.target = args.stream or last.stream
        self.start = self.manifests[0].start
        self.end = last.end if upto is None else min(last.end, upto + 1)
        self.config = target_config(last.config, args, self.target, self.start)
        self._session = session
        self.totals = self._count()
        whole = last.subjects == [">"]
        self.deleted = self.end - self.start - self.totals.rows if whole else None

    def rows(self, one: Manifest) -> DataFrame:
        """Returns the rows of one batch below `end`, unsorted, with a column `place`."""
        from pyspark.sql import functions as F

        parts = [FilePart((file,), one.start, min(one.end, self.end)) for file in one.files if file.seqs[0] < self.end]
        found = archive_tasks.frame(self._session, self.url, parts, COLUMNS)
        return found.withColumn("place", F.xxhash64("seq", "time_ns", "digest"))

    def sorted_rows(self, one: Manifest) -> DataFrame:
        """Returns the rows by sequence, in tasks whose output fits into the driver's memory."""
        tasks = max(1, one.rows // _ROWS_PER_TASK, one.size // _BYTES_PER_TASK)
        return self.rows(one).repartitionByRange(tasks, "seq").sortWithinPartitions("seq")

    def _count(self) -> RowTotals:
        """Counts by the manifests, and by the rows of a batch that is restored only in part."""
        from pyspark.sql import functions as F

        self.first_time = self.last_time = None
        self.first_seq = self.last_seq = None
        totals = RowTotals()
        for one in self.manifests:
            found: Any = one
            if one.end > self.end:
                found = self.rows(one).agg(
                    F.count("*").alias("rows"), F.min("seq").alias("first_seq"), F.max("seq").alias("last_seq"),
                    F.min("time_ns").alias("first_time"), F.max("time_ns").alias("last_time"),
                    F.bit_xor("digest").alias("digest"), F.bit_xor("place").alias("places"),
                ).first()  # fmt: skip
            totals = totals.plus(RowTotals(found.rows, 0, _signed(found.digest), _signed(found.places)))
            if found.rows:
                self.first_seq, self.first_time = self.first_seq or found.first_seq, self.first_time or found.first_time
                self.last_seq, self.last_time = found.last_seq, found.last_time
        return totals


def _signed(value: str | int | None) -> int:
    number = int(value, 16) if isinstance(value, str) else value or 0
    return number - (1 << 64) if number >= 1 << 63 else number


def target_config(config: dict[str, Any], args: argparse.Namespace, name: str, start: int) -> dict[str, Any]:
    """Returns the configuration of the new stream: the archived one without its ties to other streams."""
    made = {
        key: value for key, value in config.items()
        if key not in ("mirror", "sources", "mirror_direct", "sealed", retention_guard.FIELD)
    } | {"name": name}  # fmt: skip
    made["metadata"] = retention_guard.removed(config.get("metadata") or {})  # consumers are not archived
    if args.replicas:
        made["num_replicas"] = args.replicas
    if args.subjects:
        made["subjects"] = [word.strip() for word in args.subjects.split(",") if word.strip()]
    if args.no_limits:
        made |= {"max_age": 0, "max_msgs": -1, "max_bytes": -1, "max_msgs_per_subject": -1}
    if args.mode != "exact":
        for key in ("subject_transform", "republish"):  # they were applied before the messages were archived
            made.pop(key, None)
        made["first_seq"] = start
        if args.mode == "fence":
            made["allow_atomic"] = True
    return made
