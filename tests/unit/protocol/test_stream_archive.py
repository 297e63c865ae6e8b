"""Archives of format V2: bytes as nats-server 2.15.2 wrote them, round trips, and what is refused."""

from __future__ import annotations

import pytest

from jetcluster.protocol import stream_archive
from jetcluster.protocol.stream_archive import ArchiveEntry, ArchiveError, ArchiveReader

# The first message of an archive of nats-server 2.15.2 (uncompressed): subject sn.1, sequence 1, header X-A: 1.
REAL = bytes.fromhex(
    "04e8d7d7d8bda587ea3101141f736e2e314e4154532f312e300d0a582d413a20310d0a0d0a68656c6c6f2068656c6c6f2068656c6c6f20"
    "68656c6c6f2068656c6c6f2031"
)
ENTRY = ArchiveEntry(b"sn.1", 1795263438558787060, 1, b"NATS/1.0\r\nX-A: 1\r\n\r\n", b"hello hello hello hello hello 1")


def test_a_real_entry() -> None:
    assert stream_archive.encode(*ENTRY) == REAL
    assert list(ArchiveReader().feed(stream_archive.MAGIC + REAL)) == [ENTRY]


@pytest.mark.parametrize("step", [1, 5, 1000])
def test_round_trip_in_pieces(step: int) -> None:
    entries = [
        ArchiveEntry(stream_archive.STATE_NAME, 5, 0, b"", b"{}"),
        ArchiveEntry(b"a.b", -3, 7, b"", b""),
        ArchiveEntry(b"a", 1 << 62, 1 << 40, b"NATS/1.0\r\n\r\n", b"x" * 300),
        ArchiveEntry(b"a", (1 << 63) - 1, (1 << 63) - 1, b"", b""),
        ArchiveEntry(b"a", -(1 << 63), (1 << 63) - 1, b"", b""),
    ]
    raw = stream_archive.MAGIC + b"".join(stream_archive.encode(*entry) for entry in entries) + stream_archive.END
    reader = ArchiveReader()
    found = [entry for at in range(0, len(raw), step) for entry in reader.feed(raw[at : at + step])]
    assert found == entries
    assert reader.finished


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"meta.inf" + bytes(504), "tar archive"),
        (b"something else", "unknown archive format"),
        (stream_archive.MAGIC + b"\xff" * 12, "number too long"),
        (stream_archive.MAGIC + b"\x00\x02\x01\x00\x00", "out of bounds"),
        (stream_archive.MAGIC + stream_archive.encode(b"a", 1 << 68, 1, b"", b""), "out of bounds"),
        (stream_archive.MAGIC + stream_archive.encode(b"a", -(1 << 68), 1, b"", b""), "out of bounds"),
        (stream_archive.MAGIC + stream_archive.encode(b"a", 1 << 63, 1, b"", b""), "out of bounds"),
        (stream_archive.MAGIC + stream_archive.encode(b"a", 1, 1 << 63, b"", b""), "out of bounds"),
        (stream_archive.MAGIC + stream_archive.END + b"more", "behind the end"),
    ],
)
def test_refused(raw: bytes, text: str) -> None:
    with pytest.raises(ArchiveError, match=text):
        list(ArchiveReader().feed(raw))


def test_an_unfinished_archive_is_not_finished() -> None:
    reader = ArchiveReader()
    assert list(reader.feed(stream_archive.MAGIC + REAL[:-1])) == []
    assert not reader.finished
