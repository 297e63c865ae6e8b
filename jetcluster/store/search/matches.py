"""`Matches`: the sequences of all messages that match a recently used wildcard.

Counting the matches of a wildcard from the middle of a stream reads every block, and a reader that pages through a
stream needs the count with every page. The sequences are kept as sorted columns of 8 bytes per message, within bounds
of the node. The next use of a filter reads new blocks, and takes out the removals noted since.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence
from weakref import WeakKeyDictionary

from jetcluster.store.search.filters import Wanted

MAX_KEPT_SEQS = 4 << 20
"""Sequences kept for all streams of a node: 32 MiB."""
MAX_FILTER_SEQS = 1 << 20
"""Sequences kept for one filter."""
MAX_NOTED_REMOVALS = 65_536
"""Removed sequences that a stream remembers; filters not used for that long are forgotten."""
MAX_SINGLE_REMOVALS = 8
"""Up to this number, removed sequences are taken out one by one."""


class Matched:
    """The matches of one filter: `seqs` holds all live ones below `behind`, and maybe some below the stream's first."""

    __slots__ = ("behind", "noted", "owner", "seqs")

    def __init__(self, owner: Matches, seqs: Sequence[int], behind: int, noted: int) -> None:
        self.owner = owner
        self.seqs = array("Q", seqs)
        self.behind = behind
        self.noted = noted
        """Number of removals taken out."""

    def take_out(self, removed: Sequence[int]) -> None:
        seqs = self.seqs
        if len(removed) > MAX_SINGLE_REMOVALS:
            gone = set(removed)
            self.seqs = array("Q", [seq for seq in seqs if seq not in gone])
            return
        for seq in removed:
            at = bisect_left(seqs, seq)
            if at < len(seqs) and seqs[at] == seq:
                del seqs[at]


class KeptMatches:
    """The matches of all streams of a node, the least recently used first."""

    def __init__(self, max_kept: int = MAX_KEPT_SEQS) -> None:
        self._max_kept = max_kept
        self._total = 0
        self._sizes: OrderedDict[Matched, int] = OrderedDict()

    def used(self, matched: Matched) -> None:
        """Note that `matched` was used or has grown."""
        self._total += len(matched.seqs) - self._sizes.pop(matched, 0)
        self._sizes[matched] = len(matched.seqs)
        while self._total > self._max_kept:
            oldest = next(iter(self._sizes))
            oldest.owner.drop(oldest)

    def dropped(self, matched: Matched) -> None:
        self._total -= self._sizes.pop(matched, 0)


class Matches:
    """The matches of one stream."""

    def __init__(self, kept: KeptMatches) -> None:
        self._kept = kept
        self._filters: dict[Wanted, Matched] = {}
        self._removed: list[int] = []
        self._forgotten = 0
        """Removals noted before those in `_removed`."""

    def get(self, wanted: Wanted, first_seq: int) -> Matched | None:
        """Return the matches without messages removed meanwhile."""
        matched = self._filters.get(wanted)
        if matched is None:
            return None
        removed = self._removed[matched.noted - self._forgotten :]
        if removed:
            matched.noted += len(removed)
            matched.take_out(removed)
        below = bisect_left(matched.seqs, first_seq)
        if below * 2 > len(matched.seqs):
            del matched.seqs[:below]
        self._kept.used(matched)
        return matched

    def keep(self, wanted: Wanted, seqs: Sequence[int], behind: int) -> Matched:
        matched = Matched(self, seqs, behind, self._forgotten + len(self._removed))
        self._filters[wanted] = matched
        self._kept.used(matched)
        return matched

    def grown(self, matched: Matched) -> None:
        if len(matched.seqs) > MAX_FILTER_SEQS:
            self.drop(matched)
        else:
            self._kept.used(matched)

    def removed(self, seqs: Sequence[int]) -> None:
        """Note removed messages, except those below the stream's first sequence."""
        if not self._filters:
            return
        self._removed += seqs
        if len(self._removed) > MAX_NOTED_REMOVALS:
            self._forget()

    def drop(self, matched: Matched) -> None:
        self._filters = {name: other for name, other in self._filters.items() if other is not matched}
        self._kept.dropped(matched)
        if not self._filters:
            self._forgotten += len(self._removed)
            self._removed.clear()

    def clear(self) -> None:
        for matched in list(self._filters.values()):
            self.drop(matched)

    def _forget(self) -> None:
        """Forget the older half of the notes, and the filters that have not taken them out."""
        self._forgotten += len(self._removed) // 2
        del self._removed[: len(self._removed) // 2]
        for matched in list(self._filters.values()):
            if matched.noted < self._forgotten:
                self.drop(matched)


_of_kv: WeakKeyDictionary[object, KeptMatches] = WeakKeyDictionary()


def kept_of(kv: object) -> KeptMatches:
    """Return the matches that all streams of `kv` share, so that the bound holds for the node."""
    kept = _of_kv.get(kv)
    if kept is None:
        kept = _of_kv[kv] = KeptMatches()
    return kept
