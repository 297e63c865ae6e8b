"""What one seed means: a size, workloads and faults, chosen at random (swarm testing)."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from jetcluster.stream.levels import LEVEL
from tests.sim.cluster.nemesis import FAULTS
from tests.sim.cluster.workload import found

USUAL = ("three", "five", "three and a plain one", "three and a leaf", "three and a leaf of three")


@dataclass(slots=True, frozen=True)
class Scenario:
    seed: int
    layout: str
    """A key of `layout.LAYOUTS`."""
    skew: float
    """Seconds by which wall clocks are apart at the start, at most; monotonic ones run up to 200 ppm fast or slow."""
    workloads: tuple[str, ...]
    faults: tuple[str, ...]
    disk: int
    """Bytes of each server's: segments of the journal are a 32nd part, and below 1 GiB RocksDB flushes by itself."""
    processor: float
    """How many times as long as usual work takes."""
    seconds: float
    """For how long faults come, at least."""
    rest: float
    """The longest time between two of them."""
    at_once: int
    """So many of them at a time, at most."""
    levels: tuple[int, ...]
    """Of the command formats that servers understand, in turns (`jetcluster.stream.levels`): some are of a version of
    before."""

    @classmethod
    def of(cls, seed: int) -> Scenario:
        rng = Random(f"scenario {seed}")
        names = sorted(found())
        workloads = tuple(sorted(rng.sample(names, rng.randint(1, min(2, len(names))))))
        layout = rng.choices(USUAL, (60, 8, 12, 12, 8))[0]
        if alone := [name for name in workloads if found()[name].layout]:
            workloads, layout = (alone[0],), found()[alone[0]].layout
        return cls(
            seed=seed,
            layout=layout,
            skew=rng.choice([0.0, 0.01, 0.5, 30.0]),
            workloads=workloads,
            faults=tuple(sorted(rng.sample(sorted(FAULTS), rng.randint(1, 6)))),
            disk=rng.choices([128 << 20, 1 << 30], (5, 1))[0],
            processor=rng.choice([1.0, 1.0, 10.0]),
            seconds=rng.uniform(15.0, 35.0),
            rest=rng.choice([1.0, 4.0, 10.0]),
            at_once=rng.choices([1, 2, 3], (70, 20, 10))[0],
            levels=rng.choices([(LEVEL,), (LEVEL, LEVEL - 1), (LEVEL - 1,), (0, LEVEL)], (80, 10, 5, 5))[0],
        )
