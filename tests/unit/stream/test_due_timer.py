from __future__ import annotations

from jetcluster.stream.lead.duties import SOON_NS, DueTimer
from testkit.twins.time import ManualTime

MS = 1_000_000


class Rig:
    def __init__(self, pause: int = 0) -> None:
        self.time = ManualTime()
        self.due: int | None = None
        self.done: list[int] = []
        self.able = True
        self.timer = DueTimer(self.time, self.time.call_later, lambda: self.due, lambda: pause, self.act)

    def act(self, now: int) -> bool:
        self.done.append(now)
        self.due = None if self.able else self.due
        return self.able

    @property
    def now(self) -> int:
        return self.time.time_ns()


def test_it_acts_when_it_is_due_and_not_before() -> None:
    rig = Rig()
    rig.timer.look()
    due = rig.due = rig.now + 100 * MS
    rig.timer.look()
    rig.timer.look()
    rig.time.advance(0.099)
    assert rig.done == []
    rig.time.advance(0.002)
    assert len(rig.done) == 1 and rig.done[0] >= due
    rig.time.advance(1.0)
    assert len(rig.done) == 1


def test_what_is_far_away_is_left_to_those_who_look() -> None:
    rig = Rig()
    rig.due = rig.now + SOON_NS + MS
    rig.timer.look()
    rig.time.advance(1.0)
    assert rig.done == []
    rig.timer.look()
    assert len(rig.done) == 1


def test_what_is_due_earlier_takes_the_timer_over() -> None:
    rig = Rig()
    for late in (300, 200, 400):
        rig.due = rig.now + late * MS
        rig.timer.arm()
    rig.due = rig.now + 200 * MS
    rig.time.advance(0.201)
    assert len(rig.done) == 1


def test_between_two_times_there_is_a_pause_unless_there_is_a_hurry() -> None:
    rig = Rig(pause=50 * MS)
    rig.due = rig.now
    rig.timer.look()
    rig.due = rig.now
    rig.timer.look()
    assert len(rig.done) == 1
    rig.time.advance(0.051)
    assert len(rig.done) == 2
    rig.due = rig.now
    rig.timer.hurry()
    rig.timer.look()
    assert len(rig.done) == 3


def test_what_could_not_be_done_is_tried_again_without_a_pause() -> None:
    rig = Rig(pause=50 * MS)
    rig.able = False
    rig.due = rig.now
    rig.timer.look()
    rig.able = True
    rig.timer.look()
    assert len(rig.done) == 2


def test_a_timer_may_be_armed_for_what_is_due_and_cancelled() -> None:
    rig = Rig()
    rig.due = rig.now
    rig.timer.arm()
    assert rig.done == []
    rig.timer.cancel()
    rig.time.advance(0.1)
    assert rig.done == []
    rig.timer.arm()
    rig.time.advance(0.001)
    assert len(rig.done) == 1


def test_a_clock_that_is_set_back_holds_nothing_up() -> None:
    rig = Rig(pause=50 * MS)
    rig.due = rig.now
    rig.timer.look()
    rig.time.set_time_ns(rig.now - 3600 * 10**9)
    rig.due = rig.now
    rig.timer.look()
    assert len(rig.done) == 2
