"""The only replica of a stream, whose journal was damaged, waits for all others; one that does not is noticed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jetcluster.cluster import lone_replicas
from tests.sim.cluster.nemesis import Rage
from tests.sim.cluster.run import Result, run_seed
from tests.sim.cluster.scenario import Scenario

pytestmark = pytest.mark.sim

SEED = 9015
"""A server is away, and the log has lost something."""


def damaged() -> Result:
    plan = replace(Scenario.of(SEED, ("lone-replica",)), rage=Rage((), 0, 1.0, 1.0), again=False)
    return run_seed(SEED, scenario=plan)


def test_a_damaged_replica_goes_on_once_all_others_have_spoken() -> None:
    result = damaged()
    assert result.failure == ""
    assert result.counts["lone-replica: waited"] == 1


def test_a_damaged_replica_that_waits_for_nobody_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lone_replicas, "_objection", lambda *said: "")
    assert "goes on while a server is away" in damaged().failure
