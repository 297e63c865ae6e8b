from __future__ import annotations

import re
from pathlib import Path

import pytest

from jetcluster.consumer.state import state as state_module
from jetcluster.consumer.state.rules import ConsumerRules
from jetcluster.consumer.state.state import MIN_WAITING_PULLS, ConsumerState, KeyRows, StateView
from tests.unit.consumer.replica_rig import consumer


def state(start: int = 1, **config: object) -> ConsumerState:
    return ConsumerState(3, ConsumerRules("C", consumer("C", **config)), 77, "peer", start - 1)


def delivered(count: int) -> ConsumerState:
    made = state()
    made.unacked.add(range(1, count + 1), 1, 0)
    made.delivered_cseq = made.delivered_sseq = count
    return made


def floors(made: ConsumerState) -> tuple[int, int]:
    return made.floor_cseq, made.floor_sseq


def test_the_floor_follows_the_lowest_entry() -> None:
    made = delivered(4)
    made.unacked.take([2])
    made.settle_floor()
    assert floors(made) == (0, 0)
    made.unacked.take([1])
    made.settle_floor()
    assert floors(made) == (2, 2)
    made.unacked.take([3, 4])
    made.settle_floor()
    assert floors(made) == (4, 4)


def test_the_floor_takes_numbers_of_redeliveries_in_its_stride() -> None:
    """Seen on nats-server: 1 is delivered again as number 4, then 4 as number 5; when 1, 2 and 3 are acked the floor is
    (4, 3)."""
    made = delivered(3)
    made.delivered_cseq = 4
    made.unacked.add([4], 5, 0)
    made.delivered_cseq, made.delivered_sseq = 5, 4
    made.unacked.take([1, 2])
    made.settle_floor()
    assert floors(made) == (2, 2)
    made.unacked.take([3])
    made.settle_floor()
    assert floors(made) == (4, 3)


def test_trim() -> None:
    made = delivered(6)
    made.unacked.change(2, 0, 2)
    made.unacked.change(6, 0, 2)
    assert not made.trim(1)
    assert made.trim(3) and not made.trim(3)
    assert made.view() == StateView(6, 6, 2, 2, 4, 1)
    assert made.trim(9)
    assert made.view() == StateView(6, 6, 6, 6, 0, 0)


def test_a_purge_shows_as_delivered_and_acked() -> None:
    """nats-server: 10 messages, 4 delivered, 2 acked; after a purge the floors are (4, 10)."""
    made = delivered(4)
    made.unacked.take([2])
    assert made.purge(11) and not made.purge(11)
    made.trim(11)
    assert made.view() == StateView(4, 10, 4, 10, 0, 0)
    assert made.delivered_sseq == 4  # what was decided before the purge may be in flight


def test_a_purge_does_not_touch_a_consumer_that_begins_later() -> None:
    made = state(start=100)
    assert not made.purge(11)
    assert made.view() == StateView(0, 99, 0, 99, 0, 0)


def test_restart_is_as_if_created_there() -> None:
    made = delivered(4)
    made.exhausted.add(2)
    made.purge(9)
    made.restart(3)
    assert made.view() == StateView(0, 2, 0, 2, 0, 0)
    assert (made.delivered_cseq, made.delivered_sseq, *floors(made)) == (0, 2, 0, 2)
    assert not made.pending and not made.exhausted.keys and made.epoch == 2


def test_waiting_pulls_are_bounded() -> None:
    made = state(max_waiting=3)
    replies = [b"r%d" % number for number in range(MIN_WAITING_PULLS)]
    assert all(map(made.wait, replies))
    assert not made.wait(b"one more")
    assert made.waits.discard(replies[0]) and made.wait(b"one more")
    assert len(made.waiting) == MIN_WAITING_PULLS


def test_pins() -> None:
    made = state(priority_policy="pinned_client", priority_groups=["g", "h"])
    assert made.pin(b"g", b"id", 5) == 1 and made.pins == {b"g": (b"id", 5)}
    assert made.pin(b"unknown", b"id", 5) == 0
    assert made.pin(b"g", b"", 6) == 1 and not made.pins
    assert made.pin(b"g", b"", 6) == 0
    made.pin(b"h", b"id", 7)
    made.set_rules(ConsumerRules("C", consumer("C", priority_groups=["g"])))
    assert not made.pins  # the group is gone


def test_wants() -> None:
    made = delivered(4)
    made.unacked.take([2])
    made.exhausted.add(2)
    made.unacked.take([1])
    assert [seq for seq in range(1, 7) if made.wants(seq)] == [2, 3, 4, 5, 6]
    assert made.lowest_wanted() == 2


def test_a_row_brings_everything_back() -> None:
    made = state(priority_groups=["gröup"], description="ü")
    made.epoch, made.delivered_cseq, made.delivered_sseq, made.delivered_at = 4, 10, 2**64 - 2, 12
    made.floor_cseq, made.floor_sseq, made.acked_at, made.last_per_subject_upto = 5, 6, 7, 8
    made.purged_sseq = 9
    made.request = "R"
    made.pin("gröup".encode(), b"\xffid", 99)
    again = ConsumerState.from_row(made.row())
    assert again.row() == made.row()
    for name in ("cid", "epoch", "created", "owner", "delivered_cseq", "delivered_sseq", "delivered_at", "floor_cseq",
                 "floor_sseq", "acked_at", "last_per_subject_upto", "purged_sseq", "request", "pins"):  # fmt: skip
        assert getattr(again, name) == getattr(made, name), name
    assert again.rules.config == made.rules.config


def test_a_row_is_not_stale_after_changes() -> None:
    made = state(priority_groups=["g"])
    changes = [
        lambda: made.moved("other"),
        lambda: made.pin(b"g", b"id", 1),
        lambda: made.set_rules(ConsumerRules("C", consumer("C", description="x"))),
    ]
    for change in changes:
        before = made.row()
        change()
        assert made.row() != before


def test_a_row_of_another_version_is_refused() -> None:
    row = state().row()
    with pytest.raises(ValueError, match="version 9"):
        ConsumerState.from_row(b"\x09" + row[1:])


@pytest.mark.parametrize(
    ("field", "value"),
    [("floor_cseq", 5), ("floor_sseq", 5), ("floor_sseq", 1), ("delivered_sseq", 3), ("delivered_cseq", -1)],
)
def test_a_field_that_cannot_be_is_noticed(field: str, value: int) -> None:
    made = delivered(4)
    made.check()
    setattr(made, field, value)
    with pytest.raises(AssertionError):
        made.check()


@pytest.mark.parametrize("floor", [(1, 2), (2, 1), (0, 0)])
def test_the_floor_never_goes_back(floor: tuple[int, int]) -> None:
    made = delivered(4)
    made.raise_floor(2, 2)
    made.raise_floor(2, 2)
    with pytest.raises(AssertionError):
        made.raise_floor(*floor)
    assert floors(made) == (2, 2)
    made.resume((4, 4), floor)
    assert floors(made) == floor, "but where a position begins anew"


def test_only_the_state_itself_writes_the_floor() -> None:
    written = re.compile(r"\.floor_[cs]seq\b[^=(\n:]*[^=!<>\n(:]=(?!=)")
    room = Path(state_module.__file__).parent
    files = {file.name for file in room.glob("*.py") if written.search(file.read_text())}
    assert files == {"state.py"}


def test_only_changes_are_written() -> None:
    rows: dict[bytes, bytes] = {}
    keys: KeyRows[int] = KeyRows(lambda number: b"%d" % number)
    assert keys.add(1) and keys.add(2) and not keys.add(2)
    keys.write(b"p", rows.__setitem__, rows.__delitem__)
    assert rows == {b"p1": b"", b"p2": b""}
    assert keys.discard(1) and not keys.discard(1) and keys.add(3)
    written: list[bytes] = []
    keys.write(b"p", lambda key, _: written.append(key), rows.__delitem__)
    assert written == [b"p3"] and set(rows) == {b"p2"}


def test_clear_deletes_all_rows() -> None:
    keys: KeyRows[bytes] = KeyRows(bytes)
    keys.add(b"x")
    deleted: list[bytes] = []
    keys.clear()
    keys.write(b"p", lambda _, __: None, deleted.append)
    assert deleted == [b"px"] and not keys.keys


def test_remove_names_rows_that_are_there_or_are_to_go() -> None:
    keys: KeyRows[bytes] = KeyRows(bytes)
    keys.add(b"x")
    keys.add(b"y")
    keys.write(b"p", lambda _, __: None, lambda _: None)
    keys.discard(b"x")
    deleted: list[bytes] = []
    keys.remove(b"p", deleted.append)
    assert sorted(deleted) == [b"px", b"py"]
