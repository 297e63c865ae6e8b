"""Bugs that can be planted into servers: each still fits the program, and one is shown to be found."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from chaos.alerts.stage import PLANTED as ALERTS_PLANTED
from chaos.checkers.verdict import Verdict
from chaos.cli import MISSED, found, main
from chaos.plants import PLANTS, Plant
from chaos.runner import Result
from chaos.scenarios import SCENARIOS
from jetcluster.pipeline.checkers.event import Finding
from testkit.harness import TOP

pytestmark = [pytest.mark.long, pytest.mark.thorough]


def planted(plant: Plant, folder: Path) -> subprocess.CompletedProcess[str]:
    switches = {"JETCLUSTER_PLANT_SWITCH": str(folder / "on"), "JETCLUSTER_PLANT_STUCK": str(folder / "stuck")}
    env = {**os.environ, **plant.environment(folder, TOP), **switches}
    check = "import sys, sitecustomize; print(sitecustomize.__file__)"
    return subprocess.run([sys.executable, "-c", check], env=env, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", [*PLANTS, *range(len(ALERTS_PLANTED))])
def test_plants_fit_the_program(name: str | int, tmp_path: Path) -> None:
    plant = PLANTS[name] if isinstance(name, str) else Plant("", "", frozenset(), "", ALERTS_PLANTED[name])
    done = planted(plant, tmp_path)
    assert done.stderr == ""
    assert done.stdout.strip() == str(tmp_path / "sitecustomize.py")
    assert plant.scenario in SCENARIOS or not isinstance(name, str)


def test_a_server_with_a_plant_that_does_not_fit_does_not_start(tmp_path: Path) -> None:
    done = planted(Plant("", "", frozenset(), "", "from jetcluster import nothing_like_it\n"), tmp_path)
    assert done.returncode == 3 and "the plant is out of date" in done.stderr


@pytest.mark.cluster
@pytest.mark.timeout(240)
def test_a_planted_bug_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--plant", "no-window", "--scenario", "calm", "--workload", "times", "queue", "--seeds", "1"]
    assert main([*words, "--seconds", "8", "--out", str(tmp_path)]) == 1
    assert "plant no-window: found as duplicated" in capsys.readouterr().out
    # The terminal shows a dozen findings: on a busy machine all of them may be of the other workload.
    assert "duplicated (times" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(("kinds", "code"), [(["lost", "duplicated"], 1), (["outage"], MISSED), ([], MISSED)])
def test_a_plant_counts_as_found_only_as_what_it_is(kinds: list[str], code: int) -> None:
    result = Result("calm", 1, "local", Verdict(findings=[Finding(kind, "queue", "") for kind in kinds]))
    assert found(PLANTS["no-window"], [result], Console(quiet=True)) == code
