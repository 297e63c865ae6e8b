"""`KeptFilters`: the subjects of a stream that match a filter, found once and kept up to date.

Finding them is a walk over the sorted subjects. Where that may be long and others wait, it is done beforehand and in
steps (`finding`): who then asks in one go finds the answer kept.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Generator, Iterator, Mapping
from functools import partial
from typing import Final

from jetcluster.store import filters
from jetcluster.store.filters import FilterSet, Part, Wanted
from jetcluster.store.keys import MAX_SEQ
from jetcluster.store.sorted_subjects import SortedSubjects

KEPT: Final = 64
FEW_KEPT: Final = 8
MAX_KEPT_SUBJECTS: Final = 1 << 20
"""More than `FEW_KEPT` filters are kept as long as they match so many subjects together."""
STEP: Final = 2048
"""Subjects looked at in a step of `finding`."""
SKIPPED: Final = 128
"""Cost of looking for a filter by skipping."""
PAUSES: Final = 24
"""So long a filter is looked for by skipping from token to token, before all in its range are looked at."""
TRIES: Final = 3


class KeptFilters:
    """`table` has the subjects that there are; `subjects` these and others."""

    def __init__(self, table: Mapping[bytes, int], subjects: SortedSubjects) -> None:
        self._table = table
        self._sorted = subjects
        self._kept: OrderedDict[Wanted, tuple[dict[bytes, None], int]] = OrderedDict()
        self.arrivals: list[bytes] = []
        """Every subject in order of arrival, so that a kept filter only looks at those that came since."""
        self._open: list[dict[bytes, None]] = []
        """Findings of searches under way."""
        self._round = 0
        """Counts up when `arrivals` begins anew."""

    def restart(self) -> None:
        """Forgets everything kept."""
        self.arrivals = list(self._table)
        self._kept.clear()
        self._round += 1

    def gone(self, subject: bytes) -> None:
        for matched, _ in self._kept.values():
            matched.pop(subject, None)
        for found in self._open:
            found.pop(subject, None)

    def __contains__(self, wanted: Wanted) -> bool:
        return wanted in self._kept

    def matching(self, wanted: Wanted) -> dict[bytes, None]:
        """The matching subjects; kept for the next call with this filter. Not to be changed."""
        kept = self._kept.get(wanted)
        if kept is None:
            matched = dict.fromkeys(filter(self._table.__contains__, self._sorted.select(wanted)))
            self._keep(wanted, matched, len(self.arrivals))
            return matched
        matched, seen = kept
        self._kept.move_to_end(wanted)
        if seen < len(self.arrivals):
            matched.update(self._arrived(wanted, seen))
            self._kept[wanted] = matched, len(self.arrivals)
        return matched

    def each_matching(self, wanted: Wanted) -> Iterator[bytes]:
        """The matching subjects, as far as the caller asks; kept like `matching` when it asks for all. Not to be
        continued after a mutation."""
        if wanted in self:
            yield from self.matching(wanted)
            return
        matched: dict[bytes, None] = {}
        for subject in self._sorted.select(wanted):
            if subject in self._table and subject not in matched:
                matched[subject] = None
                yield subject
        self._keep(wanted, matched, len(self.arrivals))

    def finding(self, wanted: Wanted, limit: int | None = None) -> Generator[None, None, bool]:
        """Has `matching` find the answer kept, in steps of less than a millisecond between which the stream may change.
        False when there are more than `limit`: nothing is kept then."""
        for _ in range(TRIES):
            if wanted in self:
                return limit is None or len(self.matching(wanted)) <= limit
            found: dict[bytes, None] = {}
            self._open.append(found)
            try:
                outcome = yield from self._find(wanted, found, limit)
            finally:
                self._open = [other for other in self._open if other is not found]
            if outcome is not None:
                return outcome
        return limit is None or len(self.matching(wanted)) <= limit

    def _find(self, wanted: Wanted, found: dict[bytes, None], limit: int | None) -> Generator[None, None, bool | None]:
        """None: it has to begin anew."""
        begun, seen = self._round, len(self.arrivals)
        most = MAX_SEQ if limit is None else limit
        for matching in self.walk(wanted):
            found.update(dict.fromkeys(filter(self._table.__contains__, matching)))
            if len(found) > most:
                return False
            yield
            if self._round != begun:
                return None
        found.update(self._arrived(wanted, seen))
        if len(found) > most:
            return False
        self._keep(wanted, found, len(self.arrivals))
        return True

    def walk(self, wanted: Wanted) -> Iterator[list[bytes]]:
        """Subjects that match, of those that there are or were, in steps between which the stream may change: what
        comes and goes meanwhile may be among them."""
        parts = wanted.parts if isinstance(wanted, FilterSet) else [Part.of(wanted)]
        found: list[bytes] = []
        looked = 0
        for part in parts:
            quick = self._skip(part.filters[0]) if len(part.filters) == 1 else None
            if quick is not None:
                found += quick
                looked += SKIPPED + len(quick)
            else:
                select = part.select
                at: bytes | None = part.low
                while at is not None:
                    subjects, at = self._sorted.part(at, part.high, STEP)
                    found += select(subjects)
                    looked += len(subjects)
                    if looked >= STEP:
                        yield found
                        found, looked = [], 0
            if looked >= STEP:
                yield found
                found, looked = [], 0
        yield found

    def _skip(self, subject_filter: bytes) -> list[bytes] | None:
        """Subjects that match, by skipping from token to token; None where that takes long."""
        found: list[bytes] = []
        pauses = 0
        for subject in self._sorted.select(subject_filter):
            if subject:
                found.append(subject)
                pauses += not len(found) & 511
            else:
                pauses += 1
            if pauses > PAUSES:
                return None
        return found

    def width(self, subject_filter: bytes) -> int:
        """Subjects among which those that match are."""
        return self._sorted.width(*filters.bounds(subject_filter))

    def _arrived(self, wanted: Wanted, seen: int) -> dict[bytes, None]:
        arrived = [subject for subject in self.arrivals[seen:] if subject in self._table]
        select = wanted.select if isinstance(wanted, FilterSet) else partial(filters.select, wanted)
        return dict.fromkeys(select(arrived))

    def _keep(self, wanted: Wanted, matched: dict[bytes, None], seen: int) -> None:
        kept = self._kept
        kept[wanted] = matched, seen
        kept.move_to_end(wanted)
        if len(kept) > FEW_KEPT:
            total = sum([len(matched) for matched, _ in kept.values()])
            while len(kept) > KEPT or (len(kept) > FEW_KEPT and total > MAX_KEPT_SUBJECTS):
                total -= len(kept.popitem(last=False)[1][0])
