"""The rules that a history of the chaos suite must keep: pure functions from operations to findings.

They take O(n log n): acked messages have a sequence, so the order of writes is known, and checking it is a sort, not a
search. `python -m chaos` judges its runs by them, `jetcluster pipeline verify` any histories. `event` has the format;
each other file describes its rules and kinds of findings.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from jetcluster.pipeline.checkers import batches, consumers, fresh, keys, letters, log, mirrors, register
from jetcluster.pipeline.checkers.event import Event, Finding

NO_OPERATIONS = frozenset(
    {"stored", "fault", "leader", "drained", "mirror", "damaged", "died", "keyed", "calm", "lettered", "letter"}
)
"""Operations reported by the run itself, not by a client."""


class Figures(NamedTuple):
    """Counts of one history."""

    acked: int
    """Messages."""
    unknown: int
    """Writes that were never acked, except those of which every attempt was refused."""
    checked: Counter[str]
    """Operations per workload: without any, a checker has proven nothing."""


def check(ops: Sequence[Event]) -> list[Finding]:
    """`ops` sorted by t0."""
    checkers = (log, register, fresh, batches, consumers, keys, letters, mirrors)
    return [finding for checker in checkers for finding in checker.check(ops)]


def figures(ops: Sequence[Event]) -> Figures:
    writes = [op for op in ops if op.f in ("publish", "cas", "batch")]
    acked = {(op.workload, op.msg_id): op for op in writes if op.type == "ok"}
    asked = {(op.workload, op.msg_id) for op in writes if op.type != "fail"}
    checked = Counter(op.workload for op in ops if op.f not in NO_OPERATIONS)
    return Figures(sum(op.count or 1 for op in acked.values()), len(asked - acked.keys()), checked)
