from __future__ import annotations

import pytest

from jetcluster.pipeline.tables.varints import varint


@pytest.mark.parametrize(
    ("data", "number"), [(b"\x00", 0), (b"\x7f", 127), (b"\x80\x01", 128), (b"\xff" * 9 + b"\x01", (1 << 64) - 1)]
)
def test_a_number_and_the_place_behind_it(data: bytes, number: int) -> None:
    assert varint(b"x" + data + b"y", 1) == (number, 1 + len(data))


@pytest.mark.parametrize("data", [b"", b"\x80", b"\xff" * 10 + b"\x01"])
def test_a_number_that_does_not_end(data: bytes) -> None:
    with pytest.raises(IndexError):
        varint(data, 0)
