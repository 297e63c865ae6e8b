"""`Pushdown`: the filters of a query that narrow what is read.

Two kinds of filters narrow the read: comparisons of `seq` with literals, and `subject` as a literal or with a prefix.
Other filters have no effect here; Spark applies every filter again.

A filter on `time` narrows only what is read of an archive, whose files tell the times of their rows. A stream's times
come from its leaders' clocks and may go back, so no range of sequences holds exactly the messages of a range of times.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from jetcluster.arrow.options import SourceOptions
from jetcluster.arrow.resolve import Extent
from jetcluster.protocol import subjects

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MAX_SUBJECTS = 16
"""An IN filter with more subjects narrows nothing, as each one would become a scan."""


class Pushdown:
    """The bounds that the filters of a query set: sequences [low, high) and subjects."""

    def __init__(self, *, kafka: bool = False, bucket: bool = False) -> None:
        self._seq_name, self._time_name = ("offset", "timestamp") if kafka else ("seq", "time")
        if bucket:
            self._seq_name, self._time_name = "revision", "created"
        self.low = 0
        self.high: int | None = None
        self.subjects: set[str] | None = None
        """Subjects, or one wildcard filter for a prefix; None: any."""
        self.first_time: int | None = None
        self.last_time: int | None = None
        """Unix nanoseconds, inclusive; None: any."""

    def take(self, one: Filter) -> None:
        name = type(one).__name__
        attribute = getattr(one, "attribute", ())
        value = getattr(one, "value", None)
        if attribute == (self._seq_name,):
            self._sequence(name, value)
        elif attribute == ("subject",):
            self._subject(name, value)
        elif attribute == ("time_ns",) and isinstance(value, int):
            self._time(name, value, value)
        elif attribute == (self._time_name,) and isinstance(value, datetime) and value.tzinfo is not None:
            begin = (value - _EPOCH) // timedelta(microseconds=1) * 1000
            self._time(name, begin, begin + 999)

    def options(self, options: SourceOptions) -> SourceOptions | None:
        """Returns `options` with the subjects that are left; None when none is left."""
        if self.subjects is None:
            return options
        found = []
        for wanted in sorted(self.subjects):
            if any(subjects.is_subset(wanted.encode(), known.encode()) for known in options.subjects):
                found.append(wanted)
            elif not subjects.is_literal(wanted.encode()):
                return options  # the filters overlap only in part: left to Spark
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

    def _time(self, name: str, begin: int, end: int) -> None:
        """Takes a comparison with a moment of the nanoseconds from `begin` to `end`."""
        if name in ("EqualTo", "EqualNullSafe", "GreaterThan", "GreaterThanOrEqual"):
            self.first_time = begin if self.first_time is None else max(self.first_time, begin)
        if name in ("EqualTo", "EqualNullSafe", "LessThan", "LessThanOrEqual"):
            self.last_time = end if self.last_time is None else min(self.last_time, end)

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
            return  # no stream has such a subject; Spark's own filter removes all rows
        if self.subjects is None or not all(subjects.is_literal(one.encode()) for one in self.subjects):
            self.subjects = wanted
        else:
            self.subjects &= wanted


def narrowed(extents: Sequence[Extent], pushdown: Pushdown, options: SourceOptions) -> list[Extent]:
    """Returns the ranges of a scan, cut to the bounds of its filters."""
    if options.mode == "last":
        return list(extents)
    found = []
    for extent in extents:
        low = max(extent.low, pushdown.low)
        high = extent.high if pushdown.high is None else min(extent.high, pushdown.high)
        times = (pushdown.first_time, pushdown.last_time)
        found.append(extent._replace(low=min(low, high), high=high, times=times))
    return found
