"""Queries over a stream's messages by subject filter. The way to the answer is chosen by cost, never by outcome.

A filter that all subjects match needs no index; a literal subject follows its postings; a wildcard either walks the
blocks and compares each block's subjects, or reads the postings of every matching subject.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Generator, Iterator, Sequence
from itertools import islice
from typing import TypeGuard

from jetcluster.store.api import DamagedError, Msg, SubjectState
from jetcluster.store.block_reader import BlockReader
from jetcluster.store.blocks import BlockTable
from jetcluster.store.keys import MAX_SEQ
from jetcluster.store.search import filters
from jetcluster.store.search.filters import FilterSet, Wanted, parts_of
from jetcluster.store.search.kept_filters import COUNT_BITS
from jetcluster.store.search.matches import MAX_FILTER_SEQS, Matched, Matches
from jetcluster.store.search.subject_index import SubjectIndex

MAX_WINDOW_MESSAGES = 512
FIRST_WINDOW_MESSAGES = 64
"""Messages that one step of a scan looks up: more with every step, as most scans want few."""

BLOCK_COST = 30.0
MESSAGE_COST = 0.06
SEEK_COST = 8.0
POSTING_COST = 2.5
COUNT_COST = 30.0
"""Microseconds: reading a block and matching its subjects, per message in it, seeking a subject's postings, passing one
of them, and counting all of one subject. Measured on the project's 2-core machine; only the ratios matter."""

SAMPLE_SUBJECTS = 256
"""Matching subjects that are counted to estimate the messages per subject."""

LONG_MICROSECONDS = 4_000.0
"""Cost of a count above which `preparing` collects the sequences before."""
SUBJECTS_PER_STEP = 4096
BLOCKS_PER_STEP = 16

MAX_BACKWARD_BLOCKS = 64
MAX_COUNTED_FILTERS = 64


class Queries:
    """The queries over one stream. Filters may have wildcards."""

    def __init__(self, reader: BlockReader, blocks: BlockTable, index: SubjectIndex, matches: Matches) -> None:
        self._matches = matches
        self._counted: dict[Wanted, int] = {}
        """Wildcard -> blocks counted for it so far."""
        self._reader = reader
        self._blocks = blocks
        self._index = index

    def last_by_subject(self, wanted: Wanted, up_to: int | None = None) -> Msg | None:
        """Return the message with the highest sequence (at or below `up_to`) that matches `wanted`."""
        if up_to is None:
            # The query of a key-value get. A stored subject may still look like a wildcard.
            if isinstance(wanted, bytes) and b"*" not in wanted and b">" not in wanted:
                seq = self._index.last_of(wanted)
                if seq:
                    msg = self._reader.get(seq)
                    if msg is None or msg.subject != wanted:
                        raise DamagedError(seq, seq)
                    return msg
            up_to = MAX_SEQ
        if is_literal(wanted):
            found = self._index.last_at_or_before(wanted, up_to)
        elif self._index.covers_all(wanted):
            found = self._blocks.prev_live(up_to)
        else:
            found = self._last_matching(wanted, up_to)
        return self._checked(found, wanted)

    def next_by_subject(self, subject_filter: bytes, seq: int) -> Msg | None:
        """Return the message with the lowest sequence at or above `seq` that matches."""
        if filters.is_literal(subject_filter):
            return self._checked(self._index.next_at_or_after(subject_filter, seq), subject_filter)
        window = self.window(subject_filter, seq, 1)
        return self._checked(window[0], subject_filter) if window else None

    def scan(self, subject_filter: bytes, seq: int) -> Iterator[Msg]:
        """Yield matching messages from `seq` upward. Between steps messages may go, and new ones are found."""
        want = FIRST_WINDOW_MESSAGES
        while True:
            window = self.window(subject_filter, seq, min(want, MAX_WINDOW_MESSAGES))
            if not window:
                return
            yield from self._reader.messages(window)
            seq = window[-1] + 1
            want *= 2

    def last_of_any(self, subject_filters: Sequence[bytes]) -> int:
        """Return the highest sequence that matches one of the filters; 0 for none."""
        found = [self.last_by_subject(wanted, None) for wanted in parts_of(subject_filters)]
        return max((msg.seq for msg in found if msg is not None), default=0)

    def next_seqs(self, subject_filters: Sequence[bytes], seq: int, want: int) -> list[int]:
        """Return the first `want` live sequences at or above `seq` that match one of the filters. Each filter is
        searched only below the last sequence that is still needed."""
        found: list[int] = []
        end = MAX_SEQ
        get = self._index.table.get
        above = seq << COUNT_BITS
        parts = parts_of(subject_filters) if len(subject_filters) > 1 else subject_filters
        for wanted in parts:
            if isinstance(wanted, bytes) and get(wanted, 0) < above and b"*" not in wanted and b">" not in wanted:
                continue  # of many filters most have no new message
            found += self._some(wanted, seq, end, want)
            if len(parts) > 1:
                found.sort()
                del found[want:]
                if len(found) == want:
                    end = found[-1]
        return found

    def _some(self, wanted: Wanted, seq: int, end: int, want: int) -> list[int]:
        """Return the first `want` live sequences in seq..end-1 that match."""
        if self._index.covers_all(wanted):
            return self._blocks.first_live(seq, end, want)
        found: list[int] = []
        while len(found) < want and seq < end:
            window = self.window(wanted, seq, want - len(found))
            if not window:
                break
            found += window
            seq = window[-1] + 1
        if seq > end:
            del found[bisect_left(found, end) :]
        del found[want:]
        return found

    def count_any(self, subject_filters: Sequence[bytes], seq: int) -> int:
        """Return the number of messages at or above `seq` that match one of the filters."""
        parts = parts_of(subject_filters) if len(subject_filters) > 1 else subject_filters
        return sum([self.count(wanted, seq) for wanted in parts])

    def count(self, wanted: Wanted, seq: int) -> int:
        """Return the number of messages at or above `seq` that match."""
        index, blocks = self._index, self._blocks
        if is_literal(wanted) and index.last_of(wanted) < seq:
            return 0
        if index.covers_all(wanted):
            return blocks.live_at_or_above(seq)
        if is_literal(wanted):
            return index.count_from(wanted, seq)
        matching = index.kept.matching(wanted)
        if seq <= blocks.first_seq:
            return sum(map(index.count_of, matching))
        matched = self._matched(wanted, matching)
        if matched is None and self._is_worth_keeping(wanted, seq):
            matched = self._collect(wanted, matching)
        if matched is not None:
            return len(matched.seqs) - bisect_left(matched.seqs, seq)
        if self._walk_is_cheaper(matching, seq):
            return sum(len(part) for part in self._walk_blocks(matching, seq))
        return sum(index.count_from(subject, seq) for subject in matching)

    def preparing(self, subject_filters: Sequence[bytes], seq: int = 0) -> Generator[None, None, None]:
        """Do the long part of these filters' queries in steps, between which the stream may change: finding what they
        match, and counting from `seq` on (0: not needed). Later calls in one go are then short."""
        for wanted in parts_of(subject_filters):
            if is_literal(wanted) or wanted == b">":
                continue
            yield from self._index.kept.finding(wanted)
            if seq > self._blocks.first_seq and not self._index.covers_all(wanted):
                yield from self._collecting(wanted, seq)

    def _collecting(self, wanted: Wanted, seq: int) -> Generator[None, None, None]:
        """Collect the sequences in steps, if counting from `seq` on takes long."""
        blocks, count_of = self._blocks, self._index.count_of
        matching = self._index.kept.matching(wanted)
        cost = min((len(blocks.firsts) - blocks.from_seq(seq)) * BLOCK_COST, len(matching) * COUNT_COST)
        if cost < LONG_MICROSECONDS or self._matches.get(wanted, blocks.first_seq) is not None:
            return
        total = 0
        for number, subject in enumerate(list(matching)):
            total += count_of(subject)
            if total > MAX_FILTER_SEQS:
                return
            if not number % SUBJECTS_PER_STEP:
                yield
        matched: Matched | None = self._matches.keep(wanted, (), blocks.first_seq)
        while matched is not None and blocks.firsts and matched.behind <= blocks.firsts[-1]:
            matching = self._index.kept.matching(wanted)
            start = blocks.from_seq(matched.behind)
            behind = min(start + BLOCKS_PER_STEP, len(blocks.firsts))
            for at in range(start, behind):
                if blocks.lives[at]:
                    matched.seqs.extend(self._matching_in_block(matching, at, matched.behind, MAX_SEQ))
            matched.behind = blocks.firsts[behind - 1] + blocks.counts[behind - 1]
            self._matches.grown(matched)
            yield
            matched = self._matches.get(wanted, blocks.first_seq)

    def subjects(self, subject_filter: bytes) -> Iterator[tuple[bytes, SubjectState]]:
        """Yield matching subjects in order of arrival, without those that are removed meanwhile."""
        for subject in list(self._matching(subject_filter)):
            state = self.subject(subject)
            if state is not None:
                yield subject, state

    def subject(self, subject: bytes) -> SubjectState | None:
        """Return the state of a literal subject; None when it has no message."""
        first = self._index.first_of(subject)
        if first is None:
            return None
        return SubjectState(self._index.count_of(subject), first, self._index.last_of(subject))

    def subject_counts(self, subject_filter: bytes) -> list[tuple[bytes, int]]:
        """Return (subject, messages) of all matching subjects, without looking up first sequences."""
        count_of = self._index.count_of
        return [(subject, count_of(subject)) for subject in self._matching(subject_filter)]

    def last_seqs_any(self, subject_filters: Sequence[bytes], up_to: int) -> list[int]:
        """Return the last sequence at or below `up_to` of each subject that matches one of the filters, ascending."""
        parts = parts_of(subject_filters)
        return sorted({seq for wanted in parts for seq in self.last_seqs(wanted, up_to, MAX_SEQ)})

    def last_seqs(self, wanted: Wanted, up_to: int, limit: int) -> list[int]:
        """Return the last sequence at or below `up_to` of each matching subject, ascending; stops beyond `limit`."""
        last = self._index.last_at_or_before
        if is_literal(wanted):
            seq = last(wanted, up_to)
            return [] if seq is None else [seq]
        if up_to == MAX_SEQ and wanted in self._index.kept:
            return sorted(self._index.lasts_of(self._index.kept.matching(wanted)))
        every = self._index.table if wanted == b">" else self._index.kept.each_matching(wanted)
        found = []
        for subject in every:
            seq = last(subject, up_to)
            if seq is not None:
                found.append(seq)
                if len(found) > limit:
                    break
        return sorted(found)

    def seqs(self, subject_filter: bytes, before: int) -> list[int]:
        """Return all live sequences below `before` that match, ascending."""
        if self._index.covers_all(subject_filter):
            return [seq for part in self._all_parts(0) for seq in part if seq < before]
        found: list[int] = []
        for subject in self._matching(subject_filter):
            found += self._index.seqs(subject, 0, before, MAX_SEQ)
        found.sort()
        return found

    def _matching(self, subject_filter: bytes) -> dict[bytes, None] | list[bytes]:
        if subject_filter == b">":
            return list(self._index.table)
        if filters.is_literal(subject_filter):
            return [subject_filter] if subject_filter in self._index.table else []
        return self._index.kept.matching(subject_filter)

    def _checked(self, seq: int | None, wanted: Wanted) -> Msg | None:
        """Return the message that the index names; a wrong index is damage, not "not found"."""
        if seq is None:
            return None
        msg = self._reader.get(seq)
        if msg is None:
            raise DamagedError(seq, seq)
        if msg.subject != wanted and not _matches(wanted, msg.subject):
            raise DamagedError(seq, seq)
        return msg

    # -- the next matching sequences ------------------------------------------------------------------------------

    def window(self, wanted: Wanted, seq: int, want: int) -> list[int] | range:
        """Return the next matching sequences >= `seq`, ascending, without gaps: about `want`, empty only at the end."""
        index = self._index
        if index.covers_all(wanted):
            return next(self._all_parts(seq, want), [])
        if is_literal(wanted):
            return index.seqs(wanted, seq, MAX_SEQ, want)
        matching = index.kept.matching(wanted)
        if not matching:
            return []
        matched = self._matched(wanted, matching)
        if matched is not None:
            at = bisect_left(matched.seqs, max(seq, self._blocks.first_seq))
            return matched.seqs[at : at + want].tolist()
        if self._blocks_are_cheaper(matching, seq, want):
            found: list[int] = []
            for part in self._walk_blocks(matching, seq):
                found += part
                if len(found) >= want:
                    break
            return found
        return self._merge_postings(matching, seq, want)

    def _all_parts(self, seq: int, want: int = MAX_SEQ) -> Iterator[list[int] | range]:
        """Yield live sequences from `seq` upward, block by block. Must not be continued after a mutation."""
        blocks = self._blocks
        at = blocks.from_seq(seq)
        while at < len(blocks.firsts):
            part = blocks.live_seqs(at, seq)
            if part:
                yield part[:want]
            at = blocks.live_from(at + 1)

    def _walk_blocks(self, matching: dict[bytes, None], seq: int) -> Iterator[list[int] | range]:
        blocks = self._blocks
        at = blocks.from_seq(seq)
        while at < len(blocks.firsts):
            part = self._matching_in_block(matching, at, seq, MAX_SEQ)
            if part:
                yield part
            at = blocks.live_from(at + 1)

    def _matching_in_block(self, matching: dict[bytes, None], at: int, low: int, high: int) -> list[int] | range:
        batch = self._reader.batch(at)
        wanted = {number for number, subject in enumerate(batch.subjects) if subject in matching}
        if not wanted:
            return []
        live = self._blocks.live_seqs(at, low, high)
        if len(wanted) == len(batch.subjects):
            return live
        first = self._blocks.firsts[at]
        number = batch.subject_number
        return [seq for seq in live if number(seq - first) in wanted]

    def _matched(self, wanted: Wanted, matching: dict[bytes, None]) -> Matched | None:
        """Return all sequences that match a wildcard, if they were collected before."""
        matched = self._matches.get(wanted, self._blocks.first_seq)
        if matched is None:
            return None
        blocks = self._blocks
        if blocks.firsts and matched.behind <= blocks.firsts[-1]:
            for part in self._walk_blocks(matching, matched.behind):
                matched.seqs.extend(part)
            matched.behind = blocks.firsts[-1] + blocks.counts[-1]
            self._matches.grown(matched)
        return matched

    def _is_worth_keeping(self, wanted: Wanted, seq: int) -> bool:
        """Return True when the counts for this filter have cost about as much as collecting all matches."""
        blocks = self._blocks
        counted = self._counted.pop(wanted, 0) + len(blocks.firsts) - blocks.from_seq(seq)
        if counted * 2 >= len(blocks.firsts):
            return True
        if len(self._counted) >= MAX_COUNTED_FILTERS:
            self._counted.clear()
        self._counted[wanted] = counted
        return False

    def _collect(self, wanted: Wanted, matching: dict[bytes, None]) -> Matched | None:
        """Collect the matches, at about the cost of one count from the middle; None when they are too many to keep."""
        index, blocks = self._index, self._blocks
        if not blocks.firsts or sum(map(index.count_of, matching)) > MAX_FILTER_SEQS:
            return None
        if self._walk_is_cheaper(matching, 0):
            found = [seq for part in self._walk_blocks(matching, 0) for seq in part]
        else:
            found = [seq for subject in matching for seq in index.seqs(subject, 0, MAX_SEQ, MAX_SEQ)]
            found.sort()
        return self._matches.keep(wanted, found, blocks.firsts[-1] + blocks.counts[-1])

    def _walk_is_cheaper(self, matching: dict[bytes, None], seq: int) -> bool:
        """Return True when walking the blocks from `seq` on is cheaper than counting each subject."""
        blocks = self._blocks
        return (len(blocks.firsts) - blocks.from_seq(seq)) * BLOCK_COST < len(matching) * COUNT_COST

    def _blocks_are_cheaper(self, matching: dict[bytes, None], seq: int, want: int) -> bool:
        index, blocks = self._index, self._blocks
        seeks = len(matching) * (SEEK_COST + POSTING_COST * _each(want, len(matching)))
        ahead = len(blocks.firsts) - blocks.from_seq(seq)
        sample = list(map(index.count_of, islice(matching, SAMPLE_SUBJECTS)))
        total = len(matching) * sum(sample) / len(sample)
        share = min(1.0, want / total)
        per_block = BLOCK_COST + MESSAGE_COST * blocks.messages / len(blocks.firsts)
        return max(1.0, ahead * share) * per_block < seeks

    def _merge_postings(self, matching: dict[bytes, None], seq: int, want: int) -> list[int]:
        """Read some sequences of each subject, and return those below the point up to which every subject is known."""
        found: list[int] = []
        known = MAX_SEQ
        last_of = self._index.last_of
        each = _each(want, len(matching))
        for subject in matching:
            last = last_of(subject)
            if last < seq:
                continue
            part = self._index.seqs(subject, seq, known, each)
            found += part
            if len(part) >= each and part[-1] < last:
                known = min(known, part[-1] + 1)
        found.sort()
        return [s for s in found if s < known]

    def _last_matching(self, wanted: Wanted, up_to: int) -> int | None:
        """Walk some blocks backward, then look up every subject."""
        index, blocks = self._index, self._blocks
        matching = index.kept.matching(wanted)
        if len(matching) > MAX_BACKWARD_BLOCKS:
            newest = blocks.prev_live(up_to)
            at = blocks.find(newest) if newest is not None else -1
            for _ in range(MAX_BACKWARD_BLOCKS):
                if at < 0:
                    return None
                part = self._matching_in_block(matching, at, 0, up_to)
                if part:
                    return part[-1]
                at = blocks.live_back(at - 1)
        found = [index.last_at_or_before(subject, up_to) for subject in matching]
        return max((seq for seq in found if seq is not None), default=None)


def _each(want: int, subjects: int) -> int:
    """Return the number of sequences to look up per subject, to find `want` in all."""
    return 1 if want == 1 else max(4, 2 * want // subjects)


def is_literal(wanted: Wanted) -> TypeGuard[bytes]:
    return isinstance(wanted, bytes) and filters.is_literal(wanted)


def _matches(wanted: Wanted, subject: bytes) -> bool:
    if isinstance(wanted, FilterSet):
        return wanted.matches(subject)
    return filters.matches(wanted, subject)
