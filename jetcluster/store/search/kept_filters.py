"""The subjects of a stream that match a filter, found once and kept up to date.

`KeptFilters` finds them by a walk over the sorted subjects. Where that may be long and others wait, it is done
beforehand and in steps (`finding`): whoever then asks in one go finds the answer kept.

`LastOfEach` has the last sequence of the subjects that match a wildcard, for the many wildcards of one command. It is
asked for in apply, where nothing can stop in between. So wildcards over the same subjects are one walk, nothing is kept
but one subject of each, and of a wildcard that is asked for again only what came since is looked at.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Generator, Iterable, Iterator, Mapping
from functools import partial
from typing import Final

from jetcluster.store.keys import MAX_SEQ
from jetcluster.store.search import filters
from jetcluster.store.search.filters import FilterSet, Part, Wanted
from jetcluster.store.search.sorted_subjects import CHUNK, SortedSubjects

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


WIDE: Final = 512
"""Subjects in the range of a wildcard from which on its answer is kept."""
MAX_RECENT: Final = 8192
"""Subjects that came since. A command has fewer: then nobody asks any more."""
COUNT_BITS: Final = 32


class LastOfEach:
    """`table` maps the subjects that there are to last sequence << COUNT_BITS | count; `subjects` has these and others.
    The caller that adds messages tells `added`; what is removed shows by itself."""

    def __init__(self, table: Mapping[bytes, int], subjects: SortedSubjects) -> None:
        self._table = table
        self._sorted = subjects
        self._known: dict[bytes, tuple[int, bytes, int]] = {}
        """Wildcard -> its last sequence, the subject of that, and how many of `_recent` have been looked at."""
        self.open = False
        """`added` wants to be told."""
        self._recent: list[bytes] = []

    def added(self, subjects: Iterable[bytes]) -> None:
        """While `open`: messages of these subjects were added."""
        self._recent += subjects
        if len(self._recent) > MAX_RECENT:
            self.forget()

    def forget(self) -> None:
        self.open = False
        self._known.clear()
        self._recent = []

    def find(self, wildcards: Iterable[bytes]) -> None:
        """Looks for all of these together, and forgets what was found before."""
        self.forget()
        groups: dict[tuple[bytes, bytes | None], list[bytes]] = {}
        for one in set(wildcards):
            bounds = filters.bounds(one)
            if not filters.is_literal(one) and self._sorted.width(*bounds) >= WIDE:
                groups.setdefault(bounds, []).append(one)
        self.open = bool(groups)
        for (low, high), group in groups.items():
            if len(group) == 1:
                self._known[group[0]] = *self._best(filter(self._table.__contains__, self._sorted.select(group[0]))), 0
            else:
                self._find_together(low, high, group)

    def last(self, wildcard: bytes) -> int:
        """0 when nothing matches."""
        known = self._known.get(wildcard)
        if known is not None and self._table.get(known[1], 0) >> COUNT_BITS >= known[0]:
            _, subject, seen = known
            best = self._best([subject, *self._arrived(wildcard, seen)])
        elif known is not None or self._sorted.width(*filters.bounds(wildcard)) >= WIDE:
            best = self._best(filter(self._table.__contains__, self._sorted.select(wildcard)))
        else:
            return self._last_of_few(wildcard)
        if self.open:
            self._known[wildcard] = *best, len(self._recent)
        return best[0]

    def _find_together(self, low: bytes, high: bytes | None, group: list[bytes]) -> None:
        get = self._table.get
        matched = FilterSet(group).matched
        tops = dict.fromkeys(group, 0)
        holders = dict.fromkeys(group, b"")
        for subject in self._between(low, high):
            packed = get(subject, 0)
            if packed:
                for one in matched(subject):
                    if packed > tops[one]:
                        tops[one], holders[one] = packed, subject
        self._known.update((one, (top >> COUNT_BITS, holders[one], 0)) for one, top in tops.items())

    def _between(self, low: bytes, high: bytes | None) -> Iterator[bytes]:
        at: bytes | None = low
        while at is not None:
            part, at = self._sorted.part(at, high, CHUNK)
            yield from part

    def _last_of_few(self, wildcard: bytes) -> int:
        """A regular expression for it would be more work than to look at each."""
        get = self._table.get
        top = 0
        for subject in self._between(*filters.bounds(wildcard)):
            packed = get(subject, 0)
            if packed > top and filters.matches(wildcard, subject):
                top = packed
        return top >> COUNT_BITS

    def _arrived(self, wildcard: bytes, seen: int) -> list[bytes]:
        low, high = filters.bounds(wildcard)
        matches = filters.matches
        arrived = self._recent[seen:]
        return [one for one in arrived if low <= one and (high is None or one < high) and matches(wildcard, one)]

    def _best(self, subjects: Iterable[bytes]) -> tuple[int, bytes]:
        get = self._table.get
        top, holder = 0, b""
        for subject in subjects:
            packed = get(subject, 0)
            if packed > top:
                top, holder = packed, subject
        return top >> COUNT_BITS, holder
