from __future__ import annotations

import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetcluster.raft.journal import records
from jetcluster.raft.membership import Config

SEED = records.salt(7, 1234)


def record(body: bytes, index: int = 5) -> bytes:
    return records.record_head(records.ENTRY, 1, 3, 9, index, 2, body, SEED) + body


def batch(*parts: bytes) -> bytes:
    body = b"".join(parts)
    return records.batch_head(4, 3, len(body), len(parts), SEED) + body


@given(st.binary(max_size=300))
def test_records_come_back(body: bytes) -> None:
    data = record(body)
    found = records.read_record(data, 0, len(data), SEED)
    assert found is not None
    assert (found.kind, found.entry_type, found.gid, found.gseq) == (records.ENTRY, 1, 3, 9)
    assert (found.log_index, found.term, found.body) == (5, 2, body)
    assert data[found.offset :] == body


@given(st.binary(min_size=1, max_size=60), st.integers(0, 10_000), st.integers(1, 255))
def test_any_changed_byte_invalidates_a_record_and_its_batch(body: bytes, at: int, flip: int) -> None:
    data = bytearray(batch(record(b"first"), record(body)))
    data[at % len(data)] ^= flip
    found = records.read_batch(bytes(data), 0, SEED)
    assert found is None or found.records is None


def test_another_segment_validates_nothing() -> None:
    data = batch(record(b"x"))
    assert records.read_batch(data, 0, SEED) is not None
    assert records.read_batch(data, 0, records.salt(8, 1234)) is None
    assert records.read_batch(data, 0, records.salt(7, 1235)) is None


def test_salvage_finds_what_is_left() -> None:
    parts = [record(b"%d" % i * 20, index=i) for i in range(6)]
    data = bytearray(b"".join(parts))
    data[len(parts[0]) + 50] ^= 1
    data[len(parts[0]) * 4 + 5] ^= 1
    found = records.salvage(bytes(data), 0, len(data), SEED)
    assert [r.log_index for r in found] == [0, 2, 3, 5]


def test_a_batch_that_ends_beyond_the_segment_is_not_whole() -> None:
    data = batch(record(b"x" * 100))
    found = records.read_batch(data[:-1], 0, SEED)
    assert found is not None
    assert found.records is None


def test_find_batch_skips_lookalikes() -> None:
    lookalike = b"JCWL" + bytes(40)
    data = lookalike + batch(record(b"x"))
    assert records.find_batch(data, 0, SEED) == len(lookalike)
    assert records.find_batch(lookalike, 0, SEED) == -1


def test_segment_heads() -> None:
    head = records.segment_head(7, 1234, 4096)
    assert len(head) == records.SEGMENT_HEAD_BYTES
    assert records.read_segment_head(head, 7) == (1234, 4096, b"")
    assert records.read_segment_head(head, 8) is None
    assert records.read_segment_head(b"\xff" * 64 + head[64:], 7) == (1234, 4096, b"")
    assert records.read_segment_head(bytes(128), 7) is None
    assert records.read_segment_head(b"", 7) is None


def test_a_segment_of_another_version_is_refused_and_damage_is_not_taken_for_one() -> None:
    crc = zlib.crc32(struct.pack("<IQQ", 2, 7, 1234))
    old = struct.pack("<8sIIQQ", b"jcwal\x00\x00\x01", crc, 2, 7, 1234).ljust(64, b"\0") * 2
    assert records.read_segment_head(old, 7) is None
    with pytest.raises(records.FormatError, match=r"format 2, .* reads format 4"):
        records.check_format(old, 7)
    records.check_format(old, 8)
    own = records.segment_head(7, 1234, 1 << 20)
    for damaged in (bytes(128), old[:64] + own[64:], old[:100], bytes([own[0] ^ 1]) + own[1:], own):
        records.check_format(damaged, 7)


def test_states_come_back() -> None:
    for vote in (None, "peer-ü"):
        state = records.State(9, 2, 3, 8, 77, records.DURABLE_FLAG, vote, Config(("A",), ("B",)))
        assert records.decode_state(records.encode_state(state)) == state


def test_is_zero() -> None:
    assert records.is_zero(bytes(200_000), 5)
    assert not records.is_zero(bytes(199_999) + b"\1", 5)
    assert records.is_zero(b"", 0)
