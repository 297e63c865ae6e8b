"""The simulation of complete nodes as a test: seeds that failed once, new ones, and that a seed is the same wherever it
runs.

The new seeds are drawn by the commit's hash: the same at each run of a commit, others for the next one, so that CI goes
on looking. `make sim` goes on with more. A seed that fails is printed with what replays it.
"""

from __future__ import annotations

import gc
import inspect
import os
import random
import resource
import secrets
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from jetcluster import native
from jetcluster.stream.apply import scheduler
from testkit.native import one_description
from testkit.sim import machine
from tests import rotation
from tests.sim.cluster import __main__, apart, batch, replay
from tests.sim.cluster.run import run_seed

pytestmark = pytest.mark.sim

ROOT = Path(__file__).parents[3]
REPLAYED = (
    pytest.param(3, marks=pytest.mark.thorough), 7, pytest.param(700003, marks=pytest.mark.thorough), 22000088,
)  # fmt: skip
"""Seeds with kills, stops and consumers that wait, one that asks servers for the memory and time they use, and one with
TLS, for which servers import more."""
IN_BOTH = (2, pytest.param(110, marks=pytest.mark.thorough))
"""Seeds whose clients send publishes and other commands in one read."""
READINGS: tuple[tuple[ModuleType, tuple[str, ...]], ...] = (
    (os, ("urandom", "getrandom", "cpu_count", "getpid", "getloadavg", "sysconf", "times")),
    (time, ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "process_time", "thread_time")),
    (random, ("random", "uniform", "randrange", "randbytes", "choice", "shuffle")),
    (secrets, ("token_bytes", "token_hex", "randbelow")),
    (resource, ("getrusage",)),
    (gc, ("get_stats", "get_count")),
)
"""Functions whose results differ from one machine, process or moment to the next."""
NEW = rotation.number_of_commit() % 100_000_000 * 100
"""The first new seed of this commit."""
BLOCK = 6
SEEDS = [range(NEW + at, NEW + at + BLOCK) for at in range(0, 4 * BLOCK, BLOCK)]
"""The seeds of this commit, for some two minutes of CPU, in blocks, so that all processors have some."""
PARTS = 4
"""Parts of the corpus, for the same reason."""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", range(PARTS))
def test_the_corpus(part: int) -> None:
    began, rows = time.monotonic(), batch.corpus()[part::PARTS]
    failures = [str(outcome) for outcome in map(apart.run, rows) if outcome.failure]
    assert not failures, "\n".join(failures)
    print(f"{len(rows)} seeds of the corpus in {time.monotonic() - began:.0f} s")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seeds", SEEDS, ids=lambda seeds: f"block {(seeds.start - NEW) // BLOCK}")
def test_seeds(seeds: range) -> None:
    totals, failures, done = batch.Totals(), [], 0
    for outcome in batch.run_many(seeds.start, len(seeds), run_scenario=apart.run):
        totals.add(outcome)
        done += sum(outcome.counts.values())
        if outcome.failure:
            failures.append(str(outcome))
    print(totals)
    assert not failures, "\n".join([str(totals), *failures])
    assert totals.seeds == len(seeds) and done > 100 * len(seeds)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", REPLAYED)
def test_a_seed_replays_to_the_byte(seed: int) -> None:
    here = run_seed(seed).digest
    assert run_seed(seed).digest == here, "a second run in the same process differs"
    assert [replay.alone(seed, hash_seed) for hash_seed in (0, 7)] == [here, here]
    assert run_seed(seed + 1).digest != here


@pytest.mark.timeout(600)
def test_seeds_of_this_commit_replay_in_a_batch_and_alone() -> None:
    found = list(replay.check(NEW, 3))
    assert [one.seed for one in found] == list(range(NEW, NEW + 3))
    assert all(one.same for one in found), "\n".join(map(str, found))


def test_a_process_of_its_own_is_somewhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, str]] = []

    def run(command: list[str], env: dict[str, str], **options: Any) -> subprocess.CompletedProcess[str]:
        asked.append(env)
        return subprocess.CompletedProcess(command, 0, f"seed 7: 1.0 s in 1.00 s of CPU, {'a' * 32}; no gap", "")

    monkeypatch.setattr(subprocess, "run", run)
    assert replay.alone(7, 3) == "a" * 32
    assert replay.ELSEWHERE.items() <= asked[0].items() and asked[0]["PYTHONHASHSEED"] == "3"


def test_a_seed_that_does_not_replay_is_told() -> None:
    found = replay.Replay(7, "a" * 32, "b" * 32)
    assert not found.same and "seed 7 DIFFERS" in str(found) and "--seed 7 --wire" in str(found)


@pytest.mark.skipif(native.publish_lines is None, reason=f"no compiled loops: {native.why_pure}")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", IN_BOTH)
def test_compiled_loops_and_python_run_a_seed_alike(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where looks at the clock take no time: `Commands` looks after each chunk of input, and compiled loops end one
    early, at a command that is left to Python."""
    monkeypatch.setattr(machine, "LOOK", 0.0)
    compiled, python = run_seed(seed, pure=False), run_seed(seed, pure=True)
    assert compiled.failure == python.failure == ""
    assert compiled.digest == python.digest and compiled.counts == python.counts


def test_a_machine_without_compiled_loops_runs_a_seed_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server logs which loops it has, and a seed that Python runs alone is the same on every machine."""
    scenario = batch.Drawing(("exam-model",)).scenario(7111)
    here = run_seed(7111, scenario=scenario)
    monkeypatch.setattr(native, "described", "Python alone: JETCLUSTER_PURE is set")
    assert run_seed(7111, scenario=scenario).digest == here.digest
    assert native.described == "Python alone: JETCLUSTER_PURE is set"


def test_the_zone_of_the_machine_is_no_part_of_a_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Schedules may name it (`Local`), and it may be any, or none."""
    monkeypatch.setattr(scheduler, "LOCAL_FILE", str(tmp_path / "nothing"))
    noon = datetime(2026, 7, 1, 12, tzinfo=UTC)
    with pytest.raises(OSError, match="nothing"):
        scheduler.system_zone("Local")
    with one_description():
        assert noon.astimezone(scheduler.system_zone("Local")).utcoffset() == timedelta(0)
    with pytest.raises(OSError, match="nothing"):
        scheduler.system_zone("Local")


def test_who_runs_seeds_without_compiled_loops_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An even seed is another run there: messages go between servers in other frames."""
    monkeypatch.setattr(sys, "argv", ["sim", "--count", "0", "--start", "2"])
    said = []
    for publish_lines in (len, None):
        monkeypatch.setattr(native, "publish_lines", publish_lines)
        assert __main__.main() == 0
        said.append(capsys.readouterr().err)
    assert said[0] == "" and "even seeds are other runs" in said[1]


def test_no_node_asks_the_real_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a seed would be another one wherever somebody looks at the answer."""
    asked: set[str] = set()

    def noted(function: Callable[..., Any]) -> Callable[..., Any]:
        def ask(*args: Any, **options: Any) -> Any:
            frame = inspect.currentframe()
            assert frame is not None and frame.f_back is not None
            caller = frame.f_back.f_code
            if Path(caller.co_filename).is_relative_to(ROOT / "jetcluster"):
                asked.add(f"{caller.co_filename}: {caller.co_name} asks {function.__name__}")
            return function(*args, **options)

        return ask

    run_seed(700003)  # imports and built models are of no run
    for module, names in READINGS:
        for name in names:
            monkeypatch.setattr(module, name, noted(getattr(module, name)))
    assert run_seed(700003).failure == ""
    assert asked == set()
