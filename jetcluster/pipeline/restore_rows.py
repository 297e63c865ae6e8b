"""Archived rows on their way to a stream: checked against their digests, and made rows for the sink, or pieces of the
server's own archive format for STREAM.RESTORE."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from jetcluster.client.restore_transfer import framed
from jetcluster.errors import PeerError
from jetcluster.protocol import stream_archive

BLOB_BYTES: Final = 512 * 1024
BLOB_SCHEMA: Final = "blob binary, rows bigint, bytes bigint, digest bigint, places bigint"
COLUMNS: Final = ("seq", "time_ns", "subject", "headers_raw", "data", "digest", "subject_raw")
"""The columns of an archive that a restore needs."""
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


class Checked(NamedTuple):
    """The columns of rows that match their digests."""

    seqs: list[int]
    subjects: list[bytes]
    blocks: list[bytes]
    """Header blocks, b"" for none."""
    payloads: list[bytes]


def checked(batch: Any) -> Checked:
    """Returns the columns of a batch with COLUMNS. Raises ArchiveDamagedError."""
    import numpy as np

    from jetcluster.arrow.convert import digest

    found = Checked(
        batch.column("seq").to_pylist(),
        _subjects(batch),
        [block or b"" for block in batch.column("headers_raw").to_pylist()],
        batch.column("data").to_pylist(),
    )
    made = np.fromiter(map(digest, found.subjects, found.blocks, found.payloads), np.int64, batch.num_rows)
    wrong = made != batch.column("digest").to_numpy()
    if wrong.any():
        seq = found.seqs[int(wrong.argmax())]
        raise ArchiveDamagedError(f"the archived message {seq} is damaged: it does not match its digest")
    return found


def _subjects(batch: Any) -> list[bytes]:
    import pyarrow as pa

    named: list[bytes] = batch.column("subject").cast(pa.binary()).to_pylist()
    raw = batch.column("subject_raw")
    if raw.null_count == len(raw):
        return named
    return [name if other is None else other for name, other in zip(named, raw.to_pylist(), strict=True)]


# ---- pieces of an archive


def blobs(batches: Iterable[Any]) -> Iterator[Any]:
    """Converts ascending rows to BLOB_SCHEMA, for `mapInArrow`. The blobs joined are the middle of one archive."""
    import numpy as np
    import pyarrow as pa

    from jetcluster.archive.places import places, xored

    schema = pa.schema([("blob", pa.binary()), *((name, pa.int64()) for name in RowTotals._fields)])
    for batch in batches:
        rows = checked(batch)
        columns = tuple(batch.column(name).to_numpy() for name in ("seq", "time_ns", "digest"))
        place = places(*columns)
        made = entries(rows, columns[0], columns[1])
        sizes = np.fromiter(map(len, made), np.int64, len(made))
        own = np.fromiter(map(_content_bytes, rows.subjects, rows.blocks, rows.payloads), np.int64, len(made))
        for first, stop in itertools.pairwise(_cuts(sizes)):
            part = slice(first, stop)
            totals = RowTotals(stop - first, int(own[part].sum()), xored(columns[2][part]), xored(place[part]))
            blob = framed(b"".join(made[part]))
            yield pa.RecordBatch.from_pylist([{"blob": blob, **totals._asdict()}], schema=schema)


def _content_bytes(subject: bytes, block: bytes, payload: bytes) -> int:
    return len(subject) + len(block) + len(payload)


def _cuts(sizes: Any) -> list[int]:
    """Returns the places at which a blob begins, and the end: each has a row, and fewer than BLOB_BYTES before its
    last one."""
    import numpy as np

    ends = np.cumsum(sizes)
    found = [0]
    while found[-1] < len(sizes):
        before = int(ends[found[-1] - 1]) if found[-1] else 0
        found.append(min(int(np.searchsorted(ends, before + BLOB_BYTES)) + 1, len(sizes)))
    return found


def entries(rows: Checked, seqs: Any, times: Any) -> list[bytes]:
    """Returns the entries of an archive as `stream_archive.encode` makes them, a column at a time: that takes a quarter
    of the time."""
    import numpy as np

    stamps = varints(np.where(times >= 0, times << 1, (-times << 1) - 1).view(np.uint64))
    size = _size
    return [
        b"".join((size(len(name)), ts, seq, size(len(block)), size(len(payload)), name, block, payload))
        for name, ts, seq, block, payload in zip(
            rows.subjects, stamps, varints(seqs.view(np.uint64)), rows.blocks, rows.payloads, strict=True
        )
    ]


def varints(values: Any) -> list[bytes]:
    """Returns numbers, an array of uint64, as uvarints."""
    import numpy as np

    groups = values[:, None] >> np.arange(0, 64, 7, dtype=np.uint64)[None, :]
    more = np.zeros(groups.shape, bool)
    more[:, :-1] = groups[:, 1:] != 0
    bytes_of = ((groups & np.uint64(0x7F)) | np.where(more, np.uint64(0x80), np.uint64(0))).astype(np.uint8)
    lengths = (more.sum(axis=1) + 1).tolist()
    whole = bytes_of.tobytes()
    return [whole[at : at + length] for at, length in zip(range(0, len(whole), 10), lengths, strict=True)]


@functools.lru_cache(maxsize=1 << 16)
def _size(value: int) -> bytes:
    return stream_archive.uvarint(value)


# ---- rows for the sink


def rows_for_sink(batches: Iterable[Any], stream: str, *, source_seq: bool) -> Iterator[Any]:
    """Converts rows to SINK_SCHEMA, for `mapInArrow`. The header block of each row is kept byte for byte, with
    `Jc-Source-Seq` at the end if that is wanted. Raises SinkError for a subject that is not UTF-8."""
    import pyarrow as pa

    schema = pa.schema(
        [
            ("seq", pa.int64()), ("subject", pa.string()), ("headers_raw", pa.binary()), ("data", pa.binary()),
            ("msg_id", pa.string()),
        ]
    )  # fmt: skip
    for batch in batches:
        rows = checked(batch)
        if batch.column("subject_raw").null_count < batch.num_rows:
            _refuse_bytes(rows)
        blocks: Any = batch.column("headers_raw").cast(pa.binary())
        if source_seq:
            blocks = pa.array(map(with_source_seq, rows.blocks, rows.seqs), pa.binary())
        yield pa.RecordBatch.from_arrays(
            [
                batch.column("seq"), batch.column("subject"), blocks, batch.column("data"),
                pa.array([f"{stream}/{seq}" for seq in rows.seqs], pa.string()),
            ],
            schema=schema,
        )  # fmt: skip


def _refuse_bytes(rows: Checked) -> None:
    """Raises SinkError for the first subject that is not UTF-8."""
    for seq, subject in zip(rows.seqs, rows.subjects, strict=True):
        try:
            subject.decode()
        except UnicodeDecodeError:
            from jetcluster.spark.sink_options import SinkError  # imports pyarrow

            raise SinkError(
                f"message {seq} has subject {subject!r}, no UTF-8: only --mode exact restores that"
            ) from None


def with_source_seq(block: bytes, seq: int) -> bytes:
    """Returns the header block with `Jc-Source-Seq` appended."""
    return b"%bJc-Source-Seq: %d\r\n\r\n" % (block[:-2] if block else b"NATS/1.0\r\n", seq)
