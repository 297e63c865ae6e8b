"""Limits that are scaled down: everywhere, for one run, and each of them is there."""

from __future__ import annotations

import ast
import functools
import importlib
from pathlib import Path

import pytest

from jetcluster.raft.config import RaftConfig
from tests.sim.cluster import small
from tests.sim.cluster.exam import Exam
from tests.sim.cluster.nemesis import FAULTS
from tests.sim.cluster.scenario import DRAWN, Scenario, each
from tests.sim.cluster.workload import found

ROOT = Path(__file__).parents[3]


@functools.cache
def _imports() -> dict[tuple[str, str], set[str]]:
    """Modules of the product that import a name of another one, by that one and the name."""
    found: dict[tuple[str, str], set[str]] = {}
    for path in (ROOT / "jetcluster").rglob("*.py"):
        taker = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                for one in node.names:
                    found.setdefault((node.module or "", one.name), set()).add(taker)
    return found


@pytest.mark.parametrize("limit", (*small.LIMITS, small.READINGS), ids=lambda limit: f"{limit.module}.{limit.name}")
def test_each_limit_is_small_wherever_it_is_taken_by_name(limit: small.Limit) -> None:
    usual = getattr(importlib.import_module(limit.module), limit.name)
    assert usual != limit.small
    assert _imports().get((limit.module, limit.name), set()) == set(limit.takers)
    modules = [importlib.import_module(name) for name in (limit.module, *limit.takers)]
    with small.scaled(small=True, slow_beat=True):
        assert [getattr(module, limit.name) for module in modules] == [limit.small] * len(modules)
    assert [getattr(module, limit.name) for module in modules] == [usual] * len(modules)


def test_without_it_nothing_is_small() -> None:
    before = importlib.import_module("jetcluster.store.slices").STEP
    with small.scaled(small=False):
        assert importlib.import_module("jetcluster.store.slices").STEP is before


def test_servers_beat_slowly_unless_clients_wait_for_acks_and_both_limits_go_together() -> None:
    scenarios = [Scenario.of(seed) for seed in range(60)]
    assert {one.slow_beat for one in scenarios} == {False, True}
    assert all(one.slow_beat is not one.pulse for one in scenarios)
    assert small.raft_limits(small=False, slow_beat=False) == {}
    both = small.raft_limits(small=True, slow_beat=True)
    assert both == small.RAFT | small.SLOW_BEAT
    slow, usual = RaftConfig(**both), RaftConfig()
    assert 3 * slow.heartbeat < slow.suspect_after == usual.suspect_after
    assert 2 * slow.heartbeat < slow.second_opinion and 2 * usual.heartbeat < usual.second_opinion
    readings = importlib.import_module(small.READINGS.module).READINGS_PER_PEER
    assert small.READINGS.small * slow.heartbeat == readings * usual.heartbeat


def test_a_third_of_all_seeds_is_small() -> None:
    assert 20 <= sum(Scenario.of(seed).small for seed in range(90)) <= 40


def test_each_workload_exam_and_fault_has_a_seed_and_each_workload_one_with_small_limits() -> None:
    scenarios = each(0)[:-DRAWN]
    assert {name for one in scenarios for name in one.workloads} == found().keys()
    assert {fault for one in scenarios for fault in one.rage.faults} == FAULTS.keys()
    others = {name for name in found() if not issubclass(found()[name], Exam)}
    for small_ones in (False, True):
        assert others <= {name for one in scenarios if one.small == small_ones for name in one.workloads}
