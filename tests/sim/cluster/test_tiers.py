"""Accounts with tiers have what their tiers say; a tier that is not looked at is noticed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jetcluster.model.limits import AccountLimits
from tests.sim.cluster.nemesis import Rage
from tests.sim.cluster.run import Result, run_seed
from tests.sim.cluster.scenario import Scenario

pytestmark = pytest.mark.sim

SEEDS = (9030, 9031, 9032)
"""With tiers from the beginning, and with those that come with a reload."""


def tiered(seed: int) -> Result:
    plan = replace(Scenario.of(seed, ("tiers",)), rage=Rage((), 0, 6.0, 1.0), pulse=False, again=False)
    return run_seed(seed, scenario=plan)


@pytest.mark.parametrize("seed", SEEDS)
def test_an_account_has_what_its_tiers_say(seed: int) -> None:
    assert tiered(seed).failure == ""


def test_streams_beyond_their_tier_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AccountLimits, "tier", lambda limits, replicas: limits)
    assert "creating TIER" in tiered(SEEDS[0]).failure
