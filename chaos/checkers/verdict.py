"""All checkers over one history, and what they found in figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from chaos.checkers import availability, batches, consumers, damage, failover, log, mirrors, register, times
from chaos.checkers.finding import Finding
from chaos.history import Event, operations

__all__ = ["Finding", "Verdict", "judge"]

NO_OPERATIONS = frozenset({"stored", "fault", "leader", "drained", "mirror", "damaged", "died"})
"""What the run itself says: it shows no client at work."""


@dataclass
class Verdict:
    """Numbers of messages, except `unavailable`: seconds, of the stream that had most (availability.py)."""

    acked: int = 0
    unknown: int = 0
    """Writes without an answer, re-sent or not, that were never acked."""
    unavailable: float = 0.0
    findings: list[Finding] = field(default_factory=list)
    checked: Counter[str] = field(default_factory=Counter)
    """Operations per workload: a checker that saw nothing has proven nothing."""

    def count(self, *kinds: str) -> int:
        return sum(finding.kind in kinds for finding in self.findings)

    @property
    def lost(self) -> int:
        return self.count("lost", "skipped")

    @property
    def duplicated(self) -> int:
        return self.count("duplicated", "redelivered", "double cas")

    @property
    def stale(self) -> int:
        return self.count("stale", "own write")

    @property
    def kept(self) -> bool:
        """No promise was broken."""
        return not self.findings

    @property
    def other(self) -> int:
        return len(self.findings) - self.lost - self.duplicated - self.stale


def judge(events: Iterable[Event]) -> Verdict:
    done = sorted(operations(events), key=lambda op: op.t0)
    verdict = Verdict()
    writes = [op for op in done if op.f in ("publish", "cas", "batch")]
    acked = {(op.workload, op.msg_id): op for op in writes if op.type == "ok"}
    asked = {(op.workload, op.msg_id) for op in writes if op.type != "fail"}
    verdict.acked = sum(op.count or 1 for op in acked.values())
    verdict.unknown = len(asked - acked.keys())
    verdict.checked.update(op.workload for op in done if op.f not in NO_OPERATIONS)
    for checker in (log, register, batches, consumers, mirrors, failover, times, damage):
        verdict.findings += checker.check(done)
    verdict.unavailable = sum(end - start for start, end in availability.outages(done))
    return verdict
