"""The segment of the journal in which each entry of a log lies, as runs of neighbours.

A log of gigabytes has some hundred runs, one per segment, so that the questions asked every second (which is the oldest
segment with an entry, what lies in it) cost nothing per entry. An entry that is carried to a newer segment leaves its
run, which may split it; entries are carried in order, so there are few such splits.
"""

from __future__ import annotations

from bisect import bisect_right


class SegmentRuns:
    """One per log. Indexes are ascending and without gaps; `last` is the log's last index."""

    __slots__ = ("_firsts", "_segments", "newest")

    def __init__(self) -> None:
        self._firsts: list[int] = []
        """First index of each run; it ends before the next one's."""
        self._segments: list[int] = []
        self.newest = -1
        """The segment of the last entry; -1 when there is none. Entries behind it in the same one need no `add`."""

    def add(self, index: int, segment: int) -> None:
        """Entry `index`, behind all others, lies in `segment`."""
        if self.newest != segment:
            self._firsts.append(index)
            self._segments.append(segment)
            self.newest = segment

    def segment_of(self, index: int) -> int:
        return self._segments[bisect_right(self._firsts, index) - 1]

    def oldest(self) -> int | None:
        """The oldest segment that holds an entry. Not always that of the first entry: it may have been carried."""
        return min(self._segments, default=None)

    def up_to(self, segment: int, last: int) -> list[range]:
        """The indexes of what lies in `segment` or an older one, ascending."""
        ends = [*self._firsts[1:], last + 1]
        runs = zip(self._firsts, ends, self._segments, strict=False)  # an empty log has an end and no run
        return [range(first, end) for first, end, where in runs if where <= segment]

    def move(self, index: int, segment: int, last: int) -> None:
        """Entry `index` lies in `segment` from now on."""
        firsts, segments = self._firsts, self._segments
        at = bisect_right(firsts, index) - 1
        old = segments[at]
        if old == segment:
            return
        end = firsts[at + 1] if at + 1 < len(firsts) else last + 1
        parts = [(firsts[at], old), (index, segment), (index + 1, old)]
        kept = parts[index == firsts[at] : 2 if index + 1 == end else 3]
        firsts[at : at + 1] = [first for first, _ in kept]
        segments[at : at + 1] = [where for _, where in kept]
        for joint in (at + len(kept), at):  # with what follows, then with what is before
            if 0 < joint < len(segments) and segments[joint - 1] == segments[joint]:
                del firsts[joint], segments[joint]
        self.newest = segments[-1]

    def drop_to(self, index: int, last: int) -> None:
        """Entries up to `index` are gone."""
        if index >= last:
            self.clear()
            return
        at = bisect_right(self._firsts, index + 1) - 1
        del self._firsts[:at], self._segments[:at]
        self._firsts[0] = index + 1

    def drop_from(self, index: int) -> None:
        """Entries from `index` on are gone."""
        at = bisect_right(self._firsts, index - 1)
        del self._firsts[at:], self._segments[at:]
        self.newest = self._segments[-1] if self._segments else -1

    def clear(self) -> None:
        self._firsts.clear()
        self._segments.clear()
        self.newest = -1
