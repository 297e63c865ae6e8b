"""A mirror is a copy of its origin: the same messages under the same sequences, on each replica of the mirror.

`mirror` names the workload whose stream is copied. The origin's content is the messages on its replicas and the acked
ones; log.py judges the writes to it. Against the rows of each replica of the mirror:

- lost: the origin has it and the mirror lacks it, though it has later ones, or though it reported that nothing was
  missing (`drained`). Otherwise a mirror may be a prefix: lag is not a loss.
- phantom: the mirror has it, the origin has not, under no sequence.
- reordered: there under another sequence than the origin's. diverged: another message under the origin's sequence.
- duplicated: a value of the origin twice.
- wrong value: a read that the mirror's replicas may have answered (`mirror_direct`) returned another value than the
  origin's under that sequence, or one not written yet. Such reads may be old: 404 is no finding.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from jetcluster.pipeline.checkers.event import Event, Finding
from jetcluster.pipeline.checkers.log import differences, replicas

Content = dict[int, tuple[str, str]]
"""Sequence -> (subject, value)."""


def check(ops: Sequence[Event]) -> list[Finding]:
    """`ops` sorted by t0."""
    found: list[Finding] = []
    origins = {op.workload: op.subject for op in ops if op.f == "mirror"}
    for workload, origin in sorted(origins.items()):
        mine = [op for op in ops if op.workload == workload]
        theirs = [op for op in ops if op.workload == origin]
        content = _content(theirs)
        drained = any(op.f == "drained" for op in mine)
        for replica, rows in replicas(mine).items():
            found += _replica(workload, replica, [row for row in rows if row.seq], content, drained)
        found += differences(workload, mine)
        found += _reads(workload, mine, theirs, content)
    return found


def _content(ops: Sequence[Event]) -> Content:
    """Returns the acked messages, replaced by stored ones where there are some (log.py compares them and replicas)."""
    content = {op.seq: (op.subject, op.msg_id) for op in ops if op.f == "publish" and op.type == "ok"}
    for rows in replicas(ops).values():
        content |= {row.seq: (row.subject, row.msg_id) for row in rows if row.seq}
    return content


def _replica(workload: str, replica: str, rows: Sequence[Event], content: Content, drained: bool) -> list[Finding]:
    found = []
    places = {value: seq for seq, (_, value) in content.items()}
    for row in rows:
        if content.get(row.seq) == (row.subject, row.msg_id):
            continue
        where = f"{row.msg_id} is {row.seq} of {replica}"
        if row.msg_id in places and places[row.msg_id] != row.seq:
            kind, rest = "reordered", f"{places[row.msg_id]} of the origin"
        elif row.seq in content:
            kind, rest = "diverged", f"the origin has {content[row.seq]}"
        else:
            kind, rest = "phantom", "nowhere at the origin"
        found.append(Finding(kind, workload, f"{where}, and {rest}", 0.0, row.msg_id, row.seq, replica))
    twice = [value for value, times in Counter(row.msg_id for row in rows).items() if times > 1]
    found += [
        Finding("duplicated", workload, f"{value} is on {replica} more than once", msg_id=value, replica=replica)
        for value in twice
    ]
    has = {row.seq for row in rows}
    end = max(content, default=0) if drained else max(has, default=0)
    return found + [
        Finding("lost", workload, f"{value}, {seq} of the origin, is not on {replica}", 0.0, value, seq, replica)
        for seq, (_, value) in sorted(content.items())
        if seq <= end and seq not in has
    ]


def _reads(workload: str, ops: Sequence[Event], theirs: Sequence[Event], content: Content) -> list[Finding]:
    begun: dict[str, float] = {}
    for op in theirs:
        if op.f == "publish":
            begun.setdefault(op.msg_id, op.t0)
    found = []
    for op in ops:
        if op.f != "direct" or op.type != "ok" or op.seq == 0:
            continue
        stored = content.get(op.seq)
        if stored != (op.subject, op.msg_id):
            text = f"{op.client} read {op.msg_id!r} as {op.seq} on {op.subject}, the origin has {stored}"
            found.append(Finding("wrong value", workload, text, op.t0, op.msg_id, op.seq))
        elif begun.get(op.msg_id, op.t1) > op.t1:
            text = f"{op.client} read {op.msg_id!r} before it was sent"
            found.append(Finding("wrong value", workload, text, op.t0, op.msg_id, op.seq))
    return found
