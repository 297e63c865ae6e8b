"""Reads that scale: costs of reads and writes, a model, and trials of it: docs/benchmarks/scaling.md and reads.md.

    python -m bench scaling --out docs/benchmarks          measures and puts the figures into both pages
    python -m bench scaling --render --out docs/benchmarks measures nothing: from the figures that are there
    python -m bench scaling --against COMMIT               reads of stock clients, beside an earlier commit's servers
    python -m bench scaling --servers nats://a,nats://b,nats://c --clients 4
                                                           Direct Gets on a cluster that runs somewhere

Trials give each server a share of a core, by control groups: they take root and two cores. A cluster that runs
somewhere gets a stream BENCH_SCALING for the time of the run; connections have no TLS, and a user and password where
the URL has them (`nats://user:password@host:4222`).
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import os
import shutil
import tempfile
from pathlib import Path

import uvloop
from rich.console import Console

from bench import machine
from bench.marks import put
from bench.scaling import against, costs, machines, tables, trials
from bench.scaling.figures import Figures
from testkit.harness import TOP

console = Console(stderr=True)
BEGIN = "<!-- figures: `python -m bench scaling` -->"
PLOT = "replicas.svg"


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=5, help="of the costs; the trials have three fifths of it")
    parser.add_argument("--seconds", type=float, default=0.3, help="length of each load; trials: of seven of them")
    parser.add_argument("--share", type=float, default=trials.SHARE, help="of a core, for each server of a trial")
    parser.add_argument("--part", choices=["costs", "trials"], action="append", help="measure only this; keep the rest")
    parser.add_argument("--against", metavar="COMMIT", help="only the reads of stock clients, beside that commit's")
    parser.add_argument("--dir", type=Path, default=TOP / ".bench", help="where the stores go")
    parser.add_argument("--json", type=Path, default=TOP / ".bench/scaling.json")
    parser.add_argument("--render", action="store_true", help="measure nothing")
    parser.add_argument("--out", type=Path, help="folder of the pages to put the tables into")
    real = parser.add_argument_group("a cluster that runs somewhere")
    real.add_argument("--servers", help="URLs with commas between them")
    real.add_argument("--clients", type=int, default=4, help="processes, each with a connection to each server")
    real.add_argument("--replicas", type=int, help="of the stream; one for each server, at most 5, unless said")
    real.add_argument("--messages", type=int, default=100_000)
    real.add_argument("--window", type=int, default=costs.IN_FLIGHT, help="requests in flight on each connection")
    real.add_argument(
        "--least", type=float, default=0.0, help="ratio to a server alone, below which the exit code is 1"
    )


def main(args: argparse.Namespace) -> int:
    """1 where the goal is not met: three servers on the model, or `--least` on a real cluster. 2 where there are no
    costs of an earlier run, and this one is to measure none."""
    if args.servers:
        return _elsewhere(args)
    if args.against:
        return _against(args)
    resumed = args.render or args.part
    figures = Figures.read(args.json) if resumed and args.json.exists() else Figures()
    if not figures.forms and (args.render or "costs" not in (args.part or ["costs"])):
        console.print(
            f"{args.json} has no costs, which the pages are made of: measure them first (`--part costs`)",
            soft_wrap=True,
        )
        return 2
    if not args.render:
        _measure(args, figures)
    command = (
        f"python -m bench scaling --rounds {figures.conditions['rounds']} --seconds {figures.conditions['seconds']}"
    )
    reads = tables.strengths(figures, command)
    if args.out:
        (args.out / PLOT).write_text(tables.svg(figures))
        _put(args.out / "scaling.md", tables.scaling(figures, command, PLOT))
        _put(args.out / "reads.md", reads)
    else:
        print(tables.scaling(figures, command), reads, sep="\n")
    return int(min(tables.ratios(figures).values()) < tables.GOAL)


def _put(page: Path, text: str) -> None:
    page.write_text(put(page.read_text(), text, BEGIN))
    console.print(f"written: {page}")


def _measure(args: argparse.Namespace, figures: Figures) -> None:
    args.dir.mkdir(parents=True, exist_ok=True)
    parts = args.part or ["costs", "trials"]
    folder = Path(tempfile.mkdtemp(prefix="scaling-", dir=args.dir))
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            if "costs" in parts:
                figures.forms, figures.strengths, figures.writes = [], [], {}
                figures.date = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}"
                figures.conditions = {
                    **machine.describe(args.dir), "load": f"{os.getloadavg()[0]:.1f}", "rounds": f"{args.rounds}",
                    "seconds": f"{args.seconds:g}",
                }  # fmt: skip
                runner.run(costs.measure(folder, figures, args.rounds, args.seconds))
                figures.write(args.json)
                console.print("costs are measured")
            if "trials" in parts:
                rounds = max(1, round(0.6 * args.rounds))
                runner.run(trials.try_all(folder, figures, rounds, 7 * args.seconds, args.share))
                figures.write(args.json)
                console.print(figures.untried or "trials are done")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _against(args: argparse.Namespace) -> int:
    args.dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="scaling-", dir=args.dir) as folder:
        found = uvloop.run(against.measure(Path(folder), args.against, args.rounds, args.seconds))
    print(against.table(found, args.against, tables.WORDS))
    return 0


def _elsewhere(args: argparse.Namespace) -> int:
    urls = [url if "//" in url else f"nats://{url}" for url in args.servers.split(",")]
    found = uvloop.run(
        machines.run(
            urls, clients=args.clients, replicas=args.replicas or min(len(urls), 5), messages=args.messages,
            window=args.window, seconds=max(args.seconds, 2.0),
        )
    )  # fmt: skip
    print(found.table())
    return int(found.ratio < args.least)
