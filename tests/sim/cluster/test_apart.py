"""A seed in a process of its own is the same as here, and one that ends badly is not taken for one that passes."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest

from jetcluster import records
from tests.sim.cluster import apart, batch
from tests.sim.cluster.batch import Outcome
from tests.sim.cluster.scenario import Scenario

pytestmark = pytest.mark.sim

SCENARIO = batch.Drawing(("exam-model",)).scenario(7112)


def test_a_seed_is_the_same_and_all_of_its_processor_time_is_counted() -> None:
    here, there = batch.run_one(SCENARIO), apart.run(SCENARIO)
    assert there.cpu > 0.0
    assert replace(there, cpu=here.cpu) == here


def test_what_a_run_leaves_is_not_collected(monkeypatch: pytest.MonkeyPatch) -> None:
    collections = []
    monkeypatch.setattr(gc, "collect", lambda: collections.append(True))
    batch.run_one(SCENARIO, collect=False)
    assert not collections
    batch.run_one(SCENARIO)
    assert collections


def test_what_a_seed_imports_is_imported_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(scenario: Scenario, *, collect: bool) -> Outcome:
        import tests.sim.limits  # noqa: F401

        return Outcome(scenario.seed, "", "", 0.0, 0.0)

    monkeypatch.delitem(sys.modules, "tests.sim.limits", raising=False)
    monkeypatch.setattr(apart, "run_one", run)
    apart.run(SCENARIO)
    assert "tests.sim.limits" in sys.modules


def test_a_seed_compiles_and_imports_nothing_that_the_rehearsal_has(monkeypatch: pytest.MonkeyPatch) -> None:
    apart.rehearse()
    monkeypatch.setattr(records, "_compiled", lambda *_: pytest.fail("it compiles a method of a record"))
    before = set(sys.modules)
    assert not batch.run_one(apart.REHEARSED).failure
    assert set(sys.modules) == before


def test_a_process_that_ends_without_an_outcome_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def run(scenario: Scenario, *, collect: bool) -> Outcome:
        raise MemoryError("none is left")

    monkeypatch.setattr(apart, "run_one", run)
    with pytest.raises(ChildProcessError, match=f"the process of seed {SCENARIO.seed} ended with 1"):
        apart.run(SCENARIO)
    assert "none is left" in capfd.readouterr().err


def test_a_signal_that_ends_it_ends_who_waits() -> None:
    """A mutant's loop that does not end is ended by the limit of processor time: `mutants` looks for that signal."""
    text = (
        "import os, signal\n"
        "from tests.sim.cluster import apart\n"
        "from tests.sim.cluster.scenario import Scenario\n"
        "apart.run_one = lambda *_, **__: os.kill(os.getpid(), signal.SIGXCPU)\n"
        "apart.run(Scenario.of(1))\n"
    )
    done = subprocess.run([sys.executable, "-c", text], env=os.environ, check=False, timeout=120)
    assert done.returncode == -signal.SIGXCPU
