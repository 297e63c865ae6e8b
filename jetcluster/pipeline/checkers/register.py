"""Registers with compare-and-set: linearizable writes and leader reads, per subject.

A version of a register is the sequence of the message that wrote it, so the order of the writes is known. Give each
operation the rank of its version, a write before the reads of it. A history is linearizable exactly if no operation
that began after another had ended has a smaller rank (or the same, when it is the write): one sweep over starts and
ends checks that.

- stale: a read by the leader that violates this. (Writes out of order are `reordered`, in log.py.)
- own write: a `direct` read, through any node, that is older than a write acked on the same connection (`client`), see
  jetcluster/replica/reads/confirm.py. nats-server does not guarantee this.
- double cas: two acked writes that expected the same version, or a stored one that did not expect its predecessor.
- wrong value: a read of a version that holds another value, or of one that was not being written yet.

Otherwise `direct` reads may be old, as any replica answers them; their values are checked.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence

from jetcluster.pipeline.checkers.event import Event, Finding
from jetcluster.pipeline.checkers.log import replicas

_KINDS = ("cas", "read", "direct")


def check(ops: Sequence[Event]) -> list[Finding]:
    """`ops` sorted by t0."""
    found: list[Finding] = []
    for workload in sorted({op.workload for op in ops if op.f == "cas"}):
        mine = [op for op in ops if op.workload == workload]
        stored = _stored(mine)
        by_key: dict[str, list[Event]] = defaultdict(list)
        for op in mine:
            if op.f in _KINDS:
                by_key[op.subject].append(op)
        for key, of_key in sorted(by_key.items()):
            found += _reads(workload, of_key) + _own_writes(workload, of_key)
            found += _chain(workload, of_key, stored.get(key, {}))
            found += _values(workload, of_key, stored.get(key, {}))
    return found


def _stored(ops: Sequence[Event]) -> dict[str, dict[int, str]]:
    """Returns subject -> sequence -> value over all replicas, which log.py compares."""
    found: dict[str, dict[int, str]] = defaultdict(dict)
    for rows in replicas(ops).values():
        for row in rows:
            if row.seq:
                found[row.subject].setdefault(row.seq, row.msg_id)
    return found


def _reads(workload: str, ops: Sequence[Event]) -> list[Finding]:
    """Finds reads older than the version of a write or leader read that ended before they began."""
    known = [op for op in ops if op.type == "ok" and op.f in ("cas", "read")]
    ended = sorted(known, key=lambda op: op.t1)
    found = []
    at, highest = 0, None
    for op in sorted(known, key=lambda op: op.t0):
        while at < len(ended) and ended[at].t1 < op.t0:
            if highest is None or ended[at].seq > highest.seq:
                highest = ended[at]
            at += 1
        if highest is None:
            continue
        if op.f == "read" and op.seq < highest.seq:
            text = (f"{op.client} read {op.subject} as of {op.seq} at {op.t0:.3f}-{op.t1:.3f}; "
                    f"{highest.f} of {highest.seq} by {highest.client} had ended at {highest.t1:.3f}")  # fmt: skip
            found.append(Finding("stale", workload, text, op.t0, op.msg_id, op.seq))
        elif op.f == "cas" and highest.f == "read" and op.seq <= highest.seq:
            text = f"{highest.client} read {op.subject} as of {highest.seq} before the write of {op.seq} began"
            found.append(Finding("wrong value", workload, text, op.t0, op.msg_id, op.seq))
    return found


def _own_writes(workload: str, ops: Sequence[Event]) -> list[Finding]:
    found = []
    told: dict[str, Event] = {}
    for op in ops:  # a client's operations follow each other
        if op.type == "ok" and op.f == "cas":
            told[op.client] = op
        elif op.type == "ok" and op.f == "direct" and op.client in told and op.seq < told[op.client].seq:
            text = f"direct read of {op.subject} as of {op.seq} by {op.client}, which had written {told[op.client].seq}"
            found.append(Finding("own write", workload, text, op.t0, op.msg_id, op.seq))
    return found


def _chain(workload: str, ops: Sequence[Event], stored: dict[int, str]) -> list[Finding]:
    found = []
    by_value = {op.msg_id: op for op in ops if op.f == "cas"}
    winners: dict[int, Event] = {}
    for op in ops:
        if op.f == "cas" and op.type == "ok":
            other = winners.setdefault(op.expect, op)
            if other is not op:
                text = f"{other.msg_id} and {op.msg_id} both replaced version {op.expect} of {op.subject}"
                found.append(Finding("double cas", workload, text, op.t1, op.msg_id, op.seq))
    versions = sorted(stored)
    for version in versions:
        writer = by_value.get(stored[version])
        at = bisect_left(versions, version)
        before = versions[at - 1] if at else 0
        if writer is not None and writer.expect != before:
            text = f"{writer.msg_id} expected {writer.expect} of {writer.subject}, but is {version} after {before}"
            found.append(Finding("double cas", workload, text, writer.t0, writer.msg_id, version))
    return found


def _values(workload: str, ops: Iterable[Event], stored: dict[int, str]) -> list[Finding]:
    found = []
    ops = list(ops)
    begun = {op.msg_id: op.t0 for op in ops if op.f == "cas"}
    for op in ops:
        if op.f not in ("read", "direct") or op.type != "ok" or op.seq == 0:
            continue
        if stored.get(op.seq, op.msg_id) != op.msg_id or op.msg_id not in begun:
            text = f"{op.f} of {op.subject} by {op.client}: {op.msg_id!r} as {op.seq}, stored is {stored.get(op.seq)!r}"
            found.append(Finding("wrong value", workload, text, op.t0, op.msg_id, op.seq))
        elif op.seq not in stored and stored:
            text = f"{op.f} of {op.subject} by {op.client} gave {op.msg_id!r} as {op.seq}, which is stored nowhere"
            found.append(Finding("phantom", workload, text, op.t0, op.msg_id, op.seq))
        elif begun[op.msg_id] > op.t1:
            text = f"{op.f} of {op.subject} gave {op.msg_id!r} before it was written"
            found.append(Finding("wrong value", workload, text, op.t0, op.msg_id, op.seq))
    return found
