"""A consumer that waits at one question of flow control: when that is an error, and how often it is told."""

from __future__ import annotations

from jetcluster import errors
from jetcluster.errors import ApiError
from jetcluster.mirror.stall import STALLED, Stall


def test_the_third_heartbeat_with_one_question_is_an_error_which_is_told_once() -> None:
    told: list[ApiError] = []
    stall = Stall(told.append)
    assert [stall.after(b"q", None) for _ in range(5)] == [None, None, STALLED, STALLED, STALLED]
    assert told == [STALLED]
    assert stall.after(b"", STALLED) is None
    assert [stall.after(b"q", None) for _ in range(3)] == [None, None, STALLED] and told == [STALLED] * 2


def test_another_question_ends_it_and_other_errors_stay() -> None:
    stall = Stall(lambda error: None)
    for _ in range(3):
        stall.after(b"q", None)
    assert stall.after(b"r", STALLED) is None
    full = errors.by_code(10008)
    assert [stall.after(question, full) for question in (b"", b"s", b"s")] == [full] * 3
