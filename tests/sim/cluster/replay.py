"""A seed is the same wherever it runs: alone or among others, in another process, with other hashes, in another place.

A run's digest covers each segment that the network brought, in order, and each line of the logs.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

ROOT = Path(__file__).parents[3]
BATCH_HASH_SEED = 1
ELSEWHERE: Final = {
    "TZ": "Pacific/Chatham", "LC_ALL": "C", "HOME": "/nonexistent", "COLUMNS": "40", "PYTHONUTF8": "0",
}  # fmt: skip
"""Variables of the processes that have one seed each: all that may differ from one machine to the next."""
_LINE = re.compile(r"^seed (\d+): .* of CPU, ([0-9a-f]{32})", re.MULTILINE)


class Replay(NamedTuple):
    """The digests of one seed."""

    seed: int
    batch: str
    alone: str

    @property
    def same(self) -> bool:
        return self.batch == self.alone

    def __str__(self) -> str:
        if self.same:
            return f"seed {self.seed}: {self.alone}"
        return (
            f"seed {self.seed} DIFFERS: {self.batch} in a batch, {self.alone} alone\n"
            f"    compare: python -m tests.sim.cluster --seed {self.seed} --wire"
        )


def digests(*arguments: str, hash_seed: int, variables: Mapping[str, str] = MappingProxyType({})) -> dict[int, str]:
    """The digests that another process comes to, by seed. `arguments`: of `python -m tests.sim.cluster`. `variables`:
    of its environment, besides those of this process."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.sim.cluster", *arguments],
        cwd=ROOT,
        env={**os.environ, **variables, "PYTHONHASHSEED": str(hash_seed)},
        capture_output=True,
        text=True,
        check=False,  # a seed that fails replays as well
    )
    found = {int(seed): digest for seed, digest in _LINE.findall(done.stdout)}
    if not found:
        raise ChildProcessError(f"{' '.join(arguments)}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return found


def alone(seed: int, hash_seed: int) -> str:
    """The digest of a seed that has a process for itself, somewhere else."""
    return digests("--seed", str(seed), hash_seed=hash_seed, variables=ELSEWHERE)[seed]


def check(start: int, count: int, *, workers: int = 1) -> Iterator[Replay]:
    """Seeds from `start` on, once all in one process, and once each in its own with its own hashes."""
    with ThreadPoolExecutor(workers) as threads:
        whole = threads.submit(
            digests, "--start", str(start), "--count", str(count), hash_seed=BATCH_HASH_SEED
        )  # fmt: skip
        singles = [threads.submit(alone, start + at, BATCH_HASH_SEED + 1 + at) for at in range(count)]
        batch = whole.result()
        for at, single in enumerate(singles):
            seed = start + at
            yield Replay(seed, batch.get(seed, "did not run"), single.result())
