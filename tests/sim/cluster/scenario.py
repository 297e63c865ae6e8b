"""The scenario of a seed: a size, workloads and faults, chosen at random (swarm testing)."""

from __future__ import annotations

import itertools
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from random import Random

from testkit.sim.layout import Security
from testkit.twins.storage.threads import CUTS
from tests.sim.cluster import nemesis
from tests.sim.cluster.exam import Exam
from tests.sim.cluster.nemesis import FAULTS, Rage
from tests.sim.cluster.workload import found

USUAL = ("three", "five", "three and a plain one", "three and a leaf", "three and a leaf of three")
FIVE = frozenset(("come_back", "left_behind"))
"""Faults that need as many servers."""
ALONE = "alone"
"""The layout of one server."""
ENCRYPTED = 5
"""One in so many scenarios has stores that are encrypted."""
SECOND_ACKS = 4
"""One in so many scenarios has reply subjects of version 2, at all servers or at some."""
WEB = 8
"""In one of so many clients come by WebSocket."""
SECURE = 8
"""In one of so many all ports and links have TLS."""
CIPHERS = ("aes", "chachapoly", "mixed")
FIRST_DRAWN, DRAWN = 10_000, 100
"""Scenarios of `each` that are as they are drawn."""
LATER = 0.25
"""Share of seeds that have a workload of weight 0 that is no exam; all others have exams of weight 0."""
LATER_EXAMS = 2
OF_THE_LAYOUT = 1 / 3
"""Share of the seeds with a layout that an exam is for, that have this exam as well."""
LATER_FAULTS = 0.15
"""Share of seeds that have a fault of `nemesis.LATER`."""
HARSH = ("blackout", "kill", "partition", "power")


@dataclass(slots=True, frozen=True)
class Scenario:
    seed: int
    layout: str
    """A key of `layout.LAYOUTS`."""
    skew: float
    """Seconds by which wall clocks are apart at the start, at most; monotonic ones run up to 200 ppm fast or slow."""
    workloads: tuple[str, ...]
    rage: Rage
    disk: int
    """Bytes of each server's: segments of the journal are a 32nd part, and below 1 GiB RocksDB flushes by itself."""
    processor: float
    """Factor by which work takes longer than usual."""
    pace: float = 1.0
    """Factor by which disks take longer than usual."""
    segment: int = 0
    """Bytes of each journal's, which then forgets soon; 0: as usual."""
    batch: int = 0
    """Entries that a leader sends at a time; 0: as usual."""
    again: bool = True
    """All servers start again in the end, and are looked at once more."""
    pulse: bool = False
    """A client of each server publishes all the time (`pulse.py`)."""
    small: bool = False
    """Limits of the product are scaled down (`small.py`)."""
    slow_beat: bool = False
    """Servers tell each other less often that they are alive (`small.SLOW_BEAT`)."""
    cuts: float = CUTS
    """Share of the disk's calls at which a thread stands still (`testkit.twins.storage.threads`)."""
    cipher: str = ""
    """The cipher of the stores (`layout.Encryption`)."""
    rotates: bool = False
    """Each server gets another key for its store, at some start or reload (`server_changes.rotate`)."""
    acks: str = ""
    """The version of consumers' reply subjects (`layout.AckVersions`)."""
    web: bool = False
    """Clients come by WebSocket (`layout.Entrance`)."""
    tls: str = ""
    """TLS of all ports and links (`layout.Security`)."""

    @classmethod
    def of(
        cls,
        seed: int,
        focus: Container[str] | None = None,
        *,
        wider: bool | None = None,
        faults: Sequence[str] = (),
        no_others: bool = False,
    ) -> Scenario:
        """`focus`: names of workloads; only these are drawn. `wider`: whether faults of `nemesis.WIDE` are, as
        `nemesis.WIDER` says by default. `faults`: these are there besides those that are drawn, or `no_others`."""
        wider = nemesis.WIDER if wider is None else wider
        rng = Random(f"scenario {seed}")
        workloads = _workloads(seed, rng, focus)
        layout = rng.choices(USUAL, (60, 8, 12, 12, 8))[0]
        alone = [name for name in workloads if found()[name].layout]
        if alone:
            exams = filter(_is_exam, workloads if found()[alone[0]].examined else ())
            also = (name for name in exams if focus is not None or found()[name].weight)
            workloads = tuple(dict.fromkeys((alone[0], *also)))
            layout = found()[alone[0]].layout
        scenario = cls(
            seed=seed,
            layout=layout,
            skew=rng.choice([0.0, 0.01, 0.5, 30.0]),
            workloads=tuple(sorted(workloads)),
            rage=Rage(
                faults=tuple(sorted({*_drawn(rng, wider=wider, no_others=no_others), *faults})),
                hands=rng.choice([1, 1, 2, 3]),
                seconds=rng.uniform(12.0, 30.0),
                rest=rng.choice([1.0, 4.0, 10.0]),
            ),
            disk=rng.choices([128 << 20, 1 << 30], (5, 1))[0],
            processor=rng.choice([1.0, 1.0, 10.0]),
            pace=rng.choice([1.0, 1.0, 1.0, 5.0, 20.0]),
            segment=rng.choice([0, 64 << 10, 512 << 10]),
            batch=rng.choice([0, 0, 2, 16]),
            again=rng.random() < 0.5,
            pulse=rng.random() < 1 / 3,
            small=rng.random() < 1 / 3,
            cuts=rng.choice([0.02, 0.1, 0.5]),
        )
        if layout == ALONE:  # who publishes all the time has three replicas
            scenario = replace(scenario, pulse=False)
        scenario = replace(scenario, slow_beat=not scenario.pulse)
        if FIVE.intersection(scenario.rage.faults) and not alone:
            scenario = replace(scenario, layout="five")
        scenario = replace(scenario, segment=64 << 10) if "forgetting" in scenario.rage.faults else scenario
        if focus is None:
            names = {*scenario.workloads, *_of_the_layout(seed, scenario.layout)}
            scenario = replace(scenario, workloads=tuple(sorted(names)))
        return scenario.with_later_draws(no_others=no_others, old="upgrades" in workloads)

    def with_later_draws(self, *, no_others: bool, old: bool) -> Scenario:
        """Draws what came later, with numbers of its own, so that a seed is otherwise what it was before. `old`: some
        servers are, and do not know everything."""
        scenario, seed = self, self.seed
        rng = Random(f"acks {seed}")
        if rng.random() < 1 / SECOND_ACKS and not old:
            scenario = replace(scenario, acks=rng.choice(["v2", "mixed"]))
        scenario = replace(scenario, web=Random(f"web {seed}").random() < 1 / WEB)
        rng = Random(f"tls {seed}")
        if rng.random() < 1 / SECURE:
            scenario = replace(scenario, tls=rng.choice(Security.MODES))
            scenario = replace(scenario, web=scenario.web or rng.random() < 1 / WEB)  # or both were in one of 64
        rng = Random(f"later faults {seed}")
        if rng.random() < LATER_FAULTS and not no_others:
            scenario = replace(scenario, rage=scenario.rage.also(rng.choice(nemesis.LATER)))
        rng = Random(f"encryption {seed}")
        if rng.random() >= 1 / ENCRYPTED:
            return scenario
        return replace(scenario, cipher=rng.choice(CIPHERS), rotates=rng.random() < 0.5)


def each(start: int) -> list[Scenario]:
    """Scenarios from seed `start` on in which every workload, exam and fault is met: two for each workload, with limits
    as usual and small, for who measures what the simulation reaches at all. Python runs the first of two alone; with
    small limits the compiled loops run, without which nobody hands several messages on at once. Each has two exams.
    DRAWN more are as they are drawn."""
    exams = itertools.cycle(sorted(filter(_is_exam, found())))
    others = sorted(name for name in found() if not _is_exam(name))
    faults = itertools.cycle(sorted(FAULTS))
    scenarios = []
    for at, (name, small) in enumerate(itertools.product(others, (False, True))):
        some = tuple(next(faults) for _ in range(2))
        scenario = Scenario.of(start // 2 * 2 + 2 * at + (not small), (name,), faults=some)
        both = (next(exams), next(exams)) if found()[name].examined else ()
        cipher = "mixed" if at % ENCRYPTED == 0 else ""
        workloads = tuple(sorted({*scenario.workloads, *both}))
        scenarios.append(replace(scenario, small=small, workloads=workloads, cipher=cipher, rotates=bool(cipher)))
    return [*scenarios, *(Scenario.of(start + FIRST_DRAWN + number) for number in range(DRAWN))]


def _workloads(seed: int, rng: Random, focus: Container[str] | None) -> tuple[str, ...]:
    """Some workloads and one or two exams, of all or of those that `focus` has."""
    names = sorted(found())
    names = [name for name in names if (found()[name].weight if focus is None else name in focus)]
    exams = [name for name in names if _is_exam(name)]
    names = [name for name in names if name not in exams]
    weights = [max(found()[name].weight, 1) for name in names]
    drawn = rng.choices(names, weights, k=rng.choice([1, 1, 2, 2, 3])) if names else []
    workloads = tuple(dict.fromkeys(drawn))
    if "upgrades" in workloads:
        workloads = tuple(name for name in workloads if not found()[name].newest)
    if exams:
        workloads = (*workloads, *rng.sample(exams, min(rng.choice([1, 1, 2]), len(exams))))
    return _with_a_later_one(seed, workloads) if focus is None else workloads


def _is_exam(name: str) -> bool:
    return issubclass(found()[name], Exam)


def _with_a_later_one(seed: int, workloads: tuple[str, ...]) -> tuple[str, ...]:
    """Has some that were added later besides, mostly exams: there are more of these than of others, they cost little,
    and which mistakes are noticed hangs on how often each is met."""
    rng = Random(f"later {seed}")
    old = "upgrades" in workloads
    later = sorted(name for name, one in found().items() if not (one.weight or (old and one.newest)))
    others = [name for name in later if not _is_exam(name)]
    exams = [name for name in later if name not in others and not found()[name].layout]
    return (*workloads, *([rng.choice(others)] if rng.random() < LATER else rng.sample(exams, LATER_EXAMS)))


def _of_the_layout(seed: int, layout: str) -> tuple[str, ...]:
    """Has the exam of the layout in some of the seeds that it is drawn for."""
    exams = sorted(name for name, one in found().items() if _is_exam(name) and one.layout == layout)
    return tuple(exams) if Random(f"of the layout {seed}").random() < OF_THE_LAYOUT else ()


def _drawn(rng: Random, *, wider: bool, no_others: bool) -> tuple[str, ...]:
    """Draws faults also where there are to be none of them, so that a seed is otherwise what it is."""
    drawn = _faults(rng, wider=wider)
    return () if no_others else drawn


def _faults(rng: Random, *, wider: bool) -> tuple[str, ...]:
    """Some of all, and mostly one of those that take what is not safe."""
    found = set(rng.sample(sorted(FAULTS.keys() - nemesis.WIDE - set(nemesis.LATER)), rng.randint(1, 5)))
    if rng.random() < 0.7:
        found.add(rng.choice(HARSH))
    if wider:
        found.update(rng.sample(sorted(nemesis.WIDE), rng.choice([0, 1, 1, 2])))
    return tuple(sorted(found))
