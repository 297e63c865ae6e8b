"""`Jobs`: what long commands have left to do.

A command that would remove very many messages removes some and leaves a job; the leader then proposes CONTINUE until
none is left, and each does one more piece (`store.slices`). A job is a row beside the messages, so the next leader,
and a replica that takes the stream's state over, goes on with it:

    u64 index of the command | u16 number (big-endian)   ->   u8 phase | u64 end, keep, at, removed, found |
                                                              u32 length | filter | cursor    (little-endian)

Jobs are done one after the other, in the order of their commands. What comes after a purge in the log is not touched by
its rest: it ends at `end`. Limits are those of the configuration in force, also when that changes under way.

While there are jobs, storing a message pushes out no other one for the limits of the whole stream: that would be one
that stays when what is to go has gone. The stream holds more for as long, and is cut to its limits in the end.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Final

from jetcluster import errors
from jetcluster.errors import ApiError, DiskError
from jetcluster.records import dataclass
from jetcluster.store.block_store import BlockStore
from jetcluster.stream.ports import SIDE_JOBS, JobStep
from jetcluster.stream.rules import INTEREST, StreamRules

MAX_JOBS: Final = 64
"""Purges that wait at a time; one more is refused."""

FEW: Final = 4_000
"""More messages are not looked up to see whether they can go at once."""

ASKED: Final = 8
"""With so many consumers looking at a message counts double, as it is asked of each whether its filter takes it."""

AFTERWARDS: Final = 0xFFFF
"""Number of the job that cuts the stream to its limits after others."""

SIFTING: Final = 0xFFFE
"""Number of the job that removes what nobody wants: a command may have one for limits as well."""

_KEY: Final = struct.Struct(">QH")
_ROW: Final = struct.Struct("<BQQQQQI")
_BUSY: Final = errors.by_code(errors.INSUFFICIENT_RESOURCES)

# Phases. A purge without a filter goes NEW, CUT; one with a filter NEW, COUNT, (FIND,) SUBJECTS or BLOCKS.
NEW: Final = 0
COUNT: Final = 1
"""Counting how many messages match, from subject `cursor` on."""
FIND: Final = 2
"""Below `at`, the newest `keep` that match are looked for; the first of them is the end then."""
SUBJECTS: Final = 3
"""Removing: subject by subject, from `cursor` and its sequence `at` on."""
BLOCKS: Final = 4
"""Removing: block by block, from `at` on."""
CUT: Final = 5
"""Removing: everything below `end`."""
EXCESS: Final = 6
"""Removing what subjects have too much: block by block, from `at` on."""
LIMITS: Final = 7
"""Removing what the stream has too much."""
SIFT: Final = 8
"""Removing what no consumer wants, of those there are when a piece is done: block by block, from `at` on. `filter` is
several filters with spaces between them."""


class StreamJobError(DiskError):
    """A stored job is of another version or cut off."""


@dataclass(slots=True)
class StreamJob:
    index: int
    number: int = 0
    phase: int = NEW
    end: int = 0
    keep: int = 0
    at: int = 0
    removed: int = 0
    found: int = 0
    filter: bytes = b""
    cursor: bytes = b""

    @property
    def key(self) -> bytes:
        return _KEY.pack(self.index, self.number)

    @property
    def limits(self) -> bool:
        return self.phase in (EXCESS, LIMITS)

    @property
    def purges(self) -> bool:
        return self.phase not in (EXCESS, LIMITS, SIFT)

    def encode(self) -> bytes:
        fixed = (self.phase, self.end, self.keep, self.at, self.removed, self.found, len(self.filter))
        return _ROW.pack(*fixed) + self.filter + self.cursor


def decode(key: bytes, row: bytes) -> StreamJob:
    """Raises StreamJobError."""
    if len(key) != _KEY.size or len(row) < _ROW.size or row[0] > SIFT:
        raise StreamJobError(f"job of {len(row)} bytes")
    index, number = _KEY.unpack(key)
    phase, end, keep, at, removed, found, length = _ROW.unpack_from(row)
    behind = _ROW.size + length
    return StreamJob(index, number, phase, end, keep, at, removed, found, row[_ROW.size : behind], row[behind:])


class Jobs:
    """The machine sets `rules` when they change."""

    def __init__(
        self,
        store: BlockStore,
        rules: StreamRules,
        removed: Callable[[Sequence[int]], None],
        cut: Callable[[], None],
        wanted: Callable[[int, bytes], bool],
        consumers: Callable[[], int],
    ) -> None:
        """Continues where the store stands. `removed` is told sequences that a purge with a filter removed, `cut` that
        one without removed something; `wanted` says whether a message is for one of so many
        `consumers`. Raises StreamJobError."""
        self._store = store
        self._wanted = wanted
        self._consumers = consumers
        self._told_removed = removed
        self._told_cut = cut
        self._jobs = [decode(key, row) for key, row in store.side_scan(SIDE_JOBS)]
        self.steps = 0
        """Pieces done since the start of this process: waiting requests see that it goes on."""
        self.rules = rules

    def __len__(self) -> int:
        return len(self._jobs)

    def has_room(self, more: int = 1) -> bool:
        return len(self._jobs) + more <= MAX_JOBS

    def purge(
        self, index: int, number: int, subject_filter: bytes, seq: int, keep: int, *, at_once: bool = False
    ) -> int | JobStep | ApiError:
        """Number of messages that went; a JobStep when that was not all. `at_once`: it does not wait for its turn to
        begin.

        A purge without `keep` begins at once where only purges are open: the same goes in any order."""
        store = self._store
        everything = subject_filter in (b"", b">") and not keep and (not seq or seq > store.last_seq)
        if everything:
            removed = store.compact(seq or store.last_seq + 1)
            self._told_cut()
            return removed
        if not self.has_room():
            return _BUSY
        end = min(seq or store.last_seq + 1, store.last_seq + 1)
        job = StreamJob(index, number, NEW, end, keep, filter=subject_filter)
        done = False
        if at_once or not self._jobs or not (keep or self._limiting):
            done = self._run(job)
        if done:
            return job.removed
        self._jobs.append(job)
        self._store.side_put(SIDE_JOBS, job.key, job.encode())
        return JobStep(index, job.removed, False)

    def limit(self, index: int, number: int = 0, *, per_subject: bool) -> int:
        """The configuration has changed; how many messages went so far. `per_subject`: a subject may have more than
        it may have now."""
        job = StreamJob(index, number, EXCESS if per_subject else LIMITS)
        last = self._jobs[-1] if self._jobs else None
        for one in self._jobs if per_subject else ():
            # Each goes by the limit of now, which was not that for what it has passed already: that has too many again.
            if one.phase == EXCESS or (one is last and one.limits):
                one.phase, one.at = EXCESS, 0
                self._store.side_put(SIDE_JOBS, one.key, one.encode())
        if last is not None and last.limits:
            return 0
        if self._jobs or not self._run(job):
            self._jobs.append(job)
            self._store.side_put(SIDE_JOBS, job.key, job.encode())
        return job.removed

    def sift(self, index: int, filters: Sequence[bytes], low: int, high: int) -> None:
        """Among the messages low..high on these filters may be some that nobody wants any more. What the command
        itself does not remove is left to a job; when too many wait, all goes at once."""
        job = StreamJob(index, SIFTING, SIFT, high + 1, at=low, filter=b" ".join(filters))
        last = self._jobs[-1] if self._jobs else None
        if last is not None and last.phase == SIFT and last.filter == job.filter:
            last.at, last.end = min(last.at, low), max(last.end, job.end)
            self._store.side_put(SIDE_JOBS, last.key, last.encode())
            return
        if self._jobs and self.has_room():
            done = False
        else:
            done = self._run(job)
            while not done and not self.has_room():
                done = self._run(job)
        if not done:
            self._jobs.append(job)
            self._store.side_put(SIDE_JOBS, job.key, job.encode())

    def step(self) -> JobStep | int:
        """One more piece of the oldest job; 0 when there is none."""
        if not self._jobs:
            return 0
        self.steps += 1
        job = self._jobs[0]
        done = self._run(job)
        if done:
            del self._jobs[0]
            self._store.side_delete(SIDE_JOBS, job.key)
            if not self._jobs and not job.limits and self.rules.evicts:
                self.limit(job.index, AFTERWARDS, per_subject=False)
        else:
            self._store.side_put(SIDE_JOBS, job.key, job.encode())
        return JobStep(job.index, job.removed, done)

    def within(self, subjects: Sequence[bytes]) -> list[bytes]:
        """Those of the subjects that have to keep to their limit when more comes: all that have no more than they may.
        Of the others, while limits are enforced, the job removes what is too much."""
        if not self._limiting:
            return list(subjects)
        limit = self.rules.max_msgs_per_subject
        count_of = self._store.count_of
        return [subject for subject in subjects if count_of(subject) <= limit]

    @property
    def _limiting(self) -> bool:
        return any(job.limits for job in self._jobs)

    # -- phases: each does one piece, and tells whether the job is done ---------------------------------------------

    def _run(self, job: StreamJob) -> bool:
        """One piece; where one phase has come to its end, also the beginning of the next."""
        while True:
            phase = job.phase
            if _PHASES[phase](self, job):
                if job.purges:
                    self._told(job, ())
                return True
            if job.phase == phase:
                return False

    def _begin(self, job: StreamJob) -> bool:
        store, slices = self._store, self._store.slices
        if not store.messages:
            return True
        if job.filter in (b"", b">") or slices.spans_all(job.filter):
            if job.keep:
                job.end = slices.newest(job.keep, job.end)
            job.phase = CUT
            return not job.end
        subjects, behind = slices.survey(job.filter, b"")
        job.found, job.cursor = slices.count(subjects), behind or b""
        if behind is not None:
            job.phase = COUNT
            return False
        few = slices.few(subjects, job.end) if job.found <= FEW else None
        if few is not None:
            if job.keep:
                few = few[: -job.keep]
            if slices.remove_few(few):
                job.removed = len(few)
                return True
        return self._counted(job)

    def _count(self, job: StreamJob) -> bool:
        subjects, behind = self._store.slices.survey(job.filter, job.cursor)
        job.found += self._store.slices.count(subjects)
        if behind is None:
            return self._counted(job)
        job.cursor = behind
        return False

    def _counted(self, job: StreamJob) -> bool:
        if job.found <= job.keep:
            return True
        job.cursor = b""
        if job.keep:
            job.phase, job.at = FIND, job.end
        else:
            self._choose(job)
        return False

    def _choose(self, job: StreamJob) -> None:
        job.phase = SUBJECTS if self._store.slices.is_scattered(job.found) else BLOCKS
        job.at = 0

    def _find(self, job: StreamJob) -> bool:
        job.keep, job.at = self._store.slices.nth_back(job.filter, job.keep, job.at)
        if job.keep:
            return not job.at
        job.end = job.at
        self._choose(job)
        return False

    def _by_subject(self, job: StreamJob) -> bool:
        gone, behind, job.at = self._store.slices.remove_subjects(job.filter, job.cursor, job.at, job.end)
        job.cursor = behind or b""
        self._removed(job, gone)
        return behind is None

    def _by_block(self, job: StreamJob) -> bool:
        gone, behind = self._store.slices.remove_matching(job.filter, job.at, job.end)
        job.at = behind or 0
        self._removed(job, gone)
        return behind is None

    def _cut(self, job: StreamJob) -> bool:
        removed, done = self._store.slices.cut(job.end)
        job.removed += removed
        if not done:
            self._told(job, ())
        return done

    def _excess(self, job: StreamJob) -> bool:
        limit = self.rules.max_msgs_per_subject  # of a new configuration also where full subjects refuse what comes
        behind: int | None = None
        if limit:
            gone, behind = self._store.slices.remove_excess(limit, job.at, self._store.last_seq + 1)
            job.removed += len(gone)
        if behind is None:
            job.phase, job.at = LIMITS, 0
        else:
            job.at = behind
        return False

    def _sift(self, job: StreamJob) -> bool:
        if self.rules.retention != INTEREST:
            return True
        store = self._store
        weight = 1 + self._consumers() // ASKED
        gone, behind = store.slices.remove_unwanted(job.filter.split(b" "), job.at, job.end, self._wanted, weight)
        job.removed += len(gone)
        job.at = behind or 0
        return behind is None

    def _limits(self, job: StreamJob) -> bool:
        rules = self.rules
        if rules.discard_new:
            return True
        removed, done = self._store.cut_excess(rules.max_msgs, rules.max_bytes)
        job.removed += removed
        return done

    def _removed(self, job: StreamJob, seqs: Sequence[int]) -> None:
        job.removed += len(seqs)
        if seqs:
            self._told(job, seqs)

    def _told(self, job: StreamJob, seqs: Sequence[int]) -> None:
        if job.filter in (b"", b">"):
            self._told_cut()
        else:
            self._told_removed(seqs)


_PHASES: Final[dict[int, Callable[[Jobs, StreamJob], bool]]] = {
    NEW: Jobs._begin,
    COUNT: Jobs._count,
    FIND: Jobs._find,
    SUBJECTS: Jobs._by_subject,
    BLOCKS: Jobs._by_block,
    CUT: Jobs._cut,
    EXCESS: Jobs._excess,
    LIMITS: Jobs._limits,
    SIFT: Jobs._sift,
}
