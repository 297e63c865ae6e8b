"""Deleted blocks that are to be freed while space is short."""

from __future__ import annotations

from jetcluster.store import keys
from jetcluster.store.garbage import MAX_RANGES, Garbage
from jetcluster.store.kv import OpenWrites


def deleting(*seqs: int, stream: int = 3) -> OpenWrites:
    writes = OpenWrites()
    writes.delete_each(keys.block(stream, seq) for seq in seqs)
    return writes


def test_one_range_for_each_stream() -> None:
    garbage = Garbage()
    assert garbage.note(deleting(5, 2)) and garbage.note(deleting(9)) and garbage.note(deleting(1, stream=4))
    ranges = OpenWrites()
    ranges.delete_range(keys.block(4, 7), keys.block(4, 8))
    assert garbage.note(ranges)
    assert list(garbage.take().values()) == [
        (keys.block(3, 2), keys.block(3, 9) + b"\0"),
        (keys.block(4, 1), keys.block(4, 8)),
    ]
    assert not garbage


def test_blocks_only() -> None:
    garbage, writes = Garbage(), OpenWrites()
    writes.delete_each([keys.info(3, 1)])
    writes.put(keys.block(3, 1), b"value")
    assert not garbage.note(writes) and not garbage


def test_what_was_not_freed_is_noted_again_with_what_came_meanwhile() -> None:
    garbage = Garbage()
    garbage.note(deleting(5))
    taken = garbage.take()
    garbage.note(deleting(9))
    garbage.put_back(taken)
    assert list(garbage.take().values()) == [(keys.block(3, 5), keys.block(3, 9) + b"\0")]


def test_of_very_many_streams_some() -> None:
    garbage = Garbage()
    for stream in range(MAX_RANGES + 5):
        assert garbage.note(deleting(1, stream=stream))
    assert len(garbage.take()) == MAX_RANGES
