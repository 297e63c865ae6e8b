"""`python -m tests.sim.cluster.mutants [NAME...] --seconds 300`: the product with one mistake in it, and the simulation
that must notice. Each mutant of mutants.toml is a change of one file; the tree is copied, changed there and simulated
until a seed fails that does not fail without the change, or so many seconds of processor time are over."""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.sim.cluster.batch import Drawing

ROOT = Path(__file__).parents[3]
TABLE = Path(__file__).with_name("mutants.toml")
SECONDS = 300.0
"""Processor time for a mutant; one that lives longer has survived."""
FIRST = 20_000
"""Seed."""
KILLED = "KILLED by seed"


@dataclass(slots=True, frozen=True)
class Mutant:
    name: str
    file: str
    """Below `jetcluster/`; its first folder is the room."""
    old: str
    new: str
    breaks: str
    """The promise."""
    noticed_by: str = ""
    """The check that is to notice it."""
    tried: str = ""
    """The outcome of the last trial (`--record`)."""
    survives: str = ""
    """Why nothing notices it."""
    only: tuple[str, ...] | list[str] = ()
    """Workloads of which its seeds are drawn, where most seeds do nothing that it changes; all by default."""
    faults: tuple[str, ...] | list[str] = ()
    """Faults that its seeds have as well, for the same reason."""
    no_others: bool = False
    """Its seeds have no other faults than these."""
    tls: str = ""
    """All ports and links of its seeds have TLS of this kind (`layout.Security`)."""

    @property
    def drawn(self) -> list[str]:
        """Options of what its seeds are drawn from."""
        only, faults = (
            (["--only", *self.only] if self.only else []),
            (["--faults", *self.faults] if self.faults else []),
        )
        tls = ["--tls", self.tls] if self.tls else []
        return [*only, *faults, *(["--no-others"] if self.no_others else []), *tls]

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
        what = f"{KILLED} {self.said}" if self.killed else "SURVIVED"
        return f"{what}; {self.seeds} seeds, {self.cpu:.0f} s of CPU"


def load() -> list[Mutant]:
    with TABLE.open("rb") as file:
        return [Mutant(**row) for row in tomllib.load(file)["mutants"]]


def record(mutant: Mutant, verdict: Verdict) -> None:
    """Writes the verdict into the table, which others may have changed meanwhile."""
    text = TABLE.read_text()
    row = text.index(f'name = "{mutant.name}"\n')
    at = text.index("breaks = ", row)
    end = text.find("[[mutants]]", at)
    own = text[at : end if end >= 0 else len(text)]
    line = f"tried = {json.dumps(f'{datetime.now(UTC):%Y-%m-%d}: {verdict}', ensure_ascii=False)}\n"
    kept = re.sub(r"^tried = .*\n", "", own, flags=re.M)
    new = kept.rstrip("\n") + "\n" + line + ("\n" if end >= 0 else "")
    TABLE.write_text(text[:at] + new + text[at + len(own) :])


def copy_tree(source: Path, target: Path) -> None:
    """Copies what a simulation needs of the tree."""
    for part in ("jetcluster", "testkit", "tests"):
        shutil.copytree(source / part, target / part, ignore=shutil.ignore_patterns("__pycache__"))


def try_one(mutant: Mutant, tree: Path, seconds: float, start: int = FIRST) -> Verdict:
    """Seeds from `start` on, over a changed copy of `tree`. A seed that fails in `tree` as well counts for nothing."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        root = Path(folder)
        copy_tree(tree, root)
        mutant.apply(root)
        seeds, cpu = 0, 0.0
        while True:
            verdict = _simulate(root, seconds - cpu, start + seeds, mutant.drawn)
            seeds, cpu = seeds + verdict.seeds, cpu + verdict.cpu
            if not verdict.killed or not _fails(tree, start + seeds - 1, mutant.drawn):
                return Verdict(verdict.killed, seeds, cpu, verdict.said)
            if cpu >= seconds:
                return Verdict(False, seeds, cpu, "")


def _fails(tree: Path, seed: int, drawn: Sequence[str]) -> bool:
    """True when the seed fails without the change."""
    command = [sys.executable, "-m", "tests.sim.cluster", "--seed", str(seed), *drawn]
    return (
        subprocess.run(command, cwd=tree, env=_environment(tree), stdout=subprocess.DEVNULL, check=False).returncode
        != 0
    )


def _environment(root: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}


def _simulate(root: Path, seconds: float, start: int, drawn: Sequence[str]) -> Verdict:
    """Simulates in a process of its own, which ends with the first seed that fails; a loop that never ends is a failure
    too."""

    def limit() -> None:
        most = int(seconds) + 60
        resource.setrlimit(resource.RLIMIT_CPU, (most, most))

    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tests.sim.cluster.mutants",
            "--simulate",
            str(seconds),
            "--start",
            str(start),
            *drawn,
        ],
        cwd=root,
        env=_environment(root),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=limit,
    )
    said, _ = process.communicate()
    lines = said.strip().splitlines()
    found = re.search(r"(\d+) seeds, ([0-9.]+) s$", lines[-1]) if lines else None
    if found is None and process.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        return Verdict(killed=True, seeds=1, cpu=seconds, said="of a loop that does not end")
    if found is None:
        raise RuntimeError(f"the copy does not run: {said[-1000:]}")
    cpu = float(found.group(2))
    return Verdict(process.returncode == 1, int(found.group(1)), cpu, lines[-2][:300] if len(lines) > 1 else "")


def _simulating(seconds: float, start: int, drawing: Drawing) -> int:
    """Simulates, in the copy; returns 1 when a seed failed."""
    from tests.sim.cluster import apart

    cpu, seed = 0.0, start
    while cpu < seconds:
        outcome = apart.run(drawing.scenario(seed))
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
    parser.add_argument("--record", action="store_true", help="write what came of it into mutants.toml")
    parser.add_argument("--survivors", action="store_true", help="only those that were not killed yet")
    parser.add_argument("--only", nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("--faults", nargs="+", default=[], help=argparse.SUPPRESS)
    parser.add_argument("--no-others", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--tls", default="", help=argparse.SUPPRESS)
    parser.add_argument("--simulate", type=float, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.simulate is not None:
        from tests.sim.cluster.batch import Drawing

        drawing = Drawing(arguments.only, arguments.faults, no_others=arguments.no_others, tls=arguments.tls)
        return _simulating(arguments.simulate, arguments.start, drawing)
    survived = []
    wanted = set(arguments.names)
    with tempfile.TemporaryDirectory(prefix="tree-") as folder:
        tree = Path(folder)
        copy_tree(ROOT, tree)  # who runs this for hours goes on working
        for mutant in load():
            if wanted and not {mutant.name, mutant.file.partition("/")[0]} & wanted:
                continue
            if arguments.survivors and KILLED in mutant.tried:
                continue
            verdict = try_one(mutant, tree, arguments.seconds, arguments.start)
            print(f"{mutant.name:32} {verdict}", flush=True)
            if arguments.record:
                record(mutant, verdict)
            if not verdict.killed:
                survived.append(mutant.name)
    print(f"{len(survived)} survived: {', '.join(survived)}" if survived else "all are killed")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
