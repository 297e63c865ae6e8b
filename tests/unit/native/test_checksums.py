"""The compiled checksum is that of zlib: records that one wrote are read by the other."""

from __future__ import annotations

import random
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetcluster import checksum, native

pytestmark = pytest.mark.skipif(native.crc32 is None, reason=f"no compiled loops, or instructions: {native.why_pure}")


@settings(max_examples=1000, deadline=None)
@given(st.binary(max_size=300), st.one_of(st.integers(0, (1 << 32) - 1), st.integers(-5, 1 << 40)))
def test_checksums_are_those_of_zlib(data: bytes, before: int) -> None:
    assert native.crc32 is not None
    assert native.crc32(data, before) == zlib.crc32(data, before)
    assert native.crc32(data) == zlib.crc32(data)


def test_every_length_and_every_place() -> None:
    assert native.crc32 is not None
    rng = random.Random(1)
    data = rng.randbytes(1000) + b"\xff" * 300 + bytes(300)
    for size in [*range(700), 1600]:
        at = rng.randrange(len(data) - size + 1)
        part = memoryview(data)[at : at + size]
        assert native.crc32(part, size) == zlib.crc32(part, size), (at, size)
    large = rng.randbytes((1 << 17) + 77)
    assert native.crc32(bytearray(large), 5) == zlib.crc32(large, 5)


def test_it_is_the_one_in_use() -> None:
    assert checksum.crc32 is native.crc32 is not None
    for wrong in ("text", None, 5):
        with pytest.raises(TypeError):
            native.crc32(wrong)
