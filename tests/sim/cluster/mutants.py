"""`python -m tests.sim.cluster.mutants [NAME...] --seconds 300`: the product with one mistake in it, and the simulation
that must notice. Each mutant of mutants.toml is a change of one file; the tree is copied, changed there and simulated
until a seed fails or so many seconds of processor time are over."""

from __future__ import annotations

import argparse
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[3]
TABLE = Path(__file__).with_name("mutants.toml")
SECONDS = 300.0
"""Of processor time; a mutant that lives longer has survived."""
FIRST = 20_000
"""Seed."""


@dataclass(slots=True, frozen=True)
class Mutant:
    name: str
    file: str
    """Below `jetcluster/`; its first folder is the room."""
    old: str
    new: str
    breaks: str
    """The promise."""
    killed_by: str = ""
    """What noticed it, and after how long; what would, where nothing has yet."""

    @property
    def path(self) -> Path:
        return Path("jetcluster") / self.file

    def apply(self, root: Path) -> None:
        """Raises ValueError where the text is not there, or more than once."""
        path = root / self.path
        text = path.read_text()
        if text.count(self.old) != 1:
            raise ValueError(f"{self.name}: {self.path} has the old text {text.count(self.old)} times")
        path.write_text(text.replace(self.old, self.new))


@dataclass(slots=True, frozen=True)
class Verdict:
    killed: bool
    seeds: int
    cpu: float
    said: str

    def __str__(self) -> str:
        what = f"KILLED by seed {self.said}" if self.killed else "SURVIVED"
        return f"{what}; {self.seeds} seeds, {self.cpu:.0f} s of CPU"


def load() -> list[Mutant]:
    with TABLE.open("rb") as file:
        return [Mutant(**row) for row in tomllib.load(file)["mutants"]]


def try_one(mutant: Mutant, seconds: float, start: int = FIRST) -> Verdict:
    """Seeds from `start` on, over the changed copy."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        root = Path(folder)
        for part in ("jetcluster", "tests"):
            shutil.copytree(ROOT / part, root / part, ignore=shutil.ignore_patterns("__pycache__"))
        mutant.apply(root)
        return _simulate(root, seconds, start)


def _simulate(root: Path, seconds: float, start: int) -> Verdict:
    """In a process of its own, which ends with the first seed that fails; a loop that never ends is a failure too."""

    def limit() -> None:
        most = int(seconds) + 60
        resource.setrlimit(resource.RLIMIT_CPU, (most, most))

    process = subprocess.Popen(
        [sys.executable, "-m", "tests.sim.cluster.mutants", "--simulate", str(seconds), "--start", str(start)],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=limit,
    )
    said, _ = process.communicate()
    lines = said.strip().splitlines()
    found = re.search(r"(\d+) seeds, ([0-9.]+) s$", lines[-1]) if lines else None
    if found is None:  # it could not even be imported, or was ended by its limit
        return Verdict(killed=True, seeds=0, cpu=0.0, said="\n".join(lines[-3:])[-300:])
    cpu = float(found.group(2))
    return Verdict(process.returncode == 1, int(found.group(1)), cpu, lines[-2][:300] if len(lines) > 1 else "")


def _simulating(seconds: float, start: int) -> int:
    """In the copy: 1 when a seed failed."""
    from tests.sim.cluster.batch import run_one

    cpu, seed = 0.0, start
    while cpu < seconds:
        outcome = run_one(seed)
        cpu += outcome.cpu
        seed += 1
        if outcome.failure:
            print(f"{outcome.seed}: {outcome.failure.strip().splitlines()[-1]}")
            print(f"{seed - start} seeds, {cpu:.1f} s")
            return 1
    print(f"{seed - start} seeds, {cpu:.1f} s")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim.cluster.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", help="of mutants, or of rooms; all by default")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of processor time for each")
    parser.add_argument("--start", type=int, default=FIRST, help="the first seed")
    parser.add_argument("--simulate", type=float, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.simulate is not None:
        return _simulating(arguments.simulate, arguments.start)
    survived = []
    for mutant in load():
        room = mutant.file.partition("/")[0]
        if arguments.names and not {mutant.name, room} & set(arguments.names):
            continue
        verdict = try_one(mutant, arguments.seconds, arguments.start)
        print(f"{mutant.name:32} {verdict}", flush=True)
        if not verdict.killed:
            survived.append(mutant.name)
    print(f"{len(survived)} survived: {', '.join(survived)}" if survived else "all are killed")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
