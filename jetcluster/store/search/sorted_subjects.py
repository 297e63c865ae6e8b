"""`SortedSubjects`: a stream's subjects in byte order, so that a selective filter meets few of a million.

Subjects with a common prefix of whole tokens are adjacent, so a literal token narrows the range by bisection and a `*`
steps from one token to the next. Searches merge the sorted runs; messages do so once per SETTLE_SUBJECTS new subjects.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Container, Iterator

from jetcluster.store.search import filters
from jetcluster.store.search.filters import FilterSet, Part, Wanted

CHUNK_SUBJECTS = 1024
"""Subjects looked at between two results, as the caller may stop early."""
MIN_SKIP_STEPS = 64
MIN_SUBJECTS_PER_SKIP = 4
"""After MIN_SKIP_STEPS skips from token to token, fewer subjects passed per skip make a look at each cheaper."""

PAUSE = b""
"""Yielded by `select` at intervals, between subjects: a place where a long search may stop."""
SKIPS_PER_PAUSE = 256
"""Steps from token to token between two pauses."""

SETTLE_SUBJECTS = 16_384
"""New subjects that are sorted at once, so that no search has to sort a million."""

_BEHIND_DOT = b"/"
"""The byte after b".": it ends the range of the subjects with a dot there."""


class SortedSubjects:
    """The subjects of one stream. Removed ones may stay until `prune` or `rebuild`, and one that came back may be there
    twice: the caller checks them against its table."""

    def __init__(self) -> None:
        self._runs: list[list[bytes]] = []
        self._new: list[bytes] = []
        self._turn = self._place = 0
        """The run, and the place in it, where the next `prune` continues."""

    def add(self, subject: bytes) -> None:
        self._new.append(subject)

    def clear(self) -> None:
        self._runs.clear()
        self._new = []

    def rebuild(self, subjects: list[bytes]) -> None:
        self._runs.clear()
        self._new = subjects

    def settle(self) -> None:
        """Sort added subjects if they are many."""
        if len(self._new) >= SETTLE_SUBJECTS:
            self._sort()

    def prune(self, alive: Container[bytes], most: int) -> None:
        """Remove dead and double subjects among the next `most`; calls go through all subjects in turn."""
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
        """Return about `most` subjects with low <= subject < high (None: no end), and the rest's start or None."""
        self._sort()
        places: list[tuple[list[bytes], int, int]] = []
        bound: bytes | None = None
        for run in self._runs:
            begin = bisect_left(run, low)
            end = bisect_left(run, high, begin) if high is not None else len(run)
            places.append((run, begin, end))
            rest = begin + most
            if rest < end and run[rest] == low:
                rest = bisect_right(run, low, rest, end)  # all copies of `low`: the rest begins after them
            if rest < end and (bound is None or run[rest] < bound):
                bound = run[rest]
        found: list[bytes] = []
        for run, begin, end in places:
            found += run[begin : bisect_left(run, bound, begin, end) if bound is not None else end]
        found.sort()  # timsort finds the runs and merges them
        return list(dict.fromkeys(found)), bound

    def last(self, alive: Container[bytes]) -> bytes | None:
        """Return the last subject that is alive."""
        self._sort()
        found = [next(filter(alive.__contains__, reversed(run)), None) for run in self._runs]
        return max((subject for subject in found if subject is not None), default=None)

    def width(self, low: bytes, high: bytes | None) -> int:
        """Return the number of subjects from `low` on and before `high`; dead and double ones count too."""
        self._sort()
        return sum(
            [(len(run) if high is None else bisect_left(run, high)) - bisect_left(run, low) for run in self._runs]
        )

    def select(self, wanted: Wanted) -> Iterator[bytes]:
        """Yield matching subjects, maybe twice, and PAUSE. Must not be continued after an `add` or a `rebuild`."""
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
            for start in range(low, high, CHUNK_SUBJECTS):
                yield from part.select(run[start : min(start + CHUNK_SUBJECTS, high)])
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
"""(low, high, prefix, depth): run[low:high] all begin with the prefix, which matches the filter's first tokens."""


class _Walk:
    """The search for one filter in one sorted run. A filter may have thousands of tokens: no call per token is made."""

    def __init__(self, run: list[bytes], subject_filter: bytes, tokens: list[bytes]) -> None:
        self._run = run
        self._filter = subject_filter
        self._tokens = tokens
        stars = [depth for depth, token in enumerate(tokens) if token == b"*"]
        last = stars[-1] if stars and tokens[-1] not in (b"*", b">") else -1
        self._plain_rest = last, b"." + b".".join(tokens[last + 1 :])
        """Depth of the last `*` if only literal tokens follow, else -1; and these tokens."""
        self._steps = self._begin = 0
        """Steps from token to token so far, for all `*` together, and the start of the first one."""

    def matches(self) -> Iterator[bytes]:
        """Yield matching subjects and PAUSE."""
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
        """Return the matches in a range, and sub-ranges to be searched before the rest."""
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
            return iter(run[bisect_right(run, prefix, low, high) : high])  # `>` needs at least one token
        return self._each(low, high)

    def _children(self, low: int, high: int, offset: int, depth: int) -> Iterator[bytes | _Range]:
        """Search below one `*`, from token to token as long as that skips subjects."""
        run = self._run
        ends_here = depth == len(self._tokens) - 1
        at = low
        steps = 0
        while at < high:
            steps += 1
            if not steps % SKIPS_PER_PAUSE:
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
        """Return True when looking at each subject is cheaper than skipping, for this `*` or for all of them."""
        self._steps += 1
        if steps > MIN_SKIP_STEPS and passed < MIN_SUBJECTS_PER_SKIP * steps:
            return True
        return self._steps > MIN_SKIP_STEPS and at - self._begin < MIN_SUBJECTS_PER_SKIP * (
            self._steps - MIN_SKIP_STEPS
        )

    def _same_ends(self, low: int, high: int, offset: int, rest: bytes) -> Iterator[bytes]:
        """Search below one `*` that only literal tokens follow. Each step first tries the relative place of the last
        match, as adjacent tokens often have the same children."""
        run = self._run
        at = low
        place = length = 1
        steps = 0
        while at < high:
            steps += 1
            if not steps % SKIPS_PER_PAUSE:
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
            behind = at + length  # as many children as the last token had, or else a bisection finds their end
            end = subject[:dot] + _BEHIND_DOT
            if behind > high or run[behind - 1] >= end or (behind < high and run[behind] < end):
                behind = bisect_left(run, end, min(found, high), high)
                length = behind - at
            at = behind

    def _each(self, low: int, high: int) -> Iterator[bytes]:
        matches = filters.matcher(self._filter)
        for start in range(low, high, CHUNK_SUBJECTS):
            yield from filter(matches, self._run[start : min(start + CHUNK_SUBJECTS, high)])
            yield PAUSE
