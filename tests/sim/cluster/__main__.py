"""`python -m tests.sim.cluster`: `--seed N [--trace] [--wire]` replays one seed, `--shrink N` finds what of it matters,
`--count N [--start N] [--workers W] [--seconds S] [--record]` runs many, both with `--only WORKLOAD...` if only these
are to be drawn, `--faults FAULT...` if these are to be there (with `--no-others`, only they), and `--wider` for all
there are (`nemesis.WIDE`); `--corpus` runs those that once failed, `--each [--start N]` two seeds for each workload,
with all faults, and some as they are drawn.
`--replay-check N [--start N]` runs each seed twice, in two processes, and compares all that they did. With `--cipher`
the servers of `--seed` and `--count` have encrypted stores (in one process: not with `--workers`), with `--tls` all
their ports have TLS."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator

from jetcluster import native
from testkit.sim.layout import Encryption, Security
from tests.sim.cluster import apart, batch, causes, replay
from tests.sim.cluster.run import run_seed
from tests.sim.cluster.scenario import Scenario, each
from tests.sim.cluster.shrink import shrink


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim.cluster", description=__doc__)
    parser.add_argument("--seed", type=int, help="this one only")
    parser.add_argument("--only", nargs="+", metavar="WORKLOAD", help="of --seed and --count: only these are drawn")
    parser.add_argument("--faults", nargs="+", metavar="FAULT", default=[], help="of the same: these are there as well")
    parser.add_argument("--no-others", action="store_true", help="of the same: no faults besides those of --faults")
    parser.add_argument("--wider", action="store_true", default=None, help="of the same: all faults are drawn")
    parser.add_argument("--trace", action="store_true", help="print what happens")
    parser.add_argument("--wire", action="store_true", help="print what goes over the network as well")
    parser.add_argument("--shrink", type=int, metavar="SEED", help="print the smallest scenario that fails as it does")
    parser.add_argument("--corpus", action="store_true", help="the seeds of corpus.toml")
    parser.add_argument("--each", action="store_true", help="seeds with every workload, exam and fault")
    parser.add_argument("--replay-check", type=int, metavar="COUNT", help="whether so many seeds replay to the byte")
    parser.add_argument("--start", type=int, help="the first one of --count; by the clock when it is not given")
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--workers", type=int, default=1, help="processes")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no more are begun after so long")
    parser.add_argument("--cipher", default="", help="stores are encrypted with it (aes, chachapoly, mixed)")
    parser.add_argument("--tls", default="", choices=("", *Security.MODES), help="all ports and links have it")
    parser.add_argument("--quiet", action="store_true", help="print the seeds that fail only")
    parser.add_argument("--record", action="store_true", help="add what was run to totals.toml")
    arguments = parser.parse_args()
    if native.publish_lines is None:
        print(f"no compiled loops, so even seeds are other runs than elsewhere: {native.why_pure}", file=sys.stderr)
    Encryption.cipher = arguments.cipher
    only = None if arguments.only is None else tuple(arguments.only)
    drawing = batch.Drawing(only, tuple(arguments.faults), arguments.wider, arguments.no_others, arguments.tls)
    if arguments.seed is not None:
        return _replay(drawing.scenario(arguments.seed), trace=arguments.trace, wire=arguments.wire)
    if arguments.shrink is not None:
        return _shrink(drawing.scenario(arguments.shrink))
    start = arguments.start if arguments.start is not None else int(time.time()) * 1_000
    if arguments.replay_check is not None:
        return _check_replays(start, arguments.replay_check, arguments.workers)
    outcomes: Iterator[batch.Outcome]
    if arguments.corpus:
        outcomes = map(apart.run, batch.corpus())
    elif arguments.each:
        outcomes = map(batch.run_one, each(start))  # `make sim-coverage` looks at it
    else:
        outcomes = batch.run_many(
            start,
            arguments.count,
            workers=arguments.workers,
            seconds=arguments.seconds,
            drawing=drawing,
            run_scenario=apart.run,
        )
    totals, failed = batch.Totals(), []
    for outcome in outcomes:
        totals.add(outcome)
        if outcome.failure:
            failed.append(outcome)
        if outcome.failure or not arguments.quiet:
            print(outcome, flush=True)
    print(totals)
    if failed:
        print(causes.summary(failed))
    if arguments.record:
        print(f"of all time: {batch.record(totals)}")
    return 1 if totals.failed else 0


def _replay(scenario: Scenario, *, trace: bool, wire: bool) -> int:
    seed = scenario.seed
    result = run_seed(seed, scenario=scenario, trace=trace, wire=wire)
    for line in result.lines:
        print(line)
    print(result.scenario)
    print(batch.Outcome(seed, result.failure, result.digest, result.seconds, result.cpu, result.counts, result.gap))
    return 1 if result.failure else 0


def _check_replays(start: int, count: int, workers: int) -> int:
    different = 0
    for found in replay.check(start, count, workers=workers):
        different += not found.same
        print(found, flush=True)
    print(f"{count} seeds from {start} on, each in two processes: {different} differ")
    return 1 if different else 0


def _shrink(scenario: Scenario) -> int:
    seed = scenario.seed
    found = shrink(scenario, tell=lambda line: print(line, flush=True))
    print(f"seed {seed} does not fail" if found is None else f"the smallest that fails:\n{found}")
    return 0 if found is None else 1


if __name__ == "__main__":
    sys.exit(main())
