"""Which waiting request gets which message, and what becomes of messages on their way."""

from __future__ import annotations

import pytest

from jetcluster.consumer import pull_dispatch
from jetcluster.consumer.pull_dispatch import MAX_BACKLOG
from jetcluster.consumer.turn import DELIVER
from tests.unit.consumer.rooms import SECOND, Rig


def subjects(count: int) -> list[bytes]:
    return [b"s.%d" % i for i in range(count)]


def test_what_is_lost_on_the_way_goes_to_the_same_request() -> None:
    rig = Rig()
    first, second = rig.next(b"first", batch=3), rig.next(b"second", batch=3)
    rig.hold = True
    rig.publish(*subjects(4))
    assert not first and not second, "nothing goes out before the log has it"
    rig.lose()
    rig.hold = False
    rig.publish(*subjects(2))
    assert sorted(first.seqs + second.seqs) == [1, 2, 3, 4, 5, 6]
    assert len(first) == len(second) == 3
    assert rig.owner.num_waiting == 0


def test_a_client_that_does_not_read_is_passed_over_and_then_served() -> None:
    rig = Rig()
    slow, fast = rig.next(b"slow", batch=2), rig.next(b"fast", batch=2)
    rig.bus.unread[b"slow"] = MAX_BACKLOG + 1
    rig.publish(*subjects(2))
    assert (slow.seqs, fast.seqs) == ([], [1, 2])
    rig.publish(*subjects(2))
    assert slow.seqs == []
    rig.bus.unread[b"slow"] = MAX_BACKLOG
    rig.advance(0.02)
    assert slow.seqs == [3, 4]


def test_a_client_that_is_gone_keeps_nothing() -> None:
    rig = Rig()
    rig.next(b"gone", batch=2)
    left = rig.next(b"left", batch=2)
    del rig.bus.inboxes[b"gone"]
    rig.publish(*subjects(2))
    assert left.seqs == [1, 2] and rig.owner.num_waiting == 0


def test_others_run_between_two_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pull_dispatch, "TURN_MESSAGES", 3)
    rig = Rig()
    rig.publish(*[b"s.a"] * 10)
    rig.hold = True
    assert rig.next(batch=10, expires=SECOND) == []
    rig.hold = False
    rig.settle()
    assert rig.bus.listen(b"in").seqs == list(range(1, 11))
    assert rig.kinds().count(DELIVER) >= 1


def test_so_many_bytes_are_in_flight_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pull_dispatch, "FLIGHT_BYTES", 1)
    rig = Rig()
    rig.hold = True
    inbox = rig.next(batch=1)
    other = rig.next(b"other", batch=1)
    rig.publish(b"s.a")
    rig.publish(b"s.b")
    assert [value for kind, value, _ in rig.ops if kind == DELIVER] == [[1]]
    rig.hold = False
    rig.settle()
    assert (inbox.seqs, other.seqs) == ([1], [2])
