"""The state of every group, once in each segment: what lets the older segments go.

The first record of a group in a segment is its STATE, so that what is read from there on is understood without any
segment before it. A group that has something to write brings it itself; the quiet ones are repeated some at a time,
with the batches that follow. Segments from before such a pass may go when it is through.
"""

from __future__ import annotations

from jetcluster.raft.grouplog import GroupLog
from jetcluster.raft.journal_state import JournalState

PER_BATCH = 128
"""Quiet groups in a batch: about a millisecond of the event loop, and 12 KB."""


class Restatement:
    """One per journal."""

    def __init__(self, journal: JournalState) -> None:
        self.complete = 0
        """In this segment and later ones every group has its state: nothing is needed of the older ones but what is
        live there."""
        self._journal = journal
        self._since = 0
        self.left: list[GroupLog] = []
        """Not repeated yet in the pass that runs; empty when none does."""

    def begin(self, *, anew: bool) -> None:
        """A segment has begun. A pass that runs goes on, as one that began with every segment might never end; `anew`:
        it begins again, because what is older is to go soon."""
        if self.left and not anew:
            return
        self._since = self._journal.segment
        self.left = list(self._journal.groups.values())
        if not self.left:
            self.complete = self._since

    def step(self, most: int = PER_BATCH) -> None:
        """Takes some of the quiet groups into the open batch."""
        if not self.left:
            return
        journal = self._journal
        while self.left and most:
            log = self.left.pop()
            if log.stated < self._since and journal.groups.get(log.gid) is log:
                log.restate()
                most -= 1
        if not self.left:
            self.complete = self._since
