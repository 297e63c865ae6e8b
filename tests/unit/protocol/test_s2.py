"""The S2 framing: known checksums, round trips, and blocks as other encoders write them."""

from __future__ import annotations

import random

import pytest

from jetcluster.budget import at_once
from jetcluster.protocol import s2


def slow_crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def test_known_checksums() -> None:
    # RFC 3720, B.4
    assert s2.crc32c(b"123456789") == 0xE3069283
    assert s2.crc32c(bytes(32)) == 0x8A9136AA
    assert s2.crc32c(b"\xff" * 32) == 0x62A8AB43


@pytest.mark.parametrize("size", [0, 1, 255, 256, 257, 511, 512, 1000, 5000])
def test_checksum_is_that_of_the_definition(size: int) -> None:
    data = random.Random(size).randbytes(size)
    assert s2.crc32c(data) == slow_crc32c(data)


@pytest.mark.parametrize("step", [1, 7, 100_000])
def test_round_trip(step: int) -> None:
    data = random.Random(1).randbytes(150_000 if step > 1 else 700)
    stream = s2.STREAM_ID + b"".join(s2.encode(data))
    decoder = s2.Decoder()
    found = b"".join(content for at in range(0, len(stream), step) for content in decoder.feed(stream[at : at + step]))
    assert found == data
    assert decoder.between_chunks


def test_damage_is_noticed() -> None:
    stream = bytearray(s2.STREAM_ID + b"".join(s2.encode(b"hello world")))
    stream[-1] ^= 1
    with pytest.raises(s2.S2Error, match="checksum"):
        list(s2.Decoder().feed(bytes(stream)))


@pytest.mark.parametrize("bad", [b"hello world", b"\xff\x06\x00\x00snappy", b"\x01\x05\x00\x00abcde"])
def test_other_bytes_are_refused(bad: bytes) -> None:
    with pytest.raises(s2.S2Error):
        list(s2.Decoder().feed(bad))


@pytest.mark.parametrize(
    ("block", "content"),
    [
        (b"\x05\x10hello", b"hello"),
        (b"\x0a\x04ab\x11\x02", b"abab" + b"ab" * 3),  # copy of 8 from 2 back: a run
        (b"\x0a\x04ab\x1e\x02\x00", b"ab" * 5),  # the same with a two byte offset
        (b"\x0a\x04ab\x1f\x02\x00\x00\x00", b"ab" * 5),  # and a four byte one
        (b"\x0e\x04ab\x11\x02\x01\x00", b"ab" * 7),  # S2: the same offset again, 4 bytes
        (b"\x18\x04ab\x01\x02\x15\x00\x0a", b"ab" * 12),  # repeat, length 8 + 10
        (b"\x46\xf0\x45" + b"x" * 70, b"x" * 70),
    ],
)
def test_compressed_blocks(block: bytes, content: bytes) -> None:
    assert at_once(s2.decode_block(block)) == content


@pytest.mark.parametrize(
    "block", [b"", b"\x05\x10hell", b"\x04\x10hello", b"\x08\x00a\x11\x05", b"\x08\x01\x00", b"\xff\xff\xff\xff\x7f"]
)
def test_bad_blocks(block: bytes) -> None:
    with pytest.raises(s2.S2Error):
        at_once(s2.decode_block(block))
