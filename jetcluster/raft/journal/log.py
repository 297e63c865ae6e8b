"""One group's log in the node's journal: entries, term and vote, configurations, durability.

An entry takes 17 bytes of arrays (term, type, length, offset in its segment), since a log may hold gigabytes while a
peer catches up from it. Only commands at the tail are kept in memory, bounded by bytes; older ones are read back from
their segment and checked against their CRC.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence

from jetcluster.checksum import crc32
from jetcluster.errors import DiskError
from jetcluster.raft.codec import CONFIG, REGULAR
from jetcluster.raft.config import JournalOptions
from jetcluster.raft.journal import records
from jetcluster.raft.journal.runs import SegmentRuns
from jetcluster.raft.membership import Config, decode_config, encode_config
from jetcluster.records import dataclass

_MAX_INDEX = 1 << 62
NO_PIN = _MAX_INDEX
ALL_ON_CREDIT = _MAX_INDEX
"""The `GroupLog.credit` of a log whose present and future entries are all on credit."""

Append = Callable[["GroupLog", int, int, int, int, bytes], tuple[int, int]]
"""Adds a record to the journal: (log, kind, entry type, index, term, body) -> the body's (segment, offset)."""
ReadRecord = Callable[[int, int, int], records.Record | None]
"""Reads a record back: (segment, offset, length) of its body -> the record, None when it does not validate."""


class JournalDamageError(DiskError):
    """A written entry cannot be read back: its bytes changed or are gone."""


@dataclass(slots=True)
class Place:
    """The place of an entry in the journal."""

    term: int
    kind: int
    segment: int
    offset: int
    length: int
    config: Config | None


class GroupLog:
    """One group's log, owned by `Journal`. Each change also appends the record that repeats it at the next start."""

    __slots__ = (
        "_append",
        "_cache",
        "_cache_bytes",
        "_cache_first",
        "_crc",
        "_crc_count",
        "_kinds",
        "_lengths",
        "_low",
        "_moving",
        "_offsets",
        "_options",
        "_read_record",
        "_runs",
        "_seen_gseq",
        "_terms",
        "base_index",
        "base_term",
        "bytes",
        "commit_hint",
        "compactable",
        "configs",
        "credit",
        "damaged",
        "durable",
        "durable_gseq",
        "election_gseq",
        "entry_gseq",
        "fetching",
        "gid",
        "gseq",
        "joining",
        "kept",
        "last_index",
        "last_term",
        "life",
        "pin",
        "relaxed",
        "stated",
        "tail",
        "term",
        "term_gseq",
        "unreadable",
        "voted_for",
        "written_index",
    )

    def __init__(
        self, gid: int, config: Config, durable: bool, options: JournalOptions, append: Append, read: ReadRecord
    ) -> None:
        self._options = options
        self._append = append
        self._read_record = read
        self.gid = gid
        self.life = 0
        """Serial number of this log among those created by this process; 0 for one found at its start. A new number
        over the same link shows a leader that the log of the earlier acks was deleted."""
        self.durable = durable
        """False for memory streams: entries count once they are written, before they are on disk, and outlive the
        process but not a power failure."""
        self.base_index = 0
        """The log starts after this index; the state machine holds everything up to it."""
        self.base_term = 0
        self.last_index = 0
        self.last_term = 0
        self.term = 0
        self.voted_for: str | None = None
        self.configs: list[tuple[int, Config]] = [(0, config)]
        """(index, configuration), ascending; the first is the one in force at `base_index`."""
        self.commit_hint = 0
        """A committed index, as last recorded."""
        self.damaged = False
        """Durable records of this group were lost: see `Rejoin`."""
        self.joining = False
        """The log counts as damaged only because this replica is being added."""
        self.kept = False
        """The state machine's state was durable outside of the journal: if it is missing, it was lost."""
        self.fetching = False
        """The owner was asked to fetch a snapshot: at the next start its state may be ahead of this log."""
        self.relaxed = False
        """The process that wrote this log counted entries before they were on disk: a power failure may have taken
        entries that the flushed state has."""
        self.credit = 0
        """Index up to which entries may have been committed before they were on the disks of a majority
        (`raft.core.group_state.Credit`)."""
        self.tail: list[tuple[int, int, int, bytes]] = []
        """(index, term, type, command) of the intact entries after the hole of a damaged log, if no other peer ever
        belonged to the group (`raft.rescue`)."""
        self.unreadable = 0
        """Index of the last entry that could not be read back; 0 for none. Unlike with `damaged`, index and term of
        every entry are still known, so nothing acknowledged is forgotten. The entry goes once the state has it durably,
        and comes from a peer if it is not applied yet."""
        self.compactable = 0
        """Index up to which the state machine holds everything durably."""
        self.pin = NO_PIN
        """Index after which compactable entries are kept for peers that catch up."""
        self.bytes = 0
        self.gseq = 0
        """Number of records appended so far; `durable_gseq` of them are durable."""
        self.durable_gseq = 0
        self.entry_gseq = 0
        self.term_gseq = 0
        self.election_gseq = 0
        """The newest record on which elections depend: a term, a vote, or a configuration."""
        self.written_index = 0
        self.stated = 0
        """The newest segment with the group's STATE, which is its first record there."""
        self._terms = array("Q")
        self._kinds = array("B")
        self._runs = SegmentRuns()
        self._offsets = array("I")
        self._lengths = array("I")
        self._cache: dict[int, bytes] = {}
        self._cache_first = 1
        self._cache_bytes = 0
        self._crc = self._crc_count = 0
        """Checksum of the first `_crc_count` terms."""
        self._low = _MAX_INDEX
        self._moving: set[int] = set()
        self._seen_gseq = 0

    def check(self) -> None:
        """Assert the invariants. Called after each removal of entries, and at the start."""
        base, last, count = self.base_index, self.last_index, len(self._terms)
        assert 0 <= base <= last == base + count, (self.gid, base, last, count)
        columns = len(self._kinds), len(self._offsets), len(self._lengths)
        assert columns == (count, count, count), (self.gid, columns, count)
        assert 0 <= self.base_term <= self.last_term, (self.gid, self.base_term, self.last_term)
        assert count or self.base_term == self.last_term, (self.gid, self.base_term, self.last_term)
        assert base <= self.compactable, (self.gid, base, self.compactable)
        assert not self.unreadable or base < self.unreadable <= last, (self.gid, base, self.unreadable, last)
        assert 0 <= self.written_index <= last, (self.gid, self.written_index, last)
        assert 1 <= self._cache_first <= last + 1, (self.gid, self._cache_first, last)
        assert self.bytes >= 0 and (count or not self.bytes), (self.gid, self.bytes, count)
        assert self._cache_bytes >= 0 and (self._cache or not self._cache_bytes), (self.gid, self._cache_bytes)
        first, newest = self.configs[0][0], self.configs[-1][0]
        assert first == base <= newest <= last, (self.gid, base, first, newest, last)
        records_at = self.durable_gseq, self.entry_gseq, self.term_gseq, self.election_gseq
        assert 0 <= min(records_at) <= max(records_at) <= self.gseq, (self.gid, records_at, self.gseq)
        assert 0 <= self._crc_count <= count, (self.gid, self._crc_count, count)

    # -- reading

    @property
    def durable_index(self) -> int:
        """Index up to which entries count as stored by this node."""
        return self.written_index

    @property
    def config(self) -> Config:
        return self.configs[-1][1]

    @property
    def config_index(self) -> int:
        return self.configs[-1][0]

    @property
    def rescues(self) -> int:
        """The highest number of rescues in the log's configurations (`Config.rescue`)."""
        return max(config.rescue for _, config in self.configs)

    def config_at(self, index: int) -> Config:
        """Return the newest configuration at or below `index`, which is not below the log's base."""
        for at, config in reversed(self.configs):
            if at <= index:
                return config
        return self.configs[0][1]

    def configs_from(self, index: int) -> list[Config]:
        """Return the configurations that may be in force when `index` is committed: the one there and later ones."""
        behind = [config for at, config in self.configs if at > index]
        return [self.config_at(index), *behind]

    def term_at(self, index: int) -> int | None:
        """Return the term of `index`; None when the log does not hold it."""
        if index == self.last_index:
            return self.last_term
        position = index - self.base_index - 1
        if position == -1:
            return self.base_term
        if 0 <= position < len(self._terms):
            return self._terms[position]
        return None

    def kind_at(self, index: int) -> int:
        return self._kinds[index - self.base_index - 1]

    def first_index_of_term(self, index: int) -> int:
        """Return the first retained index with the term of `index`."""
        term = self.term_at(index)
        while index - 1 > self.base_index and self._terms[index - self.base_index - 2] == term:
            index -= 1
        return index

    def entry(self, index: int) -> tuple[int, int, bytes]:
        """Return (term, type, command) of a retained entry. Raises JournalDamageError."""
        at = index - self.base_index - 1
        command = self._cache.get(index)
        return self._terms[at], self._kinds[at], self._read(index) if command is None else command

    def command(self, index: int) -> bytes:
        """Return the command of a retained entry. Raises JournalDamageError."""
        command = self._cache.get(index)
        return self._read(index) if command is None else command

    def slice(self, first: int, max_bytes: int, max_count: int) -> list[tuple[bytes, int, int]]:
        """Return (command, term, type) from `first` on: one, then as many as fit. Raises JournalDamageError."""
        at = first - self.base_index - 1
        assert at >= 0, f"index {first} is not in the log"
        result: list[tuple[bytes, int, int]] = []
        size = 0
        for position in range(at, min(len(self._terms), at + max_count)):
            size += self._lengths[position]
            if result and size > max_bytes:
                break
            command = self._cache.get(first)
            if command is None:
                command = self._read(first)
            result.append((command, self._terms[position], self._kinds[position]))
            first += 1
        return result

    def bytes_after(self, index: int) -> int:
        return sum(self._lengths[max(0, index - self.base_index) :])

    def commands_after(self, index: int) -> int:
        """Return the bytes of the commands after `index`: entries of the group itself have some, too."""
        start = max(0, index - self.base_index)
        entries = zip(self._kinds[start:], self._lengths[start:], strict=True)
        return sum(length for kind, length in entries if kind == REGULAR)

    def first_segment(self) -> int | None:
        """Return the oldest segment with a retained entry."""
        return self._runs.oldest()

    def held_up_to(self, segment: int) -> list[range]:
        """Return the indexes, in order, of the retained entries in `segment` or older ones."""
        return self._runs.up_to(segment, self.last_index)

    def bytes_of(self, entries: range) -> int:
        """Return the bytes of retained entries."""
        start = self.base_index + 1
        return sum(self._lengths[entries.start - start : entries.stop - start])

    def log_crc(self) -> int:
        """Return the checksum of the terms of all entries."""
        if self._crc_count < len(self._terms):
            self._crc = crc32(self._terms[self._crc_count :].tobytes(), self._crc)
            self._crc_count = len(self._terms)
        return self._crc

    def _read(self, index: int) -> bytes:
        at = index - self.base_index - 1
        segment, offset, length = self._runs.segment_of(index), self._offsets[at], self._lengths[at]
        record = self._read_record(segment, offset, length)
        if record is None or (record.gid, record.log_index, record.term) != (self.gid, index, self._terms[at]):
            self.unreadable = max(self.unreadable, index)
            raise JournalDamageError(f"group {self.gid}: entry {index} in segment {segment} does not validate")
        return record.body

    # -- writing

    def append(self, kind: int, term: int, command: bytes) -> int:
        """Append one entry and return its index."""
        index = self.last_index + 1
        segment, offset = self._append(self, records.ENTRY, kind, index, term, command)
        self.entry_gseq = self.gseq
        if kind == CONFIG:  # configurations, like votes, are never on credit
            self.election_gseq = self.gseq
            self.configs.append((index, decode_config(command)))
        size = len(command)
        self._terms.append(term)
        self._kinds.append(kind)
        if segment != self._runs.newest:
            self._runs.add(index, segment)
        self._offsets.append(offset)
        self._lengths.append(size)
        self.last_index = index
        self.last_term = term
        self.bytes += size
        self._cache[index] = command
        self._cache_bytes += size
        if self._cache_bytes > self._options.cache_bytes:
            self.shrink(self._options.cache_bytes)
        return index

    def shrink(self, limit: int) -> bool:
        """Drop commands that are on disk from memory, oldest first. Returns True if at most `limit` bytes stay."""
        while self._cache_bytes > limit and self._cache_first <= self.written_index:
            gone = self._cache.pop(self._cache_first, None)
            if gone is not None:
                self._cache_bytes -= len(gone)
            self._cache_first += 1
        return self._cache_bytes <= limit

    def truncate(self, first: int) -> None:
        """Remove every entry from `first` on."""
        assert self.base_index < first <= self.last_index, f"truncate {first} of {self.base_index}..{self.last_index}"
        self._append(self, records.TRUNCATE, 0, first, 0, b"")
        self.entry_gseq = self.gseq
        for index in range(first, self.last_index + 1):
            gone = self._cache.pop(index, None)
            if gone is not None:
                self._cache_bytes -= len(gone)
        self.bytes -= self.bytes_after(first - 1)
        keep = first - self.base_index - 1
        for column in (self._terms, self._kinds, self._offsets, self._lengths):
            del column[keep:]
        self._runs.drop_from(first)
        if self.unreadable >= first:
            self.unreadable = 0  # an earlier unreadable entry will be found again
        if keep < self._crc_count:
            self._crc = self._crc_count = 0
        self.last_index = first - 1
        self.last_term = self._terms[-1] if self._terms else self.base_term
        while self.configs[-1][0] >= first:
            self.configs.pop()
        self._cache_first = min(self._cache_first, first)
        # A sync in progress may cover the removed entries: it must not make their replacements count as durable.
        self._low = min(self._low, first)
        self.written_index = min(self.written_index, first - 1)
        self.check()

    def set_term(self, term: int, voted_for: str | None) -> None:
        self.term = term
        self.voted_for = voted_for
        self._append(self, records.TERM, 0, 0, term, (voted_for or "").encode())
        self.entry_gseq = self.term_gseq = self.election_gseq = self.gseq

    def set_commit_hint(self, commit: int) -> None:
        self.commit_hint = commit
        self._append(self, records.HINT, 0, commit, 0, b"")

    def compact(self, index: int) -> None:
        """Forget the entries up to `index`."""
        if index <= self.base_index:
            return
        assert index <= self.last_index, f"compact {index} beyond {self.last_index}"
        config = self.config_at(index)
        term = self.term_at(index)
        assert term is not None
        count = index - self.base_index
        if count < len(self._lengths) // 2:  # the shorter side is summed: a pin may have held millions of entries
            self.bytes -= sum(self._lengths[:count])
        else:
            self.bytes = sum(self._lengths[count:])
        for column in (self._terms, self._kinds, self._offsets, self._lengths):
            del column[:count]
        self._runs.drop_to(index, self.last_index)
        self._crc = self._crc_count = 0
        for old in range(self._cache_first, index + 1):
            gone = self._cache.pop(old, None)
            if gone is not None:
                self._cache_bytes -= len(gone)
        self._cache_first = max(self._cache_first, index + 1)
        if self.unreadable <= index:
            self.unreadable = 0
        self.base_index, self.base_term = index, term
        self.configs = [(index, config)] + [c for c in self.configs if c[0] > index]
        self._append(self, records.COMPACT, 0, index, term, encode_config(config))
        self.check()

    def install(self, index: int, term: int, config: Config) -> None:
        """Replace the whole log by an empty one after `index`, which the state machine holds. A state of a later term
        than the log knows says that the log has lost that term, and its vote in it."""
        for column in (self._terms, self._kinds, self._offsets, self._lengths):
            del column[:]
        self._runs.clear()
        self._crc = self._crc_count = 0
        self._cache.clear()
        self._cache_bytes = self.bytes = self.unreadable = 0
        self._cache_first = index + 1
        self._low = min(self._low, 0)
        self.base_index = self.last_index = index
        self.base_term = self.last_term = term
        self.configs = [(index, config)]
        self.compactable = max(self.compactable, index)
        self.fetching = False
        self.written_index = 0
        lost = term > self.term
        if lost:
            self.term, self.voted_for = term, None
        self.restate(records.RESET_FLAG)
        self.entry_gseq = self.gseq
        if lost:
            self.term_gseq = self.election_gseq = self.gseq
        self.check()

    def set_members(self, config: Config) -> None:
        """Correct the configuration in force at the base."""
        self.configs[0] = (self.base_index, config)
        self.restate()
        self.election_gseq = self.gseq  # entries are on disk as before

    def heal(self) -> None:
        """Note that the damage is repaired: from now on this replica counts again."""
        self.damaged = self.joining = False
        self.tail = []
        self.restate()
        self.entry_gseq = self.term_gseq = self.election_gseq = self.gseq

    def mark_damaged(self) -> None:
        """Record that acknowledged entries or votes of this replica are lost."""
        self.damaged = True
        self.restate()

    def mark_joining(self) -> None:
        """Record that this replica is being added to an existing group. It may have been a member earlier and have
        given acks and votes that it has lost: until it has caught up (`Rejoin`) it counts as damaged."""
        self.joining = True
        self.mark_damaged()

    def mark_kept(self) -> None:
        if not self.kept:
            self.kept = True
            self.restate()

    def set_fetching(self, fetching: bool) -> None:
        if fetching != self.fetching:
            self.fetching = fetching
            self.restate()

    def settle_relaxed(self) -> None:
        """Record whether this process counts entries before they are on disk."""
        relaxed = not self.durable or self._options.sync_interval is not None
        if relaxed != self.relaxed:
            self.relaxed = relaxed
            self.restate()

    def set_credit(self, index: int) -> None:
        """Set `credit`. The record holds only whether it is 0: after a restart a log on credit is so as a whole."""
        told, self.credit = bool(self.credit), index
        if bool(index) != told:
            self.restate()

    def may_lose(self, commit: int) -> bool:
        """True when a power failure may have taken entries committed up to `commit` from a remaining majority."""
        return self.relaxed or 0 < commit <= self.credit

    def restate(self, flags: int = 0) -> None:
        """Record everything about the group except its entries again: see `Restatement`."""
        body = records.encode_state(self._state(flags))
        self._append(self, records.STATE, 0, self.base_index, self.base_term, body)

    def _state(self, flags: int) -> records.State:
        if self.durable:
            flags |= records.DURABLE_FLAG
        if self.damaged:
            flags |= records.DAMAGED_FLAG
        if self.joining:
            flags |= records.JOINING_FLAG
        if self.fetching:
            flags |= records.FETCHING_FLAG
        if self.relaxed:
            flags |= records.RELAXED_FLAG
        if self.kept:
            flags |= records.KEPT_FLAG
        if self.credit:
            flags |= records.CREDIT_FLAG
        return records.State(
            self.last_index,
            self.last_term,
            self.term,
            self.commit_hint,
            self.log_crc(),
            flags,
            self.voted_for,
            self.configs[0][1],
        )

    # -- called by the journal

    def mark(self) -> tuple[int, int]:
        """Return (gseq, last index), which become durable with the batch that is being sealed."""
        self._low = _MAX_INDEX
        return self.gseq, self.last_index

    def settle(self, mark: tuple[int, int]) -> None:
        """Note that the batch of `mark` is durable."""
        gseq, last = mark
        self.durable_gseq = max(self.durable_gseq, gseq)
        self.written_index = max(self.written_index, min(last, self._low - 1, self.last_index))

    def restore(self, places: Sequence[Place]) -> None:
        """Add the entries that recovery has found on disk, all of them, after the base."""
        self._terms.extend([place.term for place in places])
        self._kinds.extend([place.kind for place in places])
        self._offsets.extend([place.offset for place in places])
        self._lengths.extend([place.length for place in places])
        for index, place in enumerate(places, self.base_index + 1):
            self._runs.add(index, place.segment)
            if place.config is not None:
                self.configs.append((index, place.config))
        self.bytes = sum(self._lengths)
        self.last_index = self.written_index = self.base_index + len(places)
        self.last_term = places[-1].term if places else self.base_term
        self._cache_first = self.last_index + 1

    def trim_point(self, floor: int, keep_bytes: int, keep_entries: int) -> int:
        """Return the index up to which to forget so that at most `keep_bytes` and `keep_entries` are left, at most
        `floor`. It counts from the end, where the kept entries are."""
        index = self.last_index
        oldest = max(self.base_index, self.last_index - keep_entries)
        left = 0
        lengths = self._lengths
        while index > oldest:
            left += lengths[index - self.base_index - 1]
            if left > keep_bytes:
                break
            index -= 1
        return max(self.base_index, min(index, floor))

    def is_idle(self) -> bool:
        """True when nothing was appended since the last call."""
        idle = self.gseq == self._seen_gseq
        self._seen_gseq = self.gseq
        return idle

    def moving(self, index: int) -> None:
        self._moving.add(index)

    def is_moving(self, index: int) -> bool:
        return index in self._moving

    def describe(self, index: int) -> tuple[int, int]:
        """Return (term, type) of a retained entry."""
        at = index - self.base_index - 1
        return self._terms[at], self._kinds[at]

    def moved(self, index: int, term: int, segment: int, offset: int) -> None:
        """Note that a copy of entry `index` is durable elsewhere."""
        self._moving.discard(index)
        at = index - self.base_index - 1
        if 0 <= at < len(self._terms) and self._terms[at] == term:
            self._runs.move(index, segment, self.last_index)
            self._offsets[at] = offset
