"""Atomic batches: of each batch all messages are stored, next to each other and in order, or none.

A batch's messages have the values `<batch>:0`, `<batch>:1`, ...; the operation `batch` has `count` messages and, when
acked, the sequence of the last one. lost: acked, none stored. broken batch: some, or not in a row, or elsewhere.
phantom: refused or never sent, and stored.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from jetcluster.pipeline.checkers.event import Event, Finding
from jetcluster.pipeline.checkers.log import differences, replicas


def value(batch: str, index: int) -> str:
    return f"{batch}:{index}"


def check(ops: Sequence[Event]) -> list[Finding]:
    found: list[Finding] = []
    for workload in sorted({op.workload for op in ops if op.f == "batch"}):
        mine = [op for op in ops if op.workload == workload]
        sent = {op.msg_id: op for op in mine if op.f == "batch"}
        for replica, rows in replicas(mine).items():
            found += _replica(workload, replica, rows, sent)
        found += differences(workload, mine)
    return found


def _replica(workload: str, replica: str, rows: Sequence[Event], sent: dict[str, Event]) -> list[Finding]:
    found = []
    parts: dict[str, list[Event]] = defaultdict(list)
    for row in rows:
        if row.seq:
            parts[row.msg_id.rpartition(":")[0]].append(row)
    for batch, stored in parts.items():
        op = sent.get(batch)
        if op is None or op.type == "fail":
            why = "refused" if op else "never sent"
            text = f"{len(stored)} of batch {batch} on {replica}: it was {why}"
            found.append(Finding("phantom", workload, text, 0.0, batch, stored[0].seq, replica))
            continue
        first = stored[0].seq
        wanted = [(first + n, value(batch, n)) for n in range(op.count)]
        if [(row.seq, row.msg_id) for row in stored] != wanted:
            places = [row.seq for row in stored]
            text = f"{len(stored)} of {op.count} of batch {batch} on {replica}, as {places[:5]}..{places[-1]}"
            found.append(Finding("broken batch", workload, text, op.t0, batch, first, replica))
        elif op.type == "ok" and op.seq != stored[-1].seq:
            text = f"batch {batch}, acked as {op.seq}, ends at {stored[-1].seq} on {replica}"
            found.append(Finding("moved", workload, text, op.t0, batch, first, replica))
    lost = [op for op in sent.values() if op.type == "ok" and op.msg_id not in parts]
    for op in lost:
        text = f"batch {op.msg_id}, acked as {op.seq}, is not on {replica}"
        found.append(Finding("lost", workload, text, op.t1, op.msg_id, op.seq, replica))
    return found
