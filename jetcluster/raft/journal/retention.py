"""`Retention`: the rules of what stays in the journal, and when its oldest segment may go.

An entry is live until its state machine holds it durably, or longer: a tail of each log is retained for slow followers,
and a leader pins what peers need next that fetch its state or go on from its log (`Replicator`). Segments go oldest
first, so what is live in the oldest one keeps all. When the journal holds more than `node_retain_bytes`

- retention yields: what is only kept for slow followers is forgotten;
- live entries of quiet groups are carried forward, written again at the journal's end;
- a segment that pins hold a good part of is kept. To carry it would write everything anew, again and again; pins are
  limited by the space that is left instead.

An entry that cannot be read back can be neither carried nor sent. Its log goes on (`GroupLog.unreadable`), and forgets
it as soon as the state machine has it durably, whoever it is kept for: owners are asked to see to that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from jetcluster.raft.journal import records
from jetcluster.raft.journal.journal_state import JournalState
from jetcluster.raft.journal.log import NO_PIN, GroupLog, JournalDamageError
from jetcluster.raft.journal.writer import Syncs

RESTATED_PER_BATCH = 128
"""Quiet groups in a batch: about a millisecond of the event loop, and 12 KB."""

_DENSE_DIVISOR = 4
"""A segment of which pins hold more than this part is kept: to carry forward what they hold costs at most that much."""
_TRIM_PARTS = 8
"""A log of that many times what is retained forgets its head in steps of this part of its entries: each step moves all
others in memory."""


class Restatement:
    """Repeats the state of every group once in each segment, which lets the older segments go. One per journal.

    The first record of a group in a segment is its STATE, so that what is read from there on is understood without
    any segment before it. A group that has something to write brings it itself; the quiet ones are repeated some at
    a time, with the batches that follow. Segments from before such a pass may go when it is through."""

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

    def step(self, most: int = RESTATED_PER_BATCH) -> None:
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


@dataclass(slots=True, frozen=True)
class PinLimits:
    """Bounds of what pins hold, all groups of a node together."""

    bytes: int = 256 << 20
    share: float = 0.25
    """Bytes on disk, or that share of the free space above the reserve if it is more,"""
    most: int = 32 << 30
    """but not more than so many: a restart reads all of it."""
    entries: int = 4 << 20
    """17 bytes of memory each, and some 300 for as long as a restart reads them."""


class Retention:
    """One per journal. `carry` writes an entry of a log, by its type, index and term, again; `delete` takes a segment
    off the disk."""

    def __init__(
        self,
        journal: JournalState,
        syncs: Syncs,
        restatement: Restatement,
        carry: Callable[[GroupLog, int, int, int, bytes], None],
        delete: Callable[[int], None],
    ) -> None:
        self.oldest = 1
        """The oldest segment that is still needed."""
        self.pins = PinLimits()
        self._journal = journal
        self._syncs = syncs
        self._restatement = restatement
        self._write_again = carry
        self._delete = delete
        self._forget_to = 0
        """Segments up to it are to go, also against retention."""
        self.doomed: list[tuple[int, int]] = []
        """(segment, number of the batch that makes it superfluous)."""
        self._kept = False
        """Pins hold the oldest segment."""
        self._holder: GroupLog | None = None
        self._unflushed = 0
        self._unreadable = False
        """Some log has an entry that cannot be read."""
        self.report: Callable[[int, str], None] = lambda gid, text: None
        """Called with a group's entry that cannot be read."""

    @property
    def wants_compaction(self) -> bool:
        """More segments than retention allows; on a full disk, any that could go. Where pins hold them, so much that no
        state machine has durably: to have it helps a restart. Also an entry that cannot be read."""
        if self._unreadable:
            return True
        if self._kept:
            return self._unflushed >= self._journal.options.node_retain_bytes
        return self._journal.segment - self.oldest >= self._segments

    @property
    def _segments(self) -> int:
        options = self._journal.options
        return 1 if self._journal.full else max(1, options.node_retain_bytes // options.segment_bytes)

    def trim(self, log: GroupLog) -> None:
        """Forgets compactable entries of `log` beyond what is retained for slow followers and pinned for others."""
        options = self._journal.options
        if self._journal.full:
            # also what is pinned: the peer fetches what changed since
            log.compact(min(log.compactable, log.last_index))
            return
        if 0 < log.unreadable <= log.compactable:
            log.compact(log.unreadable)  # the peer cannot be sent it
        floor = min(log.compactable, log.pin)
        entries = log.last_index - log.base_index
        if floor <= log.base_index or (
            log.bytes <= options.retain_bytes + (options.retain_bytes >> 2)
            and entries <= options.retain_entries + (options.retain_entries >> 2)
        ):
            return
        index = log.trim_point(floor, options.retain_bytes, options.retain_entries)
        if entries > _TRIM_PARTS * options.retain_entries and (index - log.base_index) * _TRIM_PARTS < entries:
            return
        log.compact(index)

    def collect(self) -> None:
        """Deletes the oldest segments that hold nothing live; makes them so when retention exceeds its bound."""
        journal = self._journal
        if journal.failed is not None:
            return
        limit = self._segments
        self._kept = self._unreadable = False
        if journal.counters.read_failures:
            for log in [log for log in journal.groups.values() if log.unreadable]:
                self.trim(log)
                self._unreadable |= bool(log.unreadable)
        # Without a group nothing is written anew: the newest batch stays, as it says which one that is.
        end = min(self._restatement.complete, journal.newest_segment)
        while self.oldest < end:
            if self._is_held() and (journal.segment - self.oldest >= limit or self.oldest <= self._forget_to):
                self._release(self._holders())
            if self._is_held():
                break
            # What makes it superfluous (STATE, COMPACT, CARRY) must be durable before it goes.
            self.doomed.append((self.oldest, journal.open_seq))
            self.oldest += 1
        if self._kept:
            self._unflushed = sum(log.bytes_after(log.compactable) for log in journal.groups.values())
        self.delete_doomed()

    def forget_to(self, segment: int) -> None:
        """Segments up to it are to leave the disk: what is live there is carried away. Only pins are waited for."""
        self._forget_to = segment

    def delete_doomed(self) -> None:
        while self.doomed and self.doomed[0][1] <= self._syncs.synced:
            self._delete(self.doomed.pop(0)[0])

    def _is_held(self) -> bool:
        """Some log has entries in the oldest segment. The one that had them last time mostly still has."""
        log = self._holder
        if log is None or not self._holds(log) or self._journal.groups.get(log.gid) is not log:
            self._holder = next(filter(self._holds, self._journal.groups.values()), None)
        return self._holder is not None

    def _holds(self, log: GroupLog) -> bool:
        first = log.first_segment()
        return first is not None and first <= self.oldest

    def _holders(self) -> list[GroupLog]:
        """Logs with entries in the oldest segment."""
        return [log for log in self._journal.groups.values() if self._holds(log)]

    def _release(self, holders: list[GroupLog]) -> None:
        """Empties the oldest segment, as far as that is possible now."""
        for log in holders:
            self._compact(log)
        pinned = [log for log in holders if log.pin < log.compactable]
        parts = [(log, part) for log in pinned for part in log.held_up_to(self.oldest)]
        held = sum(log.bytes_of(part) + len(part) * records.RECORD_HEAD_BYTES for log, part in parts)
        if held * _DENSE_DIVISOR > self._journal.options.segment_bytes:
            if not self._journal.full and not self._exceeded(pinned):
                self._kept = True
                return
            for log in pinned:
                self._journal.counters.pins_given_up += 1
                log.pin = NO_PIN
                self._compact(log)
                self.trim(log)
        budget = 0 if self._journal.scarce else self._journal.options.segment_bytes
        for log in holders:
            for index in [index for part in log.held_up_to(self.oldest) for index in part]:
                if budget <= 0:
                    return
                if index > log.unreadable and not log.is_moving(index):
                    budget -= self._carry(log, index)

    def _compact(self, log: GroupLog) -> None:
        """Forgets what of it lies in the oldest segment, as far as it may go."""
        held = log.held_up_to(self.oldest)
        if held:
            log.compact(max(log.base_index, min(log.compactable, log.pin, held[-1][-1])))

    def _exceeded(self, pinned: list[GroupLog]) -> bool:
        """True when pins hold more than they may."""
        journal, options, pins = self._journal, self._journal.options, self.pins
        held = (journal.segment - self.oldest) * options.segment_bytes - options.node_retain_bytes
        without = journal.free + held - options.reserve_bytes - options.segment_bytes - journal.also_reserved()
        limit = min(max(pins.bytes, pins.share * without), pins.most)
        return held > limit or sum(log.last_index - log.base_index for log in pinned) > pins.entries

    def _carry(self, log: GroupLog, index: int) -> int:
        """Writes a live entry of an old segment again, so that the segment can go; how many bytes that takes."""
        try:
            command = log.command(index)
        except JournalDamageError as error:
            self._unreadable = True
            self.report(log.gid, f"{error}; it is forgotten when its state is on the disk")
            return 0
        term, kind = log.describe(index)
        self._write_again(log, kind, index, term, command)
        log.moving(index)
        return len(command) + records.RECORD_HEAD_BYTES
