"""The operating system's clock and randomness."""

from __future__ import annotations

import time

from jetcluster.clock import SystemClock, SystemRng


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
