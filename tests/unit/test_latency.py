from __future__ import annotations

from jetcluster.latency import BOUNDS, Latency


def test_every_observation_is_in_one_bucket() -> None:
    latency = Latency()
    for seconds in (0.0, BOUNDS[0], BOUNDS[0] * 1.01, BOUNDS[-1], BOUNDS[-1] + 1):
        latency.observe(seconds)
    assert sum(latency.counts) == 5
    assert latency.counts[0] == 2
    assert latency.counts[1] == 1
    assert latency.counts[-2:] == [1, 1]
    assert latency.seconds == sum((0.0, BOUNDS[0], BOUNDS[0] * 1.01, BOUNDS[-1], BOUNDS[-1] + 1))


def test_bounds_ascend() -> None:
    assert list(BOUNDS) == sorted(set(BOUNDS))


def test_what_is_only_noted_counts_once_it_is_sorted_or_read() -> None:
    latency = Latency()
    latency.fresh.append(0.003)
    latency.fresh.append(20.0)
    latency.sort()
    assert latency.fresh == []
    latency.fresh.append(0.003)
    assert latency.counts[6] == 2 and latency.counts[-1] == 1
    latency.fresh.append(0.004)
    assert round(latency.seconds, 6) == 20.01
