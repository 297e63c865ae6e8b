"""Streams that are given a replica in place of a removed server's keep their number of replicas; what takes it away is
noticed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jetcluster.meta.state import Assignment
from tests.sim.cluster.nemesis import Rage
from tests.sim.cluster.run import Result, run_seed
from tests.sim.cluster.scenario import Scenario

pytestmark = pytest.mark.sim

SEED = 9016


def refilled() -> Result:
    plan = replace(Scenario.of(SEED, ("refills",)), rage=Rage((), 0, 1.0, 1.0), again=False)
    return run_seed(SEED, scenario=plan)


def test_a_stream_that_is_filled_up_has_nothing_to_cancel() -> None:
    result = refilled()
    assert result.failure == ""
    assert result.counts["refills: seen while it is filled"] and result.counts["refills: nothing to cancel"]


def test_a_number_that_nobody_asked_for_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as mistake:
        mistake.setattr(Assignment, "may_return_to", lambda self, voters: voters <= len(self.peers))
        assert "refills: number of replicas after a cancel: 2, not 3" in refilled().failure
    monkeypatch.setattr(Assignment, "may_return_to", lambda *_: True)
    assert "refills: numbers of replicas, before and as desired: (3, 2), not (3, 3)" in refilled().failure
