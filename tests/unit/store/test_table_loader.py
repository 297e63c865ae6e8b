"""A start takes the saved subject table while it is right, and never else."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from jetcluster.store import keys
from jetcluster.store.api import DamagedError
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


@pytest.mark.parametrize("lost", [0, 1, 3])
@pytest.mark.parametrize(
    "remove",
    [
        lambda store: store.enforce(max_per_subject=5, touched_subjects=[b"a"]),
        lambda store: store.enforce(max_per_subject=11, touched_subjects=[b"a"]),
        lambda store: store.purge(b"a"), lambda store: store.purge(b"a", 2),
    ],
)  # fmt: skip
def test_lost_postings_are_damage_and_no_other_messages_go(remove: Callable[[BlockStore], object], lost: int) -> None:
    """A replica that has them all would remove others."""
    kv = Kv()
    filled(kv).save_table(ROOM, last=True)
    prefix = keys.posting_prefix(STREAM, b"a")
    kv.delete([key for key, _ in kv.scan(prefix, prefix + b"\xff" * 8)][lost])
    kv.commit()
    store = opened(kv)
    assert kv.postings == 0
    with pytest.raises(DamagedError):
        remove(store)
    assert store.messages == 20 and store.count_of(b"a") == 12


@pytest.mark.parametrize("remove", [lambda store: store.delete_all([497]), lambda store: store.compact(400)])
def test_lost_postings_are_damage_to_other_removals(remove: Callable[[BlockStore], object]) -> None:
    """To that of the last message of a subject, and to a cut in one scan."""
    kv = Kv()
    filled(kv, 100).save_table(ROOM, last=True)
    prefix = keys.posting_prefix(STREAM, b"b")
    kv.delete_range(prefix, prefix + b"\xff" * 8)
    kv.commit()
    store = opened(kv)
    assert kv.postings == 0
    with pytest.raises(DamagedError):
        remove(store)


def test_long_subjects_are_not_compared_within_a_command() -> None:
    """It would hold the loop for a second for each million; the scrub takes such streams first."""
    kv = Kv()
    filled(kv, 100).save_table(ROOM, last=True)
    store = opened(kv)
    assert not store.compared
    store.enforce(max_per_subject=299, touched_subjects=[b"a"])
    assert kv.postings < 10 and store.count_of(b"a") == 299
    store.enforce(max_per_subject=99, touched_subjects=[b"c"])
    assert not store.compared
