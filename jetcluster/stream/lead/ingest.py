"""`Ingest`: collects what is published to a stream during one turn of the event loop into one command.

The router calls `on_message` for every message of a read; the first one of a turn schedules the flush for the end of
it. So batching adapts by itself: with one message in flight the command holds one message and leaves at once, under
load it holds all that the sockets brought. Several commands may be in flight.

A message is acknowledged when its command was applied, never before. What could not be proposed is refused at once:

- the leader that is handing over: the bare `503` of a subject without subscribers, which is what clients see of a
  stream without leader and what they retry on by themselves;
- not the leader any more: no answer. The publisher's node may know of the next leader already and have sent the message
  to both, so "not stored" could be a lie (found by chaos: `ring`, seed 11);
- too much waiting, here or in the log: headers `NATS/1.0 429 Too Many Requests`, error 429/10167;
- no space to log it: 503/10077, the code of a failed store, with the reason.

A message of an atomic batch (ADR-50) goes to `AtomicIngest`; a complete batch is proposed behind what came before it.
One of a fast-ingest batch is published like any other, only that `FastIngest` has the answers.

A command whose outcome is unknown (leadership lost in between) gets no answer: it may still be committed by the next
leader, so a refusal could be a lie and an ack as well. The client times out and retries, with Nats-Msg-Id safely.

`ExpectedWildcards`: what the wildcards in Nats-Expected-Last-Subject-Sequence-Subject cost that a turn of the loop
brings, so that a leader can refuse those that are too much.

They are looked for in apply, on all replicas, while everything waits. A wildcard behind literal tokens is looked for
among the subjects that begin with these only, and wildcards that are alike in all but literal tokens (of the same
positions) are one search (`store.search.kept_filters`). The unit is a subject looked at for one such search.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

from jetcluster import errors
from jetcluster.clock import Clock
from jetcluster.errors import ApiError
from jetcluster.protocol import headers as header_block
from jetcluster.protocol.bus import Origin
from jetcluster.protocol.subjects import is_literal
from jetcluster.raft.api import RaftError
from jetcluster.store.batch import MAX_SUBJECT, Batch
from jetcluster.store.search import filters
from jetcluster.store.search.kept_filters import MIN_KEPT_WIDTH
from jetcluster.stream.apply.checks import EXPECTED_SUBJECT, SUBJECT_TOO_LONG
from jetcluster.stream.apply.fast_rows import FastRow
from jetcluster.stream.apply.schedules import shortened, without_schedule
from jetcluster.stream.fields import nats_fields
from jetcluster.stream.lead.answers import PENDING_BYTES, PENDING_MESSAGES, Answers, Backlog, PubAcks, Publisher
from jetcluster.stream.lead.atomic_stage import BATCH_ID, AtomicIngest, AtomicStage, Commit, field
from jetcluster.stream.lead.fast_ingest import FastIngest
from jetcluster.stream.lead.fast_open import SUFFIX as FAST
from jetcluster.stream.lead.fast_open import FastOpen
from jetcluster.stream.log.commands import encode_fast, encode_publish
from jetcluster.stream.ports import BatchResult, PublishResult
from jetcluster.stream.rules import StreamRules

MAX_EXPECTED: Final = 100_000
"""Units of one turn, some 0.5 us each."""
MAX_TOKENS: Final = 2048
"""Most tokens of a wildcard, as of a subject in a configuration."""
TOKENS_PER_UNIT: Final = 16
"""A subject with more of them is as many units more."""
EACH: Final = 8
"""Units that any wildcard costs."""
TOO_WIDE: Final = errors.by_code(
    errors.STORE_FAILED, err="too many subjects for the wildcard in Nats-Expected-Last-Subject-Sequence-Subject"
)
_TOO_DEEP: Final = errors.by_code(
    errors.STORE_FAILED, err="too many tokens in Nats-Expected-Last-Subject-Sequence-Subject"
)


class ExpectedWildcards:
    """`width` tells how many subjects have to be looked at to find what matches."""

    def __init__(self) -> None:
        self.width: Callable[[bytes], int] = lambda subject_filter: 0
        self.spent = 0
        """Units, in this turn; `end_turn` is wanted where there are some."""
        self._searches: set[tuple[bytes, tuple[bytes, ...]]] = set()
        """Those that the open command makes already."""
        self._places: dict[bytes, int] = {}
        """Its wildcards, and the message of it that asked last: what came before that is not looked at again."""

    def refusal(self, headers: bytes, place: int) -> ApiError | None:
        """Takes account of the message at `place` in the open command. An error: it must not get into the log."""
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
        units = EACH + subjects * (1 + len(tokens) // TOKENS_PER_UNIT)
        alone = not self.spent and len(tokens) < TOKENS_PER_UNIT
        if width > MAX_EXPECTED or (self.spent + units > MAX_EXPECTED and not alone):
            return TOO_WIDE
        self.spent += units
        self._searches.add(search)
        self._places[key] = place
        return None

    def end_command(self) -> None:
        """Told that what comes next is in another command."""
        self._searches.clear()
        self._places.clear()

    def end_turn(self) -> None:
        self.spent = 0
        self.end_command()


BATCH_BYTES: Final = 256 << 10
BATCH_MESSAGES: Final = 4096
"""A command is proposed when either is reached, before the end of the turn."""


OPEN: Final = 1 << 62
"""A log index that no command has."""
INTERNAL: Final = "internal"
"""`Origin.kind` of the server itself."""


class Ingest:
    """One per stream whose leader is here. `propose` is `RaftGroup.propose`, `call_soon` the loop's."""

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
        max_pending_bytes: int = PENDING_BYTES,
        max_pending_messages: int = PENDING_MESSAGES,
    ) -> None:
        self._propose = propose
        self._clock = clock
        self._call_soon = call_soon
        self._answers = Answers(bus, PubAcks(stream, domain), no_ack=no_ack)
        self._backlog = Backlog(max_pending_messages, max_pending_bytes)
        self.valve = self._backlog.valve
        """Closed while enough waits to be applied: publishers wait there."""
        self.wildcards = ExpectedWildcards()
        self.batch_messages = BATCH_MESSAGES
        """Most in one command."""
        self._stage = stage
        self.batches = AtomicIngest(stage, propose, clock, self._answers, self._backlog)
        opened = FastOpen(stage.room, self._backlog, clock, stage.opened)
        self.fast = FastIngest(stage.rules, opened, self._answers, self._backlog, self._schedule)
        self._scheduled = False
        self._subjects: list[bytes] = []
        self._headers: list[bytes] = []
        """Empty as long as no message of the open batch has headers."""
        self._payloads: list[bytes] = []
        self._replies: list[bytes] = []
        self._open_bytes = 0
        self.copied = 0
        """Log index of the newest command with a message that this server published itself, such as a copy that another
        stream republishes; OPEN: it is not proposed yet."""
        self.proposed: dict[int, tuple[list[bytes], int, int, float]] = {}
        """Log index -> reply subjects (b"" for none), bytes, `Backlog.add`'s answer, when (monotonic)."""

    @property
    def pending_messages(self) -> int:
        return self._backlog.messages

    @property
    def pending_bytes(self) -> int:
        return self._backlog.bytes

    @property
    def refused(self) -> int:
        """Messages refused since the start (monitoring)."""
        return self._answers.refused

    def configure(self, rules: StreamRules) -> None:
        """The stream's configuration in force."""
        self._answers.no_ack = rules.no_ack
        self.batches.stage.configure(rules)
        self.fast.configure(rules)

    @property
    def open_batches(self) -> int:
        """While there are some, `tick` is wanted."""
        return len(self._stage) + len(self.fast)

    def tick(self) -> None:
        """Abandons batches that were silent for too long."""
        self._stage.tick()
        self.fast.tick()

    def resume(self, rows: Mapping[bytes, FastRow]) -> None:
        """This replica has become the leader: `rows` are the fast-ingest batches that it knows of."""
        self.fast.resume(rows, self._clock.time_ns())

    def clear(self) -> None:
        """Drops the open batches without a word: not the leader any more, or the stream is gone."""
        self._stage.clear()
        self.fast.clear()

    def on_message(self, subject: bytes, reply: bytes, headers: bytes, payload: bytes, origin: Origin) -> None:
        """A published message: the `Callback` of the stream's subscriptions. Never blocks, never raises."""
        if self.valve.closed:
            origin.wait_at(self.valve)
        if len(subject) > MAX_SUBJECT:  # a client's line may be longer still
            self._answers.refuse((reply,), SUBJECT_TOO_LONG)
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
            if batch_id:  # with an empty one it is an ordinary message, as upstream
                commit = self.batches.on_message(batch_id, subject, reply, _storable(headers), payload)
                if commit is not None:
                    self.flush()
                    self._commit(commit, reply)
                return
        if headers and not fast and EXPECTED_SUBJECT in headers and self._asks_too_much(headers, reply):
            return
        if not subjects:  # bounds are looked at per batch
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
            self.copied = OPEN
        self._open_bytes = size = self._open_bytes + len(subject) + len(headers) + len(payload)
        if size >= BATCH_BYTES or len(subjects) >= self.batch_messages:
            self.flush()

    def _asks_too_much(self, headers: bytes, reply: bytes) -> bool:
        """Refuses what apply would have to look for."""
        refused = self.wildcards.refusal(headers, len(self._subjects))
        self._schedule()
        if refused is not None:
            self._answers.refuse((reply,), refused)
        return refused is not None

    def _commit(self, commit: Commit, reply: bytes) -> None:
        """An atomic batch is a command of its own, of messages of many turns."""
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
        """Proposes the open batch, if any."""
        replies = self._replies
        if not replies:
            if self.fast.marked:
                self._propose_ends()
            return
        now, batch = self._clock.time_ns(), Batch.encode(self._subjects, self._headers, self._payloads)
        parts, sent = self.fast.take() if self.fast.marked else ((), ())
        command = encode_fast(now, parts, batch) if parts else encode_publish(now, batch)
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
        if self.copied == OPEN:
            self.copied = index
        if sent:
            self.fast.waiting[index] = sent
        weight = self._backlog.add(len(replies), len(command))
        self.proposed[index] = (replies, len(command), weight, self._clock.monotonic())

    def on_applied(self, index: int, result: PublishResult | BatchResult) -> None:
        """The PUBLISH or BATCH_COMMIT at `index` was applied here; acks it if this Ingest proposed it."""
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
            answers.bus.publish_many(answers.acks.render(result, replies))
        if self.fast.waiting and (sent := self.fast.waiting.pop(index, None)):
            self.fast.on_applied(sent, result)

    def on_refused(self, index: int, error: ApiError) -> None:
        """The command at `index`, of any kind, could not be carried out."""
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
        """Leadership was lost: what was proposed at `first_index` and above stays without an answer."""
        for index in [index for index in self.proposed if index >= first_index]:
            replies, size, _, _ = self.proposed.pop(index)
            self._backlog.remove(len(replies), size)
        if first_index <= self.copied < OPEN:
            self.copied = 0
        self.batches.on_dropped(first_index)
        self.fast.on_dropped(first_index)

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._call_soon(self._end_of_turn)

    def _propose_ends(self) -> None:
        """Batches have ended without a message. Nobody waits for that: if it does not get into the log, their rows grow
        old."""
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


def _storable(headers: bytes) -> bytes:
    """A stored header block has no status text and no Nats-Request-Info; one that has come with the
    latter schedules nothing, nor does one with a pattern of great length."""
    if not headers.startswith(b"NATS/1.0\r\n"):
        headers = header_block.without_status(headers)
    if b"\nNats-Request-Info:" in headers:
        headers = without_schedule(header_block.remove(headers, b"Nats-Request-Info"))
    if b"\nNats-Schedule:" in headers:
        headers = shortened(headers)
    return headers
