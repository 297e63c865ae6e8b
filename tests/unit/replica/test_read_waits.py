"""Reads held back until the replica has applied what it knows to be committed (replica/read_waits.py)."""

from __future__ import annotations

from jetcluster.replica.read_waits import MAX_SECONDS, MAX_WAITING, ReadWaits
from testkit.twins.time import ManualTime


def waits() -> tuple[ReadWaits, ManualTime, list[str]]:
    time = ManualTime()
    return ReadWaits(time, time), time, []


def test_answers_come_in_order_once_applied() -> None:
    held, _, log = waits()
    for name, index in (("a", 5), ("b", 5), ("c", 7)):
        held.hold(index, lambda n=name: log.append(n), lambda: log.append("gave up"))
    held.applied(4)
    assert log == []
    held.applied(6)
    assert log == ["a", "b"]
    held.applied(9)
    assert log == ["a", "b", "c"]
    assert not held.waiting


def test_gives_up_after_a_while_and_only_on_what_is_overdue() -> None:
    held, time, log = waits()
    held.hold(5, lambda: log.append("a"), lambda: log.append("a gave up"))
    time.advance(MAX_SECONDS / 2)
    held.hold(6, lambda: log.append("b"), lambda: log.append("b gave up"))
    time.advance(MAX_SECONDS / 2)
    assert log == ["a gave up"]
    held.applied(6)
    assert log == ["a gave up", "b"]
    time.advance(MAX_SECONDS * 2)
    assert log == ["a gave up", "b"]


def test_bounded_and_cleared() -> None:
    held, _, log = waits()
    for _ in range(MAX_WAITING):
        held.hold(1, lambda: log.append("answer"), lambda: log.append("gave up"))
    held.hold(1, lambda: log.append("answer"), lambda: log.append("one too many"))
    assert log == ["one too many"]
    held.clear()
    assert log.count("gave up") == MAX_WAITING
    held.applied(9)
    assert "answer" not in log
