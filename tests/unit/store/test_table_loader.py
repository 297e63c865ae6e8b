"""A start takes the saved subject table while it is right, and never else."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from jetcluster.store import keys
from jetcluster.store.batch import Batch
from jetcluster.store.block_store import BlockStore
from tests.unit.store.test_saved_table import KEY, ROOM, STREAM, SUBJECTS, Kv, filled, grow, opened, rebuilt, table
from tests.unit.store.test_saved_table import saves_small_streams as saves_small_streams


def test_a_start_reads_no_posting() -> None:
    kv = Kv()
    store = filled(kv)
    assert store.save_table(ROOM, last=True) == len(kv.get(KEY) or b"") > 0
    kv.commit()
    assert table(opened(kv)) == table(store) and kv.postings == 0
    assert rebuilt(kv) == table(store) and kv.postings > 0


def test_newer_messages_come_from_their_blocks() -> None:
    kv = Kv()
    store = filled(kv)
    store.save_table(ROOM, last=True)
    store.append(Batch.of([b"d", b"a"], [], [b"", b""]), store.last_seq + 3, 1000)
    grow(store)
    store.delete_all([store.last_seq])  # an "a"
    kv.commit()
    again = opened(kv)
    assert table(again) == table(store) and kv.postings == 0
    assert again.save_table(ROOM) == 0, "six newer messages are less than twice the four subjects"
    grow(again)
    assert again.save_table(ROOM) > 0 and again.save_table(ROOM) == 0


@pytest.mark.parametrize(
    "remove",
    [
        lambda store: store.delete_all([7]), lambda store: store.compact(4), lambda store: store.compact(11),
        lambda store: store.purge(b"c"), lambda store: store.purge(), lambda store: store.enforce(max_msgs=9),
        lambda store: store.enforce(max_per_subject=1, touched_subjects=SUBJECTS),
    ],
)  # fmt: skip
def test_an_outdated_table_is_not_used(remove: Callable[[BlockStore], object]) -> None:
    kv = Kv()
    store = filled(kv)
    store.save_table(ROOM, last=True)
    remove(store)
    grow(store)
    kv.commit()
    assert kv.get(KEY) is not None
    again = opened(kv)
    assert table(again) == table(store) and kv.postings > 0
    again.save_table(ROOM, last=True)
    kv.commit()
    kv.postings = 0
    assert table(opened(kv)) == table(store) and kv.postings == 0


def test_a_damaged_block_after_it_leaves_the_postings() -> None:
    kv = Kv()
    store = filled(kv)
    store.save_table(ROOM, last=True)
    grow(store)
    kv.put(keys.block(STREAM, 21), b"damaged")
    kv.commit()
    assert table(opened(kv)) == table(store) and kv.postings > 0
