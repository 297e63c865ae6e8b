"""`python -m tests.sim.cluster --seed N [--trace] [--wire]` replays one seed, `--count N [--start N]` runs many."""

from __future__ import annotations

import argparse
import gc
import sys

from tests.sim.cluster.run import Result, run_seed


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim.cluster", description=__doc__)
    parser.add_argument("--seed", type=int, help="this one only")
    parser.add_argument("--trace", action="store_true", help="print what happens")
    parser.add_argument("--wire", action="store_true", help="print what goes over the network as well")
    parser.add_argument("--start", type=int, default=0, help="the first one of --count")
    parser.add_argument("--count", type=int, default=10)
    arguments = parser.parse_args()
    if arguments.seed is not None:
        result = run_seed(arguments.seed, trace=arguments.trace, wire=arguments.wire)
        for line in result.lines:
            print(line)
        print(result.scenario)
        _tell(result)
        return 1 if result.failure else 0
    failed = 0
    for seed in range(arguments.start, arguments.start + arguments.count):
        result = run_seed(seed)
        _tell(result)
        failed += bool(result.failure)
        gc.collect()
    print(f"{arguments.count} seeds, {failed} failed")
    return 1 if failed else 0


def _tell(result: Result) -> None:
    done = ", ".join(f"{what} {number}" for what, number in sorted(result.counts.items()))
    said = result.failure.strip() or "ok"
    print(
        f"seed {result.scenario.seed}: {result.seconds:.1f} s in {result.cpu:.2f} s of CPU, {result.digest}; {done}\n"
        f"    {said}",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
