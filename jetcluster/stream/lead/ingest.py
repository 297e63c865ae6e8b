"""`Ingest`: collects the messages published to a stream during one turn of the event loop into one command.

The router calls `on_message` for every message of a read; the first one of a turn schedules the flush for its end. So
batching adapts by itself: with one message in flight the command holds one message and leaves at once, under load it
holds all that the sockets brought. Several commands may be in flight.

A message is acknowledged when its command was applied. A message that cannot be proposed is refused at once:

- by a leader that hands over, with the bare `503` of a subject without subscribers, as clients see it for a stream
  without a leader and retry on it by themselves;
- by a former leader, with no answer. The publisher's node may know the next leader already and have sent the message to
  both, so "not stored" could be wrong (found by chaos: `ring`, seed 11);
- when too much waits, here or in the log, with headers `NATS/1.0 429 Too Many Requests` and error 429/10167;
- without space to log it, with 503/10077, the code of a failed store, and the reason.

A message of an atomic batch (ADR-50) goes to `AtomicIngest`; a complete batch is proposed after the messages before it.
One of a fast-ingest batch is published like any other, but `FastIngest` answers it.

A command whose outcome is unknown (leadership lost in between) gets no answer: the next leader may still commit it, so
both a refusal and an ack could be wrong. The client times out and retries, safely if with Nats-Msg-Id.

`ExpectedWildcards`: the cost of the wildcards in Nats-Expected-Last-Subject-Sequence-Subject of a turn, so that a
leader can refuse those that cost too much. Apply searches for them on all replicas, while everything else waits. A
search looks only at the subjects that begin with the wildcard's leading literal tokens, and wildcards that differ in
literal tokens only share one search (`store.search.kept_filters`). The unit is one subject looked at in one search.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from jetcluster import errors, native
from jetcluster.clock import Clock
from jetcluster.errors import ApiError
from jetcluster.protocol import headers as header_block
from jetcluster.protocol.bus import Origin, Outgoing
from jetcluster.protocol.subjects import is_literal
from jetcluster.raft.api import RaftError
from jetcluster.store.batch import MAX_SUBJECT, Batch
from jetcluster.store.search import filters
from jetcluster.store.search.kept_filters import MIN_KEPT_WIDTH
from jetcluster.stream.apply.checks import EARLY, EXPECTED_SUBJECT, refused_by
from jetcluster.stream.apply.fast_rows import FastRow
from jetcluster.stream.apply.schedules import shortened, without_schedule
from jetcluster.stream.fields import nats_fields
from jetcluster.stream.lead.answers import MAX_PENDING_BYTES, MAX_PENDING_MESSAGES, Answers, Backlog, PubAcks, Publisher
from jetcluster.stream.lead.atomic_stage import BATCH_ID, AtomicIngest, AtomicStage, Commit, field
from jetcluster.stream.lead.fast_ingest import FastIngest
from jetcluster.stream.lead.fast_open import SUFFIX as FAST
from jetcluster.stream.lead.fast_open import FastOpen
from jetcluster.stream.log.commands import encode_fast, encode_publish
from jetcluster.stream.ports import BatchResult, PublishResult
from jetcluster.stream.rules import StreamRules

MAX_TURN_UNITS: Final = 100_000
"""Units of one turn, about 0.5 us each."""
MAX_TOKENS: Final = 2048
"""Tokens of a wildcard, as of a subject in a configuration."""
TOKENS_PER_UNIT: Final = 16
"""Tokens of a wildcard that add one unit to each subject."""
UNITS_PER_WILDCARD: Final = 8
"""Units of any wildcard."""
TOO_WIDE: Final = errors.by_code(
    errors.STORE_FAILED, err="too many subjects for the wildcard in Nats-Expected-Last-Subject-Sequence-Subject"
)
_TOO_DEEP: Final = errors.by_code(
    errors.STORE_FAILED, err="too many tokens in Nats-Expected-Last-Subject-Sequence-Subject"
)


class ExpectedWildcards:
    """The cost of a turn's wildcards. `width` returns how many subjects a search for a wildcard looks at."""

    def __init__(self, width: Callable[[bytes], int]) -> None:
        self.width = width
        self.spent = 0
        """Units of this turn; when there are any, `end_turn` must follow."""
        self._searches: set[tuple[bytes, tuple[bytes, ...]]] = set()
        """Searches of the open command."""
        self._places: dict[bytes, int] = {}
        """Wildcards of the open command, and the last message with each: apply looks only at the messages after it."""

    def refusal(self, headers: bytes, place: int) -> ApiError | None:
        """Counts the message at `place` in the open command. Returns an error if it must not get into the log."""
        key = nats_fields(headers).get(EXPECTED_SUBJECT[2:-1], b"")
        if not key or is_literal(key):
            return None
        tokens = key.split(b".")
        if len(tokens) > MAX_TOKENS:
            return _TOO_DEEP
        width = self.width(key)
        shape = tuple([token if token in (b"*", b">") else b"" for token in tokens])
        search = filters.bounds(key)[0], shape
        subjects = 0 if width >= MIN_KEPT_WIDTH and search in self._searches else width
        if width >= MIN_KEPT_WIDTH:
            subjects += place - self._places.get(key, 0)
        units = UNITS_PER_WILDCARD + subjects * (1 + len(tokens) // TOKENS_PER_UNIT)
        alone = not self.spent and len(tokens) < TOKENS_PER_UNIT
        if width > MAX_TURN_UNITS or (self.spent + units > MAX_TURN_UNITS and not alone):
            return TOO_WIDE
        self.spent += units
        self._searches.add(search)
        self._places[key] = place
        return None

    def end_command(self) -> None:
        """Ends the open command."""
        self._searches.clear()
        self._places.clear()

    def end_turn(self) -> None:
        self.spent = 0
        self.end_command()


BATCH_BYTES: Final = 256 << 10
BATCH_MESSAGES: Final = 4096
"""Size at which a command is proposed before the end of the turn."""

MAX_HELD_ACKS: Final = 4096
"""Acks that wait for the end of jobs; one more is sent at once."""

OPEN_INDEX: Final = 1 << 62
"""A log index that no command has."""
INTERNAL: Final = "internal"
"""`Origin.kind` of the server itself."""


class Ingest:
    """Takes the publishes to one stream led here. `propose` is `RaftGroup.propose`, `call_soon` the loop's."""

    def __init__(
        self,
        stream: str,
        propose: Callable[[bytes], int],
        bus: Publisher,
        clock: Clock,
        call_soon: Callable[[Callable[[], None]], Any],
        stage: AtomicStage,
        *,
        domain: str | None = None,
        no_ack: bool = False,
        max_pending_bytes: int = MAX_PENDING_BYTES,
        max_pending_messages: int = MAX_PENDING_MESSAGES,
        width: Callable[[bytes], int] = lambda subject_filter: 0,
        rolls_up: Callable[[Sequence[bytes], Sequence[bytes]], bool] = lambda subjects, headers: False,
        valve_changed: Callable[[bool], None] | None = None,
    ) -> None:
        self._propose = propose
        self._clock = clock
        self._call_soon = call_soon
        self._answers = Answers(bus, PubAcks(stream, domain), no_ack=no_ack)
        self._backlog = Backlog(max_pending_messages, max_pending_bytes, valve_changed)
        self.valve = self._backlog.valve
        """Closed while the backlog is full: publishers wait there."""
        self.wildcards = ExpectedWildcards(width)
        self._rolls_up = rolls_up
        """Asks of (subjects, header blocks) whether a message will roll up very many (`rollups.may_be_long`)."""
        self._held: dict[int, list[tuple[bytes, bytes]]] = {}
        """By job, (reply subject, ack) of messages that wait until it is done."""
        self._held_acks = 0
        self.batch_messages = BATCH_MESSAGES
        """Limit of messages in one command."""
        self._stage = stage
        around = self._answers, self._backlog, rolls_up, self._hold_ack
        self.batches = AtomicIngest(stage, propose, clock, *around)
        opened = FastOpen(stage.room, self._backlog, clock, stage.opened)
        self.fast = FastIngest(stage.rules, opened, self._answers, self._backlog, self._schedule)
        self._scheduled = False
        self._subjects: list[bytes] = []
        self._headers: list[bytes] = []
        """Empty until a message of the open command has headers."""
        self._payloads: list[bytes] = []
        self._replies: list[bytes] = []
        self._open_bytes = 0
        self.copied = 0
        """Log index of the newest command with a message of the server's own; OPEN_INDEX: not proposed yet."""
        self.proposed: dict[int, tuple[list[bytes], int, int, float]] = {}
        """By log index: reply subjects (b"" for none), bytes, weight (`Backlog.add`), time proposed (monotonic)."""

    @property
    def pending_messages(self) -> int:
        return self._backlog.messages

    @property
    def pending_bytes(self) -> int:
        return self._backlog.bytes

    @property
    def refused(self) -> int:
        """Messages refused since the start, for monitoring."""
        return self._answers.refused

    def configure(self, rules: StreamRules) -> None:
        """Puts a new configuration of the stream in force."""
        self._answers.no_ack = rules.no_ack
        self.batches.stage.configure(rules)
        self.fast.configure(rules)

    @property
    def open_batches(self) -> int:
        """Number of open batches; while there are any, `tick` must be called."""
        return len(self._stage) + len(self.fast)

    def tick(self) -> None:
        """Abandons batches without a message for too long."""
        self._stage.tick()
        self.fast.tick()

    def resume(self, rows: Mapping[bytes, FastRow]) -> None:
        """Begins leading, with the fast-ingest batches of the replica's `rows`."""
        self.fast.resume(rows, self._clock.time_ns())

    def clear(self) -> None:
        """Drops the open batches without an answer: the replica leads no more, or the stream is gone."""
        self._stage.clear()
        self.fast.clear()
        self._held.clear()
        self._held_acks = 0

    def on_message(self, subject: bytes, reply: bytes, headers: bytes, payload: bytes, origin: Origin) -> None:
        """Takes a published message, as `Callback` of the stream's subscriptions. Never blocks, never raises."""
        if self.valve.closed:
            origin.wait_at(self.valve)
        if len(subject) > MAX_SUBJECT:  # asked first, to save the calls: no other check of EARLY is left
            refused = refused_by(EARLY, self._stage, subject=subject)
            assert refused is not None
            self._answers.refuse((reply,), refused)
            return
        fast = reply.endswith(FAST)
        if not fast and headers and headers == self._stage.expected and self._stage.add_expected(subject, payload):
            self._answers.note(reply)
            return
        subjects = self._subjects
        if fast:
            if headers and EXPECTED_SUBJECT in headers and self._asks_too_much(headers, reply):
                return
            fast_headers = self.fast.on_message(reply, _storable(headers) if headers else b"", payload, len(subjects))
            if fast_headers is None:
                return
            headers, reply = fast_headers, b""
        elif headers and BATCH_ID in headers:
            batch_id = field(headers, BATCH_ID)
            if batch_id:  # an empty one makes an ordinary message, as in nats-server
                commit = self.batches.on_message(batch_id, subject, reply, _storable(headers), payload)
                if commit is not None:
                    self.flush()
                    self._commit(commit, reply)
                return
        if headers and not fast and EXPECTED_SUBJECT in headers and self._asks_too_much(headers, reply):
            return
        if not subjects:  # the backlog is checked once per command
            if self._backlog.full:
                self._answers.too_many((reply,))
                return
            if not self._scheduled:
                self._schedule()
        if headers or self._headers:
            self._add_headers(headers)
        subjects.append(subject)
        self._payloads.append(payload)
        self._replies.append(reply)
        if not reply and origin.kind == INTERNAL:
            self.copied = OPEN_INDEX
        self._open_bytes = size = self._open_bytes + len(subject) + len(headers) + len(payload)
        if size >= BATCH_BYTES or len(subjects) >= self.batch_messages:
            self.flush()

    def on_messages(self, messages: list[Outgoing], origin: Origin) -> int:
        """Takes published messages without headers, as `BulkCallback` of the stream's subscriptions."""
        room = self.batch_messages - len(self._subjects)
        if room <= 1 or self.valve.closed or origin.kind == INTERNAL:
            self.on_message(*messages[0], origin)
            return 1
        split = (native.split_bare or split_bare)(messages, room - 1, MAX_SUBJECT, FAST)
        if split is None or self._open_bytes + split[3] >= BATCH_BYTES:
            self.on_message(*messages[0], origin)
            return 1
        subjects, replies, payloads, size = split
        if not self._subjects:
            if self._backlog.full:
                self._answers.too_many(replies)
                return len(replies)
            if not self._scheduled:
                self._schedule()
        if self._headers:
            self._headers += [b""] * len(replies)
        self._subjects += subjects
        self._payloads += payloads
        self._replies += replies
        self._open_bytes += size
        return len(replies)

    def _asks_too_much(self, headers: bytes, reply: bytes) -> bool:
        """Refuses a message whose wildcard costs too much."""
        refused = self.wildcards.refusal(headers, len(self._subjects))
        self._schedule()
        if refused is not None:
            self._answers.refuse((reply,), refused)
        return refused is not None

    def _commit(self, commit: Commit, reply: bytes) -> None:
        """Proposes an atomic batch, which is a command of its own."""
        if not commit.plain:
            for place, headers in enumerate(commit.headers):
                if EXPECTED_SUBJECT not in headers:
                    continue
                refused = self.wildcards.refusal(headers, place)
                self._schedule()
                if refused is not None:
                    self._answers.refuse((reply,), refused)
                    return
            self.wildcards.end_command()
        self.batches.commit(commit, reply)

    def flush(self) -> None:
        """Proposes the open command, if any."""
        replies = self._replies
        if not replies:
            if self.fast.marked:
                self._propose_ends()
            return
        now, batch = self._clock.time_ns(), Batch.encode(self._subjects, self._headers, self._payloads)
        parts, sent = self.fast.take() if self.fast.marked else ((), ())
        rolls_up = bool(self._headers) and self._rolls_up(self._subjects, self._headers)
        if parts:
            command = encode_fast(now, parts, batch, rolls_up=rolls_up)
        else:
            command = encode_publish(now, batch, rolls_up=rolls_up)
        self._subjects, self._headers, self._payloads, self._replies = [], [], [], []
        self._open_bytes = 0
        if self.wildcards.spent:
            self.wildcards.end_command()
        try:
            index = self._propose(command)
        except RaftError as error:
            self.copied = 0
            self._answers.not_proposed(replies, error)
            self.fast.not_proposed(sent, error)
            return
        if self.copied == OPEN_INDEX:
            self.copied = index
        if sent:
            self.fast.waiting[index] = sent
        weight = self._backlog.add(len(replies), len(command))
        self.proposed[index] = (replies, len(command), weight, self._clock.monotonic())

    def on_applied(self, index: int, result: PublishResult | BatchResult) -> None:
        """Acknowledges the command at `index`, which was applied here, if this Ingest proposed it."""
        if isinstance(result, BatchResult):
            self.batches.on_applied(index, result)
            return
        waiting = self.proposed.pop(index, None)
        if waiting is None:
            return
        replies, size, weight, since = waiting
        self._backlog.applied(len(replies), size, weight, self._clock.monotonic() - since)
        answers = self._answers
        if not answers.no_ack and any(replies):
            if result.waits:
                replies = self._hold(result, replies)
            answers.bus.publish_many(answers.acks.render(result, replies))
        if self.fast.waiting and (sent := self.fast.waiting.pop(index, None)):
            self.fast.on_applied(sent, result)

    def _hold(self, result: PublishResult, replies: list[bytes]) -> list[bytes]:
        """Keeps the acks of messages whose jobs are open; returns the reply subjects, with b"" for these."""
        seqs = result.verdicts or list(range(result.first_seq, result.first_seq + result.count))
        others = list(replies)
        for seq, job in result.waits:
            at = seqs.index(seq)
            if replies[at] and self._hold_ack(job, replies[at], self._answers.acks.ack(seq)):
                others[at] = b""
        return others

    def _hold_ack(self, job: int, reply: bytes, ack: bytes) -> bool:
        """Keeps an ack until the job is done; returns False where too many wait."""
        if self._held_acks >= MAX_HELD_ACKS:
            return False
        self._held.setdefault(job, []).append((reply, ack))
        self._held_acks += 1
        return True

    def on_job_done(self, job: int) -> None:
        """Acknowledges what waited for the end of this job."""
        if acks := self._held.pop(job, None):
            self._held_acks -= len(acks)
            self._answers.bus.publish_many(acks)

    def on_refused(self, index: int, error: ApiError) -> None:
        """Answers the command at `index`, of any kind, which could not be carried out."""
        waiting = self.proposed.pop(index, None)
        if waiting is None:
            self.batches.on_applied(index, BatchResult(0, 0, error))
            return
        replies, size, _, _ = waiting
        self._backlog.remove(len(replies), size)
        self._answers.refuse(replies, error)
        if self.fast.waiting and (sent := self.fast.waiting.pop(index, None)):
            self.fast.on_refused(sent, error)

    def on_dropped(self, first_index: int) -> None:
        """Drops proposals from `first_index` on, without an answer: leadership was lost."""
        for index in [index for index in self.proposed if index >= first_index]:
            replies, size, _, _ = self.proposed.pop(index)
            self._backlog.remove(len(replies), size)
        if first_index <= self.copied < OPEN_INDEX:
            self.copied = 0
        self.batches.on_dropped(first_index)
        self.fast.on_dropped(first_index)

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._call_soon(self._end_of_turn)

    def _propose_ends(self) -> None:
        """Proposes the ends of batches that ended without a message. If that fails, their rows expire by age."""
        parts, _ = self.fast.take()
        with suppress(RaftError):
            self._propose(encode_fast(self._clock.time_ns(), parts, b""))

    def _end_of_turn(self) -> None:
        self._scheduled = False
        self.flush()
        if self.wildcards.spent:
            self.wildcards.end_turn()

    def _add_headers(self, headers: bytes) -> None:
        if headers:
            headers = _storable(headers)
        missing = len(self._subjects) - len(self._headers)
        if missing:
            self._headers += [b""] * missing
        self._headers.append(headers)


def split_bare(
    messages: list[Outgoing], most: int, max_subject: int, mark: bytes
) -> tuple[Sequence[bytes], Sequence[bytes], Sequence[bytes], int] | None:
    """The columns of the first `most` messages, and the bytes of their subjects and payloads. None when a subject is
    longer than `max_subject`, or a reply ends with `mark`."""
    subjects, replies, _, payloads = zip(*messages[:most], strict=True)
    if max(map(len, subjects)) > max_subject or any(reply.endswith(mark) for reply in replies):
        return None
    return subjects, replies, payloads, sum(map(len, subjects)) + sum(map(len, payloads))


def _storable(headers: bytes) -> bytes:
    """The block without status and Nats-Request-Info. With the latter, or too long a pattern, it schedules nothing."""
    if not headers.startswith(b"NATS/1.0\r\n"):
        headers = header_block.without_status(headers)
    if b"\nNats-Request-Info:" in headers:
        headers = without_schedule(header_block.remove(headers, b"Nats-Request-Info"))
    if b"\nNats-Schedule:" in headers:
        headers = shortened(headers)
    return headers
