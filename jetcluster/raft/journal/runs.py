"""The segments in which a log's entries lie, as runs of neighbours.

A log of gigabytes has some hundred runs, one per segment, so the questions asked every second (the oldest segment with
an entry, the entries in it) cost nothing per entry. Carrying an entry to a newer segment may split its run; entries are
carried in order, so splits are few.
"""

from __future__ import annotations

from bisect import bisect_right


class SegmentRuns:
    """The runs of one log. Indexes are ascending and without gaps; `last` is the log's last index."""

    __slots__ = ("_firsts", "_segments", "newest")

    def __init__(self) -> None:
        self._firsts: list[int] = []
        """First index of each run, which ends before the next one's."""
        self._segments: list[int] = []
        self.newest = -1
        """The segment of the last entry, -1 for none. Later entries in the same segment need no `add`."""

    def add(self, index: int, segment: int) -> None:
        """Add entry `index`, after all others, in `segment`."""
        if self.newest != segment:
            self._firsts.append(index)
            self._segments.append(segment)
            self.newest = segment

    def segment_of(self, index: int) -> int:
        return self._segments[bisect_right(self._firsts, index) - 1]

    def oldest(self) -> int | None:
        """Return the oldest segment that holds an entry: not always the first entry's, which may have been carried."""
        return min(self._segments, default=None)

    def up_to(self, segment: int, last: int) -> list[range]:
        """Return the indexes of the entries in `segment` or older ones, ascending."""
        ends = [*self._firsts[1:], last + 1]
        runs = zip(self._firsts, ends, self._segments, strict=False)  # an empty log has one end and no run
        return [range(first, end) for first, end, where in runs if where <= segment]

    def move(self, index: int, segment: int, last: int) -> None:
        """Move entry `index` to `segment`."""
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
        for joint in (at + len(kept), at):  # join with the following run, then with the previous one
            if 0 < joint < len(segments) and segments[joint - 1] == segments[joint]:
                del firsts[joint], segments[joint]
        self.newest = segments[-1]

    def drop_to(self, index: int, last: int) -> None:
        """Remove the entries up to `index`."""
        if index >= last:
            self.clear()
            return
        at = bisect_right(self._firsts, index + 1) - 1
        del self._firsts[:at], self._segments[:at]
        self._firsts[0] = index + 1

    def drop_from(self, index: int) -> None:
        """Remove the entries from `index` on."""
        at = bisect_right(self._firsts, index - 1)
        del self._firsts[at:], self._segments[at:]
        self.newest = self._segments[-1] if self._segments else -1

    def clear(self) -> None:
        self._firsts.clear()
        self._segments.clear()
        self.newest = -1
