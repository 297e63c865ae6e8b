"""Runs seeds of the simulation: `python -m tests.sim.run [--start N] [--seeds N] [--seconds S]`, or one seed with
`--seed N --trace` to see what happens in it."""

from __future__ import annotations

import argparse
import collections
import gc
import json
import sys
import time
import traceback

from tests.sim.checks import Violation
from tests.sim.simulation import Scenario, Simulation


def run_seed(seed: int, trace: bool = False, scenario: Scenario | None = None) -> tuple[Simulation, str | None]:
    """(simulation, None) or (simulation, what went wrong)."""
    sim = Simulation(seed, scenario, trace)
    try:
        sim.run()
    except Violation as violation:
        return sim, str(violation)
    except Exception:
        return sim, traceback.format_exc()
    return sim, None


def run_many(
    start: int, count: int, seconds: float, at_least: int = 0
) -> tuple[int, list[tuple[int, str]], dict[str, int]]:
    """Runs up to `count` seeds within `seconds`, `at_least` so many: (how many, failures, summed counters)."""
    stats: collections.Counter[str] = collections.Counter()
    failures: list[tuple[int, str]] = []
    began = time.monotonic()
    done = 0
    gc.disable()  # worlds are big and cyclic: collected in the pauses between them, not in their middle
    for seed in range(start, start + count):
        if done >= at_least and time.monotonic() - began > seconds:
            break
        if done % 20 == 19:
            gc.collect()
        sim, failure = run_seed(seed)
        done += 1
        stats.update(sim.stats)
        if failure is not None:
            failures.append((seed, failure))
    gc.enable()
    return done, failures, dict(stats)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, help="run this one only")
    parser.add_argument("--trace", action="store_true", help="print what happens")
    parser.add_argument("--json", action="store_true", help="print the result as one line of JSON")
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--at-least", type=int, default=0, help="seeds, however long they take")
    args = parser.parse_args()
    if args.seed is not None:
        sim, failure = run_seed(args.seed, args.trace)
        for line in sim.trace or ():
            print(line)
        print(sim.scenario)
        print(dict(sim.stats))
        print(failure or "ok")
        return 1 if failure else 0
    began = time.monotonic()
    done, failures, stats = run_many(args.start, args.seeds, args.seconds, args.at_least)
    if args.json:
        lines = [(seed, failure.strip().splitlines()[-1]) for seed, failure in failures]
        print(json.dumps({"seeds": done, "failures": lines, "stats": stats}))
        return 1 if failures else 0
    print(f"{done} seeds from {args.start} in {time.monotonic() - began:.1f} s: {stats}")
    for seed, failure in failures[:20]:
        print(f"seed {seed}: {failure.strip().splitlines()[-1]}")
    print(f"{len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
