"""`python -m bench scaling`: its figures, tables and pages."""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path

import pytest

from bench import scaling
from bench.marks import END, put
from bench.scaling import tables
from bench.scaling.costs import DEFAULT, FORMS, IN_FLIGHT, STRENGTHS, WEAK
from bench.scaling.figures import Figures, Load, Trial
from bench.scaling.model import DOOR, FOLLOWER, PLACES, Plan
from bench.scaling.trials import groups

TOP = Path(__file__).resolve().parents[3]
WRITE = {"alone": 10.0, "leader": 20.0, "follower": 10.0, "feeding": -1.0, "mirror": 12.0,
         "at follower: asked": 15.0, "at follower: leader": 14.0}  # fmt: skip


def load(what: str, place: str, window: int, rate: float = 100_000.0, p50: float = 0.1) -> Load:
    others = 6.0 if place == DOOR else 0.0
    return Load(what, place, window, rate, p50, 2 * p50, 4.0, 0.0, others)


@pytest.fixture
def figures() -> Figures:
    found = Figures("2026-11-29", {"rounds": "2", "seconds": "0.3", "commit": "abc"}, rest=0.01)
    found.forms = [load(form, place, 2) for form in FORMS for place in PLACES]
    for slow in (0.0, 0.02):  # the second round is a slow one: differences are those of a round
        for one, place, window in itertools.product(STRENGTHS, PLACES, (1, IN_FLIGHT)):
            rate, p50 = 95e3 if one.name == DEFAULT else 100e3, 0.1 if one.name == WEAK else 0.15
            found.strengths.append(load(one.name, place, window, rate, p50 + slow))
    found.writes = {"1000": [dict(WRITE), dict(WRITE)], "10000": [dict(WRITE)]}
    for group in groups(0.2):
        for case in group.cases:
            rate = 40_000.0 * (group.replicas + group.mirrors) * case.plan.share / 0.2
            found.trials += [Trial(case.name, form, case.plan, rate, 0.0, [0.2], 0.3) for form in case.forms]
    return found


def test_figures_are_kept(figures: Figures, tmp_path: Path) -> None:
    figures.write(tmp_path / "there" / "figures.json")
    assert Figures.read(tmp_path / "there" / "figures.json") == figures


def test_prediction_and_measurement_stand_side_by_side(figures: Figures) -> None:
    text = tables.scaling(figures, "the command", "plot.svg")
    assert "| 1 server | `seq` | 47,500 | 40,000 | +19 % | 1.00 | 1.00 | 20.0 % | 30 % |" in text
    assert "| 3 servers | `last_by_subj` | 142,500 | 120,000 | +19 % | 3.00 | 3.00 | 20.0 % | 30 % |" in text
    assert "| 3 servers, 1,000 writes/s | `last_by_subj` | 132,500 |" in text
    assert "Three servers serve 3.00 times what one does" in text
    assert "A mirror serves 247,500 reads/s by `seq`, 1.00 of what a follower does." in text
    assert "| leader, for each mirror more | 0.0 | 0.0 |" in text, "a difference below nothing is nothing"
    assert "(plot.svg)" in text


def test_why_there_are_no_trials(figures: Figures) -> None:
    figures.trials, figures.untried = [], "this machine has one core"
    assert "Not measured: this machine has one core." in tables.scaling(figures, "the command")


def test_strengths_are_told_against_weak_of_the_same_round(figures: Figures) -> None:
    text = tables.strengths(figures, "the command")
    assert f"| {WEAK} | 0.11 | 0.22 | +0.000 | +0.000 | 100,000 | 4.0 | 0.0 | 0.0 |" in text
    assert "| MSG.GET | 0.16 | 0.32 | +0.050 | +0.100 | 100,000 | 4.0 | 0.0 | 0.0 |" in text
    assert "| a follower | +5 % | 4.0 | 4.0 |" in text
    everywhere = "the stream's leader, a follower, a server with a mirror, a server without a replica"
    assert f"At most 10 %: {everywhere}.\n" in text and "More: " not in text
    figures.strengths = [
        load(one.what, one.place, one.window, rate=80e3 if one.what == DEFAULT and one.place == DOOR else 100e3)
        for one in figures.strengths
    ]
    text = tables.strengths(figures, "the command")
    assert "At most 10 %: the stream's leader, a follower, a server with a mirror.\n" in text
    assert "More: a server without a replica (+20 %)." in text


def test_pages_are_rendered_from_the_figures(figures: Figures, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    figures.write(tmp_path / "figures.json")
    for name in ("scaling.md", "reads.md"):
        (tmp_path / name).write_text(put((TOP / "docs" / "benchmarks" / name).read_text(), "", scaling.BEGIN))
    parser = argparse.ArgumentParser()
    scaling.add_options(parser)
    words = ["--render", "--json", str(tmp_path / "figures.json"), "--out", str(tmp_path)]
    assert scaling.main(parser.parse_args(words)) == 0
    assert "## On the model" in (tmp_path / "scaling.md").read_text()
    assert "## At a follower" in (tmp_path / "reads.md").read_text().partition(END)[0]
    assert "<svg" in (tmp_path / scaling.PLOT).read_text()
    figures.forms = [
        Load(one.what, one.place, 2, 1.0, 0.1, 0.2, 9.0 if one.place == FOLLOWER else 4.0, 0.0, 0.0)
        for one in figures.forms
    ]
    figures.write(tmp_path / "figures.json")
    assert scaling.main(parser.parse_args(words)) == 1, "followers that cost twice as much miss the goal"


def test_reads_beside_writes_have_to_reach_the_goal_too(figures: Figures, tmp_path: Path) -> None:
    figures.writes["1000"] = [dict(WRITE) | {"follower": 500.0}]
    figures.write(tmp_path / "figures.json")
    found = tables.ratios(figures)
    assert found["`seq`", 0.0] >= tables.GOAL > found["`last_by_subj`", 1000.0]
    assert (
        f"{found['`last_by_subj`', 1000.0]:.2f} times what one does (`last_by_subj`, 1,000 writes/s;"
        in tables.scaling(figures, "the command")
    )
    parser = argparse.ArgumentParser()
    scaling.add_options(parser)
    assert scaling.main(parser.parse_args(["--render", "--json", str(tmp_path / "figures.json")])) == 1


@pytest.mark.parametrize("words", [["--render"], ["--part", "trials"]])
def test_pages_need_costs(words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Before anything is measured or written: an earlier run has to have them."""
    parser = argparse.ArgumentParser()
    scaling.add_options(parser)
    json = tmp_path / "figures.json"
    args = parser.parse_args([*words, "--json", str(json), "--dir", str(tmp_path / "stores")])
    assert scaling.main(args) == 2
    Figures().write(json)
    assert scaling.main(args) == 2
    assert "has no costs" in capsys.readouterr().err
    assert not (tmp_path / "stores").exists()


def test_a_whole_core_is_a_case_of_its_own() -> None:
    plans = [case.plan for group in groups(0.2) for case in group.cases]
    assert Plan(1, share=1.0) in plans and Plan(3, mirrors=1, share=0.2) in plans
