from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetcluster.store.batch import Batch
from jetcluster.store.block_store import BlockStore
from jetcluster.stream.apply import due_index
from jetcluster.stream.apply.due_index import MAX_DUE, DueIndex
from testkit.twins.mem_kv import MemKv
from tests.unit.stream.fake_store import NaiveStore

TABLE = 9


def make() -> tuple[NaiveStore, DueIndex]:
    store = NaiveStore()
    return store, DueIndex(store, TABLE)


def test_due_is_what_was_added_in_order_of_time() -> None:
    _, index = make()
    assert index.next_due is None and index.take(10**6, 10) == []
    index.add(50, [3, 4, 9])
    index.add(20, [7])
    index.add(90, [1])
    assert index.next_due == 20 and index.entries == 5
    assert index.due(60, 2) == [(20, 7), (50, 3)]
    assert index.take(19, 10) == []
    assert index.take(60, 10) == [7, 3, 4, 9]
    assert index.next_due == 90 and index.entries == 1
    assert index.take(90, 10) == [1] and index.next_due is None


def test_take_stops_at_the_row_that_reaches_the_limit() -> None:
    _, index = make()
    for due in range(5):
        index.add(due, [10 * due, 10 * due + 1])
    assert index.take(100, 3) == [0, 1, 10, 11]
    assert index.next_due == 2


def test_a_restart_finds_the_same() -> None:
    store, index = make()
    index.add(50, [3, 4])
    index.add(MAX_DUE * 3, [5])
    again = DueIndex(store, TABLE)
    assert (again.next_due, again.entries) == (50, 3)
    assert again.take(60, 9) == [3, 4]
    assert again.next_due == MAX_DUE


def test_single_rows() -> None:
    _, index = make()
    index.add(50, [3])
    index.add(60, [4])
    assert index.has(50, 3) and not index.has(50, 4) and not index.has(51, 3)
    index.remove(50, 3)
    assert not index.has(50, 3) and index.next_due == 60 and index.entries == 1


def test_sweeping_forgets_deleted_messages_a_share_at_a_time() -> None:
    kv = MemKv()
    store = BlockStore(kv, 1, memory=False)
    index = DueIndex(store, TABLE)
    wanted = due_index.SWEEP_SLACK + 1000
    for seq in range(1, wanted + 1):
        store.append(Batch.of([b"k%d" % (seq % 3)], [], [b""]), seq, seq)
        store.enforce(max_per_subject=1, touched_subjects=[b"k%d" % (seq % 3)])
        index.add(10**9 + seq, [seq])
        rows = index.entries
        index.sweep(store.contains)
        assert rows - index.entries <= due_index.SWEEP_ROWS
        index = DueIndex(store, TABLE) if seq % 500 == 0 else index  # where it goes on survives a restart
    assert store.messages == 3
    assert index.entries <= due_index.SWEEP_SLACK + 2 * 3 + due_index.SWEEP_ROWS
    assert set(index.take(2 * 10**9, 10**6)) >= set(range(wanted - 2, wanted + 1))


def test_sweeping_keeps_the_live_ones_of_a_row() -> None:
    store, index = make()
    store.last_seq = 10_000
    for row in range(70):
        index.add(1000 + row, range(100 * row, 100 * row + 90))
    before = index.entries
    index.sweep(lambda seq: seq % 10 == 5)
    assert index.entries < before - 80
    for _ in range(5):
        index.sweep(lambda seq: seq % 10 == 5)
    taken = index.take(10**6, 10**6)
    live = [seq for seq in taken if seq % 10 == 5]
    assert live == [100 * row + k for row in range(70) for k in range(5, 90, 10)]
    assert index.entries == 0


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 5)), max_size=40))
def test_against_a_plain_list(steps: list[tuple[int, int]]) -> None:
    store, index = make()
    model: list[tuple[int, int]] = []
    now, seq = 0, 0
    for delay, count in steps:
        if count:
            seqs = list(range(seq + 1, seq + 1 + count))
            seq += count
            index.add(now + delay, seqs)
            model += [(now + delay, each) for each in seqs]
        else:
            now += delay
            due = sorted(each for each in model if each[0] <= now)
            assert index.take(now, 10**6) == [each for _, each in due]
            model = [each for each in model if each[0] > now]
        assert index.next_due == min((due for due, _ in model), default=None)
        assert index.entries == len(model)
        assert DueIndex(store, TABLE).next_due == index.next_due


class Watched(NaiveStore):
    """Notes where scans begin."""

    def __init__(self) -> None:
        super().__init__()
        self.starts: list[bytes] = []

    def side_scan(self, table: int, start: bytes = b"") -> Any:
        self.starts.append(start)
        return super().side_scan(table, start)


@pytest.mark.parametrize("due", [[7] * 300, list(range(300))], ids=["one time", "one after the other"])
def test_no_scan_begins_in_front_of_what_was_removed(due: list[int]) -> None:
    """Each would pass every row that was removed and not flushed yet: 20,000 schedules of one second took
    turns of half a second."""
    store = Watched()
    index = DueIndex(store, TABLE)
    for number, at in enumerate(due):
        index.add(at, [number])
    for number, at in enumerate(due[:200]):
        store.starts.clear()
        assert index.due(10**6, 1) == [(at, number)]
        index.remove(at, number)
        assert min(store.starts) >= struct.pack(">QQ", at, number)
    store.starts.clear()
    assert index.take(10**6, 50) == list(range(200, 250))
    assert min(store.starts) >= struct.pack(">QQ", due[200], 200)
    index.add(3, [999])  # in front of all
    assert index.next_due == 3 and index.due(3, 1) == [(3, 999)]
    while index.next_due is not None:
        index.take(10**6, 50)
    index.add(5, [1000])
    assert index.due(5, 9) == [(5, 1000)]
