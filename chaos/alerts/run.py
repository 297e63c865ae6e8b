"""A run: for each fault the alert is quiet, fires, is quiet again; then the dashboard is asked about all of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.console import Console

from chaos.alerts import rules
from chaos.alerts.dashboard import queries
from chaos.alerts.faults import Fault
from chaos.alerts.prometheus import Prometheus
from chaos.alerts.stage import Stage
from testkit.client import ClientError
from testkit.harness import HarnessError

WARM = 20.0
"""Seconds of load before the first fault: rates are known, and no alert may fire."""
SETTLED = 120.0
"""Seconds after a fault in which every alert must be quiet again."""
POLL = 0.5
TROUBLE = (ClientError, HarnessError, OSError, TimeoutError)


@dataclass
class Outcome:
    fault: Fault
    fired: float | None = None
    """Seconds from the strike; None: it did not fire."""
    quiet: float | None = None
    """Seconds from the healing; None: it went on."""
    beside: set[str] = field(default_factory=set)
    """Other alerts that fired meanwhile."""
    finding: str = ""


@dataclass
class Report:
    outcomes: list[Outcome] = field(default_factory=list)
    queries: dict[str, int] = field(default_factory=dict)
    """Series that each query of the dashboard gave."""
    findings: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.findings and not any(outcome.finding for outcome in self.outcomes)


async def perform(stage: Stage, faults: Sequence[Fault], console: Console, *, dashboard: bool) -> Report:
    """Raises HarnessError where the stage does not come up."""
    report = Report()
    async with stage:
        config = rules.write(stage.root, stage.targets)
        start = time.time()
        async with Prometheus(config, stage.root) as watch:
            await asyncio.sleep(WARM)
            health = await watch.targets()
            report.findings += [f"{name} is {state} for Prometheus" for name, state in health.items() if state != "up"]
            for name in await watch.firing():
                report.findings.append(f"{name} fires before any fault")
            for fault in faults:
                outcome = await attempt(stage, watch, fault)
                report.outcomes.append(outcome)
                console.print(f"{fault.alert}: fires {outcome.fired}, quiet {outcome.quiet}, beside {outcome.beside} "
                              f"{outcome.finding}", markup=False, highlight=False)  # fmt: skip
            if dashboard:
                for name, query in queries().items():
                    report.queries[name] = await watch.over(query, start, time.time())
                report.findings += [f"{name} gives no data" for name, count in report.queries.items() if not count]
        stage.local.failed |= not report.ok
    return report


async def attempt(stage: Stage, watch: Prometheus, fault: Fault) -> Outcome:
    outcome = Outcome(fault)
    if fault.alert in await watch.firing():
        outcome.finding = "it fires before its fault"
        return outcome
    try:
        begun = time.monotonic()
        striking = asyncio.create_task(fault.strike(stage))
        try:
            outcome.fired = await _until(watch, fault, outcome, begun, fault.fires_within, fires=True)
        finally:
            await striking
            healed = time.monotonic()
            await fault.heal(stage)
        if outcome.fired is None:
            outcome.finding = f"it does not fire within {fault.fires_within:.0f} s"
        outcome.quiet = await _until(watch, fault, outcome, healed, fault.quiet_within, fires=False)
        if outcome.quiet is None:
            outcome.finding = f"it fires {fault.quiet_within:.0f} s after the end"
        if left := await _settled(watch, outcome):
            outcome.finding = f"{', '.join(left)} go on"
    except TROUBLE as error:
        outcome.finding = f"{type(error).__name__}: {error}"
    return outcome


async def _until(
    watch: Prometheus, fault: Fault, outcome: Outcome, since: float, within: float, *, fires: bool
) -> float | None:
    """Seconds from `since` until it fires, or is quiet. None: not within the time."""
    while time.monotonic() - since < within:
        firing = await watch.firing()
        outcome.beside |= firing.keys() - {fault.alert}
        if (fault.alert in firing) == fires:
            return time.monotonic() - since
        await asyncio.sleep(POLL)
    return None


async def _settled(watch: Prometheus, outcome: Outcome) -> list[str]:
    """The alerts that still fire when they should all be quiet."""
    start = time.monotonic()
    while firing := await watch.firing():
        outcome.beside |= firing.keys() - {outcome.fault.alert}
        if time.monotonic() - start > SETTLED:
            return sorted(firing)
        await asyncio.sleep(POLL)
    return []
