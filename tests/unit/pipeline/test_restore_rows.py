"""Archived rows as pieces of a server's archive, and as rows for the sink; a flipped bit is noticed."""

from __future__ import annotations

from functools import reduce
from typing import Any

import pytest

from jetcluster.client import restore_transfer
from jetcluster.pipeline import restore_rows
from jetcluster.pipeline.restore_rows import ArchiveDamagedError, RowTotals
from jetcluster.protocol import s2, stream_archive
from jetcluster.spark.sink_options import SinkError

pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install 'jetcluster[spark]'")

import numpy as np
import pyarrow as pa

from jetcluster.archive.places import places, xored
from jetcluster.arrow.convert import digest

BLOCK = b"NATS/1.0\r\nB: 1\r\na:2\r\n\r\n"
MESSAGES = [
    (seq, 10**18 + seq, b"s.%d" % (seq % 3), BLOCK if seq % 2 else b"", b"\x00\xff" * (seq % 5 * 1000))
    for seq in range(3, 600, 2)
]


def batches(messages: list[Any], size: int = 100) -> list[Any]:
    found = []
    for at in range(0, len(messages), size):
        rows = [
            {
                "seq": seq, "time_ns": ns, "subject": subject.decode(errors="replace"),
                "headers_raw": block or None, "subject_raw": None, "data": data,
                "digest": digest(subject, block, data),
            }
            for seq, ns, subject, block, data in messages[at : at + size]
        ]  # fmt: skip
        found.append(pa.RecordBatch.from_pylist(rows))
    return found


def read_back(data: bytes) -> list[stream_archive.ArchiveEntry]:
    frames, reader = s2.Decoder(), stream_archive.ArchiveReader()
    found = [entry for content in frames.feed(data) for entry in reader.feed(content)]
    assert reader.finished
    assert frames.between_chunks
    return found


def test_pieces_are_one_archive() -> None:
    made = [row for batch in restore_rows.blobs(batches(MESSAGES)) for row in batch.to_pylist()]
    assert len(made) > 1
    whole = restore_transfer.head(b'{"last_seq": 700}', 5)
    for row in made:
        whole += row["blob"] + restore_transfer.PADDING
    state, *entries = read_back(whole + restore_transfer.tail())
    assert (state.name, state.seq, state.payload) == (b"state.json", 0, b'{"last_seq": 700}')
    assert [(e.seq, e.ts, e.name, e.headers, e.payload) for e in entries] == MESSAGES
    totals = reduce(RowTotals.plus, [RowTotals(r["rows"], r["bytes"], r["digest"], r["places"]) for r in made])
    assert totals.rows == len(MESSAGES)
    assert totals.bytes == sum(len(s) + len(b) + len(d) for _, _, s, b, d in MESSAGES)
    columns = zip(*[(seq, ns, digest(subject, block, data)) for seq, ns, subject, block, data in MESSAGES], strict=True)
    assert totals.places == xored(places(*(np.array(column, np.int64) for column in columns)))
    assert all(len(row["blob"]) < 2 * restore_rows.BLOB_BYTES for row in made)


def test_entries_are_those_of_the_format() -> None:
    """Column by column, the same bytes as one by one: also for numbers of all lengths."""
    seqs = [1, 127, 128, 16383, 16384, 2**31, 2**62, 2**63 - 1]
    times = [0, 1, -1, 63, -64, 64, 10**18, -(10**18)]
    names = [b"s" * n for n in (1, 127, 128, 300, 1, 1, 1, 1)]
    rows = restore_rows.Checked(seqs, names, [b"", BLOCK] * 4, [b"x" * n for n in (0, 1, 127, 128, 20_000, 0, 5, 6)])
    made = restore_rows.entries(rows, np.array(seqs, np.int64), np.array(times, np.int64))
    expected = [
        stream_archive.encode(name, ts, seq, block, payload)
        for seq, name, block, payload, ts in zip(*rows, times, strict=True)
    ]
    assert made == expected
    numbers = [0, 2**63, 2**64 - 1, *(1 << bit for bit in range(64))]
    assert restore_rows.varints(np.array(numbers, np.uint64)) == [stream_archive.uvarint(one) for one in numbers]


def test_nothing_is_an_archive_too() -> None:
    assert list(restore_rows.blobs([])) == []
    assert len(read_back(restore_transfer.head(b"{}", 1) + restore_transfer.tail())) == 1


@pytest.mark.parametrize("column", ["subject", "headers_raw", "data"])
def test_damage(column: str) -> None:
    (batch,) = batches(MESSAGES[:10])
    values = batch.column(column).to_pylist()
    values[6] = {"subject": "other", "headers_raw": BLOCK + b"x", "data": b"flipped"}[column]
    at = batch.schema.names.index(column)
    damaged = batch.set_column(at, batch.schema.field(at), pa.array(values, batch.schema.field(at).type))
    with pytest.raises(ArchiveDamagedError, match="the archived message 15 is damaged"):
        list(restore_rows.blobs([damaged]))
    with pytest.raises(ArchiveDamagedError):
        list(restore_rows.rows_for_sink([damaged], "S", source_seq=False))


def test_rows_for_the_sink() -> None:
    found = [r for b in restore_rows.rows_for_sink(batches(MESSAGES), "ORD", source_seq=False) for r in b.to_pylist()]
    assert [(r["seq"], r["subject"].encode(), r["headers_raw"] or b"", r["data"]) for r in found] == [
        (seq, subject, block, data) for seq, _, subject, block, data in MESSAGES
    ]
    assert found[0]["msg_id"] == "ORD/3"


def test_a_subject_that_is_no_text_comes_back_or_is_refused() -> None:
    messages = [(3, 5, b"s.\xff", b"", b"x"), (4, 6, b"s.1", b"", b"y")]
    (batch,) = batches(messages)
    at = batch.schema.names.index("subject_raw")
    batch = batch.set_column(at, "subject_raw", pa.array([b"s.\xff", None], pa.binary()))
    (made,) = [row for one in restore_rows.blobs([batch]) for row in one.to_pylist()]
    _, *entries = read_back(restore_transfer.head(b"{}", 5) + made["blob"] + restore_transfer.tail())
    assert [entry.name for entry in entries] == [b"s.\xff", b"s.1"]
    with pytest.raises(SinkError, match=r"message 3 has subject .* no UTF-8: only --mode exact"):
        list(restore_rows.rows_for_sink([batch], "S", source_seq=False))


def test_the_old_sequence_as_a_header() -> None:
    assert restore_rows.with_source_seq(b"", 7) == b"NATS/1.0\r\nJc-Source-Seq: 7\r\n\r\n"
    assert restore_rows.with_source_seq(BLOCK, 7) == b"NATS/1.0\r\nB: 1\r\na:2\r\nJc-Source-Seq: 7\r\n\r\n"
