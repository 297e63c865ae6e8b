"""Checks that what depends on the time goes by the real one, also when the clock of a node is wrong.

`put`: a message that lives for `count` milliseconds (sent again under its id within the window for duplicates);
`schedule`: one that fires after `count` milliseconds; `look`: the leader was asked for the message `msg_id`, `count` is
1 when it was there.

- expired: gone more than `EARLY` seconds before its time. kept: there more than `BOUND` seconds after it.
- fired early, not fired: the same of schedules. What had fired is gone `MAX_AGE` later.
- duplicated: an id that was sent again was stored again.

Looks while something else than a clock is broken say nothing about lateness: without a leader nothing expires.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from jetcluster.pipeline.checkers.event import Event, Finding

EARLY = 0.5
BOUND = 6.0
"""Seconds; a leader may have to be found first (checkers/failover.py)."""
MAX_AGE = 8
"""Seconds; the stream's."""


def check(ops: Sequence[Event]) -> list[Finding]:
    """`ops` sorted by t0."""
    found: list[Finding] = []
    broken = [(op.t0, op.t1) for op in ops if op.f == "fault" and op.workload != "clock"]
    for workload in sorted({op.workload for op in ops if op.f in ("put", "schedule")}):
        mine = [op for op in ops if op.workload == workload]
        writes = _first_acks(mine)
        for op in mine:
            write = writes.get(op.msg_id)
            if op.f == "look" and op.type == "ok" and write is not None:
                found += _look(op, write, broken)
        found += _duplicates(workload, mine)
    return found


def _first_acks(ops: Sequence[Event]) -> dict[str, Event]:
    writes: dict[str, Event] = {}
    for op in ops:
        if op.f in ("put", "schedule") and op.type == "ok":
            writes.setdefault(op.msg_id, op)
    return writes


def _look(op: Event, write: Event, broken: Sequence[tuple[float, float]]) -> list[Finding]:
    span = write.count / 1000
    earliest, latest = write.t0 + span, write.t1 + span + BOUND
    there = op.count > 0
    is_early = op.t0 >= write.t1 and op.t1 < earliest - EARLY
    is_late = op.t0 > latest and not any(start <= op.t1 and end >= earliest for start, end in broken)
    what = f"{write.msg_id}, acked at {write.t1:.2f} s for {span:.1f} s"
    if write.f == "put":
        if is_early and not there:
            return [Finding("expired", op.workload, f"{what}, was gone at {op.t1:.2f} s", op.t1)]
        if is_late and there:
            return [Finding("kept", op.workload, f"{what}, was there at {op.t0:.2f} s", op.t0)]
    elif is_early and there:
        return [Finding("fired early", op.workload, f"{what}, had fired at {op.t1:.2f} s", op.t1)]
    elif is_late and not there and op.t1 < earliest + MAX_AGE:
        return [Finding("not fired", op.workload, f"{what}, had not fired at {op.t0:.2f} s", op.t0)]
    return []


def _duplicates(workload: str, ops: Sequence[Event]) -> list[Finding]:
    places: dict[str, set[int]] = defaultdict(set)
    for op in ops:
        if op.f == "put" and op.type == "ok":
            places[op.msg_id].add(op.seq)
    return [
        Finding("duplicated", workload, f"{msg_id} acked as {sorted(seqs)}")
        for msg_id, seqs in places.items()
        if len(seqs) > 1
    ]
