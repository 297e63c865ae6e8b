"""`Retention`: the rules for keeping entries, and for deleting the journal's oldest segment.

An entry is live until its state machine holds it durably, or longer: a tail of each log is retained for slow followers,
and a leader pins the entries that peers need next, which fetch its state or follow its log (`Replicator`). Segments are
deleted oldest first, so a live entry in the oldest one keeps all. When the journal exceeds `node_retain_bytes`

- retention yields: entries kept only for slow followers are forgotten;
- live entries of quiet groups are carried forward, written again at the journal's end;
- a segment that pins hold a good part of is kept: carrying it would write everything again and again, so the free
  space limits the pins instead.

An unreadable entry can be neither carried nor sent. Its log goes on (`GroupLog.unreadable`) and forgets the entry once
the state machine has it durably, despite any pin; owners are asked to make it durable.
"""

from __future__ import annotations

from collections.abc import Callable

from jetcluster.raft.journal import records
from jetcluster.raft.journal.journal_state import JournalState
from jetcluster.raft.journal.log import NO_PIN, GroupLog, JournalDamageError
from jetcluster.raft.journal.writer import Syncs

RESTATED_PER_BATCH = 128
"""Quiet groups restated in a batch: about a millisecond of the event loop, and 12 KB."""

_DENSE_DIVISOR = 4
"""A segment is kept if pins hold more than 1/4 of it: carrying pinned entries never writes more than that."""
_TRIM_PARTS = 8
"""A log of more than 8 times the retained entries forgets its head in steps of at least 1/8 of its entries, because
each step moves all others in memory."""


class Restatement:
    """Repeats the state of every group once in each segment, so that older segments can go. One per journal.

    The first record of a group in a segment is its STATE, so that the records after it need no older segment. A group
    that writes adds its STATE itself; the quiet ones are restated some at a time, with the following batches. Segments
    before such a pass may go once it is complete."""

    def __init__(self, journal: JournalState) -> None:
        self.complete = 0
        """From this segment on every group has its STATE: only live entries are needed of older segments."""
        self._journal = journal
        self._since = 0
        self.left: list[GroupLog] = []
        """Groups not yet restated in the current pass; empty when none is running."""

    def begin(self, *, anew: bool) -> None:
        """Note a new segment. A running pass goes on, since one that began again with every segment might never end.
        `anew`: it begins again, because older segments must go soon."""
        if self.left and not anew:
            return
        self._since = self._journal.segment
        self.left = list(self._journal.groups.values())
        if not self.left:
            self.complete = self._since

    def step(self, most: int = RESTATED_PER_BATCH) -> None:
        """Restate up to `most` quiet groups in the open batch."""
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


class Retention:
    """Deletes segments of one journal. `carry` writes an entry again (log, type, index, term, command); `delete`
    removes a segment from the disk."""

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
        self._journal = journal
        self._syncs = syncs
        self._restatement = restatement
        self._write_again = carry
        self._delete = delete
        self._forget_to = 0
        """Segments up to this one must go, against retention too."""
        self._pinned: dict[GroupLog, int] = {}
        """By log, the last of the entries that were to go with them and are carried, as a pin holds them."""
        self.doomed: list[tuple[int, int]] = []
        """(segment, batch that must be durable before the segment is deleted)."""
        self._kept = False
        """True while pins hold the oldest segment."""
        self._holder: GroupLog | None = None
        self._unflushed = 0
        self._unreadable = False
        """True while a log has an unreadable entry."""

    @property
    def wants_compaction(self) -> bool:
        """True when there are more segments than retention allows (on a full disk, any that could go), or an unreadable
        entry. While pins hold the segments, it counts bytes that no state machine has durably, for a quick restart."""
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
        """Forget the compactable entries of `log` that are neither retained for slow followers nor pinned."""
        options = self._journal.options
        if self._journal.full:
            # Pinned entries go too: the peer fetches the newer state instead.
            log.compact(min(log.compactable, log.last_index))
            return
        if 0 < log.unreadable <= log.compactable:
            log.compact(log.unreadable)  # it cannot be sent to a peer
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

    def collect(self) -> bool:
        """Delete the oldest segments without live entries; free them of live entries when the journal is too large.
        Return True when the journal is to forget again what it has carried for pins only, which may go by now."""
        journal = self._journal
        if journal.failed is not None:
            return False
        limit = self._segments
        self._kept = self._unreadable = False
        if journal.counters.read_failures:
            for log in [log for log in journal.groups.values() if log.unreadable]:
                self.trim(log)
                self._unreadable |= bool(log.unreadable)
        # Without groups nothing is restated: the newest batch stays, as it holds the number of the newest batch.
        end = min(self._restatement.complete, journal.newest_segment)
        while self.oldest < end:
            if self._is_held() and (journal.segment - self.oldest >= limit or self.oldest <= self._forget_to):
                self._release(self._holders())
            if self._is_held():
                break
            # The records that replace it (STATE, COMPACT, CARRY) must be durable before it goes.
            self.doomed.append((self.oldest, journal.open_seq))
            self.oldest += 1
        if self._kept:
            self._unflushed = sum(log.bytes_after(log.compactable) for log in journal.groups.values())
        self.delete_doomed()
        return bool(self._pinned) and self.oldest > self._forget_to and all(map(self._is_free, self._pinned.items()))

    def forget_to(self, segment: int) -> None:
        """Remove the segments up to `segment` soon: live entries are carried, and pinned ones, which go later."""
        self._forget_to = segment
        self._pinned.clear()

    @property
    def forgets(self) -> bool:
        """True while something that is to go is still there."""
        return self.oldest <= self._forget_to or bool(self._pinned)

    def _is_free(self, pinned: tuple[GroupLog, int]) -> bool:
        log, index = pinned
        gone = self._journal.groups.get(log.gid) is not log or log.base_index >= index
        return gone or min(log.compactable, log.pin) >= index

    def delete_doomed(self) -> None:
        while self.doomed and self.doomed[0][1] <= self._syncs.synced:
            self._delete(self.doomed.pop(0)[0])

    def _is_held(self) -> bool:
        """True when a log has entries in the oldest segment. The last one found is tried first."""
        log = self._holder
        if log is None or not self._holds(log) or self._journal.groups.get(log.gid) is not log:
            self._holder = next(filter(self._holds, self._journal.groups.values()), None)
        return self._holder is not None

    def _holds(self, log: GroupLog) -> bool:
        first = log.first_segment()
        return first is not None and first <= self.oldest

    def _holders(self) -> list[GroupLog]:
        """Return the logs with entries in the oldest segment."""
        return [log for log in self._journal.groups.values() if self._holds(log)]

    def _release(self, holders: list[GroupLog]) -> None:
        """Free the oldest segment of live entries, as far as possible now."""
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
                if index <= log.compactable and self.oldest <= self._forget_to:
                    self._pinned[log] = max(index, self._pinned.get(log, 0))
                if index > log.unreadable and not log.is_moving(index):
                    budget -= self._carry(log, index)

    def _compact(self, log: GroupLog) -> None:
        """Forget the log's entries in the oldest segment, as far as they may go."""
        held = log.held_up_to(self.oldest)
        if held:
            log.compact(max(log.base_index, min(log.compactable, log.pin, held[-1][-1])))

    def _exceeded(self, pinned: list[GroupLog]) -> bool:
        """True when pins exceed their limits."""
        journal, options, pins = self._journal, self._journal.options, self._journal.pins
        held = (journal.segment - self.oldest) * options.segment_bytes - options.node_retain_bytes
        without = journal.free + held - options.reserve_bytes - options.segment_bytes - journal.also_reserved()
        limit = min(max(pins.bytes, pins.share * without), pins.most)
        return held > limit or sum(log.last_index - log.base_index for log in pinned) > pins.entries

    def _carry(self, log: GroupLog, index: int) -> int:
        """Write a live entry of an old segment again, so that the segment can go. Returns the bytes written."""
        try:
            command = log.command(index)
        except JournalDamageError as error:
            self._unreadable = True
            self._journal.report(log.gid, f"{error}; it is forgotten when its state is on the disk")
            return 0
        term, kind = log.describe(index)
        self._write_again(log, kind, index, term, command)
        log.moving(index)
        return len(command) + records.RECORD_HEAD_BYTES
