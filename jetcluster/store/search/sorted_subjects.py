"""`SortedSubjects`: a stream's subjects in byte order, so that a selective filter meets few of a million.

All subjects below a prefix of whole tokens lie side by side, so a literal token narrows the range by bisection and a
`*` steps from one token to the next. Runs of sorted subjects are merged when somebody asks, never when a message comes.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Container, Iterator

from jetcluster.store.search import filters
from jetcluster.store.search.filters import FilterSet, Part, Wanted

CHUNK = 1024
"""Subjects looked at between two answers to the caller, who may have enough."""
PATIENCE = 64
WORTH = 4
"""After so many steps from token to token, each must have passed so many subjects: else looking at all is cheaper."""

PAUSE = b""
"""Given by `select` after every so much work, between the subjects: a long search may want to stop."""
STEPS = 256
"""From token to token, between two of them."""

SETTLED = 16_384
"""So many new subjects are sorted in at once: a search then never has to sort a million."""

_BEHIND_DOT = b"/"
"""The byte behind b".": a prefix that ends with it ends the range of those that end with the dot."""


class SortedSubjects:
    """Subjects that are gone stay in until `rebuild`, and one that came again may be in twice: the caller compares
    with the table of those that there are."""

    def __init__(self) -> None:
        self._runs: list[list[bytes]] = []
        self._new: list[bytes] = []
        self._turn = self._place = 0
        """The run, and the place in it, where the next `prune` goes on."""

    def add(self, subject: bytes) -> None:
        self._new.append(subject)

    def clear(self) -> None:
        self._runs.clear()
        self._new = []

    def rebuild(self, subjects: list[bytes]) -> None:
        self._runs.clear()
        self._new = subjects

    def settle(self) -> None:
        """After subjects were added: sorts them in when they are many."""
        if len(self._new) >= SETTLED:
            self._sort()

    def prune(self, alive: Container[bytes], most: int) -> None:
        """Forgets those that are gone among the next `most`, and what is in twice: the whole of it in turns."""
        if self._turn >= len(self._runs):
            self._sort()
            self._turn = self._place = 0
        if not self._runs:
            return
        run, place = self._runs[self._turn], self._place
        looked = run[place : place + most]
        kept = list(dict.fromkeys(filter(alive.__contains__, looked)))
        run[place : place + most] = kept
        self._place += len(kept)
        if len(looked) < most:
            self._turn, self._place = self._turn + 1, 0

    def part(self, low: bytes, high: bytes | None, most: int) -> tuple[list[bytes], bytes | None]:
        """Some of those at or behind `low` and before `high` (None: to the end), about `most`, in order, each once; and
        where the rest begins, None when there is none."""
        self._sort()
        places: list[tuple[list[bytes], int, int]] = []
        bound: bytes | None = None
        for run in self._runs:
            begin = bisect_left(run, low)
            end = bisect_left(run, high, begin) if high is not None else len(run)
            places.append((run, begin, end))
            rest = begin + most
            if rest < end and run[rest] == low:
                rest = bisect_right(run, low, rest, end)  # it came and went so often: the rest begins behind it
            if rest < end and (bound is None or run[rest] < bound):
                bound = run[rest]
        found: list[bytes] = []
        for run, begin, end in places:
            found += run[begin : bisect_left(run, bound, begin, end) if bound is not None else end]
        found.sort()  # timsort finds the runs and merges them
        return list(dict.fromkeys(found)), bound

    def last(self, alive: Container[bytes]) -> bytes | None:
        """The last one of those that there are."""
        self._sort()
        found = [next(filter(alive.__contains__, reversed(run)), None) for run in self._runs]
        return max((subject for subject in found if subject is not None), default=None)

    def width(self, low: bytes, high: bytes | None) -> int:
        """Number of subjects at or behind `low` and before `high`, at most."""
        self._sort()
        return sum(
            [(len(run) if high is None else bisect_left(run, high)) - bisect_left(run, low) for run in self._runs]
        )

    def select(self, wanted: Wanted) -> Iterator[bytes]:
        """Those that match, some of them in twice, and PAUSE. Not to be continued after an `add` or a `rebuild`."""
        self._sort()
        parts = wanted.parts if isinstance(wanted, FilterSet) else [Part.of(wanted)]
        for part in parts:
            if len(part.filters) == 1:
                tokens = part.filters[0].split(b".")
                for run in self._runs:
                    yield from _Walk(run, part.filters[0], tokens).matches()
            else:
                yield from self._select_any(part)

    def _select_any(self, part: Part) -> Iterator[bytes]:
        for run in self._runs:
            low = bisect_left(run, part.low)
            high = bisect_left(run, part.high, low) if part.high is not None else len(run)
            for start in range(low, high, CHUNK):
                yield from part.select(run[start : min(start + CHUNK, high)])
                yield PAUSE

    def _sort(self) -> None:
        if self._new:
            self._new.sort()
            self._runs.append(self._new)
            self._new = []
        runs = self._runs
        while len(runs) > 1 and len(runs[-2]) < 8 * len(runs[-1]):
            last = runs.pop()
            runs[-1] += last
            runs[-1].sort()  # timsort finds the two runs and merges them


_Range = tuple[int, int, bytes, int]
"""run[low:high], which all begin with a prefix: the filter's first `depth` tokens, matched."""


class _Walk:
    """One filter over one sorted run. A filter may have thousands of tokens: there is no call per token."""

    def __init__(self, run: list[bytes], subject_filter: bytes, tokens: list[bytes]) -> None:
        self._run = run
        self._filter = subject_filter
        self._tokens = tokens
        stars = [depth for depth, token in enumerate(tokens) if token == b"*"]
        last = stars[-1] if stars and tokens[-1] not in (b"*", b">") else -1
        self._plain_rest = last, b"." + b".".join(tokens[last + 1 :])
        """The last `*`, where nothing but literal tokens follows, and these; -1 where something else does."""
        self._steps = self._begin = 0
        """From token to token so far, of all `*` together, and where the first of them began."""

    def matches(self) -> Iterator[bytes]:
        """And PAUSE."""
        levels = [self._below(0, len(self._run), b"", 0)]
        while levels:
            for found in levels[-1]:
                if isinstance(found, tuple):
                    levels.append(self._below(*found))
                    break
                yield found
            else:
                levels.pop()

    def _below(self, low: int, high: int, prefix: bytes, depth: int) -> Iterator[bytes | _Range]:
        """Matches in a `_Range`, and parts of it to be looked at before the rest."""
        run, tokens = self._run, self._tokens
        last = len(tokens) - 1
        while tokens[depth] != b"*" and not (depth == last and tokens[depth] == b">"):
            if depth == last:
                low = bisect_left(run, prefix + tokens[depth], low, high)
                return iter(run[low : low + 1] if low < high and run[low] == prefix + tokens[depth] else ())
            prefix += tokens[depth] + b"."
            low = bisect_left(run, prefix, low, high)
            high = bisect_left(run, prefix[:-1] + _BEHIND_DOT, low, high)
            depth += 1
        if tokens[depth] == b"*":
            if not self._steps:
                self._begin = low
            if depth == self._plain_rest[0]:
                return self._same_ends(low, high, len(prefix), self._plain_rest[1])
            return self._children(low, high, len(prefix), depth)
        if prefix:
            return iter(run[bisect_right(run, prefix, low, high) : high])  # `>` stands for something
        return self._each(low, high)

    def _children(self, low: int, high: int, offset: int, depth: int) -> Iterator[bytes | _Range]:
        """One `*`: from token to token, as long as that skips something."""
        run = self._run
        ends_here = depth == len(self._tokens) - 1
        at = low
        steps = 0
        while at < high:
            steps += 1
            if not steps % STEPS:
                yield PAUSE
            if self._is_slow(at, at - low, steps):
                yield from self._each(at, high)
                return
            subject = run[at]
            dot = subject.find(b".", offset)
            if dot < 0:
                if ends_here and len(subject) > offset:
                    yield subject
                at += 1
                continue
            behind = bisect_left(run, subject[:dot] + _BEHIND_DOT, at, high)
            if not ends_here and dot > offset:
                yield at, behind, subject[: dot + 1], depth + 1
            at = behind

    def _is_slow(self, at: int, passed: int, steps: int) -> bool:
        """Looking at each is cheaper than to go on, for this `*` or for all of them."""
        self._steps += 1
        if steps > PATIENCE and passed < WORTH * steps:
            return True
        return self._steps > PATIENCE and at - self._begin < WORTH * (self._steps - PATIENCE)

    def _same_ends(self, low: int, high: int, offset: int, rest: bytes) -> Iterator[bytes]:
        """One `*` and then nothing but literal tokens: where the last step found something, relative to where it began,
        is looked at first, as the children of neighbours are often alike."""
        run = self._run
        at = low
        place = length = 1
        steps = 0
        while at < high:
            steps += 1
            if not steps % STEPS:
                yield PAUSE
            if self._is_slow(at, at - low, steps):
                yield from self._each(at, high)
                return
            subject = run[at]
            dot = subject.find(b".", offset)
            if dot <= offset:
                at += 1
                continue
            wanted = subject[:dot] + rest
            found = at + place
            if found >= high or run[found] != wanted:
                found = bisect_left(run, wanted, at, high)
            if found < high and run[found] == wanted:
                yield wanted
                place = found - at
            behind = at + length
            end = subject[:dot] + _BEHIND_DOT
            if behind > high or run[behind - 1] >= end or (behind < high and run[behind] < end):
                behind = bisect_left(run, end, min(found, high), high)
                length = behind - at
            at = behind

    def _each(self, low: int, high: int) -> Iterator[bytes]:
        matches = filters.matcher(self._filter)
        for start in range(low, high, CHUNK):
            yield from filter(matches, self._run[start : min(start + CHUNK, high)])
            yield PAUSE
