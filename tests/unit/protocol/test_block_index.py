"""Indexes of nats-server's message blocks, of all its ages, in pieces; bounds, and those that cannot be read."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from jetcluster.protocol import block_index
from jetcluster.protocol.block_index import IndexReader, OneIndexReader, SequenceSet, UnreadableIndexError
from jetcluster.protocol.stream_archive import ArchiveError
from testkit.twins import old_archive

LAST = b"12345678"
BLOCKS = [(1, 5, 900, (7, 8, 500)), (2, 901, 5000, ()), (4, 5001, 9000, tuple(range(5100, 8000, 3)))]
SUBJECTS = {b"s.a": 1, b"s.b" * 90: 2, b"": 3, b"s.c": 1 << 40}


def fed(reader: IndexReader, data: bytes, step: int) -> IndexReader:
    for at in range(0, len(data), step):
        for _ in reader.feed(data[at : at + step]):
            pass
    return reader


@pytest.mark.parametrize("version", [1, 2, 3, 4])
@pytest.mark.parametrize("step", [1, 100, 1 << 20])
def test_an_index_is_read_in_pieces(version: int, step: int) -> None:
    subjects = {name: count for name, count in SUBJECTS.items() if name}
    reader = fed(IndexReader(), old_archive.index(BLOCKS, 9100, 4, LAST, subjects, version), step)
    assert reader.read
    assert (reader.last_seq, reader.last_block, reader.checksum) == (9100, 4, LAST)
    assert sorted(reader.blocks) == [1, 2, 4]
    for number, first, last, deleted in BLOCKS:
        kept = [seq for seq in range(first - 5, last + 5) if reader.blocks[number].keeps(seq)]
        assert kept == [seq for seq in range(first, last + 1) if seq not in deleted]


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("step", [1, 1 << 20])
def test_the_index_of_one_block_is_read(version: int, step: int) -> None:
    deleted = (12, 13, 4000, 9999)
    reader = fed(OneIndexReader(3), old_archive.block_index(10, 10_000, deleted, LAST, version), step)
    assert reader.read
    found = reader.blocks[3]
    assert (found.first, found.last, found.checksum) == (10, 10_000, LAST)
    assert [seq for seq in range(1, 10_005) if not found.keeps(seq)] == [
        *range(1, 10),
        *deleted,
        *range(10_001, 10_005),
    ]


def test_a_set_of_the_older_form_is_the_same() -> None:
    seqs = {3, 2047, 2048, 4095, 4096, 100_000}
    data = old_archive.index([(1, 1, 200_000, tuple(seqs))], 200_000, 1, LAST)
    older = data.replace(old_archive.sequence_set(seqs), old_archive.sequence_set(seqs, 1))
    assert older != data
    for one in (data, older):
        found = fed(IndexReader(), one, 1000).blocks[1].deleted
        assert {seq for seq in range(1, 200_000) if seq in found} == seqs


def test_a_cut_index_is_not_read() -> None:
    data = old_archive.index(BLOCKS, 9100, 4, LAST, SUBJECTS and {b"s": 1})
    for end in range(len(data) - 8):
        assert not fed(IndexReader(), data[:end], 50).read


@pytest.mark.parametrize(
    "data",
    [
        b"\x0b\x05" + bytes(100),
        b"\x0c\x01" + bytes(100),
        b"\x0b\x01" + b"\xff" * 20,
        b"\x0b\x01\0\0\0\0" + b"\xff" * 8 + b"\xff\x01",
        old_archive.index(BLOCKS, 9100, 4, LAST).replace(b"\x16\x02", b"\x16\x03"),
        old_archive.index([(1, 1, 9, (5,))], 9, 1, LAST).replace(bytes(8) + b"\x20", b"\x01" + bytes(7) + b"\x20"),
    ],
)
def test_unreadable(data: bytes) -> None:
    with pytest.raises(UnreadableIndexError):
        fed(IndexReader(), data, 40)


def test_random_bytes_raise_nothing_else() -> None:
    rng = random.Random(1)
    base = old_archive.index(BLOCKS, 9100, 4, LAST, {b"s.a": 1, b"s.b": 2})
    one = old_archive.block_index(10, 10_000, (12, 13), LAST)
    seen: set[object] = set()
    for _ in range(3000):
        data = bytearray(rng.choice([base, one]))
        for _ in range(rng.randint(1, 3)):
            data[rng.randrange(min(len(data), 80))] = rng.randrange(256)
        try:
            seen.add(fed(IndexReader() if data[0] == 11 else OneIndexReader(1), bytes(data), 64).read)
        except ArchiveError as error:
            seen.add(type(error))
    assert {True, False, UnreadableIndexError} <= seen


def test_what_is_held_has_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_index, "MAX_PAGES", 10)
    monkeypatch.setattr(block_index, "MAX_BLOCKS", 10)
    apart = tuple(range(0, 2048 * 11, 2048))
    for data in (
        old_archive.index([(1, 1, 1 << 40, apart)], 9, 1, LAST),
        old_archive.index([(n, 1, 1 << 40, apart[:2]) for n in range(6)], 9, 1, LAST),
        old_archive.index([(n, 1, 9, ()) for n in range(11)], 9, 1, LAST),
    ):
        with pytest.raises(ArchiveError, match="too many"):
            fed(IndexReader(), data, 1000)
    with pytest.raises(ArchiveError, match="too many"):
        fed(OneIndexReader(1), old_archive.block_index(0, 1 << 40, apart, LAST), 1000)
    gone = SequenceSet()
    for seq in range(10 * 2048):
        gone.add(seq)
    with pytest.raises(ArchiveError, match="too many"):
        gone.add(10 * 2048)


def test_a_long_index_is_read_in_steps() -> None:
    subjects = {b"subject.%d" % number: number % 3 + 1 for number in range(20_000)}
    data = old_archive.index([(n, n * 10 + 1, n * 10 + 9, ()) for n in range(1, 3000)], 1 << 30, 2999, LAST, subjects)
    reader = IndexReader()
    steps = sum(1 for _ in reader.feed(data))
    assert reader.read and steps > 3000
    assert reader.held > 3000 * 100
    held = reader.held
    for _ in range(10):
        assert not list(reader.feed(bytes(1 << 20)))
    assert reader.held == held, "of bytes behind the index nothing is kept"
    assert all(low < high for low, high in pairwise(sorted(reader.blocks)))
