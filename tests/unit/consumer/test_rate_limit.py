"""rate_limit_bps: bits per second, saved up for a tenth of a second at most."""

from __future__ import annotations

from jetcluster.consumer.rate_limit import RateLimit

SECOND = 1_000_000_000
T0 = 1_790_000_000 * SECOND


def test_the_rate_holds_over_time() -> None:
    limit = RateLimit(8_000)  # 1,000 bytes per second
    now, sent = T0, 0
    while now < T0 + 10 * SECOND:
        count = limit.fitting([100] * 50, now)
        sent += count * 100
        assert count < 50
        assert limit.wait_until > now
        now = limit.wait_until
    assert 10_000 <= sent <= 10_300


def test_a_message_larger_than_what_is_saved_goes_and_is_waited_for() -> None:
    limit = RateLimit(8_000)
    assert limit.fitting([5_000, 1], T0) == 1
    assert limit.wait_until == T0 + 5 * SECOND - SECOND // 10
    assert limit.fitting([1], limit.wait_until - 1) == 0
    assert limit.fitting([1], limit.wait_until) == 1


def test_an_idle_consumer_saves_no_more_than_a_burst() -> None:
    limit = RateLimit(8_000)
    assert limit.fitting([10] * 100, T0) == 11
    assert limit.fitting([10] * 100, T0 + 3600 * SECOND) == 11
