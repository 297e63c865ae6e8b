"""The subjects of a stream that match a filter, found once and kept up to date.

`KeptFilters` finds them by a walk over the sorted subjects. A long walk can be done before, in steps (`finding`), so
that the call that needs the answer in one go finds it kept.

`LastOfEach` finds the last sequence of the subjects that match a wildcard, for the many wildcards of one command. Apply
calls it and cannot pause. So wildcards over the same subjects share a walk, each keeps only one subject, and a repeated
wildcard looks only at subjects that arrived since.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Generator, Iterable, Iterator, Mapping
from functools import partial
from typing import Final

from jetcluster.store.keys import MAX_SEQ
from jetcluster.store.search import filters
from jetcluster.store.search.filters import FilterSet, Part, Wanted
from jetcluster.store.search.sorted_subjects import CHUNK_SUBJECTS, SortedSubjects

MAX_KEPT_FILTERS: Final = 64
MIN_KEPT_FILTERS: Final = 8
MAX_KEPT_SUBJECTS: Final = 1 << 20
"""More than `MIN_KEPT_FILTERS` filters are kept as long as they match at most this number of subjects together."""
SUBJECTS_PER_STEP: Final = 2048
"""Subjects that a step of `finding` looks at."""
SKIP_COST: Final = 128
"""Cost of a search by skipping, in subjects looked at."""
NARROW_SUBJECTS: Final = 1024
"""A range of no more subjects is looked through: that costs less than to skip from token to token, unless the filter is
very selective, and then it costs little."""
MAX_SKIP_PAUSES: Final = 24
"""Pauses after which a search gives up skipping from token to token, and looks at all subjects of the range."""
MAX_ATTEMPTS: Final = 3


class KeptFilters:
    """The kept filters of one stream. `table` holds the stream's subjects; `subjects` may hold others too."""

    def __init__(self, table: Mapping[bytes, int], subjects: SortedSubjects) -> None:
        self._table = table
        self._sorted = subjects
        self._kept: OrderedDict[Wanted, tuple[dict[bytes, None], int]] = OrderedDict()
        self.arrivals: list[bytes] = []
        """Every subject in order of arrival, so that a kept filter only looks at later ones."""
        self._open: list[dict[bytes, None]] = []
        """Matches found by searches in progress."""
        self._round = 0
        """Incremented when `arrivals` begins anew."""

    def restart(self) -> None:
        """Forget everything kept."""
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
        """Return the matching subjects, which must not be changed, and keep them for the next call."""
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
        """Yield the matching subjects, and keep them once exhausted. Must not be continued after a mutation."""
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
        """Prepare `matching` in steps of less than a millisecond, between which the stream may change. Returns False,
        and keeps nothing, when more than `limit` subjects match."""
        for _ in range(MAX_ATTEMPTS):
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
        """Do one attempt of `finding`; None when it must begin anew."""
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
        """Yield matching subjects, maybe some that are gone, in steps between which the stream may change."""
        parts = wanted.parts if isinstance(wanted, FilterSet) else [Part.of(wanted)]
        found: list[bytes] = []
        looked = 0
        for part in parts:
            skips = len(part.filters) == 1 and self._sorted.width(part.low, part.high) > NARROW_SUBJECTS
            quick = self._skip(part.filters[0]) if skips else None
            if quick is not None:
                found += quick
                looked += SKIP_COST + len(quick)
            else:
                select = part.select
                at: bytes | None = part.low
                while at is not None:
                    subjects, at = self._sorted.part(at, part.high, SUBJECTS_PER_STEP)
                    found += select(subjects)
                    looked += len(subjects)
                    if looked >= SUBJECTS_PER_STEP:
                        yield found
                        found, looked = [], 0
            if looked >= SUBJECTS_PER_STEP:
                yield found
                found, looked = [], 0
        yield found

    def _skip(self, subject_filter: bytes) -> list[bytes] | None:
        """Return the subjects that match, by skipping from token to token; None when that takes long."""
        found: list[bytes] = []
        pauses = 0
        for subject in self._sorted.select(subject_filter):
            if subject:
                found.append(subject)
                pauses += not len(found) & 511
            else:
                pauses += 1
            if pauses > MAX_SKIP_PAUSES:
                return None
        return found

    def width(self, subject_filter: bytes) -> int:
        """Return the number of subjects in the filter's range."""
        return self._sorted.width(*filters.bounds(subject_filter))

    def _arrived(self, wanted: Wanted, seen: int) -> dict[bytes, None]:
        arrived = [subject for subject in self.arrivals[seen:] if subject in self._table]
        select = wanted.select if isinstance(wanted, FilterSet) else partial(filters.select, wanted)
        return dict.fromkeys(select(arrived))

    def _keep(self, wanted: Wanted, matched: dict[bytes, None], seen: int) -> None:
        kept = self._kept
        kept[wanted] = matched, seen
        kept.move_to_end(wanted)
        if len(kept) > MIN_KEPT_FILTERS:
            total = sum([len(matched) for matched, _ in kept.values()])
            while len(kept) > MAX_KEPT_FILTERS or (len(kept) > MIN_KEPT_FILTERS and total > MAX_KEPT_SUBJECTS):
                total -= len(kept.popitem(last=False)[1][0])


MIN_KEPT_WIDTH: Final = 512
"""Subjects in the range of a wildcard from which on its answer is kept."""
MAX_RECENT_SUBJECTS: Final = 8192
"""Subjects added since `find`, above which all is forgotten. A command adds fewer."""
COUNT_BITS: Final = 32


class LastOfEach:
    """The last sequences of one stream's wildcards. `table` maps the stream's subjects to last sequence << COUNT_BITS |
    count; `subjects` may hold others too. The caller reports additions to `added`; removals show in `table`."""

    def __init__(self, table: Mapping[bytes, int], subjects: SortedSubjects) -> None:
        self._table = table
        self._sorted = subjects
        self._known: dict[bytes, tuple[int, bytes, int]] = {}
        """Wildcard -> its last sequence, the subject of that, and the number of `_recent` subjects included."""
        self.open = False
        """True when additions must be reported to `added`."""
        self._recent: list[bytes] = []

    def added(self, subjects: Iterable[bytes]) -> None:
        """Note, while `open`, that messages of these subjects were added."""
        self._recent += subjects
        if len(self._recent) > MAX_RECENT_SUBJECTS:
            self.forget()

    def forget(self) -> None:
        self.open = False
        self._known.clear()
        self._recent = []

    def find(self, wildcards: Iterable[bytes]) -> None:
        """Search for all of these together, and forget earlier answers."""
        self.forget()
        groups: dict[tuple[bytes, bytes | None], list[bytes]] = {}
        for one in set(wildcards):
            bounds = filters.bounds(one)
            if not filters.is_literal(one) and self._sorted.width(*bounds) >= MIN_KEPT_WIDTH:
                groups.setdefault(bounds, []).append(one)
        self.open = bool(groups)
        for (low, high), group in groups.items():
            if len(group) == 1:
                self._known[group[0]] = *self._best(filter(self._table.__contains__, self._sorted.select(group[0]))), 0
            else:
                self._find_together(low, high, group)

    def last(self, wildcard: bytes) -> int:
        """Return the last sequence of a wildcard; 0 when nothing matches."""
        known = self._known.get(wildcard)
        if known is not None and self._table.get(known[1], 0) >> COUNT_BITS >= known[0]:
            _, subject, seen = known
            best = self._best([subject, *self._arrived(wildcard, seen)])
        elif known is not None or self._sorted.width(*filters.bounds(wildcard)) >= MIN_KEPT_WIDTH:
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
            part, at = self._sorted.part(at, high, CHUNK_SUBJECTS)
            yield from part

    def _last_of_few(self, wildcard: bytes) -> int:
        """Look at each subject: compiling a regular expression would take longer."""
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
