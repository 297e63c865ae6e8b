"""Prometheus' text format: families, histograms, and a bound that is told."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse

from jetcluster.latency import BOUNDS, Latency
from jetcluster.monitor import exposition
from jetcluster.monitor.exposition import Exposition


def test_samples_of_a_family_stand_together_whatever_the_order() -> None:
    out = Exposition()
    out.gauge("a", "first", 1, (("x", "1"),))
    out.counter("b_total", "second", 2)
    out.gauge("a", "first", 3.5, (("x", 'q"\\\n'),))
    out.gauge("flag", "a truth", True)
    families = {family.name: family for family in parse(out.render().decode())}
    assert [(s.labels["x"], s.value) for s in families["a"].samples] == [("1", 1.0), ('q"\\\n', 3.5)]
    assert (families["b"].type, families["b"].samples[0].value) == ("counter", 2.0)
    assert families["flag"].samples[0].value == 1.0
    assert families["jetcluster_metrics_truncated"].samples[0].value == 0.0


def test_a_histogram_is_cumulative() -> None:
    latency = Latency()
    for seconds in (BOUNDS[0], BOUNDS[2], 99.0):
        latency.observe(seconds)
    out = Exposition()
    out.histogram("h_seconds", "h", latency, (("role", "leader"),))
    ((family, _),) = [list(parse(out.render().decode()))]
    buckets = [s.value for s in family.samples if s.name == "h_seconds_bucket"]
    assert (len(buckets), buckets[0], buckets[1], buckets[2], buckets[-2], buckets[-1]) == (
        len(BOUNDS) + 1,
        1,
        1,
        2,
        2,
        3,
    )
    assert next(s.value for s in family.samples if s.name == "h_seconds_count") == 3
    assert next(s.value for s in family.samples if s.name == "h_seconds_sum") == latency.seconds
    assert all(s.labels["role"] == "leader" for s in family.samples)


def test_a_scrape_is_bounded_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exposition, "MAX_SAMPLES", 3)
    out = Exposition()
    for number in range(5):
        out.gauge("a", "many", number, (("n", number),))
    out.histogram("h", "h", Latency())
    families = {family.name: family for family in parse(out.render().decode())}
    assert len(families["a"].samples) == 3
    assert families["jetcluster_metrics_truncated"].samples[0].value == 1.0
