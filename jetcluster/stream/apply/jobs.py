"""`Jobs`: the unfinished work of long commands.

A command that would remove very many messages removes some and leaves a job; the leader then proposes CONTINUE until no
job is left, and each does one more piece (`store.slices`). A job is a row beside the messages, so that the next leader,
or a replica that takes over the stream's state, goes on with it:

    u64 index of the command | u16 number (big-endian)   ->   u8 phase | u64 end, keep, at, removed, found |
                                                              u32 length | filter | cursor    (little-endian)

Jobs are done one after the other, in the order of their keys: in that of their commands, and those of one command, such
as an update's for what no consumer wants and for limits, in that in which it left them. A purge ends at `end`, so it
touches no message stored after it. Limits are those of the configuration in force, which may change meanwhile.

While there are jobs, storing a message evicts none for the limits of the whole stream: it would evict one that is
within the limits once the job's messages have gone. The stream exceeds its limits meanwhile, and is cut at the end.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Final

from jetcluster import errors
from jetcluster.errors import ApiError, DiskError
from jetcluster.records import dataclass
from jetcluster.store.block_store import BlockStore
from jetcluster.stream.apply.guard import RetentionGuard
from jetcluster.stream.ports import SIDE_JOBS, JobStep
from jetcluster.stream.rules import INTEREST, StreamRules

MAX_JOBS: Final = 64
"""Purges that may wait; one more is refused."""
MAX_DIRECT_REMOVALS: Final = 4_000
"""Messages up to which a purge looks them up, to remove them at once if one piece suffices."""
CONSUMERS_PER_WEIGHT: Final = 8
"""Consumers that double the cost of looking at a message, as each one's filter is asked."""

_KEY: Final = struct.Struct(">QH")
_ROW: Final = struct.Struct("<BQQQQQI")
_BUSY: Final = errors.by_code(errors.INSUFFICIENT_RESOURCES)

# Phases. A purge without a filter goes NEW, CUT; one with a filter NEW, COUNT, (FIND,) SUBJECTS or BLOCKS.
NEW: Final = 0
COUNT: Final = 1
"""Counting how many messages match, from subject `cursor` on."""
FIND: Final = 2
"""Finding the newest `keep` that match below `at`; the first of them becomes the end."""
SUBJECTS: Final = 3
"""Removing: subject by subject, from `cursor` and its sequence `at` on."""
BLOCKS: Final = 4
"""Removing: block by block, from `at` on."""
CUT: Final = 5
"""Removing: everything below `end`."""
EXCESS: Final = 6
"""Removing messages beyond the limit per subject: block by block, from `at` on."""
LIMITS: Final = 7
"""Removing messages beyond the stream's limits."""
SIFT: Final = 8
"""Removing messages that no consumer wants: block by block, from `at` on. `filter` has several, with spaces between."""


class StreamJobError(DiskError):
    """A stored job has another version or is cut off."""


@dataclass(slots=True)
class StreamJob:
    """A job as its row has it (see above)."""

    index: int
    phase: int = NEW
    end: int = 0
    keep: int = 0
    at: int = 0
    removed: int = 0
    found: int = 0
    filter: bytes = b""
    cursor: bytes = b""
    number: int = 0
    """Place among the jobs of its command, from 0."""

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
    """Decodes a row. Raises StreamJobError."""
    if len(key) != _KEY.size or len(row) < _ROW.size or row[0] > SIFT:
        raise StreamJobError(f"job of {len(row)} bytes")
    index, number = _KEY.unpack(key)
    phase, end, keep, at, removed, found, length = _ROW.unpack_from(row)
    behind = _ROW.size + length
    return StreamJob(index, phase, end, keep, at, removed, found, row[_ROW.size : behind], row[behind:], number)


class Jobs:
    """The jobs of one stream, oldest first. The machine sets `rules` when they change."""

    def __init__(
        self,
        store: BlockStore,
        rules: StreamRules,
        removed: Callable[[Sequence[int]], None],
        cut: Callable[[], None],
        wanted: Callable[[int, bytes], bool],
        consumers: Callable[[], int],
        guard: RetentionGuard,
    ) -> None:
        """Loads the rows of `store`. `removed` is called with the sequences that a purge with a filter removed, `cut`
        after one without; `wanted` asks whether a consumer wants a message. Raises StreamJobError."""
        self._store = store
        self._wanted = wanted
        self._consumers = consumers
        self._guard = guard
        self._on_removed = removed
        self._on_cut = cut
        self._jobs = [decode(key, row) for key, row in store.side_scan(SIDE_JOBS)]
        self.steps = 0
        """Pieces done since the start of this process; it shows waiting requests that their job makes progress."""
        self.rules = rules

    def __len__(self) -> int:
        return len(self._jobs)

    def has_room(self, more: int = 1) -> bool:
        return len(self._jobs) + more <= MAX_JOBS

    def purge(
        self, index: int, subject_filter: bytes, seq: int, keep: int, *, at_once: bool = False
    ) -> int | JobStep | ApiError:
        """Purges; returns how many messages were removed, or a JobStep if more must be. With `at_once` it begins before
        open jobs end; so does one without `keep` if only purges are open, as their order does not matter."""
        store = self._store
        everything = subject_filter in (b"", b">") and not keep and (not seq or seq > store.last_seq)
        if everything:
            removed = store.compact(seq or store.last_seq + 1)
            self._on_cut()
            return removed
        if not self.has_room():
            return _BUSY
        end = min(seq or store.last_seq + 1, store.last_seq + 1)
        job = StreamJob(index, NEW, end, keep, filter=subject_filter)
        done = False
        if at_once or not self._jobs or not (keep or self.limiting):
            done = self._run(job)
        if done:
            return job.removed
        self._leave(job)
        return JobStep(index, job.removed, False)

    def roll_up(self, index: int, subject: bytes, end: int) -> int:
        """Removes messages of `subject` below `end`; returns the index of the command whose job goes on with it, 0
        where all are removed. A purge of the same subject that is under way takes it over, as each of many messages on
        a subject may roll up those before it."""
        for one in self._jobs:
            fits = one.phase != CUT or self._store.slices.spans_all(subject)  # a cut asks for no subject
            if one.filter == subject and one.purges and not one.keep and fits:
                one.end = max(one.end, end)
                self._store.side_put(SIDE_JOBS, one.key, one.encode())
                return one.index
        job = StreamJob(index, NEW, end, filter=subject)
        if not self.limiting and self._run(job):
            return 0
        self._leave(job)
        return index

    def has(self, index: int) -> bool:
        """Returns whether the command at `index` has a job."""
        return any(job.index == index for job in self._jobs)

    def limit(self, index: int, *, per_subject: bool, at: int = 0) -> int:
        """Enforces new limits; returns how many messages were removed. `per_subject`: that limit is narrower now, or
        holds for more messages (a retention guard's), of which `at` is the first."""
        job = StreamJob(index, EXCESS if per_subject else LIMITS, at=at if per_subject else 0)
        last = self._jobs[-1] if self._jobs else None
        for one in self._jobs if per_subject else ():
            # It has passed some blocks with the wider limit: begin again.
            if one.phase == EXCESS or (one is last and one.limits):
                one.phase, one.at = EXCESS, min(at, one.at) if one.phase == EXCESS else at
                self._store.side_put(SIDE_JOBS, one.key, one.encode())
        if last is not None and last.limits:
            return 0
        if self._jobs or not self._run(job):
            self._leave(job)
        return job.removed

    def sift(self, index: int, filters: Sequence[bytes], low: int, high: int) -> None:
        """Removes messages low..high on `filters` that no consumer wants: by a job, or at once when too many wait."""
        job = StreamJob(index, SIFT, high + 1, at=low, filter=b" ".join(filters))
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
            self._leave(job)

    def _leave(self, job: StreamJob) -> None:
        """Adds a job behind all others, also of its command, in the order of keys: a restart finds them in this."""
        last = self._jobs[-1] if self._jobs else None
        if last is not None and last.index == job.index:
            job.number = last.number + 1
        assert last is None or last.key < job.key, (last.index, job.index)
        self._jobs.append(job)
        self._store.side_put(SIDE_JOBS, job.key, job.encode())

    def step(self) -> JobStep | int:
        """Does one more piece of the oldest job; returns 0 when there is none."""
        if not self._jobs:
            return 0
        self.steps += 1
        job = self._jobs[0]
        done = self._run(job)
        if done:
            del self._jobs[0]
            self._store.side_delete(SIDE_JOBS, job.key)
            if not self._jobs and not job.limits and self.rules.evicts:
                self.limit(job.index, per_subject=False)
        else:
            self._store.side_put(SIDE_JOBS, job.key, job.encode())
        return JobStep(job.index, job.removed, done)

    def within(self, subjects: Sequence[bytes]) -> list[bytes]:
        """The subjects that storing a message must keep to their limit: those within it. A job cuts the others."""
        if not self.limiting:
            return list(subjects)
        limit = self.rules.max_msgs_per_subject
        count_of = self._store.count_of
        return [subject for subject in subjects if count_of(subject) <= limit]

    @property
    def limiting(self) -> bool:
        """True while the stream may exceed its limits: a job has yet to cut it to them."""
        return any(job.limits for job in self._jobs)

    # -- phases: each does one piece and returns whether the job is done --------------------------------------------

    def _run(self, job: StreamJob) -> bool:
        """Does one piece; when a phase has ended, also the first piece of the next."""
        while True:
            phase = job.phase
            if _PHASES[phase](self, job):
                if job.purges:
                    self._report(job, ())
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
        few = slices.few(subjects, job.end) if job.found <= MAX_DIRECT_REMOVALS else None
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
            self._report(job, ())
        return done

    def _excess(self, job: StreamJob) -> bool:
        limit = self.rules.max_msgs_per_subject  # a new one holds even where full subjects refuse new messages
        behind: int | None = None
        if limit:
            end = min(self._store.last_seq + 1, self._guard.kept_from)
            gone, behind = self._store.slices.remove_excess(limit, job.at, end)
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
        weight = 1 + self._consumers() // CONSUMERS_PER_WEIGHT
        gone, behind = store.slices.remove_unwanted(job.filter.split(b" "), job.at, job.end, self._wanted, weight)
        job.removed += len(gone)
        job.at = behind or 0
        return behind is None

    def _limits(self, job: StreamJob) -> bool:
        rules = self.rules
        if rules.discard_new:
            return True
        removed, done = self._store.cut_excess(rules.max_msgs, rules.max_bytes, self._guard.kept_from)
        job.removed += removed
        return done

    def _removed(self, job: StreamJob, seqs: Sequence[int]) -> None:
        job.removed += len(seqs)
        if seqs:
            self._report(job, seqs)

    def _report(self, job: StreamJob, seqs: Sequence[int]) -> None:
        if job.filter in (b"", b">"):
            self._on_cut()
        else:
            self._on_removed(seqs)


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
