"""Figures of a load: percentiles, processor time, and what they are per message."""

from __future__ import annotations

import os
import time

from bench.result import LoadResult, cpu_seconds, percentile
from bench.scenarios.subscriptions import BYTES_LIMIT, measure


def test_cpu_of_this_process_and_of_none() -> None:
    assert cpu_seconds(os.getpid()) > 0
    assert cpu_seconds(2**22 + 1) == 0.0


def test_cpu_is_finer_than_a_tick_of_the_kernel() -> None:
    """A tick is 10 ms; loads of 100 ms are compared to a percent."""
    before, begun = cpu_seconds(os.getpid()), time.process_time()
    while time.process_time() - begun < 0.002:
        pass
    spent = time.process_time() - begun
    assert 0.001 < cpu_seconds(os.getpid()) - before < spent + 0.005


def test_summary_scales_cpu_to_a_million() -> None:
    result = LoadResult("x", 500_000, 2.0, [1.0, 2.0, 3.0], {"n1": 4.0})
    assert result.summary() == {
        "name": "x", "messages": 500_000, "seconds": 2.0, "rate": 250_000.0, "p50_ms": 2.0, "p99_ms": 3.0,
        "cpu_s_per_million": {"n1": 8.0},
    }  # fmt: skip


def test_percentile_is_the_nearest_rank() -> None:
    assert percentile([3, 1, 2], 0.5) == 2
    assert percentile(range(100), 0.99) == 99
    assert percentile([], 0.5) != percentile([], 0.5)  # NaN


# Very many subscriptions of one client: what they cost, and that they are bounded. A million of them is what `python -m
# bench subscriptions` measures.


def test_memory_and_the_cost_of_a_publish_stay() -> None:
    found = measure(20_000)
    assert found.bytes_each < 2 * BYTES_LIMIT  # of few, more of the memory is the process's own
    assert found.publish_with_all_us < 5 * found.publish_us, "the machine is shared: twice is what the script asks"
    assert found.publish_after_us < 5 * found.publish_us
    assert found.seconds < 20
