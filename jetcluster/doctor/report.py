"""Findings of several servers as one list, worst first and bounded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from jetcluster.doctor.finding import Finding, Severity
from jetcluster.records import dataclass

MAX_PER_CODE: Final = 50
"""Findings of one code that are listed; the others are counted."""


@dataclass(slots=True)
class Report:
    """Findings, worst first, and how many of each code were left out."""

    findings: list[Finding]
    left_out: dict[str, int]

    @property
    def worst(self) -> str:
        """The severity of the worst finding, "" without any."""
        return self.findings[0].severity if self.findings else ""

    def counts(self) -> dict[str, int]:
        """Returns the number of findings by severity, with those left out."""
        of_code = {found.code: found.severity for found in self.findings}
        total = Counter(found.severity for found in self.findings)
        for code, count in self.left_out.items():
            total[of_code[code]] += count
        return {severity.value: total[severity.value] for severity in Severity}

    def to_dict(self) -> dict[str, Any]:
        found = {"findings": [one.to_dict() for one in self.findings], "counts": self.counts()}
        return found | ({"left_out": self.left_out} if self.left_out else {})

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Report:
        """Raises KeyError, TypeError, AttributeError for what no server sends."""
        left_out = {str(code): int(count) for code, count in data.get("left_out", {}).items()}
        return cls([Finding.from_dict(one) for one in data["findings"]], left_out)


class Collector:
    """Takes findings one by one and keeps at most `MAX_PER_CODE` of each code: those that came first."""

    def __init__(self) -> None:
        self._kept: dict[str, list[Finding]] = {}
        self._left_out: Counter[str] = Counter()

    def add(self, found: Iterable[Finding]) -> None:
        for one in found:
            kept = self._kept.setdefault(one.code, [])
            if len(kept) < MAX_PER_CODE:
                kept.append(one)
            else:
                self._left_out[one.code] += 1

    def report(self) -> Report:
        found = [one for kept in self._kept.values() for one in kept]
        return Report(sorted(found, key=lambda one: one.rank), dict(sorted(self._left_out.items())))


def merged(reports: Iterable[tuple[str, Report]]) -> Report:
    """Returns one report of several, each with the name of its server, "" for what no server tells alone. The same
    trouble seen by several is one finding, with the text of the first and all their names."""
    by_key: dict[tuple[str, Any], Finding] = {}
    left_out: Counter[str] = Counter()
    for server, report in sorted(reports, key=lambda told: told[0]):
        left_out.update(report.left_out)
        for one in report.findings:
            known = by_key.get(one.key)
            before = known.told_by if known is not None else ()
            told_by = (*before, *one.told_by, *([server] if server else []))
            by_key[one.key] = replace(known or one, told_by=told_by)
    collector = Collector()
    collector.add(sorted(by_key.values(), key=lambda one: one.rank))
    report = collector.report()
    left_out.update(report.left_out)
    return Report(report.findings, dict(sorted(left_out.items())))
