"""The side of a transfer that is in memory: what is put, replaced and deleted, and that a view stays as it was."""

from __future__ import annotations

from jetcluster.store.mem_records import MemRecords, MemSnapshot


def test_a_scan_gives_the_pairs_of_the_range_in_order() -> None:
    snapshot = MemSnapshot([(b"a", b"1"), (b"b", b"2"), (b"c", b"3"), (b"d", b"4")])
    assert list(snapshot.scan(b"b", b"d")) == [(b"b", b"2"), (b"c", b"3")]
    assert list(snapshot.scan(b"aa", b"\xff")) == [(b"b", b"2"), (b"c", b"3"), (b"d", b"4")]
    assert list(snapshot.scan(b"e", b"\xff")) == []


def test_a_snapshot_does_not_see_what_is_written_later() -> None:
    records = MemRecords()
    for key in (b"c", b"a", b"b"):
        records.put(key, key)
    before = records.snapshot()
    records.delete_range(b"a", b"c")
    records.put(b"d", b"new")
    assert list(before.scan(b"", b"\xff")) == [(b"a", b"a"), (b"b", b"b"), (b"c", b"c")]
    assert list(records.snapshot().scan(b"", b"\xff")) == [(b"c", b"c"), (b"d", b"new")]


def test_deleting_what_is_not_there_is_no_error() -> None:
    records = MemRecords()
    records.put(b"a", b"1")
    records.delete_each([b"x", b"a"])
    assert list(records.snapshot().scan(b"", b"\xff")) == []
