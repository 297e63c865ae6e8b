"""The operating system's clock and randomness."""

from __future__ import annotations

import time

from jetcluster.clock import OnwardClock, SystemClock, SystemRng
from testkit.twins.time import ManualTime


def test_times_have_their_units() -> None:
    clock = SystemClock()
    assert abs(clock.time_ns() / 1e9 - time.time()) < 5
    assert 0 <= clock.monotonic() - time.monotonic() + 5 < 10


def test_tokens_are_as_long_as_asked_and_never_twice_the_same() -> None:
    rng = SystemRng()
    assert [len(rng.token(n)) for n in (0, 1, 8, 32)] == [0, 1, 8, 32]
    assert len({rng.token(16) for _ in range(100)}) == 100


def test_numbers_are_within_their_bounds_and_differ() -> None:
    rng = SystemRng()
    assert {rng.randrange(3) for _ in range(300)} == {0, 1, 2}
    assert all(2.0 <= rng.uniform(2.0, 3.0) <= 3.0 for _ in range(100))
    assert len({rng.random() for _ in range(100)}) > 90


def test_an_onward_clock_is_not_set_back_and_follows_all_else() -> None:
    time = ManualTime()
    clock = OnwardClock(time)
    start = time.time_ns()
    for ahead in (0, 3_600, 3_599.5):  # set forward, then corrected a little
        time.set_time_ns(start + int(ahead * 1e9))
        assert clock.time_ns() == time.time_ns() and clock.lead == 0
    time.advance(10.0)
    time.set_time_ns(start)
    assert abs(clock.time_ns() - start - int(3_609.5 * 1e9)) < 1000, "it goes on, also while nobody asked it"
    time.advance(5.0)
    assert clock.time_ns() == time.time_ns() + clock.lead and clock.monotonic() == time.monotonic()
    time.set_time_ns(start - int(60e9))
    assert abs(clock.time_ns() - start - int(3_614.5 * 1e9)) < 1000
