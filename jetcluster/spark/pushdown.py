"""Filters of a query that narrow what is read: comparisons of `seq` with literals, `subject` as a literal or with a
prefix. What is not understood is left alone; Spark applies every filter again.

Not `time`: a stream's time stamps are of its leaders' clocks and may go back, so no range of sequences holds exactly
the messages of a range of times. `startingTimestamp` and `endingTimestamp` say what they mean.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from jetcluster.protocol import subjects
from jetcluster.spark.options import SourceOptions

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

MAX_SUBJECTS = 16
"""An IN with more would be as many scans."""


class Pushdown:
    """The bounds that the filters of a query set: sequences [low, high) and subjects."""

    def __init__(self, *, kafka: bool = False) -> None:
        self._seq_name = "offset" if kafka else "seq"
        self.low = 0
        self.high: int | None = None
        self.subjects: set[str] | None = None
        """Subjects, or one filter for a prefix; None: any."""

    def take(self, one: Filter) -> None:
        name = type(one).__name__
        attribute = getattr(one, "attribute", ())
        value = getattr(one, "value", None)
        if attribute == (self._seq_name,):
            self._sequence(name, value)
        elif attribute == ("subject",):
            self._subject(name, value)

    def options(self, options: SourceOptions) -> SourceOptions | None:
        """`options` with the subjects that are left; None when none is."""
        if self.subjects is None:
            return options
        found = []
        for wanted in sorted(self.subjects):
            if any(subjects.is_subset(wanted.encode(), known.encode()) for known in options.subjects):
                found.append(wanted)
            elif not subjects.is_literal(wanted.encode()):
                return options  # two filters that cut each other: left to Spark
        return dataclasses.replace(options, subjects=tuple(found)) if found else None

    def _sequence(self, name: str, value: Any) -> None:
        if name == "In" and value and all(isinstance(one, int) for one in value):
            self._bound(min(value), max(value) + 1)
        elif isinstance(value, int):
            if name in ("EqualTo", "EqualNullSafe"):
                self._bound(value, value + 1)
            elif name in ("GreaterThan", "GreaterThanOrEqual"):
                self._bound(value + (name == "GreaterThan"), None)
            elif name in ("LessThan", "LessThanOrEqual"):
                self._bound(0, value + (name == "LessThanOrEqual"))

    def _bound(self, low: int, high: int | None) -> None:
        self.low = max(self.low, low)
        if high is not None:
            self.high = high if self.high is None else min(self.high, high)

    def _subject(self, name: str, value: Any) -> None:
        if name in ("EqualTo", "EqualNullSafe") and isinstance(value, str):
            self._literals({value})
        elif name == "In" and len(value) <= MAX_SUBJECTS and all(isinstance(one, str) for one in value):
            self._literals(set(value))
        elif name == "StringStartsWith" and isinstance(value, str) and "." in value and self.subjects is None:
            wanted = value[: value.rindex(".")] + ".>"
            if subjects.is_valid(wanted.encode()) and subjects.is_literal(wanted[:-2].encode()):
                self.subjects = {wanted}

    def _literals(self, wanted: set[str]) -> None:
        if not all(subjects.is_valid_literal(one.encode()) for one in wanted):
            return  # no subject is stored under such a name; Spark finds that out
        if self.subjects is None or not all(subjects.is_literal(one.encode()) for one in self.subjects):
            self.subjects = wanted
        else:
            self.subjects &= wanted
