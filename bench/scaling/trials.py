"""Trials of the model: 1, 2 and 3 servers, and a mirror, each with the same share of a core; the load has another core.

The rates are those of a machine whose servers do not disturb each other, as none takes more than its share.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.loads import SIGN
from bench.result import CLIENT, LoadResult
from bench.scaling.costs import DIRECT, LAST, MESSAGES, SEQ, WRITE_RATES, last_of_keys
from bench.scaling.figures import Figures, Trial
from bench.scaling.model import Plan
from bench.scaling.pace import paced
from bench.scaling.share import ShareError, apart, cores, shares
from bench.scaling.stand import STREAM, Replicas
from bench.window import Window, cycle, open_wires, run_windows
from testkit.client import render_publish

SHARE = 0.2
WHOLE = 1.0
"""A server that has the core for itself."""
WRITES = WRITE_RATES[0]
AT_ONCE = 1024
"""Requests in flight on a connection: enough for a server that must wait until another one has its share again."""
WARM = 0.5
"""Seconds of a trial that are not counted: the quota of a process that did nothing is full."""


@dataclass(frozen=True, slots=True)
class Case:
    """A plan, and the forms of reads that are tried with it."""

    name: str
    plan: Plan
    forms: Sequence[str] = (SEQ, LAST)


@dataclass(frozen=True, slots=True)
class Group:
    """A cluster and its cases."""

    replicas: int
    mirrors: int
    cases: Sequence[Case]


def groups(share: float) -> tuple[Group, ...]:
    """All trials, with servers of that share."""
    writing = Plan(3, share=share, writes=WRITES)
    return (
        Group(1, 0, (Case("1 server, a whole core", Plan(1, share=WHOLE)), Case("1 server", Plan(1, share=share)))),
        Group(2, 0, (Case("2 servers", Plan(2, share=share)),)),
        Group(3, 0, (Case("3 servers", Plan(3, share=share)),
                     Case(f"3 servers, {WRITES:,.0f} writes/s", writing, (LAST,)))),
        Group(3, 1, (Case("3 servers and a mirror", Plan(3, mirrors=1, share=share)),)),
    )  # fmt: skip


def bodies(form: str) -> list[bytes]:
    if form == LAST:
        return last_of_keys({})
    return [b'{"seq":%d}' % (1 + n * 7919 % MESSAGES) for n in range(10_000)]


async def read(urls: Sequence[str], form: str, seconds: float, pids: dict[str, int]) -> LoadResult:
    """One connection to each server, all from one thread, AT_ONCE requests on each."""
    windows = []
    for at, wire in enumerate(await open_wires(urls)):
        frames = [render_publish(DIRECT, body, wire.inbox + b".a") for body in bodies(form)[at:]]
        windows.append(Window(wire, AT_ONCE, SIGN, cycle(frames)))
    return await run_windows(form, windows, seconds=seconds, pids=pids)


async def try_all(folder: Path, figures: Figures, rounds: int, seconds: float, share: float) -> None:
    """All trials, so many rounds. Where this machine cannot share a core it says so in `figures.untried`. Raises
    ClientError, HarnessError."""
    if cores() is None:
        figures.untried = "this machine has one core, and the load needs one of its own"
        return
    figures.trials, figures.untried = [], ""
    try:
        for group in groups(share):
            await _try_group(folder / f"{group.replicas}-{group.mirrors}", group, figures, rounds, seconds)
    except ShareError as error:
        figures.trials, figures.untried = [], str(error)


async def _try_group(folder: Path, group: Group, figures: Figures, rounds: int, seconds: float) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    stand = Replicas(folder, group.replicas, mirrors=group.mirrors)
    async with stand.cluster:
        await stand.fill(MESSAGES)
        with apart(stand.pids.values()):
            for _ in range(rounds):
                for case in group.cases:
                    for form in case.forms:
                        figures.trials.append(await _try(stand, case, form, seconds))
    shutil.rmtree(folder, ignore_errors=True)


async def _try(stand: Replicas, case: Case, form: str, seconds: float) -> Trial:
    """Reads at all servers of the stand, and writes at the leader where the case has some."""
    urls, pids, stop = stand.cluster.urls, stand.pids, threading.Event()
    held = contextlib.nullcontext() if case.plan.share == WHOLE else shares(pids.values(), case.plan.share)
    with held:
        await read(urls, form, WARM, {})
        writing = None
        if case.plan.writes:
            subject = f"{STREAM.lower()}.0"
            leader = await stand.cluster.stream_leader(STREAM)
            writing = asyncio.create_task(
                paced(leader.url, subject, case.plan.writes, seconds + 60.0, stop=stop)
            )  # fmt: skip
        try:
            found = await read(urls, form, seconds, pids)
        finally:
            stop.set()
        written = (await writing).rate if writing is not None else 0.0
    used = [found.cpu[name] / found.seconds for name in pids]
    return Trial(case.name, form, case.plan, found.rate, written, used, found.cpu[CLIENT] / found.seconds)
