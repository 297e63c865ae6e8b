"""The pulse of the process: a pause in which others may have taken over."""

from __future__ import annotations

from jetcluster.replica.context import STANDSTILL_SECONDS, Pulse


def test_a_long_pause_is_one_stop() -> None:
    pulse = Pulse()
    assert pulse.stops(1e9) == 0, "it never beat"
    pulse.beat(10.0)
    pulse.beat(10.0 + STANDSTILL_SECONDS)
    assert pulse.stops(10.0 + STANDSTILL_SECONDS) == 0
    pulse.beat(20.0)
    assert pulse.stops(20.5) == 1


def test_a_pause_that_lasts_counts_once() -> None:
    pulse = Pulse()
    pulse.beat(0.0)
    assert pulse.stops(5.0) == 1
    assert pulse.stops(5.5) == 1
    pulse.beat(5.6)
    assert pulse.stops(6.0) == 1
