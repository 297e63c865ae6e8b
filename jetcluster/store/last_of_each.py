"""`LastOfEach`: the last sequence of the subjects that match a wildcard, for the many wildcards of one command.

It is asked for in apply, where nothing can stop in between. So wildcards over the same subjects are one walk, nothing
is kept but one subject of each, and of a wildcard that is asked for again only what came since is looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from jetcluster.store import filters
from jetcluster.store.filters import FilterSet
from jetcluster.store.sorted_subjects import CHUNK, SortedSubjects

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
