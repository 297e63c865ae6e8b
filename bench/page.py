"""`make bench`: nats-server in both modes and jetcluster in turns, in one run, on one disk -> docs/benchmarks.md.

    python -m bench page [--rounds 5] [--seconds 1.2] [--rows PATTERN] [--only CONTENDER] [--out FILE] [--resume]
    python -m bench page --render --out FILE      # the page of the samples that are there
    python -m bench page --profile                # profiles of the rows below 1.2
    python -m bench page --list

Raw samples are written to --json after each turn of a group of rows; `--resume` measures what they lack. Without
nats-server the page has one column and says so.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import uvloop
from rich.console import Console

from bench import contender, machine, profile, report
from bench.groups import GROUPS
from bench.row import all_rows
from bench.samples import Samples
from bench.turns import Chosen, Turns
from testkit.harness import TOP

console = Console(stderr=True)
PROFILES = TOP / "docs/benchmarks/profiles.md"
PROFILE_SECONDS = 4.0


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.2, help="length of each load; below 1: a trial")
    parser.add_argument(
        "--rows", metavar="PATTERN", action="append", help="only rows, or groups, with it in their name"
    )
    parser.add_argument("--only", choices=[one.name for one in contender.ALL], action="append")
    parser.add_argument("--dir", type=Path, default=TOP / ".bench", help="where the stores go")
    parser.add_argument("--json", type=Path, default=TOP / ".bench/samples.json", help="raw samples")
    parser.add_argument("--resume", action="store_true", help="measure what the raw samples lack")
    parser.add_argument("--render", action="store_true", help="measure nothing: the page of the raw samples")
    parser.add_argument(
        "--profile", action="store_true", help="py-spy on jetcluster in the rows below 1.2 or in --rows"
    )
    parser.add_argument("--profiles", type=Path, default=PROFILES, help="page of profiles")
    parser.add_argument("--out", type=Path, help="Markdown page to write")
    parser.add_argument("--quote", type=Path, help="README whose table is to be made anew")
    parser.add_argument("--list", action="store_true", help="the rows")


def main(args: argparse.Namespace) -> int:
    if args.list:
        for group in GROUPS:
            print(group.title, *(f"  {row.name} [{row.unit}]" for row in group.rows), sep="\n")
        return 0
    if args.profile:
        return _profile(args)
    samples = _samples(args)
    if not args.render:
        servers = [one for one in contender.ALL if not args.only or one.name in args.only]
        if not contender.use_peer():
            console.print("nats-server is not on this machine (make tools; needs Go): no peer columns")
            servers = [one for one in servers if one is contender.OURS]
        _measure(args, samples, Turns(samples, _chosen(args.rows), servers, args.dir, _say), args.rounds)
    found = report.page(samples, GROUPS, _profiled(args.profiles))
    if args.out:
        args.out.write_text(found)
        console.print(f"written: {args.out}")
    if args.quote:
        args.quote.write_text(report.quote(args.quote.read_text(), samples, GROUPS))
    if not args.out:
        print(found)
    return 0


def _samples(args: argparse.Namespace) -> Samples:
    """Those that are there, where they are to be used. Exits where they are of another kind of run."""
    if not args.render and not args.resume:
        return Samples(args.json, args.seconds)
    samples = Samples.read(args.json)
    if args.resume and samples.seconds != args.seconds:
        sys.exit(f"{args.json} has loads of {samples.seconds:g} s: --seconds {samples.seconds:g}, or without --resume")
    return samples


def _chosen(patterns: list[str] | None) -> Chosen:
    chosen = []
    for group in GROUPS:
        matching = [one for pattern in patterns or [""] for one in group.matching(pattern)]
        if each := [one for one in group.measurements if one in matching]:
            chosen.append((group, each))
    if not chosen:
        sys.exit(f"no row has {' or '.join(patterns or [])} in its name (--list)")
    return chosen


def _measure(args: argparse.Namespace, samples: Samples, turns: Turns, rounds: int) -> None:
    args.dir.mkdir(parents=True, exist_ok=True)
    samples.date = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}"
    before = samples.conditions.get("commit")
    samples.conditions = machine.describe(args.dir)
    if before is not None and before != (now := samples.conditions["commit"]):
        samples.conditions["commit"] = f"{before}, {now}"
    turns.folder = Path(tempfile.mkdtemp(prefix="run-", dir=args.dir))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(turns.run(rounds))
    finally:
        shutil.rmtree(turns.folder, ignore_errors=True)


def _profile(args: argparse.Namespace) -> int:
    """Profiles of jetcluster, merged into the page of profiles."""
    patterns = args.rows
    if not patterns:
        patterns = [row.name for row in report.below(Samples.read(args.json), GROUPS)]
    profiler = profile.Profiler()
    samples = Samples(None, max(args.seconds, PROFILE_SECONDS))
    turns = Turns(samples, _chosen(patterns), [contender.OURS], args.dir, _say, profiler)
    _measure(args, samples, turns, 1)
    page = args.profiles.read_text() if args.profiles.exists() else ""
    order = [row.name for row in all_rows(GROUPS)]
    args.profiles.parent.mkdir(parents=True, exist_ok=True)
    args.profiles.write_text(profile.merged(page, profiler.found, samples.conditions["commit"], order))
    console.print(f"written: {args.profiles}, {len(profiler.found)} rows")
    return 0


def _profiled(path: Path) -> set[str]:
    return profile.profiled_rows(path.read_text()) if path.exists() else set()


def _say(text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
