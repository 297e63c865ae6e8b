"""The rules that a history of the chaos suite must keep: pure functions from operations to findings.

O(n log n): acked messages carry a sequence, so the order that has to be explained is known, and checking it is a sort
and not a search. `python -m chaos` judges its runs by them, `jetcluster pipeline verify` any histories. `event` is the
format; each other file says its rules and what each kind of finding means.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from jetcluster.pipeline.checkers import batches, consumers, log, mirrors, register
from jetcluster.pipeline.checkers.event import Event, Finding

NO_OPERATIONS = frozenset({"stored", "fault", "leader", "drained", "mirror", "damaged", "died"})
"""Operations that the run itself reports: they show no client at work."""


class Figures(NamedTuple):
    acked: int
    """Messages."""
    unknown: int
    """Writes without an answer, re-sent or not, that were never acked."""
    checked: Counter[str]
    """Operations per workload: a checker that saw nothing has proven nothing."""


def check(ops: Sequence[Event]) -> list[Finding]:
    """`ops` sorted by t0."""
    return [finding for checker in (log, register, batches, consumers, mirrors) for finding in checker.check(ops)]


def figures(ops: Sequence[Event]) -> Figures:
    writes = [op for op in ops if op.f in ("publish", "cas", "batch")]
    acked = {(op.workload, op.msg_id): op for op in writes if op.type == "ok"}
    asked = {(op.workload, op.msg_id) for op in writes if op.type != "fail"}
    checked = Counter(op.workload for op in ops if op.f not in NO_OPERATIONS)
    return Figures(sum(op.count or 1 for op in acked.values()), len(asked - acked.keys()), checked)
