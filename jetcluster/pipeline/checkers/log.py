"""A stream as a log: every acked write is on every replica, once, where its ack said, in real-time order.

Applies to `publish` (re-sent with one `msg_id` until acked) and `cas`. Against the `stored` rows of each replica:

- lost: acked, not on a replica. moved: there under another sequence. duplicated: there twice, or acked twice
  under two sequences.
- phantom: there, but no client tried to write it, or every attempt was refused.
- reordered: a write that began after another was acked has a smaller sequence.
- gap: sequences of a replica that is never deleted from are not 1, 2, 3, ... diverged: two replicas differ.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from jetcluster.pipeline.checkers.event import Event, Finding


@dataclass(slots=True)
class _Write:
    """All attempts to write one value, from the first invocation to the first ack."""

    msg_id: str
    begun: float
    acked: float
    seqs: set[int]
    maybe: bool = False
    """At least one attempt was not refused."""


def check(ops: Sequence[Event]) -> list[Finding]:
    """`ops` sorted by t0."""
    found: list[Finding] = []
    for workload in sorted({op.workload for op in ops if op.f in ("publish", "cas")}):
        mine = [op for op in ops if op.workload == workload]
        writes = _writes(mine)
        found += _acks(workload, writes) + _order(workload, writes)
        for replica, rows in replicas(mine).items():
            found += _replica(workload, replica, rows, writes)
        found += differences(workload, mine)
    return found


def replicas(ops: Sequence[Event]) -> dict[str, list[Event]]:
    """Returns the `stored` rows per replica, by sequence."""
    stored: dict[str, list[Event]] = defaultdict(list)
    for op in ops:
        if op.f == "stored":
            stored[op.replica].append(op)
    for rows in stored.values():
        rows.sort(key=lambda row: row.seq)
    return stored


def _writes(ops: Sequence[Event]) -> dict[str, _Write]:
    writes: dict[str, _Write] = {}
    for op in ops:
        if op.f not in ("publish", "cas"):
            continue
        write = writes.get(op.msg_id)
        if write is None:
            write = writes[op.msg_id] = _Write(op.msg_id, op.t0, float("inf"), set())
        write.maybe |= op.type != "fail"
        if op.type == "ok":
            write.seqs.add(op.seq)
            write.acked = min(write.acked, op.t1)
    return writes


def _acks(workload: str, writes: dict[str, _Write]) -> list[Finding]:
    found = []
    owner: dict[int, str] = {}
    for write in writes.values():
        if len(write.seqs) > 1:
            text = f"{write.msg_id} acked as {sorted(write.seqs)}"
            found.append(Finding("duplicated", workload, text, write.acked, write.msg_id, min(write.seqs)))
        for seq in write.seqs:
            if owner.setdefault(seq, write.msg_id) != write.msg_id:
                text = f"sequence {seq} acked for {owner[seq]} and for {write.msg_id}"
                found.append(Finding("moved", workload, text, write.acked, write.msg_id, seq))
    return found


def _order(workload: str, writes: dict[str, _Write]) -> list[Finding]:
    acked = [write for write in writes.values() if write.seqs]
    ended = sorted(acked, key=lambda write: write.acked)
    found = []
    at, highest = 0, None
    for write in sorted(acked, key=lambda write: write.begun):
        while at < len(ended) and ended[at].acked < write.begun:
            if highest is None or min(ended[at].seqs) > min(highest.seqs):
                highest = ended[at]
            at += 1
        if highest is not None and min(highest.seqs) > min(write.seqs):
            text = (f"{write.msg_id} is {min(write.seqs)}, but began after {highest.msg_id} was acked as "
                    f"{min(highest.seqs)}")  # fmt: skip
            found.append(Finding("reordered", workload, text, write.begun, write.msg_id, min(write.seqs)))
    return found


def _replica(workload: str, replica: str, rows: Sequence[Event], writes: dict[str, _Write]) -> list[Finding]:
    found = []
    places: dict[str, list[int]] = defaultdict(list)
    for row in rows:
        if row.seq:  # 0 only marks the replica as read
            places[row.msg_id].append(row.seq)
    for msg_id, seqs in places.items():
        if len(seqs) > 1:
            text = f"{msg_id} on {replica} as {seqs}"
            found.append(Finding("duplicated", workload, text, 0.0, msg_id, seqs[0], replica))
        write = writes.get(msg_id)
        if write is None or not write.maybe:
            why = "every try was refused" if write else "nobody sent it"
            text = f"{msg_id} on {replica} as {seqs}: {why}"
            found.append(Finding("phantom", workload, text, 0.0, msg_id, seqs[0], replica))
    for write in writes.values():
        if not write.seqs:
            continue
        where = places.get(write.msg_id)
        if where is None:
            text = f"{write.msg_id}, acked as {min(write.seqs)}, is not on {replica}"
            found.append(Finding("lost", workload, text, write.acked, write.msg_id, min(write.seqs), replica))
        elif not write.seqs & set(where):
            text = f"{write.msg_id}, acked as {min(write.seqs)}, is {where} on {replica}"
            found.append(Finding("moved", workload, text, write.acked, write.msg_id, where[0], replica))
    return found


def differences(workload: str, ops: Sequence[Event]) -> list[Finding]:
    """Finds gap and diverged, for any workload that deletes nothing."""
    found: list[Finding] = []
    first: tuple[str, dict[int, tuple[str, str]]] | None = None
    for replica, rows in sorted(replicas(ops).items()):
        content = {row.seq: (row.subject, row.msg_id) for row in rows if row.seq}
        missing = max(content, default=0) - len(content)
        if missing:
            gone = next(seq for seq in range(1, len(content) + 2) if seq not in content)
            text = f"{missing} sequences missing on {replica}, the first is {gone}"
            found.append(Finding("gap", workload, text, seq=gone, replica=replica))
        if first is None:
            first = (replica, content)
            continue
        differing = sorted(seq for seq in content.keys() | first[1].keys() if content.get(seq) != first[1].get(seq))
        if differing:
            seq = differing[0]
            text = (f"{len(differing)} sequences differ, the first is {seq}: {first[1].get(seq)} on {first[0]}, "
                    f"{content.get(seq)} on {replica}")  # fmt: skip
            found.append(Finding("diverged", workload, text, seq=seq, replica=replica))
    return found
