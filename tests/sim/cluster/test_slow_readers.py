"""Clients that read nothing for a while get all of it in the end, and where they do not it is noticed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jetcluster.replica.reads import waits
from tests.sim.cluster.nemesis import Rage
from tests.sim.cluster.run import Result, run_seed
from tests.sim.cluster.scenario import Scenario

pytestmark = pytest.mark.sim

SEED = 3
"""Its reads wait for the leader's word."""


def read() -> Result:
    rage = Rage((), 0, 1.0, 1.0)
    plan = replace(
        Scenario.of(SEED), workloads=("slow-readers",), layout="three", rage=rage, small=True, pulse=False, again=False
    )
    return run_seed(SEED, scenario=plan)


def test_what_a_deaf_client_asked_for_comes_once_it_reads() -> None:
    result = read()
    assert result.failure == ""
    assert result.counts["slow-readers: crowd"] > 0


def test_reads_of_a_slow_client_that_never_go_on_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waits, "PAUSE_SECONDS", 1_000.0)
    failure = read().failure
    assert "although all is calm" in failure or "of 24 requests are answered" in failure
