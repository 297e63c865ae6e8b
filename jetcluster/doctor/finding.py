"""`Finding`: one thing that is wrong, with its reason and its remedy. `FindingKind`: what those of one code share."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import field, fields, replace
from typing import Any, Final

from jetcluster.records import dataclass

Figure = str | int | float | bool
"""A value that a finding rests on."""


class Severity(enum.StrEnum):
    """`BAD`: something does not work, or the next fault loses something. `WARN`: it will get bad unless somebody acts.
    `NOTE`: it works, and somebody may not have meant it."""

    BAD = "bad"
    WARN = "warn"
    NOTE = "note"


ORDER: Final[Mapping[str, int]] = {severity.value: place for place, severity in enumerate(Severity)}
"""Worst first."""


@dataclass(slots=True, frozen=True)
class Subject:
    """The thing that a finding is about; "" for what does not matter. `server` is a name."""

    server: str = ""
    account: str = ""
    stream: str = ""
    consumer: str = ""
    part: str = ""
    """Which of several alike of the thing: a port, an upstream, a limit, an address."""

    def of(self, part: str) -> Subject:
        """Returns one part of the thing."""
        return replace(self, part=part)

    @property
    def text(self) -> str:
        """Returns `n1`, `ACCOUNT > STREAM > CONSUMER`, or "" for the cluster."""
        parts = [part for part in (self.account, self.stream, self.consumer) if part]
        return " > ".join(parts) if parts else self.server


@dataclass(slots=True, frozen=True)
class Finding:
    """One finding, as it travels between servers and to whoever asks."""

    code: str
    severity: str
    subject: Subject
    what: str
    """The fault, in one sentence with its names and numbers."""
    why: str
    """The reason with its arithmetic: which limit, what is used, since when."""
    remedy: str
    page: str
    """The page of the documentation, below docs/."""
    figures: Mapping[str, Figure] = field(default_factory=dict)
    told_by: tuple[str, ...] = ()
    """The servers that see it; filled in by `report.merged`."""

    @property
    def key(self) -> tuple[str, Subject]:
        """Two findings with the same key are the same trouble."""
        return self.code, self.subject

    @property
    def rank(self) -> tuple[int, str, str, str, str]:
        """Worst first, then by code and subject."""
        subject = self.subject
        return ORDER.get(self.severity, len(ORDER)), self.code, subject.text, subject.server, subject.part

    def to_dict(self) -> dict[str, Any]:
        """Returns the JSON object, without members that say nothing."""
        subject = {part.name: value for part in fields(Subject) if (value := getattr(self.subject, part.name))}
        found = {"code": self.code, "severity": self.severity, **subject}
        found |= {"what": self.what, "why": self.why, "do": self.remedy, "page": self.page}
        if self.figures:
            found["figures"] = dict(self.figures)
        return found | ({"told_by": list(self.told_by)} if self.told_by else {})

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Finding:
        """Raises KeyError, TypeError, AttributeError for what no server sends."""
        subject = Subject(**{part.name: str(data.get(part.name, "")) for part in fields(Subject)})
        what, why, remedy, page = (str(data[name]) for name in ("what", "why", "do", "page"))
        figures = dict(data.get("figures", {}).items())
        told_by = tuple(map(str, data.get("told_by", ())))
        return cls(str(data["code"]), str(data["severity"]), subject, what, why, remedy, page, figures, told_by)


@dataclass(slots=True, frozen=True)
class FindingKind:
    """The common part of all findings of one code. `seen`, `reason` and `remedy` are the row of docs/findings.md."""

    code: str
    severity: Severity
    seen: str
    more: str
    """The page that explains more, below docs/, with its anchor: the symptom, where there is one."""
    reason: str
    remedy: str

    @property
    def page(self) -> str:
        """The section of the symptom, which says more, or else the row of docs/findings.md."""
        return self.more if self.more.startswith("symptoms/") else f"findings.md#{self.code.lower()}"

    def found(self, subject: Subject, what: str, why: str = "", /, **figures: Figure) -> Finding:
        """Returns a finding of this kind; `why` is the kind's own reason unless given."""
        return Finding(
            self.code, self.severity.value, subject, what, why or self.reason, self.remedy, self.page, figures
        )
