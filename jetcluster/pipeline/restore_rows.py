"""Archived rows on their way back: checked against their digests, and either as rows for the sink or as pieces of a
server's own archive format for STREAM.RESTORE. Runs in tasks, on Arrow batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from jetcluster.errors import PeerError
from jetcluster.protocol import s2
from jetcluster.spark.arrow import digest
from jetcluster.spark.sink_options import SinkError
from jetcluster.stream import restoring

BLOB_BYTES: Final = 512 * 1024
BLOB_SCHEMA: Final = "blob binary, rows bigint, bytes bigint, digest bigint, places bigint"
SINK_SCHEMA: Final = "seq bigint, subject string, headers_raw binary, data binary, msg_id string"


class ArchiveDamagedError(PeerError):
    """A row is not what its digest says. In tasks, where only names of classes travel, this means data loss."""


class RowTotals(NamedTuple):
    """Over rows, in any order and any grouping."""

    rows: int = 0
    bytes: int = 0
    """Bytes of subjects, headers and payloads."""
    digest: int = 0
    places: int = 0
    """Exclusive or of the rows' `digest` and `place`."""

    def plus(self, other: RowTotals) -> RowTotals:
        return RowTotals(
            self.rows + other.rows, self.bytes + other.bytes, self.digest ^ other.digest, self.places ^ other.places
        )


def checked(batch: Any) -> Iterator[tuple[int, int, bytes, bytes, bytes, int, int]]:
    """(seq, time_ns, subject, header block, payload, digest, place) of the rows. Raises ArchiveDamagedError."""
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
    """For `mapInArrow`: rows in ascending order -> BLOB_SCHEMA. Blobs in a row are the middle of one archive."""
    import pyarrow as pa

    schema = pa.schema([("blob", pa.binary()), *((name, pa.int64()) for name in ("rows", "bytes", "digest", "places"))])
    entries: list[bytes] = []
    totals, size = RowTotals(), 0

    def made() -> Any:
        blob = b"".join(s2.encode(b"".join(entries)))
        return pa.RecordBatch.from_pylist([{"blob": blob, **totals._asdict()}], schema=schema)

    for batch in batches:
        for seq, ns, subject, block, payload, held, place in checked(batch):
            entry = restoring.encode(subject, ns, seq, block, payload)
            entries.append(entry)
            size += len(entry)
            totals = totals.plus(RowTotals(1, len(subject) + len(block) + len(payload), held, place))
            if size >= BLOB_BYTES:
                yield made()
                entries, totals, size = [], RowTotals(), 0
    if entries:
        yield made()


def rows_for_sink(batches: Iterable[Any], stream: str, *, source_seq: bool) -> Iterator[Any]:
    """For `mapInArrow`: rows -> SINK_SCHEMA, in the same order. `source_seq`: a header says where each one was."""
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
    """Raises SinkError."""
    try:
        return subject.decode()
    except UnicodeDecodeError:
        raise SinkError(f"message {seq} has subject {subject!r}, no UTF-8: only --mode exact restores that") from None


def with_source_seq(block: bytes, seq: int) -> bytes:
    """The header block with `Jc-Source-Seq` behind its own fields."""
    return b"%bJc-Source-Seq: %d\r\n\r\n" % (block[:-2] if block else b"NATS/1.0\r\n", seq)


def head(state: bytes, ts: int) -> bytes:
    """The beginning of an archive: `state` is its state.json."""
    opening = restoring.MAGIC + restoring.encode(restoring.STATE_NAME, ts, 0, b"", state)
    return s2.STREAM_ID + b"".join(s2.encode(opening))


def tail() -> bytes:
    return b"".join(s2.encode(restoring.END))


PADDING: Final = b"\xfe\x00\x00\x00"
"""An S2 chunk that readers pass over: sent when there is nothing to send, so that the server does not give up."""
