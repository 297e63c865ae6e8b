"""One seed: the cluster starts, workloads begin, faults come and go, and everything is looked at."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import importlib
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from unittest.mock import patch

from testkit.native import one_description, python_alone
from testkit.sim import tls_ports
from testkit.sim.deployment import Deployment, Violation, without_addresses
from testkit.sim.layout import LAYOUTS, AckVersions, Encryption, Entrance, Server
from testkit.sim.loop import SimLoop, quietly_collected
from tests.sim.cluster import leftovers, liveness, nemesis, older, replicas, second_look, server_changes, small, watches
from tests.sim.cluster.availability import Availability
from tests.sim.cluster.flushes import Flushes
from tests.sim.cluster.invariants import Invariants
from tests.sim.cluster.moves import Moves
from tests.sim.cluster.pages import Pages
from tests.sim.cluster.pulse import Pulse
from tests.sim.cluster.readers import Readers
from tests.sim.cluster.scenario import Scenario
from tests.sim.cluster.valves import Valves
from tests.sim.cluster.workload import Workload, found

START = 30.0
FAULTS = 300.0
STOP = 60.0
CHECK = 360.0
"""Longest seconds of each part; a check may wait for the disks of a server that was away."""


@dataclass(slots=True)
class Result:
    scenario: Scenario
    failure: str = ""
    """The violation or error; "" when there is none."""
    digest: str = ""
    """The same for the same seed and program, in every process and on every machine."""
    seconds: float = 0.0
    """Simulated time."""
    cpu: float = 0.0
    gap: float = 0.0
    """Longest time without a commit that was owed, or without an ack of a publish, while a majority was well."""
    counts: dict[str, int] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    """The trace, where one was asked for."""


@functools.cache
def warm_up() -> None:
    """Imports and builds that the first run of a process makes and later ones find, so that a seed is the same in
    both."""
    from jetcluster.api import dispatch, models
    from jetcluster.config.load import load_text
    from jetcluster.node.warm_up import LATE, build_models, modules_of

    servers = LAYOUTS["three"]
    options = load_text(servers[0].text(servers), "warm_up.conf", {})[0]

    async def build() -> None:
        await dispatch.load_endpoints()
        await models.load()
        for name in (*modules_of(options), *LATE, "jetcluster.monitor.varz", "jetcluster.monitor.system.answers"):
            importlib.import_module(name)  # the last two are what monitoring names for its warm-up
        await build_models()

    asyncio.run(build())
    gc.collect()
    gc.freeze()


@contextlib.contextmanager
def imported_at_once() -> Iterator[None]:
    """Servers import what they warm up with in one step, whether this process had it before or not: which modules
    those are hangs on the scenario, and how often a thread was asked for one would on the seeds before."""
    from jetcluster.node import warm_up as warming

    async def import_all(names: Sequence[str]) -> None:
        for name in names:
            importlib.import_module(name)

    with patch.object(warming, "import_all", import_all):
        yield


def started(layout: str | Sequence[Server] = "three", seed: int = 5, **options: bool) -> Deployment:
    """Servers (a key of LAYOUTS, or these) that have found each other."""
    warm_up()
    deployment = Deployment(seed, LAYOUTS[layout] if isinstance(layout, str) else layout, **options)
    for machine in deployment.machines.values():
        machine.start()
    deployment.run(8.0)
    return deployment


def run_seed(
    seed: int,
    *,
    scenario: Scenario | None = None,
    trace: bool = False,
    wire: bool = False,
    pure: bool | None = None,
    collect: bool = True,
) -> Result:
    """`trace` keeps what happened in `Result.lines`, `wire` all that came over the network as well; the digest is the
    same as without. With `pure` Python runs alone, without it the compiled loops; odd seeds are pure.
    Without `collect` what the run leaves stays in memory, as in a process that ends after it."""
    warm_up()
    began = time.process_time()
    result = Result(scenario or Scenario.of(seed))
    collecting = gc.isenabled()
    gc.disable()  # when it looks depends on the process; nothing may hang on that
    try:
        with (
            quietly_collected() if collect else contextlib.nullcontext(),
            one_description(),
            imported_at_once(),
            python_alone(pure=seed % 2 == 1 if pure is None else pure),
            small.scaled(small=result.scenario.small, slow_beat=result.scenario.slow_beat),
            older.told(),
            Encryption.chosen(result.scenario.cipher),
            AckVersions.chosen(result.scenario.acks),
            Entrance.chosen(web=result.scenario.web),
            tls_ports.chosen(result.scenario.tls),
        ):
            _run_and_tell(result, trace or wire, wire)
    finally:
        if collecting:
            gc.enable()
    result.cpu = time.process_time() - began
    return result


def _run_and_tell(result: Result, trace: bool, wire: bool) -> None:
    scenario = result.scenario
    deployment = Deployment(scenario.seed, LAYOUTS[scenario.layout], keep_trace=trace)
    if wire:
        deployment.network.watch = lambda source, target, data: deployment.trace.show(
            "wire", f"{source[0]}:{source[1]} > {target[0]}:{target[1]} {len(data)} {data[:96]!r}"
        )
    try:
        with (
            older.watched(deployment) if "upgrades" in scenario.workloads else contextlib.nullcontext(),
            watches.watched(deployment),
        ):
            _run(deployment, scenario, result)
    except Violation as violation:
        result.failure = str(violation)
    except BaseExceptionGroup as group:
        result.failure = _first(group)
    except Exception:
        result.failure = traceback.format_exc()
    finally:
        deployment.close()
    result.failure = without_addresses(result.failure)
    result.seconds = deployment.scheduler.now
    deployment.trace.add("result", result.failure)
    result.digest = deployment.digest()
    result.lines = deployment.trace.lines


def _first(group: BaseExceptionGroup[BaseException]) -> str:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            return _first(error)
        if isinstance(error, Violation):
            return str(error)
    return "".join(traceback.format_exception(group))


def _run(deployment: Deployment, scenario: Scenario, result: Result) -> None:
    rng = Random(f"workloads {scenario.seed}")
    _equip(deployment, scenario, rng)
    for name in deployment.servers:
        deployment.machines[name].start()
    running: list[Workload] = [found()[name](deployment, Random(rng.getrandbits(64))) for name in scenario.workloads]
    pulse = Pulse(deployment, Random(rng.getrandbits(64))) if scenario.pulse else None
    running += [pulse] if pulse is not None else []
    availability, pages = Availability(deployment), Pages(deployment)
    try:
        for workload in running:
            deployment.run_until_done(
                deployment.spawn(workload.loop, workload.prepare(), f"{workload.name} begins"), START
            )
        for judge in (
            Invariants(deployment), Flushes(deployment), Valves(deployment), availability, Readers(deployment), pages
        ):  # fmt: skip
            judge.begin()
        control = deployment.client("nemesis")
        _strike(deployment, scenario, rng, running, control)
        _settle(deployment, scenario, rng, running, control, pages)
    finally:
        result.gap = max(availability.longest, 0.0 if pulse is None else pulse.longest)
        for workload in running:
            for what, number in workload.counts.items():
                result.counts[f"{workload.name}: {what}"] = number


def _equip(deployment: Deployment, scenario: Scenario, rng: Random) -> None:
    """Makes machines and servers what the scenario says, before any of them starts."""
    for machine in deployment.machines.values():
        machine.clock.set_rate(1.0 + rng.uniform(-200e-6, 200e-6))
        machine.clock.wall_ahead = rng.uniform(-scenario.skew, scenario.skew)
        machine.clock.slowness = machine.usual_slowness = scenario.processor
        machine.cuts = scenario.cuts
        machine.disk_pace, machine.segment, machine.batch = scenario.pace, scenario.segment, scenario.batch
        machine.raft_limits = small.raft_limits(small=scenario.small, slow_beat=scenario.slow_beat)
        machine.new_disk(scenario.disk)
    for name in scenario.workloads:
        found()[name].before(deployment, Random(f"{name} {scenario.seed}"))


def _strike(deployment: Deployment, scenario: Scenario, rng: Random, running: list[Workload], control: SimLoop) -> None:
    """Has workloads work beside the faults; returns once both are over, and all is led, current and whole again."""
    moves = Moves(deployment)
    moves.begin()
    tasks = [deployment.spawn(workload.loop, workload.work(), f"{workload.name} ends its work") for workload in running]
    raging = nemesis.rage(deployment, Random(rng.getrandbits(64)), scenario.rage)
    if scenario.rotates:
        keys = server_changes.rotate(deployment, Random(f"keys {scenario.seed}"), scenario.rage.seconds)
        deployment.spawn(control, keys, "keys are changed")
    deployment.run_until_done(deployment.spawn(control, raging, "the faults"), FAULTS)
    moves.calm()
    deployment.spawn(control, liveness.supervise(deployment), "the supervisor")
    deployment.spawn(
        control, server_changes.tidy(deployment, Random(f"administrator {scenario.seed}")), "the administrator"
    )
    settling = deployment.spawn(control, liveness.settle(deployment), "settling")
    for workload in running:
        workload.stopping = True
    for task in tasks:
        deployment.run_until_done(task, STOP)
    deployment.run_until_done(settling, liveness.SETTLES + 1.0)


def _settle(
    deployment: Deployment,
    scenario: Scenario,
    rng: Random,
    running: list[Workload],
    control: SimLoop,
    pages: Pages,
) -> None:
    """Looks at everything once all is calm, before the workloads and exams check what they know and after it; in some
    runs once more after all servers have started again."""
    alike = replicas.settle(deployment, quiet=replicas.SHORT)
    deployment.run_until_done(deployment.spawn(control, alike, "replicas become alike"), 2 * replicas.SETTLE)
    for workload in running:
        deployment.run_until_done(
            deployment.spawn(workload.loop, workload.check(), f"{workload.name} is checked"), CHECK
        )
    alike = replicas.settle(deployment)
    deployment.run_until_done(deployment.spawn(control, alike, "replicas stay alike"), 2 * replicas.SETTLE)
    pages.look_at_all()
    gone = leftovers.settle(deployment)
    deployment.run_until_done(deployment.spawn(control, gone, "nothing is left of what is gone"), 2 * leftovers.GOES)
    if scenario.again:
        again = second_look.look_again(deployment, Random(rng.getrandbits(64)))
        deployment.run_until_done(deployment.spawn(control, again, "the second look"), 4 * replicas.SETTLE)
