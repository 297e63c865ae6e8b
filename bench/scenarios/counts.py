"""Instructions of the servers per message of fixed loads, compared with the committed figures (`bench/counts.toml`).

    python -m bench counts [--write]

Counted by valgrind, so that the load of the machine does not matter. The exit code is 1 where a row takes more than 3 %
above its figure or 10 % below. A commit that is meant to cost more, or has made something cheaper, writes the figures
anew (`--write`), and says so in its diff. They hold for one Python, compiler and kind of processor: elsewhere the
parent commit (HEAD, where there are changes that are not committed) is built beside and counted, too.
"""

from __future__ import annotations

import argparse
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench.counts import meter
from bench.counts.loads import ROWS
from bench.counts.record import WRITE, Record, expected, problems
from testkit.harness import TOP
from testkit.previous import commit_before, git, unpacked

PLACE = Path("bench") / "counts.toml"


def beside_parent(tree: Path, figures: Record) -> tuple[dict[str, float], dict[str, float]] | str:
    """Instructions of this tree, and those that it may take by its parent; or why nobody can say."""
    commit = commit_before(tree)
    if not commit:
        return "there is no parent commit to compare with"
    if not git(tree, "ls-tree", commit, str(PLACE)):
        return f"the parent commit {commit[:12]} has no {PLACE}"
    with ThreadPoolExecutor() as threads:
        mine = threads.submit(meter.measure, tree)
        folder = unpacked(tree, commit)
        theirs = meter.measure(folder)
    before = Record.read(folder / PLACE)
    return mine.result(), expected(theirs, before.rows, figures.rows)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--write", action="store_true", help="what is counted now are the figures from now on")


def main(arguments: argparse.Namespace) -> int:
    if reason := meter.why_not():
        print(f"counts: nothing is counted here: {reason}")
        return int(arguments.write)
    place, environment = TOP / PLACE, meter.environment()
    if arguments.write:
        found = meter.measure(TOP)
        Record(found, environment).write(place)
        _show(found, found)
        return 0
    figures = Record.read(place)
    if differences := figures.differences(environment):
        print(f"counts: beside the parent commit, as the figures are from elsewhere: {'; '.join(differences)}")
        compared = beside_parent(TOP, figures)
        if isinstance(compared, str):
            print(f"counts: not compared: {compared}")
            return 0
        found, limits = compared
    else:
        found, limits = meter.measure(TOP), figures.rows
    _show(found, limits)
    wrong = problems(found, limits)
    for line in wrong:
        print(f"FAILED {line}")
    if wrong:
        print(f"if this is meant: {WRITE}")
    return int(bool(wrong))


def _show(found: dict[str, float], limits: dict[str, float]) -> None:
    for row in ROWS:
        share = f" ({found[row.name] / limits[row.name] - 1:+.1%})" if row.name in limits else ""
        print(f"{row.name:17}{found[row.name]:8,.0f}{share}  {row.title}")
