"""The losses that a `sync_interval` allows: acks of the last so many seconds before a power failure, and no others.

The history is rewritten before it is judged: such acks become `info` (nobody knows), for all checkers.
"""

from __future__ import annotations

import dataclasses

from chaos.history import History
from jetcluster.pipeline.checkers.event import Event

LOSS = "power-lost"
"""`subject` of the fault whose `t0` is when the power went, and `t1` when all nodes were back."""
SLACK = 1.0
"""Seconds that a sync may take on a busy machine."""
_WRITES = frozenset({"publish", "cas", "batch"})


def relax(history: History, seconds: float) -> None:
    """Nothing with 0 seconds."""
    if seconds > 0:
        history.change(relaxed(history.events, seconds))


def relaxed(events: list[Event], seconds: float) -> list[Event]:
    losses = [(e.t0 - seconds - SLACK, e.t1) for e in events if e.f == "fault" and e.subject == LOSS]
    return [
        dataclasses.replace(e, type="info", seq=0, error="before a loss of power")
        if e.type == "ok" and e.f in _WRITES and any(start <= e.t1 <= end for start, end in losses)
        else e
        for e in events
    ]
