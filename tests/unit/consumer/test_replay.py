"""Replay in the original rhythm."""

from __future__ import annotations

from jetcluster.consumer.replay import Replay

MS = 1_000_000
T0 = 1_790_000_000_000 * MS


def test_gaps_are_those_of_the_stream() -> None:
    replay = Replay()
    times = [5 * MS, 5 * MS + 1, 25 * MS, 75 * MS]
    assert replay.due(times, T0) == 1
    assert replay.sent(times, 1, T0) == T0 + 1
    assert replay.due(times[1:], T0 + 1) == 1
    # 3 ms late: the next gap begins where the message was due, not where it went out
    assert replay.due(times[1:], T0 + 23 * MS) == 2
    assert replay.sent(times[1:], 2, T0 + 23 * MS) == T0 + 70 * MS
    assert replay.due(times[3:], T0 + 70 * MS - 1) == 0
    assert replay.sent(times[3:], 0, T0 + 70 * MS - 1) == T0 + 70 * MS
    assert replay.due(times[3:], T0 + 70 * MS) == 1
    assert replay.sent(times[3:], 1, T0 + 70 * MS) == 0


def test_who_was_held_up_for_long_does_not_catch_up_at_once() -> None:
    replay = Replay()
    times = [0, 10 * MS, 5_000 * MS]
    replay.sent(times, replay.due(times, T0), T0)
    late = T0 + 60_000 * MS
    assert replay.due(times[1:], late) == 1
    assert replay.sent(times[1:], 1, late) == late - 100 * MS + 4_990 * MS
