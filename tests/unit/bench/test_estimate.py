"""The formula of docs/sizing.md."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.estimate import CACHES, EXAMPLES, SLACK, SPARE_CPU, SPARE_DISK, SPARE_MEMORY, Figures, Plan, estimate

FIGURES = Figures(
    memory={"node": 60e6, "stream": 1e5, "subject": 300.0, "message": 100.0, "consumer": 2e4, "connection": 8e3},
    disk={"node": 1e6, "stream": 1000.0, "subject": 50.0, "message": 40.0, "consumer": 200.0},
    rest={"node": 1.0, "stream": 0.001},
    cpu={
        "publish, 1 KiB, many in flight": 50.0,
        "delivery by a pull consumer, with its ack": 20.0,
        "Direct Get": 10.0,
    },
    journal=5e7,
)
PLAN = Plan("p", 3, 3, 10, 100, 1000, 500, 5, 30, 3000, 0, 0)


def test_nothing_but_a_node() -> None:
    need = estimate(Plan("empty", 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0), FIGURES)
    assert need.memory == SPARE_MEMORY * 60e6 and need.disk == 5e7 and need.cores == SPARE_CPU * 0.01


def test_each_part_is_in_it() -> None:
    need = estimate(PLAN, FIGURES)
    assert need.memory == pytest.approx(SPARE_MEMORY * (60e6 + 1e5 + 1e6 + 3e4 + 1e5 + 8e4))
    kept = 1000 * 540 * (1 + SLACK) + 100 * 50 + 10 * 1000 + 5 * 200
    assert need.disk == pytest.approx(5e7 + SPARE_DISK * kept)
    assert need.cores == pytest.approx(SPARE_CPU * (0.05 + 0.0101))


def test_more_nodes_share_what_there_is() -> None:
    few, many = estimate(PLAN, FIGURES), estimate(replace(PLAN, nodes=6), FIGURES)
    assert few.memory > many.memory > few.memory / 2 and few.disk > many.disk and few.cores > many.cores


def test_messages_take_no_more_memory_than_caches() -> None:
    some, most = (estimate(replace(PLAN, messages=count), FIGURES) for count in (10**9, 10**10))
    assert some.memory == most.memory
    assert some.memory - estimate(replace(PLAN, messages=0), FIGURES).memory == pytest.approx(SPARE_MEMORY * CACHES)
    assert most.disk > 9 * some.disk


def test_examples_are_from_small_to_large() -> None:
    needs = [estimate(plan, FIGURES) for plan in EXAMPLES]
    assert [need.disk for need in needs] == sorted(need.disk for need in needs)
    for plan, need in zip(EXAMPLES, needs, strict=True):
        assert plan.replicas <= plan.nodes and all(cell for row in plan.rows() + need.rows() for cell in row)
