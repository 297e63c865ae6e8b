"""`python -m tests.unit.native.fuzz [--inputs N] [--seconds S] [--workers W] [--start SEED]`: as many random commands
and messages as that, by compiled loops and by Python, and each of CUT small inputs in two reads, cut at every place.
`--seed SEED` and `--cut SEED` repeat one. It ends with the first difference, and with what repeats that."""

from __future__ import annotations

import argparse
import logging
import random
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from multiprocessing import get_context

from jetcluster import native
from tests.unit.native.inputs import Inputs, every_cut, publishes_differ
from tests.unit.native.others import KINDS

CUT = 200
BLOCK = 20
"""Seeds that a worker gets at once."""


@dataclass(slots=True)
class Compared:
    """The comparisons of some seeds."""

    seeds: int = 0
    commands: Counter[str] = field(default_factory=Counter)
    """Their numbers by kind."""
    difference: str = ""
    """The first one that was found, with the command that repeats it."""

    def add(self, other: Compared) -> None:
        self.seeds += other.seeds
        self.commands += other.commands
        self.difference = self.difference or other.difference


def compare(seed: int) -> Compared:
    """One seed: a client's input, and messages for each of the other loops."""
    found = Compared(1)
    try:
        inputs = Inputs(seed)
        pieces = list(inputs.pieces())
        found.commands["commands of clients"] += inputs.count
        found.difference = publishes_differ(seed, pieces)
        for kind, run in KINDS.items():
            if not found.difference:
                count, found.difference = run(random.Random(f"{kind} {seed}"))
                found.commands[kind] += count
    except Exception:
        found.difference = traceback.format_exc()
    if found.difference:
        found.difference += f"\n    repeat: python -m tests.unit.native.fuzz --seed {seed}"
    return found


def compare_cuts(seed: int) -> Compared:
    """One small input, cut at every place."""
    found = Compared(1)
    for pieces in every_cut(seed):
        found.commands["small inputs in two reads"] += 1
        try:
            found.difference = publishes_differ(seed, pieces)
        except Exception:
            found.difference = traceback.format_exc()
        if found.difference:
            found.difference += f"\n    {pieces}\n    repeat: python -m tests.unit.native.fuzz --cut {seed}"
            break
    return found


def compare_block(seeds: range, cuts: bool) -> Compared:
    """Seeds up to the first that differs."""
    total = Compared()
    for seed in seeds:
        total.add(compare_cuts(seed) if cuts else compare(seed))
        if total.difference:
            break
    return total


def blocks(start: int, cuts: int) -> Iterator[tuple[range, bool]]:
    for first in range(start, start + cuts, BLOCK):
        yield range(first, min(first + BLOCK, start + cuts)), True
    while True:
        yield range(start, start + BLOCK), False
        start += BLOCK


def fuzz(start: int, inputs: int, seconds: float, workers: int, cuts: int = CUT) -> Compared:
    """Compares until there were `inputs` commands, `seconds` are over or something differs; all cuts come first."""
    end, total, todo = time.monotonic() + seconds, Compared(), blocks(start, cuts)
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=logging.disable) as pool:
        running: dict[object, range] = {}
        while total.commands.total() < inputs and time.monotonic() < end and not total.difference:
            while len(running) < 2 * workers:
                block = next(todo)
                running[pool.submit(compare_block, *block)] = block[0]
            for done in wait(running, return_when=FIRST_COMPLETED).done:  # type: ignore[type-var]
                try:
                    total.add(done.result())
                except BrokenProcessPool:
                    total.difference = f"a worker died with one of {sorted(map(str, running.values()))}"
                    return total
                del running[done]
        pool.shutdown(cancel_futures=True)
    return total


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.unit.native.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000, help="commands and messages")
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--workers", type=int, default=2, help="processes")
    parser.add_argument("--start", type=int, help="the first seed; by the clock when it is not given")
    parser.add_argument("--seed", type=int, help="this one only")
    parser.add_argument("--cut", type=int, metavar="SEED", help="this small input only, cut at every place")
    arguments = parser.parse_args()
    if native.publish_lines is None:
        print(f"no compiled loops: {native.why_pure}")
        return 2
    began = time.monotonic()
    if arguments.seed is not None or arguments.cut is not None:
        seed, cuts = (arguments.seed, False) if arguments.cut is None else (arguments.cut, True)
        logging.disable()  # callbacks that fail are logged
        total = compare_block(range(seed, seed + 1), cuts)
        start = seed
    else:
        start = int(time.time()) * 1_000 if arguments.start is None else arguments.start
        total = fuzz(start, arguments.inputs, arguments.seconds, arguments.workers)
    took = time.monotonic() - began
    for kind, count in total.commands.items():
        print(f"{count:12,} {kind}")
    count = total.commands.total()
    print(f"{count:12,} together, {total.seeds} seeds from {start} on, {took:.0f} s, {count / took:,.0f} a second")
    print(total.difference or "no difference")
    return 1 if total.difference else 0


if __name__ == "__main__":
    sys.exit(main())
