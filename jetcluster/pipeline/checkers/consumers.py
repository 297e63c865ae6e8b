"""Consumers with explicit acks: an acked message is not delivered again, and no message is skipped.

- skipped: a message whose publish was acked was not delivered before the consumer was empty (`drained`). What has a
  dead letter was: nobody may have got it, as its deliveries went to connections that broke.
- redelivered: delivered after its ack was confirmed. Deliveries in flight may still arrive: for `GRACE_SECONDS`, and
  for as long as a fault held bytes back (a stopped process, a link) in between.
- wrong value: delivered with another value than the one acked under that sequence.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from jetcluster.pipeline.checkers.event import Event, Finding

GRACE_SECONDS = 1.0
HOLDING = frozenset({"pause", "link"})
"""Kinds of faults that hold back bytes already sent."""


def check(ops: Sequence[Event]) -> list[Finding]:
    """`ops` sorted by t0."""
    found: list[Finding] = []
    held = _held([op for op in ops if op.f == "fault" and op.workload in HOLDING])
    for workload in sorted({op.workload for op in ops if op.f == "deliver"}):
        mine = [op for op in ops if op.workload == workload]
        delivered = [op for op in mine if op.f == "deliver"]
        acked: dict[int, Event] = {}
        for op in mine:
            if op.f == "ack" and op.type == "ok" and (op.seq not in acked or op.t1 < acked[op.seq].t1):
                acked[op.seq] = op
        stored = {op.seq: op for op in mine if op.f == "publish" and op.type == "ok"}
        for op in delivered:
            found += _delivery(op, acked.get(op.seq), stored.get(op.seq), held)
        seen = {op.seq for op in mine if op.f in ("deliver", "letter")}
        drained = any(op.f == "drained" for op in mine)
        found += [
            Finding("skipped", workload, f"{op.msg_id}, acked as {seq}, was never delivered", op.t1, op.msg_id, seq)
            for seq, op in sorted(stored.items())
            if drained and seq not in seen
        ]
    return found


def _delivery(op: Event, ack: Event | None, stored: Event | None, held: list[tuple[float, float]]) -> list[Finding]:
    found = []
    if stored is not None and stored.msg_id != op.msg_id:
        text = f"{op.seq} delivered as {op.msg_id!r}, {stored.msg_id!r} was stored"
        found.append(Finding("wrong value", op.workload, text, op.t0, op.msg_id, op.seq))
    if ack is not None and op.t0 - ack.t1 > GRACE_SECONDS and not _overlaps(held, ack.t1, op.t0):
        text = f"{op.seq} came to {op.client} (delivery {op.count}) {op.t0 - ack.t1:.2f} s after {ack.client}'s ack"
        found.append(Finding("redelivered", op.workload, text, op.t0, op.msg_id, op.seq))
    return found


def _held(faults: Sequence[Event]) -> list[tuple[float, float]]:
    """Returns the spans of such faults, disjoint and ascending, each extended by `GRACE_SECONDS`."""
    merged: list[tuple[float, float]] = []
    for op in sorted(faults, key=lambda op: op.t0):
        start, end = op.t0, op.t1 + GRACE_SECONDS
        if merged and start <= merged[-1][1]:
            start, end = merged[-1][0], max(end, merged.pop()[1])
        merged.append((start, end))
    return merged


def _overlaps(spans: list[tuple[float, float]], start: float, end: float) -> bool:
    at = bisect_left(spans, (start, start))
    return any(s <= end and e >= start for s, e in spans[max(0, at - 1) : at + 1])
