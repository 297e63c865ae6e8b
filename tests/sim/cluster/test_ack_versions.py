"""Seeds whose consumers have reply subjects of version 2."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from testkit.sim.session import Msg
from tests.sim.cluster import workload
from tests.sim.cluster.run import run_seed
from tests.sim.cluster.scenario import Scenario
from tests.sim.cluster.workload import Delivered

pytestmark = pytest.mark.sim


def test_some_seeds_have_acks_of_version_2_but_none_with_older_servers() -> None:
    drawn = [Scenario.of(seed) for seed in range(300)]
    versions = Counter(scenario.acks for scenario in drawn)
    assert versions.keys() == {"", "v2", "mixed"} and 180 < versions[""] < 280
    assert not any(scenario.acks for scenario in drawn if "upgrades" in scenario.workloads)


@pytest.mark.parametrize(("acks", "tokens"), [("", {9}), ("v2", {11}), ("mixed", {9, 11})])
def test_what_is_delivered_is_read_and_acknowledged(
    monkeypatch: pytest.MonkeyPatch, acks: str, tokens: set[int]
) -> None:
    seen: set[int] = set()

    class Noted(Delivered):
        @classmethod
        def of(cls, msg: Msg) -> Delivered:
            seen.add(len(msg.reply.split(".")))
            return Delivered.of(msg)

    for module in vars(workload.workloads).values():
        if getattr(module, "Delivered", None) is Delivered:
            monkeypatch.setattr(module, "Delivered", Noted)
    scenario = Scenario.of(990000, ("pulls", "keys"))
    calm = replace(scenario.rage, faults=("kill", "stepdown"), hands=1)
    result = run_seed(990000, scenario=replace(scenario, layout="three", acks=acks, rage=calm))
    assert result.failure == ""
    assert seen == tokens
