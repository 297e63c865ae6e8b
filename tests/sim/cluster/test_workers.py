"""One worker of a machine votes, and another one once it is away; a place that nobody takes is noticed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jetcluster.cluster import meta_voters
from jetcluster.cluster.meta_voters import MetaVoters
from tests.sim.cluster.nemesis import Rage
from tests.sim.cluster.run import Result, run_seed
from tests.sim.cluster.scenario import Scenario

pytestmark = pytest.mark.sim

SEED = 9040


def worked() -> Result:
    plan = replace(Scenario.of(SEED, ("workers",)), rage=Rage((), 0, 6.0, 1.0), pulse=False, again=False)
    return run_seed(SEED, scenario=plan)


def test_another_worker_votes_in_the_place_of_one_that_is_away() -> None:
    result = worked()
    assert result.failure == ""
    assert result.counts["workers: replaced"] == 1


def test_a_place_that_nobody_takes_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MetaVoters, "replace", lambda *_: None)
    assert "votes in the place of" in worked().failure


def test_two_voters_on_one_machine_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meta_voters, "machine_of", lambda tags, peer: peer)
    assert worked().failure
