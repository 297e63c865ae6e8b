"""`AtomicIngest`: messages of atomic batches (ADR-50) on their way into the log of the stream whose leader is here.

They wait in the stage, each answered with zero bytes at once; the commit takes all of them into one command, which is
acknowledged when it was applied. A batch that cannot be proposed is gone, with the answer that an ordinary message
would get, and one whose leader was lost in between gets none: it is stored whole or not at all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from jetcluster.clock import Clock
from jetcluster.raft.api import RaftError
from jetcluster.store.batch import MAX_SUBJECT, Batch
from jetcluster.stream.answers import Answers
from jetcluster.stream.atomic_stage import AtomicStage, Commit
from jetcluster.stream.backlog import Backlog
from jetcluster.stream.checks import SUBJECT_TOO_LONG
from jetcluster.stream.commands import encode_atomic
from jetcluster.stream.results import BatchResult


class _Waiting(NamedTuple):
    reply: bytes
    batch_id: bytes
    messages: int
    size: int


class AtomicIngest:
    def __init__(
        self,
        stage: AtomicStage,
        propose: Callable[[bytes], int],
        clock: Clock,
        answers: Answers,
        backlog: Backlog,
    ) -> None:
        self.stage = stage
        self._propose = propose
        self._clock = clock
        self._answers = answers
        self._backlog = backlog
        self._waiting: dict[int, _Waiting] = {}
        """By log index of the commit."""

    def on_message(
        self, batch_id: bytes, subject: bytes, reply: bytes, headers: bytes, payload: bytes
    ) -> Commit | None:
        """`headers` as they are to be stored. Returns the batch that this message completes: the caller gives it to
        `commit` when what was published before is proposed."""
        outcome = self.stage.add(batch_id, subject, headers, payload)
        if isinstance(outcome, Commit):
            return outcome
        answers = self._answers
        if outcome is not None:
            answers.refuse((reply,), outcome)
        else:
            answers.note(reply)
        return None

    def commit(self, commit: Commit, reply: bytes) -> None:
        if self._backlog.full:
            self._answers.too_many((reply,))
            return
        try:
            batch = Batch.encode(commit.subjects, commit.headers, commit.payloads)
        except (AssertionError, OverflowError):
            assert not all(0 < len(subject) <= MAX_SUBJECT for subject in commit.subjects)
            self._answers.refuse((reply,), SUBJECT_TOO_LONG)
            return
        commands = encode_atomic(self._clock.time_ns(), batch, plain=commit.plain, allow_msg_id=self.stage.allow_msg_id)
        index = 0
        try:
            for command in commands:  # without anything in between: see `atomic_parts`
                index = self._propose(command)
        except RaftError as error:
            self._answers.not_proposed((reply,), error)
            return
        waiting = _Waiting(reply, commit.batch_id, len(commit.subjects), len(batch))
        self._waiting[index] = waiting
        self._backlog.add(waiting.messages, waiting.size)

    def on_applied(self, index: int, result: BatchResult) -> None:
        """The BATCH_COMMIT at `index` was applied here; answers it if it was proposed here."""
        waiting = self._waiting.pop(index, None)
        if waiting is None:
            return
        self._backlog.remove(waiting.messages, waiting.size)
        answers = self._answers
        if result.error is not None:
            answers.refuse((waiting.reply,), result.error)
        elif waiting.reply and not answers.no_ack:
            ack = answers.acks.batch(result.last_seq, waiting.batch_id, result.size)
            answers.bus.publish(waiting.reply, ack)

    def on_dropped(self, first_index: int) -> None:
        for index in [index for index in self._waiting if index >= first_index]:
            waiting = self._waiting.pop(index)
            self._backlog.remove(waiting.messages, waiting.size)
