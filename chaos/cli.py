"""`python -m chaos`: runs scenarios, prints the table, writes the HTML report and the histories.

    python -m chaos                                   the default scenarios, 60 s of load in all
    python -m chaos --scenario mix power --seeds 1 2 3 --seconds 30 --each
    python -m chaos --scenario every --each
    python -m chaos --target docker --scenario containers --each
    python -m chaos --judge .chaos/mix-1.jsonl        the checkers over a history that is there

A seed replays the choices of faults and workloads, not the operating system's timing. Exit status 1: a promise was
broken.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from chaos.checkers import judge
from chaos.docker_cluster import DockerCluster
from chaos.html_report import render
from chaos.local_cluster import LocalCluster
from chaos.plants import PLANTS, Plant
from chaos.report import show
from chaos.runner import Result, run
from chaos.scenarios import DEFAULT, EVERY_LOCAL, SCENARIOS, Scenario
from chaos.workloads import USUAL, WORKLOADS
from jetcluster.pipeline.checkers.event import load
from testkit.harness import HarnessError, find_server

WIDTH = 120
MISSED = 3
"""Exit code of a run that did not find what was planted."""
LEAST = 8.0
"""Seconds of load below which a run is not worth its cluster."""


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(
        "chaos", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--scenario", nargs="+", default=list(DEFAULT), choices=[*SCENARIOS, "every"], metavar="NAME")
    options.add_argument("--seeds", nargs="+", type=int, metavar="N", help="one run per scenario and seed")
    options.add_argument("--seconds", type=float, default=60.0, help="of load, in all runs together")
    options.add_argument("--each", action="store_true", help="--seconds are per run")
    options.add_argument("--target", default="local", choices=["local", "docker"])
    options.add_argument("--server", default="jetcluster", choices=["jetcluster", "nats-server"])
    options.add_argument("--config", default="", help="added to each local node's configuration file")
    options.add_argument("--plant", choices=list(PLANTS), metavar="BUG", help="in the servers: the run must find it")
    options.add_argument("--workload", nargs="+", default=list(USUAL), choices=list(WORKLOADS), metavar="NAME")
    options.add_argument("--out", type=Path, default=Path(".chaos"), help="folder of report.html and the histories")
    options.add_argument("--list", action="store_true", help="the scenarios and plants")
    options.add_argument("--judge", type=Path, metavar="HISTORY", help="only run the checkers over this file")
    return options


def main(argv: Sequence[str] | None = None) -> int:
    args = parser().parse_args(argv)
    console = Console()
    console.width = max(console.width, WIDTH)  # in a CI log too
    if args.list:
        for scenario in SCENARIOS.values():
            console.print(f"{scenario.name:<14} {scenario.about}", highlight=False)
        for plant in PLANTS.values():
            console.print(f"--plant {plant.name} (found by {plant.scenario}): {plant.about}", highlight=False)
        return 0
    if args.judge:
        return judge_file(args.judge, console)
    if args.target == "local" and find_server(args.server) is None:
        console.print(f"chaos: {args.server} is not on this machine (make tools)")
        return 1
    results = run_all(args, console)
    show(results, console)
    report = args.out / "report.html"
    report.write_text(render(results, f"jetcluster chaos, {time.strftime('%Y-%m-%d %H:%M')}"))
    console.print(f"report: {report}")
    if args.plant:
        return found(PLANTS[args.plant], results, console)
    return 0 if all(result.ok for result in results) else 1


def found(plant: Plant, results: Sequence[Result], console: Console) -> int:
    """1 where the plant was found as what it is; MISSED when nothing was, or only something else."""
    kinds = {finding.kind for result in results for finding in result.verdict.findings}
    if kinds & plant.finds:
        console.print(f"plant {plant.name}: found as {', '.join(sorted(kinds & plant.finds))}")
        return 1
    console.print(f"plant {plant.name}: NOT found as {', '.join(sorted(plant.finds))}")
    return MISSED


def run_all(args: argparse.Namespace, console: Console) -> list[Result]:
    names = list(EVERY_LOCAL) if "every" in args.scenario else args.scenario
    seeds = args.seeds or [random.SystemRandom().randrange(1 << 16)]
    runs = [(SCENARIOS[name], seed) for name in names for seed in seeds]
    seconds = args.seconds if args.each else max(LEAST, args.seconds / len(runs))
    args.out.mkdir(parents=True, exist_ok=True)
    results = []
    for scenario, seed in runs:
        console.print(f"{scenario.name}, seed {seed}: {seconds:.0f} s of load", highlight=False)
        results.append(asyncio.run(one(args, scenario, seed, seconds)))
    return results


async def one(args: argparse.Namespace, scenario: Scenario, seed: int, seconds: float) -> Result:
    path = args.out / f"{scenario.name}-{seed}.jsonl"
    try:
        if args.target == "docker":
            async with DockerCluster(args.out) as containers:
                return await run(scenario, containers, seed, seconds, path, "docker", args.workload)
        plant = PLANTS[args.plant] if args.plant else None
        config = args.config + scenario.config
        if args.server == "nats-server":
            config += "\njetstream { sync_interval: always }\n"
        async with LocalCluster(scenario.nodes, args.server, config, scenario.needs, plant) as cluster:
            result = await run(scenario, cluster, seed, seconds, path, args.server, args.workload)
            cluster.failed = not result.ok
            return result
    except HarnessError as error:  # it did not even start
        return Result(scenario.name, seed, args.target, skipped=str(error))


def judge_file(path: Path, console: Console) -> int:
    with path.open() as lines:
        verdict = judge(load(lines))
    for finding in verdict.findings:
        console.print(f"{finding.kind} ({finding.workload}, {finding.t:.2f} s): {finding.text}", markup=False)
    console.print(f"{verdict.acked:,} acked, {verdict.unknown:,} unknown, {len(verdict.findings)} findings")
    return 0 if verdict.kept else 1
