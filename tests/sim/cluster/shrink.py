"""The smallest scenario that still fails as a seed does: workloads, faults and troubles that do not matter are gone."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from tests.sim.cluster.nemesis import Rage
from tests.sim.cluster.run import run_seed
from tests.sim.cluster.scenario import Scenario

Run = Callable[[Scenario], str]
"""Runs a scenario and returns its failure; "" when there is none."""


def kind(failure: str) -> str:
    """The part that two failures of one kind have in common: their text without numbers."""
    last = failure.strip().splitlines()[-1] if failure.strip() else ""
    return re.sub(r"\d+(\.\d+)?", "#", last)[:80]


def fails(scenario: Scenario) -> str:
    return run_seed(scenario.seed, scenario=scenario).failure


def shrink(scenario: Scenario, run: Run = fails, tell: Callable[[str], None] = lambda line: None) -> Scenario | None:
    """None where it does not fail at all. Another failure than the first one does not count."""
    wanted = kind(run(scenario))
    if not wanted:
        return None
    tried = {scenario}
    while True:
        for smaller in _smaller(scenario):
            if smaller in tried:
                continue
            tried.add(smaller)
            if kind(run(smaller)) == wanted:
                tell(f"still fails: {smaller}")
                scenario = smaller
                break
        else:
            return scenario


def _smaller(scenario: Scenario) -> Iterator[Scenario]:
    """Scenarios with one thing less, the largest steps first."""
    yield from (replace(scenario, rage=rage) for rage in _calmer(scenario.rage))
    for workload in scenario.workloads if len(scenario.workloads) > 1 else ():
        yield replace(scenario, workloads=tuple(other for other in scenario.workloads if other != workload))
    plain = {"layout": "three", "skew": 0.0, "processor": 1.0, "disk": 1 << 30, "small": False, "rotates": False}
    plain |= {"acks": ""} | ({} if scenario.rotates else {"cipher": ""})
    for name, value in plain.items():
        if getattr(scenario, name) != value:
            yield replace(scenario, **{name: value})  # type: ignore[arg-type]


def _calmer(rage: Rage) -> Iterator[Rage]:
    faults = rage.faults
    if faults:
        yield replace(rage, faults=())
    yield from (replace(rage, faults=(fault,)) for fault in faults if len(faults) > 2)
    for fault in faults:
        yield replace(rage, faults=tuple(other for other in faults if other != fault))
    if rage.hands > 1:
        yield replace(rage, hands=1)
    for seconds in (2.0, 5.0, 10.0, 20.0):
        if seconds < rage.seconds:
            yield replace(rage, seconds=seconds)
