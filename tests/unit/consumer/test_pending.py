from __future__ import annotations

import pytest

from jetcluster.consumer.state.pending import PAGE_BITS, Pending, PendingSet, cid_and_page


class Rows(dict[bytes, bytes]):
    def write(self, pending: PendingSet) -> int:
        """Writes the changes of `pending`; returns how many rows were written or deleted."""
        touched: list[bytes] = []

        def put(key: bytes, value: bytes) -> None:
            touched.append(key)
            self[key] = value

        def delete(key: bytes) -> None:
            touched.append(key)
            self.pop(key, None)

        pending.write(9, put, delete)
        return len(touched)

    def load(self) -> PendingSet:
        pending = PendingSet()
        for key in sorted(self):
            pending.load(key, self[key])
        return pending


def filled(count: int, step: int = 1) -> PendingSet:
    pending = PendingSet()
    pending.add([step * k for k in range(1, count + 1)], 1, 1000)
    return pending


def test_entries_keep_the_order_and_number_of_their_first_delivery() -> None:
    pending = filled(3, step=10)
    pending.add([35, 80], 7, 2000)
    assert pending.entries == {
        10: Pending(1, 1000, 1),
        20: Pending(2, 1000, 1),
        30: Pending(3, 1000, 1),
        35: Pending(7, 2000, 1),
        80: Pending(8, 2000, 1),
    }
    assert list(pending.entries) == [10, 20, 30, 35, 80]
    assert isinstance(pending.entries[10], Pending) and pending.entries[10].due == 1000


def test_take_gives_those_that_were_pending() -> None:
    pending = filled(4)
    assert pending.take([3, 1]) == ([3, 1], [Pending(3, 1000, 1), Pending(1, 1000, 1)])
    assert pending.take([3, 2, 2, 77]) == ([2], [Pending(2, 1000, 1)])
    assert list(pending.entries) == [4]
    assert pending.take([]) == ([], [])


def test_take_up_to() -> None:
    pending = filled(5, step=10)
    pending.take([20])
    assert pending.take_up_to(35)[0] == [10, 30]
    assert pending.take_up_to(35)[0] == []
    assert pending.lowest() == 40


def test_lowest_skips_what_is_gone() -> None:
    pending = filled(1000)
    assert pending.lowest() == 1
    pending.take(range(1, 900))
    assert pending.lowest() == 900
    pending.take(range(900, 1001))
    assert pending.lowest() == 0 and len(pending) == 0


def test_one_entry_that_stays_does_not_let_the_order_grow_for_ever() -> None:
    pending = filled(1)
    for cseq in range(2, 20_000):
        pending.add([cseq], cseq, 0)
        pending.take([cseq])
    assert len(pending.order) < 3000
    assert pending.lowest() == 1 and len(pending) == 1


@pytest.mark.parametrize("held", [True, False])
def test_one_that_stays_does_not_let_the_order_grow_for_ever_with_order_per_key(held: bool) -> None:
    pending = filled(1)
    for number in range(1, 2000):
        seqs = range(10 * number, 10 * number + 10)
        pending.add_some([] if held else seqs, seqs if held else [], 10 * number, 0)
        if held:
            pending.release(seqs, 10 * number, 0)
        pending.take(seqs)
    assert len(pending.order) < 3000
    assert pending.lowest() == 1 and len(pending) == 1 and pending.held == 0


def test_a_release_shortens_the_order_too() -> None:
    pending = filled(1)
    pending.add_some([], range(2, 4000), 2, 0)
    pending.take(range(3, 4000))
    pending.release([2], 2, 0)
    assert list(pending.order) == [1, 2] and pending.lowest() == 1


def test_redelivered_counts_entries_not_deliveries() -> None:
    pending = filled(4)
    assert pending.change(2, 5000, 2) == Pending(2, 5000, 2)
    pending.change(2, 6000, 3)
    pending.change(3, 6000, 1)  # a NAK: the count stays
    assert pending.redelivered == 1
    pending.change(4, 0, 2)
    pending.take([2])
    assert pending.redelivered == 1
    pending.take_up_to(4)
    assert pending.redelivered == 0


def test_rows_bring_it_all_back() -> None:
    rows = Rows()
    pending = filled(700, step=3)
    pending.take(range(3, 900, 6))
    pending.change(1200, 77, 5)
    rows.write(pending)
    loaded = rows.load()
    assert loaded.entries == pending.entries and list(loaded.entries) == list(pending.entries)
    assert loaded.redelivered == 1 and loaded.lowest() == pending.lowest() == 6
    loaded.take_up_to(2100)
    rows.write(loaded)
    assert not rows


def test_only_pages_that_changed_are_written() -> None:
    page = 1 << PAGE_BITS
    rows = Rows()
    pending = filled(4 * page)
    assert rows.write(pending) == 5  # the first lacks number 0, which is the only one in the last
    assert rows.write(pending) == 0
    pending.take([page + 44])
    pending.change(page + 45, 1, 2)
    assert rows.write(pending) == 1
    pending.take(range(1, page))
    assert rows.write(pending) == 1
    assert [cid_and_page(key) for key in sorted(rows)] == [(9, 1), (9, 2), (9, 3), (9, 4)]


def test_pages_are_dense_whatever_the_filter_leaves_out() -> None:
    rows = Rows()
    assert rows.write(filled(1 << PAGE_BITS, step=100_000)) == 2


def test_clear_removes_the_rows_and_leaves_the_old_entries_to_who_reads_them() -> None:
    rows = Rows()
    pending = filled(600)
    rows.write(pending)
    old = pending.entries
    pending.clear()
    assert len(old) == 600 and len(pending) == 0 and pending.lowest() == 0
    pending.add([5], 1, 0)
    rows.write(pending)
    assert rows.load().entries == {5: Pending(1, 0, 1)}


def test_remove_deletes_rows_that_were_written_and_those_that_were_not() -> None:
    rows = Rows()
    pending = filled(600)
    rows.write(pending)
    pending.take(range(1, 256))
    deleted: list[bytes] = []
    pending.remove(9, deleted.append)
    assert set(rows) <= set(deleted)


@pytest.mark.parametrize("size", [0, 27, 29])
def test_a_damaged_row_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match="a page of pending messages"):
        PendingSet().load(bytes(12), bytes(size))
