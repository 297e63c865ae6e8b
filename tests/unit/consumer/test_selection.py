from __future__ import annotations

from jetcluster.consumer.selection import FIRST_MESSAGES, Selection
from jetcluster.consumer.turn import SKIP
from jetcluster.store.api import Columns
from jetcluster.stream import commands
from tests.unit.consumer.rooms import Rig


def rig_of(*subjects: bytes, **config: object) -> Rig:
    rig = Rig(**config)  # type: ignore[arg-type]
    rig.publish(*subjects)
    return rig


def taken(selection: Selection, want: int) -> tuple[list[int], list[int]]:
    columns, left = selection.take(want)
    return columns.seqs, list(left)


def test_takes_what_matches_and_counts_what_is_left() -> None:
    selection = rig_of(b"a", b"b", b"a", b"c", b"a", filter_subjects=["a", "c"]).owner.selection
    assert selection.left == 4
    assert taken(selection, 3) == ([1, 3, 4], [3, 2, 1])
    assert not selection.at_end
    assert taken(selection, 3) == ([5], [0])
    assert selection.at_end and selection.left == 0
    assert taken(selection, 3) == ([], [])


def test_new_messages_are_counted_when_they_come() -> None:
    rig = rig_of(b"a", b"b", filter_subject="a")
    selection = rig.owner.selection
    taken(selection, 5)
    rig.publish(b"a", b"b", b"a")
    assert not selection.at_end and selection.left == 2
    assert taken(selection, 1) == ([3], [1])


def test_giving_back() -> None:
    selection = rig_of(*[b"a"] * 5).owner.selection
    columns, _ = selection.take(4)
    selection.give_back(columns, 1)
    assert selection.left == 4
    assert taken(selection, 10) == ([2, 3, 4, 5], [3, 2, 1, 0])
    columns, _ = selection.take(4)
    selection.give_back(columns, 0)
    assert selection.at_end


def test_giving_all_back_at_the_end() -> None:
    selection = rig_of(b"a").owner.selection
    columns, _ = selection.take(4)
    assert selection.at_end
    selection.give_back(columns, 0)
    assert not selection.at_end and taken(selection, 4) == ([1], [0])


def test_removed_messages_are_no_longer_counted() -> None:
    rig = rig_of(*[b"a", b"b"] * 5, filter_subject="a")
    selection = rig.owner.selection
    assert selection.left == 5
    rig.node.apply(commands.encode_delete_msg(rig.node.now, 5))
    rig.node.apply(commands.encode_delete_msg(rig.node.now, 9))
    assert taken(selection, 2) == ([1, 3], [2, 1])
    assert taken(selection, 9) == ([7], [0])


def test_the_last_of_each_subject_and_then_everything() -> None:
    rig = rig_of(b"a", b"b", b"a", b"c", b"b")
    rig.node.create(name="L", deliver_policy="last_per_subject", filter_subject=">")
    selection = Selection(rig.node.state("L"), rig.node.store, rig.time)
    rig.publish(b"a", b"a")
    assert selection.left == 5
    assert taken(selection, 2) == ([3, 4], [4, 3])
    columns, _ = selection.take(2)
    assert columns.seqs == [5, 6]
    selection.give_back(columns, 0)
    assert taken(selection, 9) == ([5, 6, 7], [2, 1, 0])


def test_the_last_of_each_subject_as_far_as_it_is_still_there() -> None:
    rig = rig_of(b"a", b"b", b"c")
    rig.node.create(name="L", deliver_policy="last_per_subject", filter_subject=">")
    selection = Selection(rig.node.state("L"), rig.node.store, rig.time)
    rig.node.apply(commands.encode_delete_msg(rig.node.now, 2))
    found: list[int] = []
    while not selection.at_end:
        found += taken(selection, 1)[0]
    assert found == [1, 3]


def test_batches_follow_the_size_of_messages() -> None:
    rig = Rig()
    rig.publish(*[b"a"] * 200, payload=b"x" * 100_000)
    selection = rig.owner.selection
    first, _ = taken(selection, 1000)
    then, _ = taken(selection, 1000)
    assert len(first) == FIRST_MESSAGES and len(then) == 10


def test_reset_goes_back_to_the_state() -> None:
    selection = rig_of(*[b"a"] * 5).owner.selection
    taken(selection, 3)
    selection.in_flight += 3
    selection.reset()
    assert selection.in_flight == 0 and taken(selection, 2) == ([1, 2], [4, 3])


def test_what_nobody_wants_is_skipped_in_the_log() -> None:
    rig = rig_of(b"a", b"b", b"b", filter_subject="a")
    rig.next(batch=5)
    rig.advance(11)
    assert rig.log[-1] == (SKIP, 3) and rig.state.delivered_sseq == 3
    rig.publish(b"b")
    rig.publish(b"b")
    rig.owner.flush()  # INFO
    rig.settle()
    assert rig.state.delivered_sseq == 5
    rig.publish(b"a")
    assert rig.bus.inboxes[b"in"].seqs == [1, 6]
    assert rig.kinds().count(SKIP) == 2


def test_nothing_is_skipped_that_is_in_flight() -> None:
    rig = rig_of(b"a", b"b", filter_subject="a")
    rig.hold = True
    rig.next(batch=5)
    rig.owner.flush()
    assert SKIP not in [kind for kind, _, _ in rig.ops]
    rig.commit()
    rig.hold = False
    rig.settle()
    rig.owner.flush()
    rig.settle()
    assert rig.state.delivered_sseq == 2


def test_skipping_without_acks() -> None:
    rig = rig_of(b"a", b"b", filter_subject="a", ack_policy="none")
    rig.next(batch=5)
    rig.owner.flush()
    rig.settle()
    assert (rig.state.delivered_cseq, rig.state.delivered_sseq) == (1, 2)
    rig.publish(b"b", b"a")
    rig.owner.flush()
    rig.settle()
    assert (rig.state.delivered_cseq, rig.state.delivered_sseq) == (2, 4)


def test_an_update_of_the_filters() -> None:
    rig = rig_of(b"a", b"b", b"c", filter_subject="a")
    inbox = rig.next(batch=5)
    rig.node.create(filter_subject="c")
    rig.owner.configured()
    rig.settle()
    assert inbox.seqs == [1, 3]


def test_columns_are_parallel() -> None:
    columns, _ = rig_of(b"a", b"b").owner.selection.take(5)
    assert isinstance(columns, Columns) and {len(column) for column in columns} == {2}
