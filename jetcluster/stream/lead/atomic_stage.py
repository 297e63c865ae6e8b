"""`AtomicStage`: the open atomic batches of one stream (ADR-50), held by its leader until their commit.

An open batch is not in the log: it is lost with its leader, and the next leader refuses the batch's next message
(10176). The order of the tests is nats-server 2.15's; the checks of the messages against the stream are made in apply
(`atomic_checks`).

`AtomicIngest`: messages of atomic batches on their way into the log. They wait in the stage, each answered with zero
bytes at once; the commit proposes all of them in one command, which is acknowledged when it was applied. A batch that
cannot be proposed is dropped, with the answer that an ordinary message gets. One whose leader is lost gets no answer:
it is stored whole or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from jetcluster import errors
from jetcluster.clock import Clock
from jetcluster.errors import ApiError
from jetcluster.protocol import headers as header_block
from jetcluster.raft.api import RaftError
from jetcluster.records import NamedTuple
from jetcluster.store.batch import Batch
from jetcluster.stream.apply.checks import EARLY_ATOMIC, MAX_HEADER_BYTES, early, refused_by
from jetcluster.stream.fields import FIELD, KV_OPERATION, REQUIRED_LEVEL, level_is_met
from jetcluster.stream.lead.answers import Answers, Backlog
from jetcluster.stream.log.commands import encode_atomic
from jetcluster.stream.ports import BatchResult
from jetcluster.stream.rules import StreamRules

MAX_ID_BYTES: Final = 64
"""Bytes of a batch id (10179)."""
MESSAGE_OVERHEAD_BYTES: Final = 160
"""Bytes that a staged message costs besides its own: three bytes objects and their places in lists."""

BATCH_ID: Final = b"\r\nNats-Batch-Id:"
_SEQUENCE: Final = b"\r\nNats-Batch-Sequence:"
_COMMIT: Final = b"\r\nNats-Batch-Commit:"
LEVEL: Final = b"\r\n%b:" % REQUIRED_LEVEL

_NO_SEQUENCE: Final = errors.by_code(10175)
_INCOMPLETE: Final = errors.by_code(10176)
_INVALID_ID: Final = errors.by_code(10179)
_LEVEL_TOO_LOW: Final = errors.by_code(10185)
_INVALID_COMMIT: Final = errors.by_code(10200)
_TOO_MANY: Final = errors.by_code(10210)

Abandoned = Callable[[bytes, str], None]
"""Called with (batch id, reason), for an advisory. Reasons: timeout, large, incomplete, unsupported."""


class BatchLimits(NamedTuple):
    """Limits of batches, by default nats-server's."""

    per_stream: int = 50
    """Open batches of a stream."""
    total: int = 1000
    """Open batches of the server."""
    messages: int = 1000
    timeout: float = 10.0
    """Seconds without a message after which a batch is dropped."""
    batch_bytes: int = 32 << 20
    """Bytes of a batch (our own limit): it is applied in one step, which must be short."""
    total_bytes: int = 128 << 20
    """Bytes staged on this server, in all streams (our own limit)."""
    fast_per_stream: int = 1000
    """Open fast-ingest batches of a stream."""
    fast_total: int = 50_000
    """Open fast-ingest batches of the server."""
    allow_msg_id: bool = True
    """Nats-Msg-Id in a batch is deduplicated, as since nats-server 2.12.1, instead of refused."""


class BatchQuota:
    """Staged bytes and open batches of all streams of a server."""

    __slots__ = ("fast_open", "limits", "open", "staged_bytes")

    def __init__(self, limits: BatchLimits | None = None) -> None:
        self.limits = limits or BatchLimits()
        self.open = 0
        self.fast_open = 0
        self.staged_bytes = 0


class Commit(NamedTuple):
    """A complete batch, to propose; the stage has dropped it."""

    batch_id: bytes
    subjects: list[bytes]
    headers: list[bytes]
    payloads: list[bytes]
    plain: bool
    """No header has a meaning besides the batch, and none is too long: no checks per message are needed."""


class _Open:
    __slots__ = ("around", "deadline", "headers", "payloads", "plain", "size", "subjects")

    def __init__(self) -> None:
        self.around = b"", b""
        """The last header block, before and after the sequence."""
        self.subjects: list[bytes] = []
        self.headers: list[bytes] = []
        self.payloads: list[bytes] = []
        self.size = 0
        self.deadline = 0.0
        self.plain = True


class AtomicStage:
    """The open atomic batches of one stream."""

    def __init__(
        self,
        rules: StreamRules,
        room: BatchQuota,
        clock: Clock,
        abandoned: Abandoned,
        opened: Callable[[], None] = lambda: None,
    ) -> None:
        """`opened` is called for each new batch: `tick` must be called while there are any."""
        self.rules = rules
        self._early = early(EARLY_ATOMIC, rules)
        self.room = room
        self._clock = clock
        self._abandoned = abandoned
        self.opened = opened
        self._open: dict[bytes, _Open] = {}
        self.expected = b""
        """The next header block of a batch whose headers differ only in the sequence, as most do; b"" if none."""
        self._expecting: _Open | None = None

    def __len__(self) -> int:
        """Number of open batches."""
        return len(self._open)

    @property
    def allow_msg_id(self) -> bool:
        return self.room.limits.allow_msg_id

    def configure(self, rules: StreamRules) -> None:
        """Puts a configuration in force. Switching atomic batches off drops the open ones without an answer."""
        self.rules = rules
        self._early = early(EARLY_ATOMIC, rules)
        self._expect(None)
        if not rules.allow_atomic:
            self.clear()

    def clear(self) -> None:
        """Drops all batches without an answer: the replica leads no more, or the stream is gone."""
        for batch_id in list(self._open):
            self._drop(batch_id)

    def tick(self) -> None:
        """Abandons batches without a message for too long."""
        if self._open:
            now = self._clock.monotonic()
            for batch_id in [batch_id for batch_id, batch in self._open.items() if batch.deadline <= now]:
                self._abandon(batch_id, "timeout")

    def add(self, batch_id: bytes, subject: bytes, headers: bytes, payload: bytes) -> Commit | ApiError | None:
        """Takes one message of a batch, with its headers as stored. Returns None if it is staged, a Commit if it is the
        last one, or an error; an error from `_check` on drops the batch, too."""
        if self._early and (refused := refused_by(self._early, self, headers, payload)) is not None:
            return refused
        if len(batch_id) > MAX_ID_BYTES:
            return _INVALID_ID
        sequence = _number(field(headers, _SEQUENCE))
        if sequence is None:
            return _NO_SEQUENCE
        commit = field(headers, _COMMIT)
        now = self._clock.monotonic()
        batch = self._open.get(batch_id)
        if batch is not None and batch.deadline <= now:
            self._abandon(batch_id, "timeout")
            batch = None
        if batch is None:
            if sequence != 1:
                return self._too_large() if _size(sequence, commit) > self.room.limits.messages else _INCOMPLETE
            if len(self._open) >= self.room.limits.per_stream or self.room.open >= self.room.limits.total:
                return _TOO_MANY
            batch = self._open[batch_id] = _Open()
            self.opened()
            self.room.open += 1
        refused = self._check(batch_id, batch, sequence, commit, headers)
        if refused is not None:
            return refused
        if commit != b"eob":  # "eob" ends the batch without this message
            refused = self._stage(batch_id, batch, subject, headers, payload)
            if refused is not None:
                return refused
        if commit is not None:
            return self._complete(batch_id, batch, commit)
        batch.deadline = now + self.room.limits.timeout
        if LEVEL in headers:
            self._expect(None)
        else:
            before, _, behind = headers.partition(_SEQUENCE)
            behind = behind[behind.find(b"\r\n") :]
            batch.around = b"%b%b " % (before, _SEQUENCE), behind
            self._expect(batch)
        return None

    def add_expected(self, subject: bytes, payload: bytes) -> bool:
        """Stages a message whose header block is `expected`, unparsed. False at a limit: call `add` then."""
        batch = self._expecting
        assert batch is not None
        headers = self.expected
        limits, room, rules = self.room.limits, self.room, self.rules
        body = len(headers) + len(payload)
        size = len(subject) + body + MESSAGE_OVERHEAD_BYTES
        now = self._clock.monotonic()
        if (
            batch.deadline <= now
            or len(batch.subjects) >= limits.messages
            or batch.size + size > limits.batch_bytes
            or room.staged_bytes + size > limits.total_bytes
            or 0 < rules.max_msg_size < body
            or len(headers) > MAX_HEADER_BYTES
        ):
            return False
        batch.subjects.append(subject)
        batch.headers.append(headers)
        batch.payloads.append(payload)
        batch.size += size
        room.staged_bytes += size
        batch.deadline = now + limits.timeout
        self._expect(batch)
        return True

    def _expect(self, batch: _Open | None) -> None:
        self._expecting = batch
        if batch is None:
            self.expected = b""
        else:
            before, behind = batch.around
            self.expected = b"%b%d%b" % (before, len(batch.subjects) + 1, behind)

    def _check(
        self, batch_id: bytes, batch: _Open, sequence: int, commit: bytes | None, headers: bytes
    ) -> ApiError | None:
        """Makes the last checks, whose failure drops the batch."""
        if commit is not None and commit not in (b"1", b"eob"):
            self._drop(batch_id)
            return _INVALID_COMMIT
        if LEVEL in headers and not level_is_met(field(headers, LEVEL)):
            self._abandon(batch_id, "unsupported")
            return _LEVEL_TOO_LOW
        if sequence != len(batch.subjects) + 1 or (sequence == 1 and commit == b"eob"):
            self._abandon(batch_id, "incomplete")
            return _INCOMPLETE
        if _size(sequence, commit) > self.room.limits.messages:
            self._abandon(batch_id, "large")
            return self._too_large()
        return None

    def _stage(self, batch_id: bytes, batch: _Open, subject: bytes, headers: bytes, payload: bytes) -> ApiError | None:
        size = len(subject) + len(headers) + len(payload) + MESSAGE_OVERHEAD_BYTES
        if batch.size + size > self.room.limits.batch_bytes:
            self._abandon(batch_id, "large")
            return errors.by_code(10199, size=f"{self.room.limits.batch_bytes} bytes")
        if self.room.staged_bytes + size > self.room.limits.total_bytes:
            self._abandon(batch_id, "incomplete")
            return _INCOMPLETE
        if LEVEL in headers:
            headers = header_block.remove(headers, REQUIRED_LEVEL)
        own_fields = 2 + (_COMMIT in headers)
        if headers.count(FIELD) != own_fields or KV_OPERATION in headers or len(headers) > MAX_HEADER_BYTES:
            batch.plain = False
        batch.subjects.append(subject)
        batch.headers.append(headers)
        batch.payloads.append(payload)
        batch.size += size
        self.room.staged_bytes += size
        return None

    def _complete(self, batch_id: bytes, batch: _Open, commit: bytes) -> Commit:
        self._drop(batch_id)
        if commit == b"eob":
            last = header_block.set_header(batch.headers[-1], b"Nats-Batch-Commit", b"1")
            batch.headers[-1] = last
            batch.plain = batch.plain and len(last) <= MAX_HEADER_BYTES
        return Commit(batch_id, batch.subjects, batch.headers, batch.payloads, batch.plain)

    def _abandon(self, batch_id: bytes, reason: str) -> None:
        self._drop(batch_id)
        self._abandoned(batch_id, reason)

    def _drop(self, batch_id: bytes) -> None:
        batch = self._open.pop(batch_id)
        if batch is self._expecting:
            self._expect(None)
        self.room.open -= 1
        self.room.staged_bytes -= batch.size

    def _too_large(self) -> ApiError:
        return errors.by_code(10199, size=self.room.limits.messages)


def field(headers: bytes, needle: bytes) -> bytes | None:
    r"""The first value of a header, `needle` being b"\r\nName:"; None when it is absent. Trailing blanks stay, as in
    nats-server: `Nats-Batch-Commit: 1 ` is no commit."""
    at = headers.find(needle)
    if at < 0:
        return None
    start = at + len(needle)
    end = headers.find(b"\r\n", start)
    return headers[start : end if end >= 0 else len(headers)].lstrip(b" ")


def _number(text: bytes | None) -> int | None:
    if text is None or not text.isdigit() or len(text) > 20:
        return None
    number = int(text)
    return number if number < 1 << 64 else None


def _size(sequence: int, commit: bytes | None) -> int:
    """Number of messages stored if this is the last one."""
    return sequence - 1 if commit == b"eob" else sequence


class _Waiting(NamedTuple):
    reply: bytes
    batch_id: bytes
    messages: int
    size: int


class AtomicIngest:
    """Answers and proposes the atomic batches of one stream."""

    def __init__(
        self,
        stage: AtomicStage,
        propose: Callable[[bytes], int],
        clock: Clock,
        answers: Answers,
        backlog: Backlog,
        rolls_up: Callable[[Sequence[bytes], Sequence[bytes]], bool],
        hold: Callable[[int, bytes, bytes], bool],
    ) -> None:
        """`rolls_up`: see `Ingest`. `hold` keeps the ack (reply subject, payload) until a job is done; it returns False
        where it does not."""
        self._rolls_up, self._hold = rolls_up, hold
        self.stage = stage
        self._propose = propose
        self._clock = clock
        self._answers = answers
        self._backlog = backlog
        self._waiting: dict[int, _Waiting] = {}
        """Proposed batches by log index of the commit."""

    def on_message(
        self, batch_id: bytes, subject: bytes, reply: bytes, headers: bytes, payload: bytes
    ) -> Commit | None:
        """Takes a message with its headers as stored. Returns the batch that it completes, to be passed to `commit`."""
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
        batch = Batch.encode(commit.subjects, commit.headers, commit.payloads)
        commands = encode_atomic(
            self._clock.time_ns(), batch, plain=commit.plain, allow_msg_id=self.stage.allow_msg_id,
            rolls_up=not commit.plain and self._rolls_up(commit.subjects, commit.headers),
        )  # fmt: skip
        index = 0
        try:
            for command in commands:  # adjacent in the log: see `BatchParts`
                index = self._propose(command)
        except RaftError as error:
            self._answers.not_proposed((reply,), error)
            return
        waiting = _Waiting(reply, commit.batch_id, len(commit.subjects), len(batch))
        self._waiting[index] = waiting
        self._backlog.add(waiting.messages, waiting.size)

    def on_applied(self, index: int, result: BatchResult) -> None:
        """Answers the BATCH_COMMIT at `index`, which was applied here, if it was proposed here."""
        waiting = self._waiting.pop(index, None)
        if waiting is None:
            return
        self._backlog.remove(waiting.messages, waiting.size)
        answers = self._answers
        if result.error is not None:
            answers.refuse((waiting.reply,), result.error)
        elif waiting.reply and not answers.no_ack:
            ack = answers.acks.batch(result.last_seq, waiting.batch_id, result.size)
            if not (result.wait and self._hold(result.wait, waiting.reply, ack)):
                answers.bus.publish_many([(waiting.reply, ack)])

    def on_dropped(self, first_index: int) -> None:
        for index in [index for index in self._waiting if index >= first_index]:
            waiting = self._waiting.pop(index)
            self._backlog.remove(waiting.messages, waiting.size)
