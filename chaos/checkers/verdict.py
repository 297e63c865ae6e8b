"""All checkers over one history, and what they found in figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from chaos.checkers import availability, damage, failover, times
from jetcluster.pipeline import checkers
from jetcluster.pipeline.checkers.event import Event, Finding, operations


@dataclass
class Verdict:
    """Numbers of messages, except `unavailable`: seconds, of the stream that had most (availability.py)."""

    acked: int = 0
    unknown: int = 0
    """Writes without an answer, re-sent or not, that were never acked."""
    checked: Counter[str] = field(default_factory=Counter)
    """Operations per workload: a checker that saw nothing has proven nothing."""
    unavailable: float = 0.0
    findings: list[Finding] = field(default_factory=list)

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
    verdict = Verdict(*checkers.figures(done))
    verdict.findings += checkers.check(done)
    for checker in (failover, times, damage):
        verdict.findings += checker.check(done)
    verdict.unavailable = sum(end - start for start, end in availability.outages(done))
    return verdict
