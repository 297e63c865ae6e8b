"""Sets of sequences against Python's own sets."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetcluster.backup.sequences import DamagedBackupError, Sequences

SETS = st.sets(st.integers(1, 60))
FAR = st.sets(st.integers(1, (1 << 63) - 2), max_size=20)


def of(found: set[int]) -> Sequences:
    return Sequences.of(sorted(found))


@given(SETS | FAR)
def test_a_set_comes_back_from_its_packed_form(found: set[int]) -> None:
    packed = of(found)
    assert Sequences.unpacked(packed.packed()) == packed
    assert len(packed) == len(found)
    assert list(packed) == sorted(found)
    assert (packed.first, packed.last) == (min(found, default=0), max(found, default=0))


@given(SETS, SETS, st.integers(0, 61), st.integers(0, 61), st.integers(1, 7))
def test_sets_are_sets(one: set[int], other: set[int], low: int, high: int, most: int) -> None:
    a, b = of(one), of(other)
    assert a.without(b) == of(one - other)
    assert a.common(b) == of(one & other)
    assert a.joined(b) == of(one | other)
    assert a.within(low, high) == of({seq for seq in one if low <= seq <= high})
    assert a.after(low) == of({seq for seq in one if seq > low})
    assert [seq in a for seq in range(62)] == [seq in one for seq in range(62)]
    parts = list(a.slices(most))
    assert [seq for part in parts for seq in part] == sorted(one)
    assert all(len(part) == most for part in parts[:-1]) and all(parts)


@given(st.integers(0, 30), st.integers(0, 60), SETS)
def test_what_is_stored_is_what_is_not_deleted(first: int, last: int, deleted: set[int]) -> None:
    assert Sequences.stored(first, last, list(deleted)) == of(set(range(max(first, 1), last + 1)) - deleted)


@pytest.mark.parametrize(
    "data",
    [
        b"", b"no zlib", zlib.compress(b"\x01"), zlib.compress(b"\x80"), zlib.compress(b"\x00\x01"),
        zlib.compress(b"\xff" * 12), zlib.compress(b"\x01\x01")[:-3],
        zlib.compress(b"\x01" + b"\xff" * 9 + b"\x01"),
    ],
)  # fmt: skip
def test_a_damaged_list_is_told(data: bytes) -> None:
    with pytest.raises(DamagedBackupError):
        Sequences.unpacked(data)
