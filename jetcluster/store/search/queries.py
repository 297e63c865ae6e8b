"""Questions over a stream's messages by subject filter. How to answer is chosen by cost, never by outcome.

Three ways: a filter that all subjects match needs no index; a literal subject follows its postings; a wildcard either
walks the blocks and looks at each block's subjects, or asks the postings of every matching subject.
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
from jetcluster.store.search.matches import MAX_EACH, Matched, Matches
from jetcluster.store.search.subject_index import SubjectIndex

WINDOW = 512
FIRST_WINDOW = 64
"""Messages that one step of a scan looks up at once: more with every step, as most scans want few."""

BLOCK_COST = 30.0
MESSAGE_COST = 0.06
SEEK_COST = 8.0
POSTING_COST = 2.5
COUNT_COST = 30.0
"""Microseconds: reading a block and matching its subjects, per message in it, seeking a subject's postings, passing
one of them, and counting all of one subject. Measured on the project's 2-core machine; only the ratios matter."""

SAMPLE = 256
"""So many of the matching subjects tell how many messages one has."""

LONG = 4_000.0
"""Microseconds; what takes longer than this is worth being collected beforehand."""
PAUSE_EVERY = 4096
BLOCKS_PER_STEP = 16

BACKWARD_BLOCKS = 64
COUNTED_KEPT = 64


class Queries:
    """The questions over one stream. Filters may have wildcards."""

    def __init__(self, reader: BlockReader, blocks: BlockTable, index: SubjectIndex, matches: Matches) -> None:
        self._matches = matches
        self._counted: dict[Wanted, int] = {}
        """Wildcard -> blocks that were counted for it."""
        self._reader = reader
        self._blocks = blocks
        self._index = index

    def last_by_subject(self, wanted: Wanted, up_to: int | None = None) -> Msg | None:
        """The message with the highest sequence (at or below `up_to`) that matches `wanted`."""
        if up_to is None:
            # What a key-value get asks for. A subject that is stored may still look like a wildcard.
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
        """The message with the lowest sequence at or above `seq` that matches."""
        if filters.is_literal(subject_filter):
            return self._checked(self._index.next_at_or_after(subject_filter, seq), subject_filter)
        window = self.window(subject_filter, seq, 1)
        return self._checked(window[0], subject_filter) if window else None

    def scan(self, subject_filter: bytes, seq: int) -> Iterator[Msg]:
        """Messages from `seq` upward that match. The store may be mutated between steps: messages that vanished are
        stepped over, those appended are found."""
        want = FIRST_WINDOW
        while True:
            window = self.window(subject_filter, seq, min(want, WINDOW))
            if not window:
                return
            yield from self._reader.messages(window)
            seq = window[-1] + 1
            want *= 2

    def last_of_any(self, subject_filters: Sequence[bytes]) -> int:
        """The highest sequence of all that match one of the filters; 0 when none does."""
        found = [self.last_by_subject(wanted, None) for wanted in parts_of(subject_filters)]
        return max((msg.seq for msg in found if msg is not None), default=0)

    def next_seqs(self, subject_filters: Sequence[bytes], seq: int, want: int) -> list[int]:
        """The first `want` live sequences at or above `seq` that match one of the filters. Every filter is only asked
        for what lies below what the others have given already."""
        found: list[int] = []
        end = MAX_SEQ
        get = self._index.table.get
        above = seq << COUNT_BITS
        parts = parts_of(subject_filters) if len(subject_filters) > 1 else subject_filters
        for wanted in parts:
            if isinstance(wanted, bytes) and get(wanted, 0) < above and b"*" not in wanted and b">" not in wanted:
                continue  # of many filters most have nothing new
            found += self._some(wanted, seq, end, want)
            if len(parts) > 1:
                found.sort()
                del found[want:]
                if len(found) == want:
                    end = found[-1]
        return found

    def _some(self, wanted: Wanted, seq: int, end: int, want: int) -> list[int]:
        """The first `want` live sequences in seq..end-1 that match."""
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
        """Number of messages at or above `seq` that match one of the filters."""
        parts = parts_of(subject_filters) if len(subject_filters) > 1 else subject_filters
        return sum([self.count(wanted, seq) for wanted in parts])

    def count(self, wanted: Wanted, seq: int) -> int:
        """Number of messages at or above `seq` that match."""
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
        """Does in steps, between which the stream may change, what is long in answering what these filters match, and
        how many from `seq` on (0: nobody will ask that). Who then asks, all in one go, finds it done."""
        for wanted in parts_of(subject_filters):
            if is_literal(wanted) or wanted == b">":
                continue
            yield from self._index.kept.finding(wanted)
            if seq > self._blocks.first_seq and not self._index.covers_all(wanted):
                yield from self._collecting(wanted, seq)

    def _collecting(self, wanted: Wanted, seq: int) -> Generator[None, None, None]:
        """As `_collect`, where counting from `seq` on takes long."""
        blocks, count_of = self._blocks, self._index.count_of
        matching = self._index.kept.matching(wanted)
        cost = min((len(blocks.firsts) - blocks.from_seq(seq)) * BLOCK_COST, len(matching) * COUNT_COST)
        if cost < LONG or self._matches.get(wanted, blocks.first_seq) is not None:
            return
        total = 0
        for number, subject in enumerate(list(matching)):
            total += count_of(subject)
            if total > MAX_EACH:
                return
            if not number % PAUSE_EVERY:
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
        """In order of arrival; those that vanish during the iteration are left out."""
        for subject in list(self._matching(subject_filter)):
            state = self.subject(subject)
            if state is not None:
                yield subject, state

    def subject(self, subject: bytes) -> SubjectState | None:
        """State of one literal subject; None when it holds no message."""
        first = self._index.first_of(subject)
        if first is None:
            return None
        return SubjectState(self._index.count_of(subject), first, self._index.last_of(subject))

    def subject_counts(self, subject_filter: bytes) -> list[tuple[bytes, int]]:
        """(subject, messages) of all matching subjects, without looking up first sequences."""
        count_of = self._index.count_of
        return [(subject, count_of(subject)) for subject in self._matching(subject_filter)]

    def last_seqs_any(self, subject_filters: Sequence[bytes], up_to: int) -> list[int]:
        """For every subject that matches one of the filters its last sequence at or below `up_to`, ascending."""
        parts = parts_of(subject_filters)
        return sorted({seq for wanted in parts for seq in self.last_seqs(wanted, up_to, MAX_SEQ)})

    def last_seqs(self, wanted: Wanted, up_to: int, limit: int) -> list[int]:
        """For every matching subject its last sequence at or below `up_to`, ascending; stops beyond `limit` of them."""
        last = self._index.last_at_or_before
        if is_literal(wanted):
            seq = last(wanted, up_to)
            return [] if seq is None else [seq]
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
        """All live sequences below `before` that match, ascending."""
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
        """The message the index led to; an index that leads astray is damage, not "not found"."""
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
        """Live matching sequences >= `seq`, ascending and without gaps: about `want`, none only when there are none."""
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
        """Live sequences from `seq` upward, block by block; not over a mutation."""
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
        """All that a wildcard matches, if that was collected before."""
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
        """True when as much of the stream was counted for this filter as collecting it all costs, about."""
        blocks = self._blocks
        counted = self._counted.pop(wanted, 0) + len(blocks.firsts) - blocks.from_seq(seq)
        if counted * 2 >= len(blocks.firsts):
            return True
        if len(self._counted) >= COUNTED_KEPT:
            self._counted.clear()
        self._counted[wanted] = counted
        return False

    def _collect(self, wanted: Wanted, matching: dict[bytes, None]) -> Matched | None:
        """Costs about as much as counting them from the middle does; None when they are too many to be kept."""
        index, blocks = self._index, self._blocks
        if not blocks.firsts or sum(map(index.count_of, matching)) > MAX_EACH:
            return None
        if self._walk_is_cheaper(matching, 0):
            found = [seq for part in self._walk_blocks(matching, 0) for seq in part]
        else:
            found = [seq for subject in matching for seq in index.seqs(subject, 0, MAX_SEQ, MAX_SEQ)]
            found.sort()
        return self._matches.keep(wanted, found, blocks.firsts[-1] + blocks.counts[-1])

    def _walk_is_cheaper(self, matching: dict[bytes, None], seq: int) -> bool:
        """For all that match from `seq` on."""
        blocks = self._blocks
        return (len(blocks.firsts) - blocks.from_seq(seq)) * BLOCK_COST < len(matching) * COUNT_COST

    def _blocks_are_cheaper(self, matching: dict[bytes, None], seq: int, want: int) -> bool:
        index, blocks = self._index, self._blocks
        seeks = len(matching) * (SEEK_COST + POSTING_COST * _each(want, len(matching)))
        ahead = len(blocks.firsts) - blocks.from_seq(seq)
        sample = list(map(index.count_of, islice(matching, SAMPLE)))
        total = len(matching) * sum(sample) / len(sample)
        share = min(1.0, want / total)
        per_block = BLOCK_COST + MESSAGE_COST * blocks.messages / len(blocks.firsts)
        return max(1.0, ahead * share) * per_block < seeks

    def _merge_postings(self, matching: dict[bytes, None], seq: int, want: int) -> list[int]:
        """Takes some sequences of each subject, and of those together what lies below the point up to which every
        subject is known."""
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
        """Looks backward through some blocks, then asks every subject."""
        index, blocks = self._index, self._blocks
        matching = index.kept.matching(wanted)
        if len(matching) > BACKWARD_BLOCKS:
            newest = blocks.prev_live(up_to)
            at = blocks.find(newest) if newest is not None else -1
            for _ in range(BACKWARD_BLOCKS):
                if at < 0:
                    return None
                part = self._matching_in_block(matching, at, 0, up_to)
                if part:
                    return part[-1]
                at = blocks.live_back(at - 1)
        found = [index.last_at_or_before(subject, up_to) for subject in matching]
        return max((seq for seq in found if seq is not None), default=None)


def _each(want: int, subjects: int) -> int:
    """Number of sequences of each subject to look up for `want` of all."""
    return 1 if want == 1 else max(4, 2 * want // subjects)


def is_literal(wanted: Wanted) -> TypeGuard[bytes]:
    return isinstance(wanted, bytes) and filters.is_literal(wanted)


def _matches(wanted: Wanted, subject: bytes) -> bool:
    if isinstance(wanted, FilterSet):
        return wanted.matches(subject)
    return filters.matches(wanted, subject)
