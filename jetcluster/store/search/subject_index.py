"""The sequences of each subject: its count and last sequence in memory, postings in the `RocksKv`.

A posting names one subject's sequences in one block: key `subject | sequence`, so the last one "at or before N" is a
seek. Its value has three forms:

    b""             the block holds one message of the subject, at the key's sequence
    b"*"            all messages of the block, more than one, are the subject's; the block table tells which live
    CRC, u16 ...    distances of the further sequences from the key's, in a block of several subjects

The last form is rewritten when a message in the middle is deleted, so no dead postings remain. A cut at the stream's
beginning rewrites nothing: sequences below the first are skipped.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

from jetcluster.records import NamedTuple
from jetcluster.store import keys
from jetcluster.store.api import DamagedError
from jetcluster.store.batch import Batch
from jetcluster.store.blocks import BlockTable
from jetcluster.store.rocks_kv import RocksKv
from jetcluster.store.search import filters, saved_table
from jetcluster.store.search.filters import Wanted
from jetcluster.store.search.kept_filters import COUNT_BITS, KeptFilters, LastOfEach
from jetcluster.store.search.saved_table import Covered
from jetcluster.store.search.sorted_subjects import CHUNK_SUBJECTS, SortedSubjects
from jetcluster.store.search.table_loader import (
    WHOLE_BLOCK,
    TableLoader,
    alive_of,
    check_posting,
    checksum,
    posting_range,
)

MAX_HINTS = 65_536
COMPARED_AT_ONCE = 64
"""A subject of so many messages is compared with its postings within a command: 60 us, also for each of a batch. More
are left to the scrub, which takes streams that are not compared first."""
PRUNE_SUBJECTS = 1024
"""Removed subjects after which a part of the sorted subjects is pruned."""
_COUNT_MASK = (1 << COUNT_BITS) - 1
_CRC = struct.Struct("<I")

_ONE = [0]


class Replaced(NamedTuple):
    """Messages that newer ones of their subjects push out."""

    before: dict[int, bytes]
    """Sequence -> subject: the only message of the subject below the newest block, if it lives."""
    inside: list[int]
    """Sequences in the newest block that are not the last of their subject."""
    others: list[bytes]
    """Subjects with more than one message that are in neither of these."""


class SubjectIndex:
    """The subjects of a stream. `table` maps subject -> last sequence << 32 | count: an int, 160 MB for a million."""

    def __init__(self, kv: RocksKv, stream: int, blocks: BlockTable) -> None:
        self._kv = kv
        self._stream = stream
        self._blocks = blocks
        self.table: dict[bytes, int] = {}
        self._sorted = SortedSubjects()
        self.kept = KeptFilters(self.table, self._sorted)
        self.lasts = LastOfEach(self.table, self._sorted)
        self._saved_width = saved_table.LEAST_WIDTH
        """Bytes for each subject in the saved table, as far as is known."""
        self.compared = True
        """True when the postings were as many as the table has, at the start or later (`PostingCheck`)."""
        self._compared: set[bytes] = set()
        """Subjects of which that is known, if it is not of all."""
        self._forgotten = 0
        """Subjects removed since `_sorted` was last pruned."""
        self._first_hints: dict[bytes, int] = {}
        """Subject with several messages -> a former first sequence. While that message lives it is still the first;
        later, seeks start there, after the tombstones of a busy subject."""

    # -- the table ------------------------------------------------------------------------------------------------

    def count_of(self, subject: bytes) -> int:
        return self.table.get(subject, 0) & _COUNT_MASK

    def last_of(self, subject: bytes) -> int:
        """Return the subject's last sequence, 0 without a message."""
        return self.table.get(subject, 0) >> COUNT_BITS

    def _add(self, subject: bytes, count: int, last: int) -> None:
        packed = self.table.get(subject)
        if packed is None:
            self.kept.arrivals.append(subject)
            self._sorted.add(subject)
            self.table[subject] = last << COUNT_BITS | count
        else:
            if packed & _COUNT_MASK == 1:
                self._keep_hint(subject, packed >> COUNT_BITS)
            self.table[subject] = last << COUNT_BITS | ((packed & _COUNT_MASK) + count)

    def replaced(self, subjects: Iterable[bytes], newest: Batch, first: int) -> Replaced:
        """Return the messages that a limit of one per subject pushes out after `newest` was appended at `first`."""
        get, hint_of = self.table.get, self._first_hints.get
        positions: dict[bytes, list[int]] = {}
        if newest.subject_count < newest.count:
            positions = dict(zip(newest.subjects, newest.positions(), strict=True))
        found = Replaced({}, [], [])
        for subject in subjects:
            packed = get(subject, 0)
            count = packed & _COUNT_MASK
            if count < 2:
                continue
            inside = positions.get(subject, _ONE) if packed >> COUNT_BITS >= first else []
            seq = hint_of(subject, 0)
            if count == len(inside) + 1 and 0 < seq < first:
                found.before[seq] = subject
            elif count != len(inside):
                found.others.append(subject)
                continue
            if len(inside) > 1:
                found.inside.extend([first + position for position in inside[:-1]])
        found.inside.sort()
        return found

    def remove_replaced(self, seqs: Sequence[int], subjects: Sequence[bytes]) -> None:
        """Remove messages of `Replaced.before` and their postings. Each must be live, and alone in its posting."""
        table, hints = self.table, self._first_hints
        for subject in subjects:
            table[subject] -= 1
            del hints[subject]
        self._kv.delete_each(keys.postings(self._stream, subjects, seqs))

    def remove(self, subject: bytes, count: int, removed_last: int) -> None:
        """Take `count` messages, the highest at `removed_last`, off the subject; postings are up to date."""
        packed = self.table[subject]
        left = (packed & _COUNT_MASK) - count
        last = packed >> COUNT_BITS
        if left < 0:
            raise self._differs(last)
        if not left:
            del self.table[subject]
            self._first_hints.pop(subject, None)
            self.kept.gone(subject)
            self._forgotten += 1
            if self._forgotten >= PRUNE_SUBJECTS:
                self._forgotten = 0
                self._sorted.prune(self.table, 2 * PRUNE_SUBJECTS)
            if len(self.kept.arrivals) > 2 * len(self.table) + PRUNE_SUBJECTS:
                self.kept.restart()
                if len(self.table) < PRUNE_SUBJECTS:
                    self._sorted.rebuild(list(self.table))
            return
        if left == 1:
            self._first_hints.pop(subject, None)
        if removed_last == last:
            found = self._seek_last(subject, last - 1)
            if found is None:
                raise self._differs(last)
            last = found
        self.table[subject] = last << COUNT_BITS | left

    def clear(self) -> None:
        self.table.clear()
        self._sorted.clear()
        self.kept.restart()
        self.lasts.forget()
        self._first_hints.clear()
        self.compared = True
        self._compared.clear()

    # -- blocks come and go ---------------------------------------------------------------------------------------

    def add_block(self, batch: Batch, first: int, writes: dict[bytes, bytes]) -> None:
        """Add the counts, and into `writes` the postings, of a whole block just added to the block table."""
        subjects = batch.single or batch.subjects
        if self.lasts.open:
            self.lasts.added(subjects)
        if len(subjects) < batch.count:
            self._add_shared(batch, subjects, first, writes)
            return
        if len(subjects) == 1:
            writes[keys.posting_head(self._stream, len(subjects[0])) + subjects[0] + keys.seq_suffix(first)] = b""
        else:
            writes.update(dict.fromkeys(keys.postings(self._stream, subjects, range(first, first + batch.count)), b""))
        table, hints = self.table, self._first_hints
        if len(hints) + len(subjects) > MAX_HINTS:
            hints.clear()
        arrived, add = self.kept.arrivals.append, self._sorted.add
        arrived_before = len(table)
        for last, subject in enumerate(subjects, first):
            packed = table.get(subject)
            if packed is None:
                arrived(subject)
                add(subject)
                table[subject] = last << COUNT_BITS | 1
            else:
                count = packed & _COUNT_MASK
                if count == 1:
                    hints[subject] = packed >> COUNT_BITS
                table[subject] = last << COUNT_BITS | count + 1
        if arrived_before != len(table):
            self._sorted.settle()

    def _add_shared(self, batch: Batch, subjects: list[bytes], first: int, writes: dict[bytes, bytes]) -> None:
        """Do what `add_block` does for a block in which messages share subjects."""
        if len(subjects) == 1:
            writes[keys.posting_prefix(self._stream, subjects[0]) + keys.seq_suffix(first)] = WHOLE_BLOCK
            self._add(subjects[0], batch.count, first + batch.count - 1)
            return
        single: list[bytes] = []
        seqs: list[int] = []
        for subject, positions in zip(subjects, batch.positions(), strict=True):
            self._add(subject, len(positions), first + positions[-1])
            if len(positions) == 1:
                single.append(subject)
                seqs.append(first + positions[0])
            else:
                self._put_positions(subject, first, positions)
        writes.update(dict.fromkeys(keys.postings(self._stream, single, seqs), b""))

    def add_rest(self, batch: Batch, first: int, bits: int, dead: int) -> None:
        """Add a block of which `bits` were deleted and `dead` are gone, after a `clear` and without any postings."""
        self.put_postings(batch, first, bits)
        self.lasts.forget()
        for subject, positions in zip(batch.subjects, batch.positions(), strict=True):
            alive = alive_of(positions, dead)
            if alive:
                self._add(subject, len(alive), first + alive[-1])

    def put_postings(self, batch: Batch, first: int, dead: int) -> None:
        if len(batch.subjects) == 1:
            value = WHOLE_BLOCK if batch.count > 1 else b""
            self._kv.put(keys.posting_prefix(self._stream, batch.subjects[0]) + keys.seq_suffix(first), value)
            return
        for subject, positions in zip(batch.subjects, batch.positions(), strict=True):
            self._put_positions(subject, first, alive_of(positions, dead))

    def delete_postings(self, batch: Batch, first: int, dead: int) -> None:
        """Delete the postings that `put_postings` with the same arguments writes."""
        self._kv.delete_each(self._posting_keys(batch, first, dead))

    def update_postings(self, batch: Batch, first: int, old_dead: int, gone: Iterable[int]) -> None:
        """Rewrite the postings of the subjects whose sequences `gone` of the block were deleted."""
        if len(batch.subjects) == 1:
            return
        dead = old_dead
        for seq in gone:
            dead |= 1 << (seq - first)
        numbers = {batch.subject_number(seq - first) for seq in gone}
        all_positions = batch.positions() if len(numbers) > 4 else None
        for number in numbers:
            subject = batch.subjects[number]
            positions = batch.positions_of(number) if all_positions is None else all_positions[number]
            old = alive_of(positions, old_dead)
            new = alive_of(positions, dead)
            if not new or new[0] != old[0]:
                prefix = keys.posting_prefix(self._stream, subject)
                self._kv.delete(prefix + keys.seq_suffix(first + old[0]))
            self._put_positions(subject, first, new)

    def cut(self, target: int, head_first: int) -> None:
        """Remove all messages below `target`, in one pass over all postings and before the block table changes.

        Postings of the block that begins at `head_first`, which holds `target`, stay: its lower part is cut off.
        """
        current = b""
        count = last = 0
        gone: list[tuple[bytes, int, int]] = []
        for key, value in self._kv.scan(*posting_range(self._stream)):
            seq = keys.seq_of(key)
            if seq >= target:
                continue
            subject = keys.posting_subject(key)
            if subject != current:
                if count:
                    gone.append((current, count, last))
                current, count = subject, 0
            seqs = self.posting_seqs(key, value)
            below = bisect_left(seqs, target)
            if below:
                count += below
                last = seqs[below - 1]
            if seq < head_first:
                self._kv.delete(key)
        if count:
            gone.append((current, count, last))
        if sum([count for _, count, _ in gone]) != self._blocks.messages - self._blocks.live_at_or_above(target):
            raise self._differs(target)
        for subject, count, last in gone:
            self.remove(subject, count, last)

    def _put_positions(self, subject: bytes, first: int, positions: list[int]) -> None:
        if not positions:
            return
        start = positions[0]
        key = keys.posting_prefix(self._stream, subject) + keys.seq_suffix(first + start)
        if len(positions) == 1:
            self._kv.put(key, b"")
            return
        further = array("H", [position - start for position in positions[1:]]).tobytes()
        self._kv.put(key, _CRC.pack(checksum(key, further)) + further)

    def _posting_keys(self, batch: Batch, first: int, dead: int) -> list[bytes]:
        stream = self._stream
        if len(batch.subjects) == 1:
            return [keys.posting_prefix(stream, batch.subjects[0]) + keys.seq_suffix(first)]
        found = []
        for subject, positions in zip(batch.subjects, batch.positions(), strict=True):
            alive = alive_of(positions, dead)
            if alive:
                found.append(keys.posting_prefix(stream, subject) + keys.seq_suffix(first + alive[0]))
        return found

    def save(self, last_seq: int, room: int, work: int) -> int:
        """Put the table as of `last_seq`, the stream's last sequence; returns its bytes, 0 when these and `work` are
        more than `room`. A table that was too large is looked at again only when it may have become small enough."""
        table = self.table
        if work + self._saved_width * len(table) > room:
            return 0
        subjects = saved_table.joined(table)
        size = saved_table.size_of(len(table), subjects)
        self._saved_width = max(size // len(table), saved_table.LEAST_WIDTH)
        if not subjects or size + work > room:
            return 0
        key = keys.stream_prefix(keys.TABLE, self._stream)
        covered = Covered(last_seq, *self._blocks.rows_to(last_seq))
        self._kv.put(key, saved_table.encode(key, covered, table, subjects))
        return size

    def erase_saved(self) -> None:
        """Delete the saved table, which may have the subject of an erased message."""
        key = keys.stream_prefix(keys.TABLE, self._stream)
        if self._kv.get(key) is not None:
            self._kv.outdated(key)
            self._kv.delete(key)

    def loading(self, batch_at: Callable[[int], Batch]) -> Generator[None, None, tuple[int, int]]:
        """Rebuild the table, piece by piece, as `TableLoader.steps` does. Raises DamagedError."""
        self.clear()
        found = yield from TableLoader(
            self._kv, self._stream, self._blocks, self.table, self.posting_seqs, batch_at
        ).steps()
        self.kept.restart()
        self._sorted.rebuild(list(self.table))
        self.compared = not found[1]
        return found

    # -- damage ---------------------------------------------------------------------------------------------------

    def compare(self, subject: bytes) -> None:
        """Raise DamagedError unless the subject's postings are as many messages as the table has."""
        if sum(map(len, self.walk(subject, 0))) != self.count_of(subject):
            raise self._differs(self.last_of(subject))

    def _compare_once(self, subject: bytes) -> None:
        """Compare a small subject that may never have been, before which messages are its oldest is believed."""
        if self.compared or subject in self._compared or self.count_of(subject) > COMPARED_AT_ONCE:
            return
        self.compare(subject)
        if len(self._compared) >= MAX_HINTS:
            self._compared.clear()
        self._compared.add(subject)

    def _differs(self, last: int) -> DamagedError:
        return DamagedError(self._blocks.first_seq, last)

    # -- one subject ----------------------------------------------------------------------------------------------

    def lasts_of(self, subjects: Iterable[bytes]) -> list[int]:
        """Return the last sequence of each of these subjects that has a message."""
        get = self.table.get
        return [packed >> COUNT_BITS for subject in subjects if (packed := get(subject, 0))]

    def last_at_or_before(self, subject: bytes, seq: int) -> int | None:
        last = self.table.get(subject, 0) >> COUNT_BITS
        if not last:
            return None
        if last <= seq:
            return last
        if self.table[subject] & _COUNT_MASK == 1:
            return None
        # A vain seek backward would pass all tombstones of the subject; the one forward starts at its hint.
        first = self.first_of(subject)
        assert first is not None
        return self._seek_last(subject, seq) if first <= seq else None

    def next_at_or_after(self, subject: bytes, seq: int) -> int | None:
        packed = self.table.get(subject, 0)
        last = packed >> COUNT_BITS
        if last <= seq or packed & _COUNT_MASK == 1:
            return last if last >= seq and packed else None
        for part in self.walk(subject, seq):
            return part[0]
        return None

    def first_of(self, subject: bytes) -> int | None:
        """Return the lowest live sequence of the subject; None without a message."""
        hint = self._first_hints.get(subject, 0)
        if hint and self._blocks.find(hint) >= 0:
            return hint
        found = self.next_at_or_after(subject, max(hint, self._blocks.first_seq))
        if found is not None and found != self.table[subject] >> COUNT_BITS:
            self._keep_hint(subject, found)
        return found

    def _keep_hint(self, subject: bytes, seq: int) -> None:
        if len(self._first_hints) >= MAX_HINTS:
            self._first_hints.clear()
        self._first_hints[subject] = seq

    def oldest(self, subject: bytes, n: int) -> Sequence[int]:
        """Return the lowest `n` live sequences of the subject, which has as many. Raises DamagedError when postings are
        known to be lost: its oldest messages are to be the same on every replica."""
        self._compare_once(subject)
        if n == 1:
            first = self.first_of(subject)
            if first is None:
                raise self._differs(self.last_of(subject))
            return [first]
        hint = max(self._first_hints.get(subject, 0), self._blocks.first_seq)
        found = self.seqs(subject, hint, keys.MAX_SEQ, n)[:n]
        if len(found) < n:
            raise self._differs(self.last_of(subject))
        if len(found) > 1:
            self._keep_hint(subject, found[0])
        return found

    def seqs(self, subject: bytes, start: int, end: int, limit: int) -> list[int]:
        """Return live sequences within start..end-1, ascending: whole postings until there are `limit` or more. Raises
        DamagedError when they should be all of the subject, and are fewer or more."""
        packed = self.table.get(subject, 0)
        last = packed >> COUNT_BITS
        if last < start or not packed:
            return []
        if packed & _COUNT_MASK == 1:
            return [last] if last < end else []
        found: list[int] = []
        for part in self.walk(subject, start, end):
            if part[-1] >= end:
                found += part[: bisect_left(part, end)]
                break
            found += part
            if len(found) >= limit:
                return found
        if start <= self._blocks.first_seq and last < end and len(found) != packed & _COUNT_MASK:
            raise self._differs(last)
        return found

    def count_from(self, subject: bytes, seq: int) -> int:
        """Return the number of live sequences of the subject >= `seq`; walks the postings of the shorter side."""
        packed = self.table.get(subject, 0)
        count = packed & _COUNT_MASK
        blocks = self._blocks
        if not count or packed >> COUNT_BITS < seq:
            return 0
        if seq <= blocks.first_seq or count == 1:
            return count
        if seq - blocks.first_seq < (packed >> COUNT_BITS) - seq:
            return count - len(self.seqs(subject, blocks.first_seq, seq, count))
        return len(self.seqs(subject, seq, keys.MAX_SEQ, count))

    def walk(self, subject: bytes, seq: int, end: int = keys.MAX_SEQ) -> Iterator[list[int] | range]:
        """Yield non-empty parts of the subject's live sequences from `seq` upward, one per posting that begins before
        `end`. Must not be continued after a mutation."""
        prefix = keys.posting_prefix(self._stream, subject)
        seq = max(seq, self._blocks.first_seq)
        # The posting over `seq` may begin before it, but not before its block.
        at = self._blocks.containing(seq)
        start = self._blocks.firsts[at] if at >= 0 else seq
        for key, value in self._kv.scan(prefix + keys.seq_suffix(start), prefix + keys.seq_suffix(end)):
            part = self.posting_seqs(key, value)
            if part and part[0] < seq:
                part = part[bisect_left(part, seq) :]
            if part:
                yield part

    def _seek_last(self, subject: bytes, seq: int) -> int | None:
        """Search the postings; the block table may be ahead of `table`."""
        prefix = keys.posting_prefix(self._stream, subject)
        blocks = self._blocks
        head = blocks.live_from(0)
        if head == len(blocks.firsts):
            return None
        low = prefix + keys.seq_suffix(blocks.firsts[head])
        while seq >= blocks.first_seq:
            found = self._kv.floor(prefix + keys.seq_suffix(seq), low)
            if found is None:
                return None
            part = self.posting_seqs(*found)
            at = bisect_right(part, seq)
            if at:
                return part[at - 1]
            seq = keys.seq_of(found[0]) - 1
        return None

    def posting_seqs(self, key: bytes, value: bytes) -> list[int] | range:
        """Return the live sequences of a posting, ascending."""
        seq = keys.seq_of(key)
        first_seq = self._blocks.first_seq
        if not value:
            return [seq] if seq >= first_seq else []
        if value == WHOLE_BLOCK:
            at = self._blocks.containing(seq)
            if at < 0:
                raise DamagedError(seq, seq)  # a posting of a missing block
            return self._blocks.live_seqs(at)
        check_posting(key, value)
        further = array("H")
        further.frombytes(value[4:])
        found = [seq]
        found += [seq + distance for distance in further]
        return found if seq >= first_seq else found[bisect_left(found, first_seq) :]

    # -- filters --------------------------------------------------------------------------------------------------

    def covers_all(self, wanted: Wanted) -> bool:
        """Return True when every message matches, as far as the check is cheap."""
        if wanted == b">":
            return True
        if isinstance(wanted, bytes) and filters.is_literal(wanted):
            return len(self.table) == 1 and wanted in self.table
        return len(self.kept.matching(wanted)) == len(self.table)

    def spans_all(self, subject_filter: bytes) -> bool:
        """Return True when every message matches, from a look at the first and the last subject only."""
        if not filters.only_rest(subject_filter):
            return len(self.table) == 1 and subject_filter in self.table
        low, high = filters.bounds(subject_filter)
        first, _ = self.from_cursor(b">", b"", 1)
        last = self._sorted.last(self.table)
        return bool(first) and last is not None and low <= first[0] and (high is None or last < high)

    def from_cursor(self, subject_filter: bytes, cursor: bytes, most: int) -> tuple[list[bytes], bytes | None]:
        """Return the first `most` subjects of the filter's range from `cursor` on, and the next cursor or None."""
        low, high = filters.bounds(subject_filter)
        at: bytes | None = max(low, cursor)
        found: list[bytes] = []
        while at is not None and len(found) < most:
            part, at = self._sorted.part(at, high, max(most, CHUNK_SUBJECTS))
            found += filter(self.table.__contains__, part)
        if len(found) < most:
            return found, None
        del found[most:]
        return found, found[-1] + b"\0"
