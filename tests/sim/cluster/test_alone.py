"""A server that stands alone keeps what it acknowledged, and one that does what needs a cluster is noticed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jetcluster.api import streams
from jetcluster.errors import ApiError, by_code
from tests.sim.cluster.run import Result, run_seed
from tests.sim.cluster.scenario import Scenario

pytestmark = pytest.mark.sim


def alone() -> Result:
    plan = Scenario.of(3, ("alone",))
    return run_seed(3, scenario=replace(plan, rage=replace(plan.rage, faults=("power", "kill"), seconds=8.0)))


def test_a_server_that_stands_alone_gets_over_its_faults() -> None:
    result = alone()
    assert result.failure == ""
    assert result.counts["alone: refused"] > 0 and result.counts["alone: published"] > 0


def test_a_wrong_refusal_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(code: int, **fields: object) -> ApiError:
        return by_code(code if code != 10010 else 10003, **fields)

    monkeypatch.setattr(streams, "by_code", refused)
    assert "the error of STREAM." in alone().failure
