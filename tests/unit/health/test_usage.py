"""Figures of the process, and the counters that the pages of a node share."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from jetcluster.health.usage import CpuMeter, PageCounters, ProcessUsage


def test_what_the_process_takes() -> None:
    usage = ProcessUsage()
    before, began = usage.cpu_seconds(), usage.collections()[0]
    gc.collect()
    assert usage.cpu_seconds() > before
    assert usage.collections()[0] > began
    assert usage.cores() >= 1
    assert 1_000_000 < usage.memory_bytes() < 1 << 40


def test_memory_where_the_kernel_shows_no_statm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: "")
    assert 1_000_000 < ProcessUsage().memory_bytes() < 1 << 40


def test_the_processor_time_of_the_last_second_or_more() -> None:
    wall, cpu = [100.0], [7.0]
    meter = CpuMeter(lambda: wall[0], lambda: cpu[0])

    def after(seconds: float, busy: float) -> float:
        wall[0] += seconds
        cpu[0] += busy
        return meter.percent()

    assert after(0.5, 0.5) == 0.0, "too soon to tell"
    assert after(1.5, 0.5) == 50.0
    assert after(0.9, 0.9) == 50.0, "two who ask see the same"
    assert after(1.1, 0.1) == 50.0
    assert after(3.0, 1.0) == 33.3


def test_nodes_of_one_process_count_by_themselves() -> None:
    one, two = PageCounters(), PageCounters()
    one.requests["/varz"] = 1
    assert two.requests == {} and one.cpu is not two.cpu
