"""Moves and other numbers of replicas that are cancelled: what the server may go back to."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.sim.cluster.run import run_seed
from tests.sim.cluster.scenario import Scenario
from tests.sim.cluster.workloads.zones import Moves

SSD, HDD = {"tags": ["disk:ssd"]}, {"tags": ["disk:hdd"]}


def test_a_cancelled_move_goes_back_to_before_the_newest_one() -> None:
    moves = Moves()
    for old, new in ((HDD, SSD), (SSD, {"tags": []})):
        moves.begin(old, new)
        moves.done()
    assert moves.before == [SSD, {"tags": []}]


@pytest.mark.parametrize(("again", "answered"), [((SSD, SSD), True), ((SSD, HDD), False)])
def test_an_earlier_move_may_be_what_is_cancelled(again: tuple[object, object], answered: bool) -> None:
    """The newest request changes nothing, or nobody knows what has become of the one before."""
    moves = Moves()
    moves.begin(HDD, SSD)
    if answered:
        moves.done()
    moves.begin(*again)
    assert HDD in moves.before
    moves.done()
    assert HDD in moves.before


def test_a_move_that_is_refused_leaves_the_one_before_to_be_cancelled() -> None:
    moves = Moves()
    moves.begin(None, SSD)
    moves.done()
    moves.begin(SSD, HDD)  # "stream move already in progress"
    assert None in moves.before


@pytest.mark.sim
def test_a_number_of_replicas_is_taken_back() -> None:
    """The workload compares (`mutants.toml`); here it gets as far."""
    scenario = Scenario.of(980001, ("churn",))
    calm = replace(scenario.rage, faults=("slow_disk", "loss"), hands=1)
    result = run_seed(980001, scenario=replace(scenario, layout="three", rage=calm))
    assert result.failure == ""
    assert result.counts["churn: scaled, and cancelled"]
