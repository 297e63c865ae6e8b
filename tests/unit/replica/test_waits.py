"""Reads held back until the replica has applied what it knows to be committed (replica/reads/waits.py)."""

from __future__ import annotations

import functools

from jetcluster.replica.reads.waits import (
    DUE_TURN_SECONDS,
    MAX_DUE_TURN,
    MAX_REPLY_BACKLOG,
    MAX_SECONDS,
    MAX_WAIT_SECONDS,
    MAX_WAITING,
    MIN_DUE_TURN,
    PAUSE_SECONDS,
    ReadWaits,
)
from testkit.twins.time import ManualTime
from tests.unit.replica.waits_rig import around


def waits() -> tuple[ReadWaits, ManualTime, list[str]]:
    time = ManualTime()
    return ReadWaits(around(time, time)), time, []


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
    time.advance(MAX_WAIT_SECONDS / 2)
    held.hold(6, lambda: log.append("b"), lambda: log.append("b gave up"))
    time.advance(MAX_WAIT_SECONDS / 2)
    assert log == ["a gave up"]
    held.applied(6)
    assert log == ["a gave up", "b"]
    time.advance(MAX_WAIT_SECONDS * 2)
    assert log == ["a gave up", "b"]


def test_bounded_and_cleared() -> None:
    held, _, log = waits()
    for _ in range(MAX_WAITING):
        held.hold(1, lambda: log.append("answer"), lambda: log.append("gave up"))
    assert not held.hold(1, lambda: log.append("answer"), lambda: log.append("one too many"))
    assert log == [], "to be refused: to hand it on, the replica would leave its group"
    held.clear()
    assert log.count("gave up") == MAX_WAITING
    held.applied(9)
    assert "answer" not in log


def test_thousands_of_reads_are_answered_in_many_turns() -> None:
    held, time, log = waits()
    for number in range(MAX_WAITING):
        held.hold(1, functools.partial(log.append, str(number)), lambda: log.append("gave up"))
    held.applied(1)
    assert len(log) == MAX_DUE_TURN, "others get in between"
    time.advance(0.0)
    assert log == [str(number) for number in range(MAX_WAITING)]


def test_reads_of_a_slow_requester_wait_and_others_do_not() -> None:
    time, log, slow = ManualTime(), [], {b"slow"}
    held = ReadWaits(around(time, time, lambda reply: MAX_REPLY_BACKLOG + 1 if reply in slow else 0))
    for _ in range(3 * MAX_DUE_TURN):
        held.hold(1, functools.partial(log.append, b"slow"), print, b"slow")
    held.hold(1, functools.partial(log.append, b"quick"), print, b"quick")
    held.applied(1)
    time.advance(0.0)
    assert log == [b"quick"]
    slow.clear()
    time.advance(0.02)
    assert log.count(b"slow") == 3 * MAX_DUE_TURN
    slow.add(b"slow")
    held.hold(1, functools.partial(log.append, b"late"), print, b"slow")
    held.applied(1)
    time.advance(MAX_SECONDS - 0.1)
    assert b"late" not in log
    time.advance(0.2)
    assert log[-1] == b"late", "it keeps no place for ever"


def test_a_slow_requester_keeps_nobody_out() -> None:
    """It pipelined as many reads as may wait, and takes no answer; more of such reads than may wait are refused."""
    time, log = ManualTime(), []
    held = ReadWaits(around(time, time, lambda reply: MAX_REPLY_BACKLOG + 1 if reply == b"slow" else 0))

    def hold(name: str, reply: bytes) -> bool:
        return held.hold(
            1,
            functools.partial(log.append, name),
            print,
            reply,
            refuse=functools.partial(log.append, f"{name} refused"),
        )

    assert all(hold("slow", b"slow") for _ in range(MAX_WAITING))
    assert not hold("quick", b"quick"), "they wait for the index"
    held.applied(1)
    time.advance(0.1)
    assert not log
    for number in range(2):
        assert hold(f"quick {number}", b"quick")
        held.applied(1)
        time.advance(PAUSE_SECONDS)
        assert log[-1:] == [f"quick {number}"]
    assert hold("more", b"slow")
    held.applied(1)
    time.advance(0.01)
    assert log == ["quick 0", "quick 1", "more refused"]
    time.advance(MAX_SECONDS)
    assert log[3:] == ["slow"] * MAX_WAITING
    assert all(hold("again", b"quick") for _ in range(MAX_WAITING)), "all places are free"


def test_as_many_leave_in_a_turn_as_a_link_brings() -> None:
    """It may bring hundreds, while each commit lets reads wait again."""
    held, _, log = waits()
    for turn in range(1, 101):
        for _ in range(300):
            assert held.hold(turn, functools.partial(log.append, "answer"), print)
        held.applied(turn)
    assert len(log) == 100 * 300


def test_a_turn_ends_after_a_while_when_answers_are_large() -> None:
    class Working(ManualTime):
        worked = 0.0

        def monotonic(self) -> float:
            return super().monotonic() + self.worked

    time = Working()
    held, log = ReadWaits(around(time, time)), []

    def answer() -> None:
        log.append("large")
        time.worked += DUE_TURN_SECONDS / 4

    for _ in range(2 * MIN_DUE_TURN):
        held.hold(1, answer, print)
    held.applied(1)
    assert len(log) == MIN_DUE_TURN
    time.advance(0.0)
    assert len(log) == 2 * MIN_DUE_TURN
