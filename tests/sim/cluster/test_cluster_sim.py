"""The simulation of complete nodes as a test: seeds within a time, and that a seed is the same wherever it runs.

`JETCLUSTER_CLUSTER_SIM_SECONDS` (default 30) is the time budget, `JETCLUSTER_CLUSTER_SIM_START` the first seed. A seed
that fails is printed; `python -m tests.sim.cluster --seed N --trace` replays it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.sim.cluster.run import run_seed

pytestmark = pytest.mark.sim

ROOT = Path(__file__).parents[3]
REPLAYED = (3, 7)
"""Seeds with kills, stops and consumers that wait."""
AT_LEAST = 5


@pytest.mark.timeout(600)
def test_seeds() -> None:
    seconds = float(os.environ.get("JETCLUSTER_CLUSTER_SIM_SECONDS", "30"))
    start = seed = int(os.environ.get("JETCLUSTER_CLUSTER_SIM_START", "0"))
    began = time.monotonic()
    failures: list[str] = []
    published = 0
    while seed - start < AT_LEAST or time.monotonic() - began < seconds:
        result = run_seed(seed)
        published += result.counts.get("publish: published", 0)
        if result.failure:
            failures.append(f"seed {seed}: {result.failure}")
        seed += 1
    assert not failures, "\n".join(failures)
    assert published > 100


def digest_in_another_process(seed: int, hash_seed: int) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "tests.sim.cluster", "--seed", str(seed)],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": str(hash_seed)},
        capture_output=True,
        text=True,
        check=True,
    )
    found = re.search(r"of CPU, ([0-9a-f]{32})", done.stdout)
    assert found is not None, done.stdout
    return found.group(1)


@pytest.mark.parametrize("seed", REPLAYED)
def test_a_seed_replays_to_the_byte(seed: int) -> None:
    here = run_seed(seed).digest
    assert run_seed(seed).digest == here, "a second run in the same process differs"
    assert [digest_in_another_process(seed, hash_seed) for hash_seed in (0, 7)] == [here, here]
    assert run_seed(seed + 1).digest != here
