"""`Slices`: long removals from a stream, in pieces of bounded cost.

Counts bound a piece (`Step`): subjects and messages looked at, messages removed, blocks and bytes touched. They follow
from the applied commands alone, never from time, caches or the process's history: every replica cuts its pieces at the
same places. The caller keeps the place, and continues from there (`stream.apply.jobs`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence

from jetcluster.records import NamedTuple
from jetcluster.store.batch import Batch
from jetcluster.store.block_reader import BlockReader
from jetcluster.store.block_writer import MAX_REST_MESSAGES, little_stays
from jetcluster.store.blocks import BlockTable
from jetcluster.store.keys import MAX_SEQ
from jetcluster.store.search import filters
from jetcluster.store.search.filters import MAX_SEPARATE_FILTERS, FilterSet
from jetcluster.store.search.subject_index import SubjectIndex

MAX_SCATTERED_PER_BLOCK = 4
"""Messages per block of the stream above which all blocks are walked instead of looking up each subject."""


class Step(NamedTuple):
    """The bounds of one piece. One subject, one block and one message are always allowed."""

    subjects: int = 10_000
    """Subjects looked at in the index."""
    messages: int = 2_000
    """Messages removed one by one, at any place."""
    looked: int = 20_000
    """Messages in the blocks that are walked."""
    blocks: int = 256
    """Blocks that are read, to walk them or to remove messages."""
    size: int = 16 << 20
    """Bytes of their messages."""
    cut: int = 8_192
    """Messages removed from the stream's beginning, where each costs less."""
    cut_blocks: int = 1_024
    rest: int = MAX_REST_MESSAGES
    """When at most this number of messages stays, one piece removes all before them: its cost depends on the rest."""


STEP = Step()
"""The same on every replica; tests make it small."""


class Slices:
    """The removals from one stream. `remove` and `compact` are the store's."""

    def __init__(
        self,
        blocks: BlockTable,
        index: SubjectIndex,
        reader: BlockReader,
        remove: Callable[[Sequence[int]], None],
        compact: Callable[[int], int],
    ) -> None:
        self._blocks = blocks
        self._index = index
        self._reader = reader
        self._remove = remove
        self._compact = compact
        self.step = STEP

    # -- from the beginning ---------------------------------------------------------------------------------------

    def cut(self, target: int) -> tuple[int, bool]:
        """Remove messages below `target`, oldest first; returns their number, and whether all of them are gone."""
        blocks, step = self._blocks, self.step
        live = blocks.next_live(target)
        if live is None or little_stays(blocks, live, step.rest):
            return self._compact(target), True
        messages = size = seen = 0
        at = blocks.live_from(0)
        while blocks.firsts[at] + blocks.counts[at] <= live:
            messages += blocks.lives[at]
            size += blocks.sizes[at]
            # Only live blocks count: a replica that restarts does not know the dropped ones.
            if seen and (messages > step.cut or size > step.size or seen >= step.cut_blocks):
                return self._compact(blocks.firsts[at]), False
            seen += 1
            at = blocks.live_from(at + 1)
        return self._compact(target), True

    def excess(self, max_msgs: int, max_bytes: int, first_within: Callable[[int], int | None]) -> int:
        """Return the sequence below which messages exceed these limits of the stream (<= 0: no limit); 0 for none."""
        blocks = self._blocks
        target = 0
        if 0 < max_msgs < blocks.messages:
            target = blocks.nth_oldest(blocks.messages - max_msgs)
        if 0 < max_bytes < blocks.bytes:
            target = max(target, first_within(max_bytes) or MAX_SEQ)
        return target

    def newest(self, keep: int, end: int) -> int:
        """Return the lowest sequence of the `keep` newest messages below `end`; 0 when there are no older ones."""
        later = self._blocks.live_at_or_above(end)
        if self._blocks.messages - later <= keep:
            return 0
        return self._blocks.nth_newest(later + keep - 1)

    # -- by subject -----------------------------------------------------------------------------------------------

    def spans_all(self, subject_filter: bytes) -> bool:
        """Return True when all subjects match, as far as that needs no look at each."""
        return self._index.spans_all(subject_filter)

    def survey(self, subject_filter: bytes, cursor: bytes) -> tuple[list[bytes], bytes | None]:
        """Return matching subjects from `cursor` on, in byte order, and the next cursor, None at the end."""
        subjects, behind = self._index.from_cursor(subject_filter, cursor, self.step.subjects)
        return filters.select(subject_filter, subjects), behind

    def count(self, subjects: Sequence[bytes]) -> int:
        return sum(map(self._index.count_of, subjects))

    def is_scattered(self, messages: int) -> bool:
        """Return True when looking up the messages' subjects is cheaper than walking all blocks."""
        return messages <= MAX_SCATTERED_PER_BLOCK * self._blocks.live_blocks

    def few(self, subjects: Sequence[bytes], end: int) -> list[int]:
        """Return all messages below `end` of subjects that have few, ascending."""
        found: list[int] = []
        for subject in subjects:
            found += self._index.seqs(subject, 0, end, MAX_SEQ)
        found.sort()
        return found

    def remove_few(self, seqs: list[int]) -> bool:
        """Remove the ascending live `seqs`, unless they take more than one piece."""
        if len(seqs) > self.step.messages or self._affordable(seqs, _Spent()) < len(seqs):
            return False
        if seqs:
            self._remove(seqs)
        return True

    def remove_subjects(
        self, subject_filter: bytes, cursor: bytes, seq: int, end: int
    ) -> tuple[list[int], bytes | None, int]:
        """Remove messages below `end` of the matching subjects, one subject after the other, from subject `cursor` and
        its sequence `seq` on. Returns the removed sequences, ascending, and the next subject and sequence."""
        subjects, behind = self.survey(subject_filter, cursor)
        doomed: list[int] = []
        spent = _Spent()
        place = 0
        for subject in subjects:
            room = self.step.messages - len(doomed)
            if not room:
                behind, place = subject, 0
                break
            found = self._index.seqs(subject, seq if subject == cursor else 0, end, room + 1)
            taken = min(self._affordable(found, spent), room)
            doomed += found[:taken]
            if taken < len(found):
                behind, place = subject, found[taken]
                break
        doomed.sort()
        if doomed:
            self._remove(doomed)
        return doomed, behind, place

    def _affordable(self, seqs: Sequence[int], spent: _Spent) -> int:
        """Return how many of the live `seqs` can go before too many blocks are touched."""
        blocks, step = self._blocks, self.step
        for i, seq in enumerate(seqs):
            if spent.first <= seq < spent.behind:
                continue
            at = blocks.containing(seq)
            size = blocks.sizes[at]
            if spent.blocks and (spent.blocks >= step.blocks or spent.size + size > step.size):
                return i
            spent.blocks += 1
            spent.size += size
            spent.first = blocks.firsts[at]
            spent.behind = spent.first + blocks.counts[at]
        return len(seqs)

    # -- block by block -------------------------------------------------------------------------------------------

    def remove_matching(self, subject_filter: bytes, seq: int, end: int) -> tuple[list[int], int | None]:
        """Remove matching messages within seq..end-1, oldest first. Returns their sequences, and the next `seq`."""
        matches = filters.matcher(subject_filter)

        def choose(batch: Batch, first: int, live: Sequence[int]) -> Sequence[int]:
            return _on_subjects(batch, first, live, {i for i, s in enumerate(batch.subjects) if matches(s)})

        return self._walk(seq, end, choose)

    def remove_excess(self, limit: int, seq: int, end: int) -> tuple[list[int], int | None]:
        """Remove messages within seq..end-1 whose subject has more than `limit`, oldest first: if there are none below
        `seq`, these are the oldest of their subjects. Returns their sequences, and the next `seq`."""
        count_of = self._index.count_of
        left: dict[bytes, int] = {}

        def choose(batch: Batch, first: int, live: Sequence[int]) -> Sequence[int]:
            subjects = batch.subjects
            over = {i for i, subject in enumerate(subjects) if left.get(subject, count_of(subject)) > limit}
            chosen = []
            for seq in _on_subjects(batch, first, live, over):
                subject = subjects[batch.subject_number(seq - first)]
                count = left.get(subject, count_of(subject))
                if count > limit:
                    left[subject] = count - 1
                    chosen.append(seq)
            return chosen

        return self._walk(seq, end, choose)

    def remove_unwanted(
        self, subject_filters: Sequence[bytes], seq: int, end: int, wanted: Callable[[int, bytes], bool], weight: int
    ) -> tuple[list[int], int | None]:
        """Remove messages within seq..end-1 that match one of the filters and are not `wanted`, oldest first. Each
        message looked at counts as `weight`. Returns the removed sequences, and the next `seq`."""
        literal = {one for one in subject_filters if filters.is_literal(one)}
        wild = [one for one in subject_filters if one not in literal]
        matches = FilterSet(wild).matches if len(wild) > MAX_SEPARATE_FILTERS else _any_of(wild)

        def choose(batch: Batch, first: int, live: Sequence[int]) -> Sequence[int]:
            subjects, number = batch.subjects, batch.subject_number
            matching = {i for i, subject in enumerate(subjects) if subject in literal or matches(subject)}
            looked = _on_subjects(batch, first, live, matching)
            return [seq for seq in looked if not wanted(seq, subjects[number(seq - first)])]

        return self._walk(seq, end, choose, weight)

    def nth_back(self, subject_filter: bytes, nth: int, end: int) -> tuple[int, int]:
        """Look for the `nth` newest matching message below `end`. Returns (0, its sequence), or (number still to find,
        next `end`), which is 0 when the stream has no more."""
        blocks, step = self._blocks, self.step
        matches = filters.matcher(subject_filter)
        looked = size = seen = 0
        at = blocks.live_back(bisect_right(blocks.firsts, end - 1) - 1)
        while at >= 0:
            size += blocks.sizes[at]
            if seen and (seen >= step.blocks or looked >= step.looked or size > step.size):
                return nth, blocks.firsts[at] + blocks.counts[at]
            seen += 1
            looked += blocks.lives[at]
            batch = self._reader.batch(at)
            wanted = {i for i, subject in enumerate(batch.subjects) if matches(subject)}
            found = _on_subjects(batch, blocks.firsts[at], blocks.live_seqs(at, 0, end - 1), wanted)
            if len(found) >= nth:
                return 0, found[-nth]
            nth -= len(found)
            at = blocks.live_back(at - 1)
        return nth, 0

    def _walk(
        self, seq: int, end: int, choose: Callable[[Batch, int, Sequence[int]], Sequence[int]], weight: int = 1
    ) -> tuple[list[int], int | None]:
        blocks, step = self._blocks, self.step
        doomed: list[int] = []
        looked = size = seen = 0
        behind: int | None = None
        at = blocks.from_seq(seq)
        while at < len(blocks.firsts) and blocks.firsts[at] < end:
            first = blocks.firsts[at]
            size += blocks.sizes[at]
            if seen and (seen >= step.blocks or looked >= step.looked or size > step.size):
                behind = first
                break
            seen += 1
            looked += blocks.lives[at] * weight
            chosen = choose(self._reader.batch(at), first, blocks.live_seqs(at, seq, end - 1))
            room = step.messages - len(doomed)
            doomed += chosen[:room]
            if len(chosen) > room:
                behind = chosen[room]
                break
            at = blocks.live_from(at + 1)
        if doomed:
            self._remove(doomed)
        return doomed, behind


class _Spent:
    """Blocks and bytes that a piece has touched by look-ups, and the bounds of the last block."""

    def __init__(self) -> None:
        self.blocks = self.size = 0
        self.first = self.behind = 0


def _any_of(wild: Sequence[bytes]) -> filters.Matcher:
    matchers = [filters.matcher(one) for one in wild]
    return lambda subject: any(matches(subject) for matches in matchers)


def _on_subjects(batch: Batch, first: int, live: Sequence[int], wanted: set[int]) -> Sequence[int]:
    """Return the sequences of `live`, of one block, whose subject numbers are `wanted`."""
    if not wanted:
        return ()
    if len(wanted) == len(batch.subjects):
        return live
    number = batch.subject_number
    return [seq for seq in live if number(seq - first) in wanted]
