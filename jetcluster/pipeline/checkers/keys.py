"""Consumers in strict order per subject (`keyed`): a message goes out when all before it in its subject are acked.

- reordered: a message was delivered although one before it in its subject had not been acked: no client had even sent
  an ack. That is also what a second owner of a subject would look like.
- shared key: while the members stayed (`calm`) messages of one subject came to two of them.

A delivery that was under way may come late, and an ack may be sent meanwhile: then the checker sees less, never too
much.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from jetcluster.pipeline.checkers.event import Event, Finding


def check(ops: Sequence[Event]) -> list[Finding]:
    """`ops` sorted by t0."""
    found: list[Finding] = []
    for workload in sorted({op.workload for op in ops if op.f == "keyed"}):
        mine = [op for op in ops if op.workload == workload]
        acks: dict[int, float] = {}
        for op in mine:
            if op.f == "ack":
                acks[op.seq] = min(op.t0, acks.get(op.seq, inf))
        places: dict[str, set[int]] = {}
        for op in mine:
            if op.seq and (op.f == "deliver" or (op.f == "publish" and op.type == "ok")):
                places.setdefault(op.subject, set()).add(op.seq)
        for subject, seqs in places.items():
            delivered = [op for op in mine if op.f == "deliver" and op.subject == subject]
            found += _subject(sorted(seqs), delivered, acks)
            found += [one for calm in mine if calm.f == "calm" for one in _members(calm, delivered)]
    return found


def _members(calm: Event, delivered: Sequence[Event]) -> list[Finding]:
    """`delivered`: of one subject. The first one that came to another member than those before it."""
    during = [op for op in delivered if calm.t0 <= op.t0 <= calm.t1]
    for op in during:
        if op.client != during[0].client:
            text = f"{op.seq} of {op.subject} came to {op.client}, those before it to {during[0].client}"
            return [Finding("shared key", op.workload, text, op.t0, op.msg_id, op.seq)]
    return []


def _subject(seqs: list[int], delivered: Sequence[Event], acks: dict[int, float]) -> list[Finding]:
    """`seqs`: of the messages of one subject, ascending."""
    found: list[Finding] = []
    settled: dict[int, float] = {}
    """Sequence -> when the last ack of all before it was sent; inf: one has none."""
    latest = -inf
    for seq in seqs:
        settled[seq] = latest
        latest = max(latest, acks.get(seq, inf))
    for op in delivered:
        if settled[op.seq] > op.t0:
            before = next(seq for seq in seqs if acks.get(seq, inf) > op.t0)
            text = f"{op.seq} of {op.subject} came to {op.client} before {before} was acked"
            found.append(Finding("reordered", op.workload, text, op.t0, op.msg_id, op.seq))
    return found
