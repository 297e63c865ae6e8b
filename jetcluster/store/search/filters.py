"""Subject filters over many subjects at once: one regular expression per filter, run over a list in C.

A `FilterSet` answers for several filters with one walk over the subjects. Filters with literal tokens at the same
positions share a table: one look-up of a subject's tokens there finds the filter that matches it. Filters with a narrow
range of subjects are searched alone, in their range.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import combinations
from operator import itemgetter
from typing import Any, Final, TypeAlias, Union

from jetcluster.model.subjects import overlap
from jetcluster.records import NamedTuple

Matcher = Callable[[bytes], object]
"""Returns a true value for the subjects that match."""


def is_literal(subject_filter: bytes) -> bool:
    """Return True when no token is `*` or a final `>`."""
    if b"*" not in subject_filter and b">" not in subject_filter:
        return True
    tokens = subject_filter.split(b".")
    return b"*" not in tokens and tokens[-1] != b">"


def bounds(subject_filter: bytes) -> tuple[bytes, bytes | None]:
    """Return (low, high): each matching subject is >= low and, unless high is None, < high."""
    tokens = subject_filter.split(b".")
    depth = 0
    while depth < len(tokens) and tokens[depth] != b"*" and not (depth == len(tokens) - 1 and tokens[depth] == b">"):
        depth += 1
    start = b".".join(tokens[:depth])
    if depth == len(tokens):
        return start, start + b"\0"
    return (start + b".", start + b"/") if depth else (b"", None)


def only_rest(subject_filter: bytes) -> bool:
    """Return True when the only wildcard is a final `>`: everything within the `bounds` matches."""
    tokens = subject_filter.split(b".")
    return tokens[-1] == b">" and b"*" not in tokens


@lru_cache(256)
def matcher(subject_filter: bytes) -> Matcher:
    """Return a callable whose result is true for the subjects that match the filter.

    `*` stands for exactly one token, a final `>` for one or more; elsewhere both are plain characters.
    """
    tokens = subject_filter.split(b".")
    rest = tokens[-1] == b">"
    parts = [rb"[^.]+" if token == b"*" else re.escape(token) for token in (tokens[:-1] if rest else tokens)]
    if rest:
        parts.append(rb".+")
    return re.compile(rb"\.".join(parts), re.DOTALL).fullmatch


def matches(subject_filter: bytes, subject: bytes) -> bool:
    """Return True when the subject matches; for a filter that may never be used again (else `matcher`)."""
    wanted, tokens = subject_filter.split(b"."), subject.split(b".")
    last = len(wanted) - 1
    if wanted[last] == b">":
        if len(tokens) <= last or (len(tokens) == last + 1 and not tokens[last]):
            return False
        wanted.pop()
    elif len(tokens) != len(wanted):
        return False
    return all(token == want or (want == b"*" and token != b"") for want, token in zip(wanted, tokens, strict=False))


def select(subject_filter: bytes, subjects: Iterable[bytes]) -> list[bytes]:
    """Return the subjects that match, in the given order."""
    if subject_filter.endswith(b".*") and is_literal(prefix := subject_filter[:-1]):
        size = len(prefix)  # by hand, as the expression of a filter that is used once costs as much as 500 subjects
        return [one for one in subjects if one.startswith(prefix) and one.find(b".", size) < 0 and len(one) > size]
    return list(filter(matcher(subject_filter), subjects))


MAX_SEPARATE_FILTERS: Final = 4
"""Up to this number, filters over the same range are faster one by one."""

Wanted: TypeAlias = Union[bytes, "FilterSet"]
"""The subjects to find: those that match one filter, or any of several."""

_Test = tuple[Callable[[Sequence[bytes]], Any], dict[Any, bytes]]
"""A function that picks some of a subject's tokens, and the filters by those tokens."""


class Part(NamedTuple):
    """Filters that are searched together: among subjects from `low` on and before `high` (None: to the end)."""

    low: bytes
    high: bytes | None
    filters: tuple[bytes, ...]
    select: Callable[[Iterable[bytes]], list[bytes]]
    """Returns the matching ones of some subjects, in the given order."""

    @classmethod
    def of(cls, subject_filter: bytes) -> Part:
        return cls(*bounds(subject_filter), (subject_filter,), partial(select, subject_filter))


class _Tables:
    """Filters grouped by the positions of their literal tokens."""

    __slots__ = ("_closed", "_open", "_tests")

    def __init__(self, subject_filters: Iterable[bytes]) -> None:
        self._closed: dict[int, list[_Test]] = {}
        """Number of tokens -> tests of filters without a final `>`."""
        self._open: list[tuple[int, _Test]] = []
        """(n, test of filters with a final `>`), for subjects of more than n tokens."""
        self._tests: dict[int, list[_Test]] = {}
        tables: dict[tuple[int, bool, tuple[int, ...]], _Test] = {}
        for subject_filter in subject_filters:
            tokens = subject_filter.split(b".")
            ends_open = tokens[-1] == b">"
            length = len(tokens) - ends_open
            positions = tuple([i for i in range(length) if tokens[i] != b"*"])
            test = tables.get((length, ends_open, positions))
            if test is None:
                test = tables[length, ends_open, positions] = _pick(positions), {}
            test[1][test[0](tokens)] = subject_filter
        for (length, ends_open, _), test in tables.items():
            if ends_open:
                self._open.append((length, test))
            else:
                self._closed.setdefault(length, []).append(test)

    def matched(self, subject: bytes) -> Iterator[bytes]:
        """Yield the filters that match."""
        tokens = subject.split(b".")
        for pick, table in self._tests_for(len(tokens)):
            found = table.get(pick(tokens))
            # In the tables a `*` stands for an empty token too.
            if found is not None and (b"" not in tokens or matches(found, subject)):
                yield found

    def matches(self, subject: bytes) -> bool:
        return next(self.matched(subject), None) is not None

    def select(self, subjects: Iterable[bytes]) -> list[bytes]:
        found: list[bytes] = []
        tests = self._tests
        for subject in subjects:
            tokens = subject.split(b".")
            for pick, table in tests.get(len(tokens)) or self._tests_for(len(tokens)):
                if pick(tokens) in table and (b"" not in tokens or self.matches(subject)):
                    found.append(subject)
                    break
        return found

    def _tests_for(self, length: int) -> list[_Test]:
        found = self._tests.get(length)
        if found is None:
            found = self._closed.get(length, []) + [test for least, test in self._open if length > least]
            self._tests[length] = found
        return found


class FilterSet:
    """Several filters as one. Immutable, and equal to a set of the same filters."""

    __slots__ = ("_hash", "filters", "matched", "matches", "parts", "select")

    def __init__(self, subject_filters: Iterable[bytes]) -> None:
        self.filters = tuple(sorted(set(subject_filters)))
        self._hash = hash(self.filters)
        tables = _Tables(self.filters)
        self.matched: Callable[[bytes], Iterator[bytes]] = tables.matched
        """Yields the filters that match a subject."""
        self.matches: Callable[[bytes], bool] = tables.matches
        """Returns True when one of the filters matches the subject."""
        self.select: Callable[[Iterable[bytes]], list[bytes]] = tables.select
        """Returns the subjects that match one of the filters, in the given order."""
        self.parts: list[Part] = _parts(self.filters, self.select)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FilterSet) and self.filters == other.filters

    def __hash__(self) -> int:
        return self._hash


def parts_of(subject_filters: Sequence[bytes]) -> Sequence[Wanted]:
    """Return a consumer's filters, none of which contains another, as few disjoint questions: literal filters are
    look-ups, and many or overlapping wildcards are one set."""
    return (_parts_of_few if len(subject_filters) <= MAX_SEPARATE_FILTERS else _parts_of_many)(tuple(subject_filters))


def _questions(subject_filters: tuple[bytes, ...]) -> tuple[Wanted, ...]:
    wild = [one for one in subject_filters if not is_literal(one)]
    if len(wild) <= MAX_SEPARATE_FILTERS and not _overlap(wild):
        return subject_filters
    return (*(one for one in subject_filters if is_literal(one)), FilterSet(wild))


_parts_of_few = lru_cache(1024)(_questions)
_parts_of_many = lru_cache(64)(_questions)
"""Every delivery needs them. Parts of few filters are small, and many consumers have some."""


def _overlap(subject_filters: Sequence[bytes]) -> bool:
    return any(overlap(a.decode("latin-1"), b.decode("latin-1")) for a, b in combinations(subject_filters, 2))


def _parts(
    subject_filters: Sequence[bytes], select: Callable[[Iterable[bytes]], list[bytes]] | None = None
) -> list[Part]:
    """Return every filter in one part, with filters of nested ranges. `select` is that of all filters, if known."""
    ranged = sorted(((*bounds(one), one) for one in subject_filters), key=lambda entry: (entry[0], entry[2]))
    found: list[Part] = []
    levels = [ranged]
    while levels:
        levels += _level(levels.pop(), select, len(ranged), found)
    return found


_Ranged = tuple[bytes, bytes | None, bytes]
"""(low, high, filter)."""


def _level(
    ranged: list[_Ranged], select: Callable[[Iterable[bytes]], list[bytes]] | None, total: int, found: list[Part]
) -> Iterator[list[_Ranged]]:
    """Add the parts of the outermost ranges to `found`; yield, for each, the filters still to be grouped."""
    groups: list[tuple[bytes, bytes | None]] = []
    wide: list[list[bytes]] = []
    narrow: list[list[_Ranged]] = []
    for low, high, one in ranged:
        end = groups[-1][1] if groups else low
        if not groups or (end is not None and low >= end):
            groups.append((low, high))
            wide.append([])
            narrow.append([])
        if (low, high) == groups[-1]:
            wide[-1].append(one)
        else:
            narrow[-1].append((low, high, one))
    for (low, high), outer, inner in zip(groups, wide, narrow, strict=True):
        if len(outer) <= MAX_SEPARATE_FILTERS:
            found += map(Part.of, outer)
            if inner:
                yield inner
        else:
            together = (*outer, *[one for _, _, one in inner])
            whole = select is not None and len(together) == total
            found.append(Part(low, high, together, select if whole and select else _Tables(together).select))


def _pick(positions: tuple[int, ...]) -> Callable[[Sequence[bytes]], Any]:
    return itemgetter(*positions) if positions else lambda tokens: ()
