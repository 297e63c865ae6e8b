from __future__ import annotations

from typing import Any

from jetcluster.budget import LoopBudget
from jetcluster.replica.listening import AT_ONCE, Listening
from testkit.twins.time import ManualTime


class Bus:
    account = "A"

    def __init__(self) -> None:
        self.subjects: list[bytes] = []

    def subscribe(self, subject: bytes, callback: Any) -> bytes:
        self.subjects.append(subject)
        return subject

    def unsubscribe(self, subscription: bytes) -> None:
        self.subjects.remove(subscription)


class Room:
    def __init__(self) -> None:
        self.bus, self.time, self.heard, self.errors = Bus(), ManualTime(), 0, list[Exception]()
        self.budget = LoopBudget(self.time, self.time)
        self.listening = Listening(self.bus, self.budget, self.errors.append)  # type: ignore[arg-type]

    def listen(self, wanted: set[bytes]) -> None:
        self.listening.listen(wanted, lambda subject: lambda *_: None, self._listens)

    def _listens(self) -> None:
        self.heard += 1


def names(count: int, start: int = 0) -> set[bytes]:
    return {b"s.%d" % i for i in range(start, start + count)}


def test_few_at_once() -> None:
    room = Room()
    room.listen(names(AT_ONCE))
    assert room.listening.complete
    assert set(room.bus.subjects) == set(room.listening.subjects) == names(AT_ONCE)
    assert room.heard == 1


def test_very_many_in_steps_and_it_is_told_when_all_are() -> None:
    room = Room()
    room.listen(names(10_000))
    assert not room.listening.complete
    assert not room.bus.subjects
    room.time.advance(0.0)
    room.time.advance(1.0)
    assert room.listening.complete
    assert set(room.bus.subjects) == names(10_000)
    assert room.heard == 1
    room.listen(names(9_999))
    assert room.listening.complete
    assert set(room.bus.subjects) == names(9_999)


def test_another_configuration_takes_the_place_of_the_one_under_way() -> None:
    room = Room()
    room.listen(names(10_000))
    room.listen(names(5_000, start=8_000))
    room.time.advance(1.0)
    assert set(room.bus.subjects) == names(5_000, start=8_000)
    assert len(room.bus.subjects) == 5_000
    assert room.heard == 1


def test_the_end_comes_before_all_are_listened_to() -> None:
    room = Room()
    room.listen(names(10_000))
    room.listening.end()
    room.time.advance(1.0)
    assert not room.bus.subjects
    assert room.listening.complete
    assert room.budget.jobs == 0


def test_where_too_many_jobs_wait_it_is_done_at_once(monkeypatch: Any) -> None:
    monkeypatch.setattr("jetcluster.budget.MAX_JOBS", 0)
    room = Room()
    room.listen(names(1_000))
    assert room.listening.complete
    assert set(room.bus.subjects) == names(1_000)


def test_a_subject_that_cannot_be_listened_to_is_told() -> None:
    room = Room()

    def taker(subject: bytes) -> Any:
        raise ValueError(subject)

    room.listening.listen(names(1_000), taker, room._listens)
    room.time.advance(1.0)
    assert len(room.errors) == 1
    assert room.listening.complete
