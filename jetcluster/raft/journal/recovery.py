"""The reading of the journal at start: intact records, a torn tail, damage.

A crash may leave the last batch in any state: it was not acknowledged and is cut off. Every other invalid byte is
damage, and is never skipped silently: groups that may have lost records (`gseq` gaps, or no later record that proves
them whole) are marked `damaged`. The mark is recorded and outlives the damaged segment. `snapshots.Rejoin` decides what
a damaged group may do.
"""

from __future__ import annotations

from array import array
from collections import deque
from dataclasses import field

from jetcluster.checksum import crc32
from jetcluster.raft.codec import CONFIG
from jetcluster.raft.journal import records
from jetcluster.raft.journal.disk import ReadableDisk
from jetcluster.raft.journal.journal_state import RemovedGroups, decode_removed
from jetcluster.raft.journal.log import Place
from jetcluster.raft.journal.records import Record
from jetcluster.raft.journal.seals import Seals, refuse
from jetcluster.raft.membership import Config, MembersError, decode_config
from jetcluster.records import NamedTuple, dataclass
from jetcluster.sealing.api import SealError


@dataclass(slots=True)
class RecoveredGroup:
    """One log as read from the journal's records; a `GroupLog` is made from it."""

    gid: int
    base_index: int = 0
    base_term: int = 0
    last_index: int = 0
    """The log's end by the records; entries up to it must be present."""
    base_config: Config | None = None
    term: int = 0
    voted_for: str | None = None
    commit: int = 0
    durable: bool = True
    fetching: bool = False
    relaxed: bool = False
    kept: bool = False
    credit: bool = False
    gseq: int = 0
    damaged: bool = False
    joining: bool = False
    """`damaged` means only that the replica was being added to its group."""
    harmed: bool = False
    """This scan has found damage of the group. Otherwise `damaged` follows the newest STATE: a repair counts even while
    entries that were carried into a later segment are still to come."""
    suspect: bool = False
    """Damage was found, and no later record has proven that it did not hit this group."""
    trusted: int | None = None
    """Index above which lost records may have replaced entries that were not committed yet; None: all are certain."""
    entries: dict[int, Place] = field(default_factory=dict)
    highest: int = 0
    """Upper bound of the indexes in `entries`."""
    summed: int = 0
    """All entries from the base to this one are present, and `crc` is the checksum of their terms. It saves work: each
    segment begins with the state of each log, and a log may hold millions of entries."""
    crc: int = 0
    tail: dict[int, Place] = field(default_factory=dict)
    """Intact entries after the hole in the log of a group of one, for a state that includes the missing ones."""

    @property
    def alone(self) -> bool:
        """True when, by its log, the group's only member ever was one voter: no other relies on lost records."""
        configs = [p.config for p in self.entries.values() if p.config is not None]
        known = [self.base_config, *configs] if self.base_config is not None else []
        return bool(known) and all(len(c.members) == 1 and c.voters and c == known[0] for c in known)


@dataclass(slots=True)
class Damage:
    """A stretch of a segment that had been durable and does not validate."""

    segment: int
    start: int
    end: int
    why: str


class Stretch(NamedTuple):
    """Bytes of a segment."""

    segment: int
    start: int
    end: int


@dataclass(slots=True)
class Recovered:
    """The outcome of reading a journal."""

    groups: dict[int, RecoveredGroup] = field(default_factory=dict)
    damage: list[Damage] = field(default_factory=list)
    next_seq: int = 1
    top_gid: int | None = 0
    """The highest group id ever created here; None when unknown after damage."""
    removed: RemovedGroups = field(default_factory=RemovedGroups)
    """The removed groups."""
    told_removed: int = 0
    """Number of the newest record about removed groups."""
    last_segment: int = 0
    torn: tuple[int, int] | None = None
    """(segment, offset) of a torn tail that must be cut off."""
    cut_bytes: int = 0
    unproven: list[Stretch] = field(default_factory=list)
    """Batches that may not have been durable."""
    unborn: list[int] = field(default_factory=list)
    """Segments that were being created at a power failure and never held anything durable."""


@dataclass(slots=True)
class _Bad:
    """A stretch that does not validate, until a later header shows whether it had been durable."""

    segment: int
    start: int
    end: int
    seq: int
    salvaged: list[Record]
    lost: int | None
    """Number of records of its batch missing from `salvaged`; None when unknown."""


def scan(disk: ReadableDisk, marked: int = 0, seals: Seals | None = None) -> Recovered:
    """Read every segment. `marked`: the newest batch known to have been durable (`raft.journal.disk.FileMark`).
    `seals`: of an encrypted journal. Raises OSError, FormatError and KeyringError; damage is part of the result."""
    return _Scan(disk, marked, seals).run()


class _Scan:
    def __init__(self, disk: ReadableDisk, marked: int, seals: Seals | None) -> None:
        self.disk = disk
        self.marked = marked
        self.seals = seals
        self.result = Recovered()
        self.expected_seq: int | None = None
        self.highest_seq = 0
        self.pending: _Bad | None = None
        self.lost: int | None = 0
        """Number of lost records by the headers of bad batches; None when unknown."""
        self.gaps = 0
        """Number of lost records by gaps in the groups' `gseq`."""
        self.proven = marked
        """The newest batch proven to have been durable."""
        self.unproven: deque[tuple[int, Stretch]] = deque()
        """(batch, its place) of the batches after `proven`."""
        self.top = 0
        self.top_known = True

    def run(self) -> Recovered:
        numbers = self.disk.segments()
        previous: int | None = None
        for number in numbers:
            if previous is not None and number != previous + 1:
                self._damaged(Damage(number, 0, 0, f"segments {previous + 1}..{number - 1} are missing"), [])
            self._segment(number, number == numbers[-1])
            previous = number
            if number not in self.result.unborn:
                self.result.last_segment = number
        found = (self.expected_seq or 1) - 1
        if self.marked > found:
            # Durable batches are gone, so this is damage: a torn tail was never acknowledged.
            why = f"batches {found + 1}..{self.marked} had been durable and are gone"
            self._vouched(Damage(self.result.last_segment, 0, 0, why))
            self.highest_seq = max(self.highest_seq, self.marked)
        if self.pending is not None:
            self.result.torn = (self.pending.segment, self.pending.start)
            self.result.cut_bytes = self.pending.end - self.pending.start
        self.result.unproven = [stretch for seq, stretch in self.unproven if seq > self.proven]
        self.result.next_seq = self.expected_seq or 1
        if self.result.damage:
            # Invalid batches stay on the disk, so new batches need higher numbers, or they would look like never
            # durable successors of these. (A torn tail alone is cut off, and its number used again.)
            self.result.next_seq = max(self.result.next_seq, self.highest_seq + 1)
        if self.lost is not None and self.lost == self.gaps:
            self._acquit()
        for group in self.result.groups.values():
            _finish(group)
        known = self.top_known and self.top != records.UNKNOWN_GID
        self.result.top_gid = max(self.top, *self.result.groups, 0) if known else None
        return self.result

    def _segment(self, number: int, newest: bool) -> None:
        data, size = self.disk.beginning(number)
        head = records.read_segment_head(data, number)
        if head is None:
            data = self.disk.load(number)
            records.check_format(data, number)
            self._headless(number, data, newest)
            return
        if self.seals is not None:
            self.seals.learn(number, head.seal)
        elif head.seal:
            refuse(number)
        seed = records.salt(number, head.nonce)
        at = records.SEGMENT_HEAD_BYTES
        while at < len(data):
            batch = records.read_batch(data, at, seed)
            if batch is not None and batch.records is not None:
                self._good(number, at, batch)
                at = batch.end
                continue
            if batch is None and records.is_zero(data, at):
                break
            if len(data) < size:
                data = self.disk.load(number)  # what is torn or damaged may reach into the zeros
                size = len(data)
                continue
            following = records.find_batch(data, batch.end if batch is not None else at + 1, seed)
            end = following if following >= 0 else len(data)
            self._bad(number, at, end, batch, records.salvage(data, at, end, seed))
            at = end
        if size < head.size:
            # A crash does not make a file shorter: batches at its end may have been durable.
            why = f"the segment was cut short: {size} bytes are left of {head.size}"
            self._vouched(Damage(number, size, head.size, why))

    def _vouched(self, damage: Damage) -> None:
        """Note unknown records that had been durable and are missing: a seeming torn tail is then damage too."""
        bad, self.pending = self.pending, None
        if bad is not None:
            self._damaged(_damage_of(bad), bad.salvaged)
        self._damaged(damage, [])

    def _headless(self, number: int, data: bytes, newest: bool) -> None:
        """Handle a segment without a valid head. The head is written with the first batch, so the newest segment never
        held anything durable, unless it has a second batch or is shorter than a head (a file is created empty, then
        preallocated as a whole)."""
        second = records.SEGMENT_HEAD_BYTES + records.BATCH_HEAD_BYTES
        made = not data or len(data) >= second
        if newest and made and self.pending is None and records.find_batch_magic(data, second) < 0:
            self.result.unborn.append(number)
            return
        if self.seals is not None:
            self.seals.plain.add(number)  # as far as is known
        self._damaged(Damage(number, 0, len(data), "the segment's header does not validate"), [])

    def _bad(
        self, number: int, start: int, end: int, batch: records.JournalBatch | None, salvaged: list[Record]
    ) -> None:
        seq = batch.seq if batch is not None else (self.expected_seq or 0)
        self.highest_seq = max(self.highest_seq, seq)
        if self.pending is not None:
            if batch is None or batch.synced < self.pending.seq:
                self.pending.lost = None
                self.pending.end = end  # with a sync interval several batches may be torn at once
                return
            self._damaged(_damage_of(self.pending), self.pending.salvaged, self.pending.lost)
        self._see_top(batch)
        lost = batch.record_count - len(salvaged) if batch is not None and batch.end == end else None
        self.pending = _Bad(number, start, end, seq, salvaged, lost)

    def _good(self, number: int, at: int, batch: records.JournalBatch) -> None:
        self.highest_seq = max(self.highest_seq, batch.seq)
        bad, self.pending = self.pending, None
        if bad is not None:
            if batch.synced >= bad.seq:
                self._damaged(_damage_of(bad), bad.salvaged, bad.lost)
            else:
                # The bad batch was never durable, so neither was this later one: both are cut.
                self.pending = bad
                bad.end = batch.end
                return
        elif self.expected_seq is not None and batch.seq > self.expected_seq:
            self._damaged(Damage(number, at, at, f"batches {self.expected_seq}..{batch.seq - 1} are missing"), [])
        elif self.expected_seq is not None and batch.seq < self.expected_seq:
            self._damaged(Damage(number, at, batch.end, f"batch {batch.seq} is out of order"), [])
            return
        self.expected_seq = batch.seq + 1
        self._see_proof(number, at, batch)
        self._see_top(batch)
        assert batch.records is not None
        for record in batch.records:
            self._apply(record, number)

    def _see_proof(self, number: int, at: int, batch: records.JournalBatch) -> None:
        self.proven = max(self.proven, batch.synced)
        while self.unproven and self.unproven[0][0] <= self.proven:
            self.unproven.popleft()
        self.unproven.append((batch.seq, Stretch(number, at, batch.end)))

    def _see_top(self, batch: records.JournalBatch | None) -> None:
        """Note the highest group id of a batch. A header validates without its records, and ids ascend, so a later
        header covers all earlier groups."""
        if batch is not None:
            # UNKNOWN_GID stands until the journal has learnt the id from the cluster (`Journal.learn_top`).
            self.top = batch.top if self.top == records.UNKNOWN_GID else max(self.top, batch.top)
            self.top_known = self.top != records.UNKNOWN_GID

    def _acquit(self) -> None:
        """Clear groups without a gap: the gaps of other groups account for every lost record."""
        for group in self.result.groups.values():
            group.suspect = False
            if not group.damaged:
                group.trusted = None

    def _damaged(self, damage: Damage, salvaged: list[Record], lost: int | None = None) -> None:
        self.top_known = False
        self.lost = None if self.lost is None or lost is None else self.lost + lost
        self.result.damage.append(damage)
        for record in salvaged:
            self._apply(record, damage.segment)
        for group in self.result.groups.values():
            group.suspect = True
            _distrust(group)

    def _apply(self, record: Record, segment: int) -> None:
        if self.seals is not None:
            try:
                record = self.seals.opened(segment, record, record.offset)
            except SealError as error:  # its checksum matches, so somebody has changed it; it counts as lost
                self._damaged(Damage(segment, record.offset, record.offset + len(record.body), str(error)), [], 1)
                return
        groups = self.result.groups
        group = groups.get(record.gid)
        if record.kind == records.REMOVE:
            self._remove(record, segment)
            return
        if group is None:
            self.result.removed.discard(record.gid)
            group = groups[record.gid] = RecoveredGroup(record.gid, gseq=record.gseq)
            if record.kind != records.STATE:
                _harm(group)  # the beginning of its log is lost
                self.lost = None
        elif record.gseq != (group.gseq + 1) & records.GSEQ_MASK:
            self.gaps += (record.gseq - group.gseq - 1) & records.GSEQ_MASK
            _harm(group)
            _distrust(group)
        elif group.suspect:
            group.suspect = False
            if not group.damaged:
                group.trusted = None
        group.gseq = record.gseq
        try:
            _replay(group, record, segment)
        except (MembersError, ValueError, IndexError) as e:
            _harm(group)
            self.result.damage.append(Damage(segment, record.offset, record.offset, f"record not understood: {e}"))

    def _remove(self, record: Record, segment: int) -> None:
        groups, result = self.result.groups, self.result
        if record.gid != records.NODE_GID:
            groups.pop(record.gid, None)
            result.removed.add(record.gid)
            return
        if result.told_removed:
            self.gaps += (record.gseq - result.told_removed - 1) & records.GSEQ_MASK
        result.told_removed = record.gseq
        try:
            result.removed = decode_removed(record.body)
        except ValueError as e:
            result.damage.append(Damage(segment, record.offset, record.offset, str(e)))
        for gid in [gid for gid in groups if gid in result.removed]:
            del groups[gid]  # its own REMOVE is lost


def _harm(group: RecoveredGroup) -> None:
    group.damaged, group.harmed, group.joining = True, True, False


def _distrust(group: RecoveredGroup) -> None:
    if group.trusted is None:
        group.trusted = max(group.base_index, min(group.commit, group.last_index))


def _damage_of(bad: _Bad) -> Damage:
    return Damage(bad.segment, bad.start, bad.end, f"batch {bad.seq} was durable and does not validate")


def _raise_term(group: RecoveredGroup, term: int) -> None:
    """Note an entry of `term`. Where the record of that term is lost, so is the vote: that of an earlier term would
    count as one in this term, and its candidate could get a second one."""
    if term > group.term:
        group.term, group.voted_for = term, None


def _replay(group: RecoveredGroup, record: Record, segment: int) -> None:
    kind = record.kind
    if kind in (records.ENTRY, records.CARRY):
        config = decode_config(record.body) if record.entry_type == CONFIG else None
        place = Place(record.term, record.entry_type, segment, record.offset, len(record.body), config)
        if record.log_index > group.base_index:
            if kind == records.ENTRY:
                _put(group, record.log_index, place)
                group.last_index = record.log_index
            elif record.log_index <= group.last_index:
                _put(group, record.log_index, place)
        _raise_term(group, record.term)
    elif kind == records.TERM:
        group.term, group.voted_for = record.term, record.body.decode() or None
    elif kind == records.TRUNCATE:
        for index in range(record.log_index, group.last_index + 1):
            group.entries.pop(index, None)
        if record.log_index <= group.summed:
            group.summed = group.crc = 0
        group.last_index = max(group.base_index, record.log_index - 1)
    elif kind == records.COMPACT:
        _rebase(group, record.log_index, record.term, decode_config(record.body))
    elif kind == records.HINT:
        group.commit = record.log_index
    elif kind == records.STATE:
        _replay_state(group, record)


def _put(group: RecoveredGroup, index: int, place: Place) -> None:
    if index <= group.summed and group.entries[index].term != place.term:
        group.summed = group.crc = 0
    group.entries[index] = place
    group.highest = max(group.highest, index)


def _rebase(group: RecoveredGroup, index: int, term: int, config: Config) -> None:
    if index != group.base_index:
        few = 0 < index - group.base_index < len(group.entries)
        for old in range(group.base_index + 1, index + 1) if few else [i for i in group.entries if i <= index]:
            group.entries.pop(old, None)
        group.summed = group.crc = 0
    group.base_index, group.base_term, group.base_config = index, term, config
    group.last_index = max(group.last_index, index)


def _replay_state(group: RecoveredGroup, record: Record) -> None:
    state = records.decode_state(record.body)
    if state.flags & records.RESET_FLAG:
        group.entries.clear()
        group.highest = group.summed = group.crc = 0
    _rebase(group, record.log_index, record.term, state.config)
    group.last_index = state.last_index
    if group.highest > state.last_index:
        for beyond in [i for i in group.entries if i > state.last_index]:
            del group.entries[beyond]  # an earlier recovery has cut it off
        group.highest, group.summed, group.crc = state.last_index, 0, 0
    group.term, group.voted_for, group.commit = state.term, state.vote, state.commit
    group.durable = bool(state.flags & records.DURABLE_FLAG)
    group.fetching = bool(state.flags & records.FETCHING_FLAG)
    group.relaxed = bool(state.flags & records.RELAXED_FLAG)
    group.kept = bool(state.flags & records.KEPT_FLAG)
    group.credit = bool(state.flags & records.CREDIT_FLAG)
    crc = _terms_crc(group)
    if crc == state.log_crc:
        # Everything that the log held then is here, even if records were lost before.
        group.harmed, group.suspect, group.trusted = False, False, None
    elif crc is not None:
        _harm(group)
        _distrust(group)
    if not group.harmed:
        group.damaged = bool(state.flags & records.DAMAGED_FLAG)
        group.joining = group.damaged and bool(state.flags & records.JOINING_FLAG)


def _terms_crc(group: RecoveredGroup) -> int | None:
    """Return the checksum of the terms of all entries; None when one is missing."""
    start = max(group.summed, group.base_index)
    terms = array("Q")
    for index in range(start + 1, group.last_index + 1):
        place = group.entries.get(index)
        if place is None:
            return None
        terms.append(place.term)
    group.crc = crc32(terms.tobytes(), group.crc)
    group.summed = max(start, group.last_index)
    return group.crc


def _finish(group: RecoveredGroup) -> None:
    """Keep the entries from the base up to the first gap; mark the group as damaged if more should be there."""
    index = group.base_index
    alone = group.alone
    # Entries of a group of one are never replaced.
    limit = group.last_index if group.trusted is None or alone else max(index, group.trusted)
    while index < limit and index + 1 in group.entries:
        index += 1
    if index < group.last_index or group.suspect or group.base_config is None:
        group.damaged, group.joining = True, False
    newest = first = max(group.entries, default=0)
    if alone and newest > index:
        while first - 1 in group.entries:
            first -= 1
        group.tail = {i: group.entries[i] for i in range(first, newest + 1)}
    group.last_index = index
    group.entries = {i: p for i, p in group.entries.items() if i <= index}
    last_term = group.entries[index].term if index in group.entries else group.base_term
    _raise_term(group, last_term)
    group.commit = min(group.commit, index)
