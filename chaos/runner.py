"""One run: a fresh cluster, all workloads, strikes until the time is over, healing, reading every replica, judging."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from chaos.checkers import Verdict, judge
from chaos.history import History
from chaos.nemeses import NEMESES, Nemesis, Trouble
from chaos.relaxed import relax
from chaos.replicas import HEAL_WITHIN, api, read_stored, wait_current
from chaos.scenarios import Scenario
from chaos.target import Target
from chaos.workloads import USUAL, WORKLOADS, Workload
from chaos.workloads.base import TROUBLE
from jetcluster.pipeline.checkers.event import Finding
from testkit.client import Client
from testkit.harness import HarnessError

REPLICAS = 3
QUIET = (0.3, 1.2)
"""Seconds between two faults, after acks come again."""
ACKS_AGAIN = 50
WATCH_EVERY = 0.25
LATE = 0.3
"""Seconds that this process, which takes the times, may be late; what is more counts as a pause of it."""


@dataclass
class Result:
    """One line of the table. `skipped`: why nothing was run."""

    scenario: str
    seed: int
    target: str
    verdict: Verdict = field(default_factory=Verdict)
    history: History | None = None
    faults: Counter[str] = field(default_factory=Counter)
    skipped: str = ""
    left_out: dict[str, str] = field(default_factory=dict)
    """Nemeses of the scenario that this machine cannot do -> why."""
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        return self.verdict.kept


def possible(scenario: Scenario, target: Target) -> tuple[list[Nemesis], dict[str, str]]:
    """(nemeses that this target can do, those that it cannot -> why)."""
    can, cannot = [], {}
    for name in scenario.nemeses:
        nemesis = NEMESES[name]
        why = "; ".join(target.missing[need] for need in sorted(nemesis.needs & target.missing.keys()))
        if len(target.names) < nemesis.nodes:
            why = f"needs {nemesis.nodes} nodes"
        if why:
            cannot[name] = why
        else:
            can.append(nemesis)
    return can, cannot


def with_origins(names: Sequence[str]) -> list[str]:
    """`names`, and the workloads that they cannot do without, in the order in which they are created."""
    wanted = {*names, *(origin for name in names for origin in WORKLOADS[name].after)}
    return [name for name in WORKLOADS if name in wanted]


async def run(
    scenario: Scenario, target: Target, seed: int, seconds: float, path: Path | None, kind: str = "local",
    workloads: Sequence[str] = USUAL,
) -> Result:  # fmt: skip
    """`target` has just been started. Raises nothing of the cluster's own making: that is a finding."""
    result = Result(scenario.name, seed, kind, seconds=seconds)
    nemeses, result.left_out = possible(scenario, target)
    if scenario.nemeses and not nemeses:
        result.skipped = "; ".join(sorted(set(result.left_out.values())))
        return result
    history = result.history = History(path)
    found: list[Finding] = []
    try:
        try:
            workloads = with_origins([*(scenario.workloads or workloads), *scenario.besides])
            loads = [WORKLOADS[name](target, history, seed) for name in workloads]
            for load in loads:
                load.storage = scenario.storage
            await _create(target, loads)
            dice = random.Random(f"{seed} {scenario.name}")
            trouble = Trouble(target, history, dice, [load.stream for load in loads])
            await _strike_under_load(trouble, nemeses, loads, seconds, result)
            relax(history, scenario.relaxed)
            await _read_all(target, history, loads)
        except (HarnessError, *TROUBLE) as error:
            found.append(Finding("unhealed", "-", str(error) or repr(error), history.now()))
    finally:
        history.close()
    verdict = result.verdict = judge(history.events)
    idle = [name for name in workloads if not verdict.checked[name]]
    found += [Finding("unhealed", name, "did nothing: this run proves nothing about it") for name in idle]
    verdict.findings[:0] = found
    return result


async def _create(target: Target, loads: Sequence[Workload]) -> None:
    async with await Client.connect(target.url(target.names[0])) as client:
        for load in loads:
            await load.create(client, REPLICAS)
    for load in loads:
        await wait_current(target, load.stream)


async def _strike_under_load(
    trouble: Trouble, nemeses: Sequence[Nemesis], loads: Sequence[Workload], seconds: float, result: Result
) -> None:
    watcher = asyncio.create_task(_watch(trouble.target, trouble.history, [load.stream for load in loads]))
    clock = asyncio.create_task(lateness(trouble.history))
    tasks = [asyncio.create_task(load.run()) for load in loads]
    end = time.monotonic() + seconds
    deck: list[Nemesis] = []  # each nemesis has its turn before one comes again
    try:
        await _acks_again(trouble.history, tasks)
        while time.monotonic() < end:
            if not nemeses:
                await asyncio.sleep(end - time.monotonic())
                break
            if not deck:
                deck = trouble.dice.sample(nemeses, len(nemeses))
            await _one_fault(trouble, deck.pop(), result)
            await _acks_again(trouble.history, tasks)
            await trouble.hold(*QUIET)
    finally:
        for load in loads:
            load.stop.set()
        try:
            await asyncio.wait_for(asyncio.gather(*tasks), HEAL_WITHIN)
        finally:
            for task in (watcher, clock):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task


async def _one_fault(trouble: Trouble, nemesis: Nemesis, result: Result) -> None:
    trouble.detail = trouble.victim = ""
    invoked = trouble.history.invoke(nemesis.kind, "fault", "nemesis", subject=nemesis.name)
    try:
        await nemesis.strike(trouble)
    finally:
        trouble.history.end(invoked, "ok", error=trouble.detail, replica=trouble.victim)
        result.faults[nemesis.name] += 1


async def _acks_again(history: History, tasks: Sequence[asyncio.Task[None]]) -> None:
    """The cluster must serve again once a fault is healed. Raises HarnessError."""
    seen, acks = len(history.events), 0
    deadline = time.monotonic() + HEAL_WITHIN
    while acks < ACKS_AGAIN:
        for task in tasks:
            if task.done():
                task.result()
        if time.monotonic() > deadline:
            raise HarnessError(f"no acks {HEAL_WITHIN:.0f} s after the last fault was healed")
        await asyncio.sleep(0.05)
        new, seen = history.events[seen:], len(history.events)
        acks += sum(event.f == "publish" and event.type == "ok" for event in new)


async def _watch(target: Target, history: History, streams: Sequence[str]) -> None:
    """Writes down who leads, as far as anybody says."""
    known: dict[str, str] = {}
    while True:
        for stream in streams:
            try:
                info = await api(target, f"STREAM.INFO.{stream}", within=1.0)
                leader = str((info.get("cluster") or {}).get("leader") or "")
            except (HarnessError, *TROUBLE):
                leader = ""
            if known.get(stream) != leader:
                known[stream] = leader
                history.note(stream.lower(), "leader", replica=leader)
        await asyncio.sleep(WATCH_EVERY)


async def lateness(history: History) -> None:
    """On a machine that is too busy, what arrived long ago is seen late: no server has held it back."""
    while True:
        begun = history.now()
        await asyncio.sleep(LATE)
        late = history.now() - begun - LATE
        if late > LATE:
            history.note("pause", "fault", "machine", since=begun, subject="late", error=f"by {late:.2f} s")


async def _read_all(target: Target, history: History, loads: Sequence[Workload]) -> None:
    places = {load.stream: await wait_current(target, load.stream) for load in loads}
    for load in loads:
        async with await Client.connect(target.url(target.names[0]), within=5.0) as client:
            await load.finish(client)
    for load in loads:
        if not load.read_back:
            continue
        await read_stored(target, history, load.name, load.stream, places[load.stream])
