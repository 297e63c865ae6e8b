"""A stream whose one server is lost before the others have left goes on; one that nobody assigns is noticed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jetcluster.cluster.administration import Administration
from tests.sim.cluster.nemesis import Rage
from tests.sim.cluster.run import Result, run_seed
from tests.sim.cluster.scenario import Scenario

pytestmark = pytest.mark.sim

SEED = 9050


def stray() -> Result:
    plan = replace(Scenario.of(SEED, ("strays",)), rage=Rage((), 0, 6.0, 1.0), pulse=False, again=False)
    return run_seed(SEED, scenario=plan)


def test_a_stream_belongs_to_who_leads_it() -> None:
    result = stray()
    assert result.failure == ""
    assert result.counts["strays: lost"] == 1


def test_a_stream_that_nobody_assigns_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(administration: Administration, strays: object) -> None:
        pass

    monkeypatch.setattr(Administration, "_assign_to_leaders", nothing)
    assert "stream is offline" in stray().failure
