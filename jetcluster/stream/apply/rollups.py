"""Rollups: messages that take the place of all before them on their subject (`Nats-Rollup`, ADR-16)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from jetcluster.protocol.subjects import is_literal
from jetcluster.store.block_store import BlockStore
from jetcluster.stream.apply import jobs
from jetcluster.stream.apply.staging import Staging
from jetcluster.stream.fields import KV_OPERATION, nats_fields
from jetcluster.stream.rules import StreamRules

ROLLUP = b"Nats-Rollup"


def are_long(store: BlockStore, subject: bytes) -> bool:
    """Returns whether a job should remove what a message on `subject` rolls up."""
    return store.count_of(subject) > jobs.MAX_DIRECT_REMOVALS and is_literal(subject)


def may_be_long(store: BlockStore, rules: StreamRules, subjects: Sequence[bytes], headers: Sequence[bytes]) -> bool:
    """Returns whether one of these messages will roll up so much, by what the stream has now. `headers` are the blocks
    of the first messages, b"" for none."""
    if not rules.allow_rollup_hdrs or rules.deny_purge:
        return False
    for subject, block in zip(subjects, headers, strict=False):
        if not block or not (nats_fields(block).get(ROLLUP) or (rules.kv_purge and KV_OPERATION in block)):
            continue
        # A subject that is mapped is another one when it is stored: whether that has many is seen there.
        if rules.subject_transform is not None or are_long(store, subject):
            return True
    return False


class RollingUp:
    """The rollups of one command, at `index` of the log, which `staging` stages while the context is entered. `follow`
    is called with each new job."""

    __slots__ = ("_follow", "_index", "_jobs", "_staging", "_store", "_waits")

    def __init__(
        self, index: int, staging: Staging, store: BlockStore, open_jobs: jobs.Jobs, follow: Callable[[], None]
    ) -> None:
        self._index = index
        self._staging, self._store = staging, store
        self._jobs = open_jobs
        self._follow = follow
        self._waits: list[tuple[int, int]] = []

    def __enter__(self) -> RollingUp:
        self._staging.roll_up = self
        return self

    def __exit__(self, *_: object) -> None:
        self._staging.roll_up = None

    def __call__(self, subject: bytes, seq: int) -> bool:
        """Removes what the message `seq` rolls up, or begins to. Returns False where that is to be done at once."""
        if not are_long(self._store, subject) or not self._jobs.has_room():
            return False
        if job := self._jobs.roll_up(self._index, subject, seq):
            self._waits.append((seq, job))
            self._follow()
        return True

    @property
    def last_job(self) -> int:
        """The job of `waits` that is done last; 0 without one. Jobs are done in the order of their commands."""
        return max((job for _, job in self._waits), default=0)

    @property
    def waits(self) -> tuple[tuple[int, int], ...]:
        """(sequence, job) of the messages whose acks wait: `PublishResult.waits`."""
        return tuple(self._waits)
