"""Cost against size, jetcluster and nats-server (its default): docs/benchmarks/sizes.md and its plots.

    python -m bench sizes [--axis messages] [--sizes 1000 10000] [--seconds 1] [--resume] [--out FILE]
    python -m bench sizes --render --out FILE    # the page of the figures that are there

Axes: messages, subjects, streams, consumers, connections. Each server grows from size to size; after each one figures
are written to --json. A size is not begun when a server has had its minute and a half.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Self

import uvloop
from rich.console import Console

from bench import axes, contender, machine
from bench.axes import AXES, Axis
from bench.contender import LAZY, OURS, Contender
from bench.plot import Line, plots
from bench.report import MISSING, number
from bench.stand import Stand
from bench.turns import FAILURES
from testkit.harness import TOP, ProcessCluster

console = Console(stderr=True)
NAMES = {LAZY.name: "nats-server", OURS.name: "jetcluster"}
_WITHIN = 240.0


@dataclass(frozen=True, slots=True)
class Point:
    axis: str
    contender: str
    size: int
    figures: dict[str, float]


@dataclass(slots=True)
class Points:
    """Figures of a run, in a JSON file."""

    path: Path | None = None
    date: str = ""
    conditions: dict[str, str] = field(default_factory=dict)
    points: list[Point] = field(default_factory=list)
    notes: dict[str, str] = field(default_factory=dict)
    """Why an axis ends where it does, by axis and server."""

    @classmethod
    def read(cls, path: Path) -> Self:
        """Raises OSError, ValueError."""
        found = json.loads(path.read_text())
        found["points"] = [Point(**one) for one in found["points"]]
        return cls(path, **found)

    def write(self) -> None:
        if self.path is not None:
            told = asdict(self)
            del told["path"]
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_text(json.dumps(told, indent=1))

    def add(self, point: Point) -> None:
        """Takes the place of one of the same size."""
        known = (point.axis, point.contender, point.size)
        self.points = [one for one in self.points if (one.axis, one.contender, one.size) != known] + [point]

    def line(self, axis: str, contender: str, figure: str) -> Line:
        found = [one for one in self.points if (one.axis, one.contender) == (axis, contender)]
        return sorted((one.size, one.figures[figure]) for one in found if figure in one.figures)

    def has(self, axis: str, contender: str) -> bool:
        return any((one.axis, one.contender) == (axis, contender) for one in self.points)


async def measure(axis: Axis, sizes: Sequence[int], server: Contender, seconds: float, folder: Path,
                  points: Points) -> None:  # fmt: skip
    """Grows one server through the sizes. A failure ends it, and is noted."""
    note = f"{axis.name} {server.name}"
    points.notes.pop(note, None)
    shutil.rmtree(folder, ignore_errors=True)
    before = 0
    try:
        async with ProcessCluster(axis.nodes, server.server, root=folder, config=server.config) as nodes:
            stand = Stand(server, nodes, seconds, folder)
            await stand.settle()
            start = time.monotonic()
            for size in sizes:
                if (spent := time.monotonic() - start) > axis.budget:
                    points.notes[note] = f"ended after {before:,} and {spent:.0f} s"
                    break
                found = await asyncio.wait_for(axis.grow(stand, before, size), _WITHIN)
                points.add(Point(axis.name, server.name, size, found))
                points.write()
                console.print(f"{note} {size:,}: { {k: round(v, 3) for k, v in found.items()} }", highlight=False)
                before = size
    except FAILURES as error:
        points.notes[note] = f"failed after {before:,}: {type(error).__name__} {error}".partition("\n")[0][:200]
        console.print(f"{note}: {points.notes[note]}", markup=False)
    finally:
        axes.disconnect()
        points.write()
        shutil.rmtree(folder, ignore_errors=True)


def page(points: Points) -> str:
    """The Markdown page: for each axis a plot and a table."""
    known = points.conditions
    lines = [
        "# Cost against size", "",
        "For the reader who sizes a server: how do cost and memory grow with what is there? Written by "
        f"`python -m bench sizes` on {points.date}, one run; nats-server runs with its lazy default. CPU is that of "
        "all servers, per message or connection; at rest: the mean of the nodes; memory (VmRSS): the largest node.", "",
        f"- Machine: {known.get('machine')}; disk: {known.get('disk')}.",
        f"- Versions: jetcluster at commit {known.get('commit')} on Python {known.get('python')}, "
        f"{known.get('loops')}; {known.get('peer', 'no nats-server on this machine')}.",
    ]  # fmt: skip
    for axis in AXES:
        if any(points.has(axis.name, name) for name in NAMES):
            lines += ["", f"## {axis.name.capitalize()}", "", axis.text, ""]
            lines += [f"![Plots of cost against {axis.name}]({axis.name}.svg)", "", *_table(axis, points)]
    return "\n".join(lines) + "\n"


def _table(axis: Axis, points: Points) -> list[str]:
    heads = [f"{name}, {unit}" for name, unit in axis.figures.items()]
    lines = [f"| {axis.name} | server | " + " | ".join(heads) + " |", "|---:|---|" + "---:|" * len(heads)]
    for size in sorted({one.size for one in points.points if one.axis == axis.name}):
        for name, text in NAMES.items():
            found = next((one.figures for one in points.points
                          if (one.axis, one.contender, one.size) == (axis.name, name, size)), None)  # fmt: skip
            if found is not None:
                cells = [number(found.get(figure)) for figure in axis.figures]
                lines.append(f"| {size:,} | {text} | " + " | ".join(cells) + " |")
    sizes = " ".join(str(size) for size in sorted({one.size for one in points.points if one.axis == axis.name}))
    lines += ["", f"`python -m bench sizes --axis {axis.name} --sizes {sizes or MISSING}`"]
    ends = [f"{text}: {points.notes[note]}" for name, text in NAMES.items()
            if (note := f"{axis.name} {name}") in points.notes]  # fmt: skip
    return lines + (["", "; ".join(ends) + "."] if ends else [])


def svg(axis: Axis, points: Points) -> str:
    """The plots of an axis."""
    figures = {}
    for figure, unit in axis.figures.items():
        lines = {text: line for name, text in NAMES.items() if (line := points.line(axis.name, name, figure))}
        if lines:
            figures[figure] = unit, lines
    return plots(axis.name, figures)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--axis", choices=[one.name for one in AXES], action="append")
    parser.add_argument("--sizes", type=int, nargs="+", help="instead of those of the axis")
    parser.add_argument("--seconds", type=float, default=1.0, help="length of each load")
    parser.add_argument("--dir", type=Path, default=TOP / ".bench", help="where the stores go")
    parser.add_argument("--json", type=Path, default=TOP / ".bench/sizes.json")
    parser.add_argument("--resume", action="store_true", help="only axes and servers that the figures lack")
    parser.add_argument("--render", action="store_true", help="measure nothing: the page of the figures that are there")
    parser.add_argument("--out", type=Path, help="Markdown page to write, with plots beside it")


def main(args: argparse.Namespace) -> int:
    points = Points.read(args.json) if args.render or args.resume or (args.axis and args.json.exists()) else Points(
        args.json)  # fmt: skip
    if not args.render:
        args.dir.mkdir(parents=True, exist_ok=True)
        axes.raise_file_limit()
        servers = [LAZY, OURS] if contender.use_peer() else [OURS]
        points.date = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}"
        points.conditions = machine.describe(args.dir)
        folder = Path(tempfile.mkdtemp(prefix="sizes-", dir=args.dir))
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                for axis in AXES:
                    for server in servers if not args.axis or axis.name in args.axis else ():
                        if not (args.resume and points.has(axis.name, server.name)):
                            runner.run(measure(axis, args.sizes or axis.sizes, server, args.seconds, folder, points))
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    if not args.out:
        print(page(points))
        return 0
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(page(points))
    for axis in AXES:
        if any(points.has(axis.name, name) for name in NAMES):
            (args.out.parent / f"{axis.name}.svg").write_text(svg(axis, points))
    console.print(f"written: {args.out}")
    return 0
