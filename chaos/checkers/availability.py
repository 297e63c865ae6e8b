"""Times in which a stream took no writes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from jetcluster.pipeline.checkers.event import Event

THRESHOLD = 1.0
"""A shorter time without an ack is not an outage."""


def outages(ops: Sequence[Event], threshold: float = THRESHOLD) -> list[tuple[float, float]]:
    """The outages of the workload that had most of them: (start, end) of every time longer than `threshold` without an
    ack, from its first write's start to its last write's start."""
    by_workload: dict[str, list[Event]] = {}
    for op in ops:
        if op.f in ("publish", "cas", "batch"):
            by_workload.setdefault(op.workload, []).append(op)
    found = [_outages(writes, threshold) for writes in by_workload.values()]
    return max(found, key=lambda spans: sum(end - start for start, end in spans), default=[])


def _outages(writes: Sequence[Event], threshold: float) -> list[tuple[float, float]]:
    start, end = min(op.t0 for op in writes), max(op.t0 for op in writes)
    times = [start, *sorted(op.t1 for op in writes if op.type == "ok" and op.t1 < end), end]
    return [(a, b) for a, b in itertools.pairwise(times) if b - a > threshold]
