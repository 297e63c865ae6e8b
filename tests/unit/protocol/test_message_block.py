"""Message blocks of nats-server: a record that one wrote, records in pieces, and what is refused."""

from __future__ import annotations

import pytest

from jetcluster.protocol.message_block import ERASED, MAX_RECORD_BYTES, TOMBSTONE, BlockRecord, RecordReader
from jetcluster.protocol.stream_archive import ArchiveError
from testkit.twins.old_archive import checksum, erased, record, tombstone

HEADERS = b"NATS/1.0\r\nA: b\r\n\r\n"
RECORDS = [
    record(1, 10, b"s.a", b"one"),
    record(2, 11, b"s.b", b"", HEADERS),
    erased(3, 12, 30),
    record(4, -5, b"s", b"x" * 5000, HEADERS),
    tombstone(1, 10),
    record(6, 14, b"s", b""),
]
SIZES = [len(one) for one in RECORDS]
WHOLE = [
    BlockRecord(1, 10, 0, b"s.a", b"", b"one"),
    BlockRecord(2, 11, 0, b"s.b", HEADERS, b""),
    BlockRecord(3 | ERASED, 12, 0),
    BlockRecord(4, -5, 0, b"s", HEADERS, b"x" * 5000),
    BlockRecord(1 | TOMBSTONE, 10, 0),
    BlockRecord(6, 14, 0, b"s", b"", b""),
]
WHOLE = [one._replace(size=size) for one, size in zip(WHOLE, SIZES, strict=True)]


def read(data: bytes, step: int, *, whole: bool = True) -> list[BlockRecord]:
    reader = RecordReader("msgs/1.blk", len(data), whole=whole)
    found = [one for at in range(0, len(data), step) for one in reader.feed(data[at : at + step])]
    reader.end()
    return found


# Of nats-server 2.12.6, in stream S: "hello" on subject s with a header A: b.
REAL = bytes.fromhex(
    "3a000080010000000000000060e35acb2accec18010073120000004e4154532f312e300d0a413a20620d0a0d0a68656c6c6f2dcc16ccffc39b12"
)


def test_a_real_record() -> None:
    (found,) = read(REAL, 10)
    assert found == BlockRecord(1, found.ts, len(REAL), b"s", b"NATS/1.0\r\nA: b\r\n\r\n", b"hello")


@pytest.mark.parametrize("step", [1, 13, 6000])
def test_records_come_in_pieces(step: int) -> None:
    data = b"".join(RECORDS)
    assert read(data, step) == WHOLE
    assert read(data, step, whole=False) == [BlockRecord(one.marked, one.ts, one.size) for one in WHOLE]


def test_the_checksum_of_the_last_record_is_known() -> None:
    reader = RecordReader("msgs/1.blk", 10_000, whole=False)
    assert reader.checksum == bytes(8)
    for one in RECORDS:
        list(reader.feed(one))
        assert reader.checksum == one[-8:] == checksum(one[:-8])


def test_a_block_that_ends_within_a_record_is_refused() -> None:
    data = b"".join(RECORDS)
    whole = {len(b"".join(RECORDS[:count])) for count in range(len(RECORDS) + 1)}
    for size in range(len(data)):
        if size in whole:
            assert len(read(data[:size], 100)) < len(RECORDS)
            continue
        with pytest.raises(ArchiveError, match=r"ends within|damaged"):
            read(data[:size], 100)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"cmp\x01" + bytes(400), "compressed"),
        (b"\x80" * 400, "damaged, or encrypted, at byte 0"),
        (RECORDS[0] + bytes(30), rf"damaged, or encrypted, at byte {len(RECORDS[0])}"),
        ((MAX_RECORD_BYTES + 1).to_bytes(4, "little") + bytes(MAX_RECORD_BYTES), "at byte 0"),
        (record(1, 1, b"s", b"", HEADERS).replace(b"\x12\0\0\0NATS", b"\xff\0\0\0NATS"), "headers longer"),
    ],
)
def test_refused(data: bytes, text: str) -> None:
    with pytest.raises(ArchiveError, match=text):
        read(data, 1 << 20)


def test_a_reader_holds_one_record() -> None:
    reader = RecordReader("msgs/1.blk", 1 << 30, whole=True)
    for one in RECORDS * 20:
        for at in range(0, len(one), 500):
            list(reader.feed(one[at : at + 500]))
            assert reader.held < len(one)
    assert reader.held == 0
