"""Cached matches of wildcards: bounded, and right after any change (random histories are in test_block_store.py)."""

from __future__ import annotations

import pytest

from jetcluster.store.batch import Batch
from jetcluster.store.block_store import BlockStore
from jetcluster.store.search import matches, queries
from jetcluster.store.search.matches import KeptMatches, Matches
from testkit.twins.mem_kv import MemKv
from testkit.twins.memory import held


def test_the_least_recently_used_filter_of_the_node_goes_first() -> None:
    kept = KeptMatches(max_kept=10)
    empty = held(kept)
    one, other = Matches(kept), Matches(kept)
    one.keep(b"a", range(1, 5), 5)
    other.keep(b"b", range(1, 5), 5)
    assert one.get(b"a", 1) is not None
    one.keep(b"c", range(1, 5), 5)
    assert other.get(b"b", 1) is None
    assert one.get(b"a", 1) is not None and one.get(b"c", 1) is not None
    one.keep(b"too many", range(1, 12), 12)
    assert one.get(b"too many", 1) is None
    one.keep(b"a", range(1, 3), 3)
    one.clear()
    assert held(kept) == empty
    other.keep(b"d", range(10), 10)
    assert other.get(b"d", 0) is not None, "there is room for all of them again"


@pytest.mark.parametrize("few", [0, 8])
def test_removed_sequences_are_taken_out_when_the_filter_is_asked_for(
    few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matches, "MAX_SINGLE_REMOVALS", few)
    mine = Matches(KeptMatches())
    mine.removed([1])
    mine.keep(b"a", [2, 4, 6, 8], 9)
    mine.removed([3, 4])
    mine.keep(b"b", [5, 6], 9)
    mine.removed([6])
    for _ in range(2):
        a, b = mine.get(b"a", 1), mine.get(b"b", 1)
        assert a is not None and b is not None
        assert (a.seqs.tolist(), b.seqs.tolist()) == ([2, 8], [5])


def test_what_lies_below_the_stream_goes_some_time() -> None:
    mine = Matches(KeptMatches())
    mine.keep(b"a", range(100), 100)
    found = mine.get(b"a", 60)
    assert found is not None and found.seqs.tolist() == list(range(60, 100))


def test_notes_of_removals_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matches, "MAX_NOTED_REMOVALS", 10)
    mine = Matches(KeptMatches())
    mine.keep(b"idle", range(100), 100)
    mine.keep(b"busy", range(100), 100)
    for seq in range(50):
        mine.removed([seq])
        busy = mine.get(b"busy", 0)
        assert busy is not None and busy.seqs[0] == seq + 1
        assert held(mine) < 200
    assert mine.get(b"idle", 0) is None
    mine.clear()
    empty = held(mine)
    mine.removed([1, 2, 3])
    assert held(mine) == empty


def store() -> BlockStore:
    """100 blocks of 10 messages; one in five matches `*.0`."""
    found = BlockStore(MemKv(), 1, memory=False)
    for first in range(1, 1001, 10):
        found.append(Batch.of([b"%d.%d" % (i, i % 5) for i in range(10)], [], [b""] * 10), first, first)
    return found


def test_a_wildcard_that_is_asked_for_again_reads_no_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    filled = store()
    expected = [filled.queries.count(b"*.0", 501), filled.view(b"*.0", 501).take(100, 1 << 20).seqs]
    read: list[int] = []
    real = queries.BlockReader.batch
    monkeypatch.setattr(queries.BlockReader, "batch", lambda self, at: (read.append(at), real(self, at))[1])
    assert filled.queries.count(b"*.0", 501) == expected[0] == 100
    assert filled.queries.count(b"*.0", 801) == 40
    assert not read
    assert filled.view(b"*.0", 501).take(100, 1 << 20).seqs == expected[1]
    assert not read, "only for the messages themselves"
    filled.append(Batch.of([b"0.0", b"x"], [], [b""] * 2), 1001, 1001)
    assert filled.queries.count(b"*.0", 501) == 101
    assert len(read) == 1


def test_a_reader_at_the_end_of_a_stream_does_not_have_all_of_it_collected() -> None:
    filled = store()
    for _ in range(4):
        assert filled.queries.count(b"*.0", 901) == 20
        assert filled._matches.get(b"*.0", 1) is None
    assert filled.queries.count(b"*.0", 901) == 20  # by now it has read half of it
    assert filled._matches.get(b"*.0", 1) is not None
