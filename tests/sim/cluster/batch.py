"""Many seeds: in several processes, for so many or so long, with totals over all runs there ever were (totals.toml)."""

from __future__ import annotations

import functools
import multiprocessing
import time
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from testkit.previous import git
from tests.sim.cluster import nemesis
from tests.sim.cluster.nemesis import Rage
from tests.sim.cluster.run import run_seed
from tests.sim.cluster.scenario import Scenario

TOTALS = Path(__file__).with_name("totals.toml")
CORPUS = Path(__file__).with_name("corpus.toml")


@dataclass(slots=True, frozen=True)
class Outcome:
    """The part of a result that goes from one process to another."""

    seed: int
    failure: str
    digest: str
    seconds: float
    cpu: float
    counts: dict[str, int] = field(default_factory=dict)
    gap: float = 0.0
    """Seconds: see `run.Result`."""

    def __str__(self) -> str:
        """The summary of a seed: one line, and what failed with the command that replays it."""
        done = ", ".join(f"{what} {number}" for what, number in sorted(self.counts.items()))
        times = f"{self.seconds:.1f} s in {self.cpu:.2f} s of CPU, {self.digest}; longest gap {self.gap:.2f} s"
        line = f"seed {self.seed}: {times}; {done}"
        if not self.failure:
            return line
        return f"{line}\n    {self.failure.strip()}\n    replay: python -m tests.sim.cluster --seed {self.seed} --trace"


@dataclass(slots=True)
class Totals:
    """Sums over some seeds, or over all runs that were recorded."""

    seeds: int = 0
    failed: int = 0
    hours: float = 0.0
    """Hours of simulated time."""
    cpu: float = 0.0
    """Seconds."""
    gap: float = 0.0
    """The longest of any seed, in seconds; not recorded."""
    failures: list[int] = field(default_factory=list)
    """The seeds that failed, of those that were added here."""

    def add(self, outcome: Outcome) -> None:
        self.seeds += 1
        if outcome.failure:
            self.failed += 1
            self.failures.append(outcome.seed)
        self.hours += outcome.seconds / 3_600
        self.cpu += outcome.cpu
        self.gap = max(self.gap, outcome.gap)

    def __str__(self) -> str:
        rate = 60 * self.seeds / self.cpu if self.cpu else 0.0
        return (
            f"{self.seeds} seeds, {self.failed} failed, {self.hours:.2f} simulated hours "
            f"in {self.cpu:.0f} s of CPU ({rate:.0f} seeds per minute), longest gap {self.gap:.2f} s"
        )


def run_one(what: int | Scenario, *, collect: bool = True) -> Outcome:
    """A seed, or a scenario, in this process. `collect`: see `run_seed`."""
    scenario = Scenario.of(what) if isinstance(what, int) else what
    result = run_seed(scenario.seed, scenario=scenario, collect=collect)
    return Outcome(scenario.seed, result.failure, result.digest, result.seconds, result.cpu, result.counts, result.gap)


@dataclass(slots=True, frozen=True)
class Drawing:
    """The limits of what seeds are drawn from: see `Scenario.of`."""

    only: tuple[str, ...] | None = None
    faults: tuple[str, ...] = ()
    wider: bool | None = None
    no_others: bool = False
    tls: str = ""
    """All have TLS of this kind; "" for what their seed says."""

    def scenario(self, seed: int) -> Scenario:
        scenario = Scenario.of(seed, self.only, wider=self.wider, faults=self.faults, no_others=self.no_others)
        return replace(scenario, tls=self.tls or scenario.tls)


def _run_drawn(drawing: Drawing, run: Callable[[Scenario], Outcome], seed: int) -> Outcome:
    return run(drawing.scenario(seed))


def run_many(
    start: int,
    count: int,
    *,
    workers: int = 1,
    seconds: float = float("inf"),
    drawing: Drawing = Drawing(),
    run_scenario: Callable[[Scenario], Outcome] = run_one,
) -> Iterator[Outcome]:
    """Seeds from `start` on, as they are done: `count` of them, fewer where `seconds` are over before. `run_scenario`:
    `apart.run` is cheaper, and lets no tool look at what is run."""
    end = time.monotonic() + seconds
    seeds = iter(range(start, start + count))
    run = functools.partial(_run_drawn, drawing, run_scenario)
    if workers == 1:
        for seed in seeds:
            yield run(seed)
            if time.monotonic() >= end:
                return
        return
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        for outcome in pool.imap_unordered(run, seeds):
            yield outcome
            if time.monotonic() >= end:
                pool.terminate()
                return


def corpus() -> list[Scenario]:
    """Scenarios that failed once, in the order of the file; those that are `wide` only while such faults are drawn."""
    with CORPUS.open("rb") as file:
        rows = tomllib.load(file)["scenarios"]
    return [_scenario(**row) for row in rows if not row.pop("wide", False) or nemesis.WIDER]


def _scenario(why: str, rage: dict[str, Any], workloads: list[str], **rest: Any) -> Scenario:
    """The scenario of a row of the file, whose lists are tuples here."""
    plan = Rage(**{**rage, "faults": tuple(rage["faults"])})
    return Scenario(rage=plan, workloads=tuple(workloads), **rest)


def recorded() -> Totals:
    with TOTALS.open("rb") as file:
        row = tomllib.load(file)
    return Totals(row["seeds"], row["failed"], row["hours"], row["cpu_seconds"])


def record(totals: Totals, commit: str = "") -> Totals:
    """Adds them to the file, and to what it says of this commit; returns the sums that it says then. `commit`: of this
    tree where it is not given."""
    before = recorded()
    total = Totals(
        before.seeds + totals.seeds,
        before.failed + totals.failed,
        before.hours + totals.hours,
        before.cpu + totals.cpu,
    )
    with TOTALS.open("rb") as file:
        commits = tomllib.load(file).get("commits", {})
    name = commit or commit_here()
    old = commits.pop(name, {"seeds": 0, "failures": []})
    today = datetime.now(UTC).date()
    commits[name] = {
        "date": today,
        "seeds": old["seeds"] + totals.seeds,
        "failures": [*old["failures"], *totals.failures],
    }
    rows = [
        f'[commits."{name}"]\ndate = {row["date"]}\nseeds = {row["seeds"]}\nfailures = {row["failures"]}\n'
        for name, row in commits.items()
    ]
    head = (
        "# All seeds that were run with --record, on every version since the simulation began; those of each commit\n"
        "# since 2026-11-30, with what failed there (+: of a tree with more than the commit has).\n"
        f"seeds = {total.seeds}\nfailed = {total.failed}\nhours = {total.hours:.2f} # of simulated time\n"
        f"cpu_seconds = {total.cpu:.0f}\nlast = {today}\n"
    )
    TOTALS.write_text("\n".join((head, *rows)))
    return total


def commit_here() -> str:
    """The commit of this tree; "+" behind it where the simulated code was changed since."""
    root = Path(__file__).parents[3]
    found = git(root, "rev-parse", "--short=8", "HEAD")
    changed = git(root, "status", "--porcelain", "--untracked-files=no", "--", "jetcluster", "testkit", "tests/sim")
    only = f"M {Path(__file__).with_name('totals.toml').relative_to(root)}"
    return f"{found or 'unknown'}{'+' if changed not in ('', only) else ''}"
