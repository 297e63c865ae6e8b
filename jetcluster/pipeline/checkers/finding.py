"""One broken promise."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, frozen=True)
class Finding:
    """`kind`: lost, skipped, duplicated, redelivered, double cas, stale, phantom, moved, reordered, gap, diverged,
    broken batch, wrong value, own write, outage, kept leading, moved leader, minority ack, expired, kept, fired early,
    not fired, unannounced, false alarm, died; or unhealed, when the cluster did not come back."""

    kind: str
    workload: str
    text: str
    t: float = 0.0
    """Seconds since the run began; 0 where no moment can be named."""
    msg_id: str = ""
    seq: int = 0
    replica: str = ""
