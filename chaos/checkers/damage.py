"""Checks which nodes say that their data is damaged: all whose data is, and no other one.

`damaged`: the server `replica` told it of a stream, or its log says that its data was renewed. The fault
`rot-two` struck the nodes in its `replica`.

- unannounced: a node that was struck told nothing until the fault was over.
- false alarm: a node that was not struck told it.
"""

from __future__ import annotations

from collections.abc import Sequence

from jetcluster.pipeline.checkers.event import Event, Finding

ROT = "rot-two"


def check(ops: Sequence[Event]) -> list[Finding]:
    """`ops` sorted by t0."""
    faults = [op for op in ops if op.f == "fault" and op.subject == ROT]
    told = [op for op in ops if op.f == "damaged"]
    found = [
        Finding("unannounced", "-", f"{node} did not tell that its data rots", fault.t0)
        for fault in faults
        for node in fault.replica.split()
        if not any(op.replica == node and fault.t0 <= op.t0 <= fault.t1 for op in told)
    ]
    return found + [
        Finding("false alarm", op.workload, f"{op.replica} says of sound data: {op.error}", op.t0)
        for op in told
        if not any(op.replica in fault.replica.split() and fault.t0 <= op.t0 for fault in faults)
    ]
