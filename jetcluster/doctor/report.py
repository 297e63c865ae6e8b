"""Findings of several servers as one list, worst first and bounded."""

from __future__ import annotations

import zlib
from bisect import insort
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from operator import attrgetter
from typing import Any, Final

from jetcluster.doctor.finding import Finding, Severity
from jetcluster.records import dataclass

MAX_PER_CODE: Final = 50
"""Findings of one code that are listed; the others are counted."""
MAX_DIGESTS: Final = 20_000
"""Findings of one code, left out by a server, that are told from those that others leave out; more are added up."""


@dataclass(slots=True)
class Report:
    """Findings, worst first, and how many of each code were left out."""

    findings: list[Finding]
    left_out: dict[str, int]
    shared: dict[str, frozenset[int]] = field(default_factory=dict)
    """Digests of those left out that another server may tell as well, by code: only between servers."""

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

    def to_merge(self) -> dict[str, Any]:
        """Returns what another server needs to merge it: `to_dict` with `shared`."""
        return self.to_dict() | {"shared": {code: sorted(digests) for code, digests in self.shared.items()}}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Report:
        """Raises KeyError, TypeError, AttributeError, ValueError for what no server sends."""
        left_out = {str(code): int(count) for code, count in data.get("left_out", {}).items()}
        shared = {str(code): frozenset(map(int, digests)) for code, digests in data.get("shared", {}).items()}
        return cls([Finding.from_dict(one) for one in data["findings"]], left_out, shared)


class Collector:
    """Takes findings one by one and keeps the first `MAX_PER_CODE` of each code in the order of `Finding.rank`: so
    several servers that see the same list the same."""

    def __init__(self) -> None:
        self._kept: dict[str, list[Finding]] = {}
        self._left_out: Counter[str] = Counter()
        self._shared: dict[str, set[int]] = {}

    def add(self, found: Iterable[Finding]) -> None:
        for one in found:
            kept = self._kept.setdefault(one.code, [])
            if len(kept) < MAX_PER_CODE or one.rank < kept[-1].rank:
                insort(kept, one, key=attrgetter("rank"))
                if len(kept) > MAX_PER_CODE:
                    self._leave_out(kept.pop())
            else:
                self._leave_out(one)

    def _leave_out(self, one: Finding) -> None:
        self._left_out[one.code] += 1
        if not one.subject.server:  # nobody else tells what is about one server
            digests = self._shared.setdefault(one.code, set())
            if len(digests) < MAX_DIGESTS:
                digests.add(_digest(one))

    def report(self) -> Report:
        found = [one for kept in self._kept.values() for one in kept]
        shared = {code: frozenset(digests) for code, digests in self._shared.items()}
        return Report(sorted(found, key=attrgetter("rank")), dict(sorted(self._left_out.items())), shared)


def _digest(one: Finding) -> int:
    subject = one.subject
    return zlib.crc32("\0".join((subject.account, subject.stream, subject.consumer, subject.part)).encode())


def merged(reports: Iterable[tuple[str, Report]]) -> Report:
    """Returns one report of several, each with the name of its server, "" for what no server tells alone. The same
    trouble seen by several is one finding, with the text of the first and all their names."""
    by_key: dict[tuple[Any, int], Finding] = {}
    alone: Counter[str] = Counter()
    shared: dict[str, set[int]] = {}
    for server, report in sorted(reports, key=lambda told: told[0]):
        for code, count in report.left_out.items():
            digests = report.shared.get(code, frozenset())
            alone[code] += max(count - len(digests), 0)
            shared.setdefault(code, set()).update(digests)
        again: Counter[Any] = Counter()
        for one in report.findings:
            key = (one.key, again[one.key])  # what one server tells twice are two troubles
            again[one.key] += 1
            known = by_key.get(key)
            before = known.told_by if known is not None else ()
            told_by = (*before, *one.told_by, *([server] if server else []))
            by_key[key] = replace(known or one, told_by=told_by)
    collector = Collector()
    collector.add(by_key.values())
    report = collector.report()
    listed = {(one.code, _digest(one)) for one in by_key.values() if not one.subject.server}
    left_out = Counter(report.left_out) + alone
    for code, all_digests in shared.items():
        left_out[code] += sum((code, digest) not in listed for digest in all_digests)
    return Report(report.findings, {code: count for code, count in sorted(left_out.items()) if count})
