"""The simulation as a test: thousands of seeds in two processes, and proof that it can fail.

`JETCLUSTER_SIM_SECONDS` (default 85) is the time budget, `JETCLUSTER_SIM_START` the first seed (default 0). A failing
seed is printed; `python -m tests.sim.run --seed N --trace` replays it.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.sim import lease_faults
from tests.sim.checks import Violation
from tests.sim.liveness import Liveness
from tests.sim.mutants import MUTANTS
from tests.sim.run import run_seed
from tests.sim.simulation import Scenario, Simulation

pytestmark = pytest.mark.sim

ROOT = Path(__file__).parents[2]
WORKERS = 2
APART = 1_000_000
MINIMUM = 720
"""Seeds below which the run proves too little: a slow machine takes longer for them than it was given."""


@pytest.mark.timeout(600)
def test_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    seconds = float(os.environ.get("JETCLUSTER_SIM_SECONDS", "85"))
    start = int(os.environ.get("JETCLUSTER_SIM_START", "0"))
    workers = [
        subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.sim.run",
                "--json",
                "--start",
                str(start + i * APART),
                "--seconds",
                str(seconds),
                "--at-least",
                str(MINIMUM // WORKERS),
            ],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        for i in range(WORKERS)
    ]
    done = 0
    failures: list[tuple[int, str]] = []
    stats: dict[str, int] = {}
    for worker in workers:
        out, _ = worker.communicate()
        result = json.loads(out.splitlines()[-1])
        done += result["seeds"]
        failures += result["failures"]
        for key, value in result["stats"].items():
            stats[key] = stats.get(key, 0) + value
    with capsys.disabled():
        print(f"\nsimulation: {done} seeds from {start}, {stats}")
        for seed, failure in failures:
            print(f"simulation: seed {seed} fails: {failure}  (python -m tests.sim.run --seed {seed} --trace)")
    assert failures == []
    assert done >= MINIMUM
    for kind in ("crashes", "elections", "snapshots", "added", "removed", "corruptions", "disk-full", "reads", "acked"):
        assert stats[kind] > 100, f"hardly any {kind} in {done} seeds: the runs test little"


FIRST = {"one vote is enough": 2800, "reads unconfirmed": 300}
"""Seeds to begin with, where only one seed in some hundreds notices it: two candidates of one term that both see voters
(2873 is one), a leader that was replaced without knowing it and is asked at once (320, 465)."""


LEASES = [
    "lease too long", "clocks agree", "lease from its grant", "early vote", "promise forgotten",
    "lease outlives a transfer",
]  # fmt: skip
"""Mutants for which `lease_faults` are made."""


@pytest.mark.thorough
@pytest.mark.parametrize("name", [name for name in MUTANTS if name not in LEASES])
def test_a_missing_safety_measure_is_noticed(name: str) -> None:
    with MUTANTS[name]():
        first = FIRST.get(name, 0)
        for seed in range(first, first + 400):
            _, failure = run_seed(seed)
            if failure is not None:
                return
    raise AssertionError(f"400 seeds without {name!r} and nothing noticed")


@pytest.mark.timeout(600)
def test_leases_hold_under_the_faults_that_are_made_for_them() -> None:
    reads = 0
    for seed in range(100, 112):
        sim, failure = run_seed(seed, scenario=lease_faults.scenario(seed))
        assert failure is None, f"lease seed {seed}: {failure}"
        reads += sim.stats["lease-reads"]
    assert reads > 2000, "hardly any read was under a lease"


@pytest.mark.parametrize("name", LEASES)
def test_a_lease_that_does_not_hold_is_noticed(name: str) -> None:
    with MUTANTS[name]():
        assert _stale(lease_faults.scenario), f"60 seeds with {name!r} and nothing noticed"


def test_clocks_beyond_the_bound_are_noticed() -> None:
    def beyond(seed: int) -> Scenario:
        scenario = lease_faults.scenario(seed)
        scenario.drift = 0.45
        return scenario

    assert _stale(beyond)


def _stale(scenario: Callable[[int], Scenario]) -> bool:
    """True when a seed shows a stale read."""
    for seed in range(60):
        _, failure = run_seed(seed, scenario=scenario(seed))
        if failure is not None:
            return failure.startswith("stale-read")
    return False


def test_a_seed_replays_exactly() -> None:
    def fingerprint(hash_seed: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "tests.sim.run", "--seed", "4242", "--trace"],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout

    first = fingerprint("1")
    assert len(first.splitlines()) > 100
    assert fingerprint("2") == first


def test_only_a_group_without_a_sound_majority_is_excused_from_having_a_leader() -> None:
    sim = Simulation(1, Scenario(voters=3, spares=1))
    sim.nodes["D"].create(1, ("A", "B", "C"))
    assert sim.nodes["D"].raft.groups[1].log.damaged, "it is being added"
    judge = Liveness(sim, 0.0)
    assert not judge.excused(1)
    sim.nodes["C"].raft.groups[1].log.mark_damaged()
    assert not judge.excused(1)
    sim.nodes["B"].raft.groups[1].log.mark_damaged()
    assert judge.excused(1)


@pytest.mark.parametrize(("terms", "stays"), [([5, 5], True), ([5, 7], False), ([5, None], False), ([None, 5], False)])
def test_a_leader_that_comes_late_has_to_stay(
    terms: list[int | None], stays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    sim = Simulation(1, Scenario(voters=3))
    seen = [None, *terms]  # at the first look, at the second, and when it is judged

    def leader(gid: int) -> object:
        term = seen.pop(0)
        return term and SimpleNamespace(name="A", raft=SimpleNamespace(groups={gid: SimpleNamespace(term=term)}))

    monkeypatch.setattr(sim, "healed_leader", leader)
    judge = Liveness(sim, sim.now)
    looks = [judge.next_look - sim.now]
    while not judge.look():
        looks.append(judge.next_look - sim.now)
    assert looks == pytest.approx([1.2, 1.8, 2.4])
    with contextlib.nullcontext() if stays else pytest.raises(Violation, match="no leader that stays"):
        judge.judge()
