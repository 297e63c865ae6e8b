"""`LetterQueue`: the dead letters of an owner that are not under way, and which of them may go when.

What a stream refused may be wrong with that letter alone (too large for the stream, no room for its subject, another
stream than that of the others). So it waits by itself, and is tried again with growing pauses; letters that were never
tried go on meanwhile, some in each second. When one of the refused succeeds, all others get their turn at once.

When nobody answers, all wait: what was sent then is in doubt, and more of it would only be more to search for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import chain
from typing import Final

from jetcluster.model.times import SECOND

MAX_IN_FLIGHT: Final = 16
MIN_PAUSE_NS: Final = SECOND
MAX_PAUSE_NS: Final = 30 * SECOND
"""Pauses between failures in a row double."""
FIRST_TRIES: Final = 16
"""Letters that were never tried, of which so many go in a second while others are refused."""


class _Pause:
    """Grows with each failure that is not within it; so letters that fail together count once."""

    __slots__ = ("failures", "until")

    def __init__(self) -> None:
        self.end()

    def end(self) -> None:
        self.failures = self.until = 0

    def over(self, now: int) -> bool:
        """Also when the clock was set back: no pause is longer than MAX_PAUSE_NS."""
        return now >= self.until or self.until - now > MAX_PAUSE_NS

    def grow(self, now: int) -> None:
        if self.over(now):
            self.until = now + min(MIN_PAUSE_NS << min(self.failures, 6), MAX_PAUSE_NS)
            self.failures += 1


class LetterQueue:
    """Sequences of messages whose letters wait. Times are Unix nanoseconds."""

    __slots__ = ("_all", "_ones", "_refused", "_seqs", "_tried", "_tries", "_tries_until")

    def __init__(self, seqs: Iterable[int] = ()) -> None:
        self._seqs = deque(seqs)
        """Those that were not tried, and those of which nobody knows whether they arrived."""
        self._refused: deque[int] = deque()
        self._tried: set[int] = set()
        """Those that were refused and have not succeeded since, also while they are under way."""
        self._all, self._ones = _Pause(), _Pause()
        """The pauses of all letters, and of the refused ones."""
        self._tries = self._tries_until = 0

    def __len__(self) -> int:
        return len(self._seqs) + len(self._refused)

    def __iter__(self) -> Iterator[int]:
        return chain(self._seqs, self._refused)

    @property
    def first(self) -> int:
        """The next one that was not refused, 0 for none."""
        return self._seqs[0] if self._seqs else 0

    @property
    def fails(self) -> bool:
        """True after a failure, until a success."""
        return bool(self._all.failures or self._ones.failures)

    @property
    def silences(self) -> int:
        """Failures of all in a row."""
        return self._all.failures

    def extend(self, seqs: Iterable[int]) -> None:
        self._seqs.extend(seqs)

    def put_last(self, which: Callable[[int], bool]) -> None:
        """Have those of `which` wait behind the others."""
        self._seqs = deque(sorted(self._seqs, key=which))

    def remove(self, seqs: Collection[int]) -> None:
        self._seqs = deque(seq for seq in self._seqs if seq not in seqs)
        self._refused = deque(seq for seq in self._refused if seq not in seqs)
        self._tried.difference_update(seqs)

    # -- what became of those that went -------------------------------------------------------------------------------

    def pause(self, now: int, until: int = 0) -> None:
        """Have all wait, after a failure that is not of one letter; to `until` if that is given."""
        if until:
            self._all.until = until
        else:
            self._all.grow(now)

    def unanswered(self, seq: int, now: int) -> None:
        self._seqs.append(seq)
        self.pause(now)

    def refused(self, seq: int, now: int) -> None:
        self._refused.append(seq)
        self._tried.add(seq)
        self._ones.grow(now)

    def succeeded(self, seq: int) -> None:
        self._all.failures = 0
        if seq in self._tried or not self._refused:
            self._ones.end()
            self._seqs.extend(self._refused)
            self._refused.clear()
            self._tried.clear()

    # -- what goes ----------------------------------------------------------------------------------------------------

    def next(self, now: int, under_way: int, waits: Collection[int]) -> int:
        """Return the one that may go, 0 for none. `under_way`: so many are; `waits`: others are forgotten."""
        if not self._all.over(now) or under_way >= (1 if self._all.failures else MAX_IN_FLIGHT):
            return 0
        for lane in (self._seqs, self._refused):
            while lane and lane[0] not in waits:
                self._tried.discard(lane.popleft())
        if self._seqs and (not self._tried or self._may_try(now)):
            return self._seqs[0]
        return self._refused[0] if self._refused and not under_way and self._ones.over(now) else 0

    def take(self, seq: int) -> None:
        """Take out the one that `next` returned."""
        if self._seqs and seq == self._seqs[0]:
            self._seqs.popleft()
            self._tries += 1
        else:
            self._refused.popleft()

    def _may_try(self, now: int) -> bool:
        if not 0 < self._tries_until - now <= SECOND:
            self._tries, self._tries_until = 0, now + SECOND
        return self._tries < FIRST_TRIES

    def wake_at(self, now: int) -> int:
        """Return when `next` may return another one for no other reason than the time; 0: it may not."""
        times = [self._tries_until] if self._seqs and self._tried else []
        times += [self._ones.until] if self._refused else []
        at = max(self._all.until, min(times)) if times else self._all.until if self._seqs else 0
        return min(at, now + MAX_PAUSE_NS) if at > now else 0
