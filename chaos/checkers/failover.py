"""Faults under which somebody must always be served, though nobody crashed.

`fault` says when (t0 to t1), `subject` which one and `replica` whom it struck; a probe (chaos/probe.py) published
meanwhile, one message at a time, and looked at the leaders.

- outage: the probe had no ack for longer than the fault allows. Times in which this process itself stood still
  (`late`) do not count.
- kept leading: that long after the fault began a stream was still led by the node that was struck.
- moved leader: a leader changed under a fault that should move none.
- minority ack: a write began and was acked while those that may vouch for it were less than a majority
  (`without-majority`).
- died: a server ended under a fault that it must survive.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence

from jetcluster.pipeline.checkers.event import Event, Finding

PROBE = "probe"
PROBED = "probed"
WRITES = ("publish", "cas", "batch")
WITHOUT_MAJORITY = "without-majority"
GOAL = 4.0
"""Seconds. docs/health.md has what was measured, under two; the rest is what a loaded machine may take."""
FLOODED = 8.0
"""Seconds that one publisher may wait while others send all that they can."""
OUTAGE = {"hung-journal": GOAL, "failing-store": GOAL, "clock-hours": GOAL, "flood": FLOODED, "no-descriptors": GOAL}
"""Fault -> the longest time without an ack."""
MOVES = frozenset({"hung-journal", "failing-store", "clock-hours"})
"""Faults whose victim must hand over what it leads."""
STAYS = frozenset({"flood"})
"""Faults that must move no leader."""


def check(ops: Sequence[Event]) -> list[Finding]:
    """`ops` sorted by t0."""
    faults = [op for op in ops if op.f == "fault" and op.client == "nemesis"]
    late = [(op.t0, op.t1) for op in ops if op.f == "fault" and op.subject == "late"]
    acks = sorted(op.t1 for op in ops if op.f == "publish" and op.client == PROBE and op.type == "ok")
    leaders: dict[str, list[Event]] = defaultdict(list)
    for op in ops:
        if op.f == "leader":
            leaders[op.workload].append(op)
    found = _minority(ops) + _deaths(ops)
    for fault in faults:
        if fault.subject in OUTAGE:
            found += _outage(fault, _probed(fault, ops), acks, late)
        for workload, notes in leaders.items():
            if fault.subject in MOVES:
                found += _kept(fault, workload, notes)
            if fault.subject in STAYS:
                found += _moved(fault, workload, notes)
    return found


def _minority(ops: Sequence[Event]) -> list[Finding]:
    spans = [(op.t0, op.t1, op.replica) for op in ops if op.f == "fault" and op.subject == WITHOUT_MAJORITY]
    return [
        Finding(
            "minority ack", op.workload, f"{op.msg_id} was acked as {op.seq}, only {cut} and one more were up", op.t1
        )
        for op in ops
        if op.type == "ok" and op.f in WRITES
        for start, end, cut in spans
        if start < op.t0 and op.t1 < end
    ]


def _deaths(ops: Sequence[Event]) -> list[Finding]:
    return [Finding("died", "-", f"{op.replica} ended by itself: {op.error}", op.t0) for op in ops if op.f == "died"]


def _probed(fault: Event, ops: Sequence[Event]) -> tuple[float, float]:
    """From when to when of the fault the probe was at work; all of it in a history that does not tell."""
    for op in ops:
        if op.f == PROBED and fault.t0 <= op.t0 and op.t1 <= fault.t1:
            return op.t0, op.t1
    return fault.t0, fault.t1


def _outage(
    fault: Event, probed: tuple[float, float], acks: Sequence[float], late: Sequence[tuple[float, float]]
) -> list[Finding]:
    mine = acks[bisect_left(acks, probed[0]) : bisect_left(acks, probed[1])]
    spans = itertools.pairwise([probed[0], *mine, probed[1]])
    start, end = max(spans, key=lambda span: span[1] - span[0] - _overlap(late, *span))
    length = end - start - _overlap(late, start, end)
    if length <= OUTAGE[fault.subject]:
        return []
    text = f"no ack for {length:.1f} s under {fault.subject} of {fault.replica}, from {start:.2f} s on"
    return [Finding("outage", "queue", text, start)]


def _overlap(spans: Sequence[tuple[float, float]], start: float, end: float) -> float:
    return sum(max(0.0, min(b, end) - max(a, start)) for a, b in spans)


def _kept(fault: Event, workload: str, notes: Sequence[Event]) -> list[Finding]:
    by = fault.t0 + GOAL
    if by > fault.t1:
        return []
    known = [op for op in notes if op.t0 <= by]
    later = [op for op in notes if by < op.t0 <= fault.t1]
    found = []
    if known and known[-1].replica == fault.replica:
        text = f"{fault.replica} still led {GOAL:.0f} s after {fault.subject} began"
        found.append(Finding("kept leading", workload, text, by))
    found += [
        Finding("kept leading", workload, f"{fault.replica} leads again under {fault.subject}", op.t0)
        for op in later
        if op.replica == fault.replica
    ]
    return found


def _moved(fault: Event, workload: str, notes: Sequence[Event]) -> list[Finding]:
    """A leader that nobody names for a moment is not a change."""
    named = [op for op in notes if op.replica and op.t0 <= fault.t1]
    pairs = itertools.pairwise(named)
    return [
        Finding("moved leader", workload, f"from {a.replica} to {b.replica} under {fault.subject}", b.t0)
        for a, b in pairs
        if a.replica != b.replica and b.t0 >= fault.t0
    ]
