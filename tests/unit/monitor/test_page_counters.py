"""Counters that the pages of a node share."""

from __future__ import annotations

from jetcluster.monitor.page_counters import CpuMeter, PageCounters


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
