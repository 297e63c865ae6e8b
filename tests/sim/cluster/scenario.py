"""What one seed means: a size, workloads and faults, chosen at random (swarm testing)."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from tests.sim.cluster.nemesis import FAULTS
from tests.sim.cluster.workload import found


@dataclass(slots=True, frozen=True)
class Scenario:
    seed: int
    nodes: int
    workloads: tuple[str, ...]
    faults: tuple[str, ...]
    seconds: float
    """For how long faults come, at least."""
    rest: float
    """The longest time between two of them."""

    @classmethod
    def of(cls, seed: int) -> Scenario:
        rng = Random(f"scenario {seed}")
        names = sorted(found())
        return cls(
            seed=seed,
            nodes=3,
            workloads=tuple(sorted(rng.sample(names, rng.randint(1, min(2, len(names)))))),
            faults=tuple(sorted(rng.sample(sorted(FAULTS), rng.randint(1, 4)))),
            seconds=rng.uniform(15.0, 35.0),
            rest=rng.choice([1.0, 4.0, 10.0]),
        )
