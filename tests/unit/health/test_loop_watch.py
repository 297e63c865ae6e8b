from __future__ import annotations

import pytest

from jetcluster.health.loop_watch import WINDOW, LoopWatch


@pytest.mark.parametrize(("late", "ill"), [(0.0, False), (0.2, False), (0.3, True), (5.0, True)])
def test_it_stands_still_for_half_of_the_time(late: float, ill: bool) -> None:
    watch = LoopWatch()
    for _ in range(100):
        watch.beat(0.1, late)
    assert bool(watch.trouble) is ill


@pytest.mark.parametrize("late", [1.0, 10.0, 600.0])
def test_a_pause_that_is_over_does_not_count(late: float) -> None:
    watch = LoopWatch()
    watch.beat(0.1, late)
    assert not watch.trouble


def test_what_was_is_forgotten() -> None:
    watch = LoopWatch()
    for _ in range(20):
        watch.beat(0.1, 1.0)
    assert watch.trouble
    for _ in range(int(3 * WINDOW / 0.1)):
        watch.beat(0.1, 0.0)
    assert not watch.trouble
