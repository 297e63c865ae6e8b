"""Every mutant of the table still changes something that is there; what they do to the simulation is tried by hand."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

from tests.sim.cluster.mutants import ROOT, Mutant, load
from tests.sim.cluster.nemesis import FAULTS
from tests.sim.cluster.workload import found

AT_LEAST = 60
ROOMS = {
    "raft",
    "replica",
    "stream",
    "consumer",
    "meta",
    "mirror",
    "store",
    "mesh",
    "cluster",
    "objects",
    "api",
    "server",
}


@pytest.mark.parametrize("mutant", load(), ids=lambda mutant: mutant.name)
def test_a_mutant_applies(mutant: Mutant, tmp_path: Path) -> None:
    path = tmp_path / mutant.path
    path.parent.mkdir(parents=True)
    before = (ROOT / mutant.path).read_text()
    path.write_text(before)
    mutant.apply(tmp_path)
    assert ast.dump(ast.parse(path.read_text())) != ast.dump(ast.parse(before))


def test_what_seeds_of_a_mutant_are_drawn_from_is_there() -> None:
    for mutant in load():
        assert found().keys() >= set(mutant.only) and FAULTS.keys() >= set(mutant.faults), mutant.name


def test_all_rooms_have_some() -> None:
    mutants = load()
    assert len(mutants) >= AT_LEAST
    assert max(Counter(mutant.name for mutant in mutants).values()) == 1
    assert {mutant.file.partition("/")[0] for mutant in mutants} >= ROOMS


def test_one_that_does_not_apply_is_reported(tmp_path: Path) -> None:
    mutant = load()[0]
    path = tmp_path / mutant.path
    path.parent.mkdir(parents=True)
    path.write_text("nothing of the kind\n")
    with pytest.raises(ValueError, match="0 times"):
        mutant.apply(tmp_path)
