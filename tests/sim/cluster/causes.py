"""Failures of many seeds by their cause: after a night one wants to know how many different things are wrong."""

from __future__ import annotations

from collections.abc import Iterable

from tests.sim.cluster.batch import Outcome
from tests.sim.cluster.shrink import kind

SHOWN = 8
"""Seeds of one cause that are named."""


def by_cause(outcomes: Iterable[Outcome]) -> dict[str, list[Outcome]]:
    """Those that failed, by what their failures have in common, the most frequent cause first."""
    causes: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        if outcome.failure:
            causes.setdefault(kind(outcome.failure), []).append(outcome)
    return dict(sorted(causes.items(), key=lambda item: -len(item[1])))


def summary(outcomes: Iterable[Outcome]) -> str:
    """A few lines for each cause; "" when nothing failed."""
    lines = []
    for found in by_cause(outcomes).values():
        seeds = sorted(one.seed for one in found)
        more = f" and {len(seeds) - SHOWN} more" if len(seeds) > SHOWN else ""
        lines.append(f"{len(found)} times: {found[0].failure.strip().splitlines()[-1]}")
        lines.append(f"    seeds {', '.join(map(str, seeds[:SHOWN]))}{more}")
        lines.append(f"    shrink: python -m tests.sim.cluster --shrink {seeds[0]}")
    return "\n".join(lines)
