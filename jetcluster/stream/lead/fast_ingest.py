"""`FastIngest`: messages of fast-ingest batches (ADR-50) on their way into the log of the stream whose leader is here.

They are published like any others: one command holds the messages of a turn, and apply admits each by itself. Only the
answers differ. The publisher sends without waiting for every ack, and receives

- `{"type":"ack","seq":S,"msgs":N}`: all up to S are settled, and the next ack follows after N messages;
- `{"type":"gap","last_seq":A,"seq":B}`: A to B-1 never came, or could not be taken;
- `{"type":"err","seq":S,"error":{...}}`: S was refused;
- a PubAck with `batch` and `count` at the end.

In gap mode `fail` the first missing or refused message ends the batch after those stored before it. An answer is sent
only after apply, which means committed and durable on a majority. A new leader continues from the replicated rows
(`fast_rows`). The order of the checks is nats-server 2.15's, except that a message is refused in apply, not on arrival.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from jetcluster import errors
from jetcluster.errors import ApiError
from jetcluster.protocol import headers as header_block
from jetcluster.raft.api import LeavingError, NotLeaderError, RaftError
from jetcluster.records import NamedTuple
from jetcluster.stream.apply.checks import EARLY_FAST, early, refused_by
from jetcluster.stream.apply.fast_rows import FastRow
from jetcluster.stream.fields import REQUIRED_LEVEL, level_is_met
from jetcluster.stream.lead import answers
from jetcluster.stream.lead.answers import Answers, Backlog
from jetcluster.stream.lead.atomic_stage import LEVEL, MAX_ID_BYTES, field
from jetcluster.stream.lead.fast_open import (
    APPEND,
    COMMIT,
    COMMIT_EOB,
    PING,
    START,
    SUFFIX,
    FastBatch,
    FastMark,
    FastOpen,
    parse,
)
from jetcluster.stream.log.fast_parts import FastPart, settle
from jetcluster.stream.ports import Duplicate, PublishResult
from jetcluster.stream.rules import StreamRules

_LEVEL_TOO_LOW: Final = errors.by_code(10185)
_PATTERN: Final = errors.by_code(10206)
_INVALID_ID: Final = errors.by_code(10207)
_UNKNOWN: Final = errors.by_code(10208)
_TOO_MANY: Final = errors.by_code(10211)
_APPEND: Final = b".%d%b" % (APPEND, SUFFIX)


MAX_PARTS: Final = 32_768
"""Parts of one command, which are counted in 16 bits."""


class SentBatch(NamedTuple):
    """The messages of one batch in a proposed command."""

    batch: FastBatch
    part: FastPart
    reply: bytes
    """Reply subject of the last one."""


class FastIngest:
    """The fast-ingest batches of one stream."""

    def __init__(
        self, rules: StreamRules, opened: FastOpen, answers: Answers, backlog: Backlog, call_flush: Callable[[], None]
    ) -> None:
        """`call_flush` schedules the proposal of the open command, even without messages, at the end of the turn."""
        self.rules = rules
        self._early = early(EARLY_FAST, rules)
        self._open = opened
        self._answers = answers
        self._backlog = backlog
        self._call_flush = call_flush
        self.marked: list[FastBatch | FastPart] = []
        """Batches with messages in the open command, and the ends of those that end without a message."""
        self.waiting: dict[int, list[SentBatch]] = {}
        """Proposed batches by log index of the command."""

    def __len__(self) -> int:
        """Number of open batches."""
        return len(self._open)

    def configure(self, rules: StreamRules) -> None:
        """Puts a configuration in force. Switching fast batches off drops the open ones without an answer."""
        self.rules = rules
        self._early = early(EARLY_FAST, rules)
        if not rules.allow_batched:
            self._open.clear()

    def clear(self) -> None:
        """Drops all batches without an answer: the replica leads no more, or the stream is gone."""
        self._open.clear()
        self.waiting.clear()

    def tick(self) -> None:
        self._open.expire()

    def resume(self, rows: Mapping[bytes, FastRow], now: int) -> None:
        """Continues the recent batches of `rows` at `now` (Unix nanoseconds); each publisher gets an answer."""
        self._open.clear()  # those of an earlier term
        horizon = now - int(self._open.timeout * 1e9)
        for batch_id, row in rows.items():
            if row.ts < horizon or not self.rules.allow_batched:
                continue
            if row.ended and not row.seq:
                continue  # its first message was refused: the batch never began and has no end
            batch = FastBatch(batch_id, row.stem, row.flow, gap_ok=row.gap_ok)
            batch.came_to(row.seq)
            batch.settled = batch.acked = row.seq
            batch.stored = row.stored
            self._open.add(batch)
            if row.ended:
                batch.committing = True
                self._finish(batch, self._reply(batch, row.seq))
            else:
                self._tell_ack(batch, self._reply(batch, row.seq))

    def on_message(self, reply: bytes, headers: bytes, payload: bytes, place: int) -> bytes | None:
        """Takes a message whose reply subject ends with SUFFIX, with its headers as stored. Returns the headers with
        which to put it into the open command, as number `place`; None when there is nothing to store."""
        stem, _, rest = reply.rpartition(b".")[0].rpartition(b".")[0].rpartition(b".")
        batch = self._open.by_stem.get(stem)
        if (
            batch is None
            or batch.runs is None  # a batch's first message in a command is parsed
            or batch.committing
            or rest != batch.expected
            or not reply.endswith(_APPEND)
            or 0 < self.rules.max_msg_size < len(headers) + len(payload)
            or (headers and LEVEL in headers)
        ):
            return self._look(reply, headers, payload, place)
        seq = batch.seq + 1
        batch.seq = seq
        batch.expected = b"%d" % (seq + 1)
        batch.pending += 1
        batch.reply = reply
        run = batch.runs[-1]
        if run[0] + run[1] == place and run[2] + run[1] == seq:
            run[1] += 1
        else:
            batch.runs.append([place, 1, seq])
        return headers

    def take(self) -> tuple[list[FastPart], list[SentBatch]]:
        """Ends the open command; returns its parts of batches, and the batches that have messages in it."""
        marked, self.marked = self.marked, []
        parts, sent = [], []
        for batch in marked:
            if isinstance(batch, FastPart):
                parts.append(batch)
                continue
            runs = batch.take_runs()
            commits = runs[-1].end == batch.commit_seq
            part = FastPart(batch.batch_id, batch.stem, batch.flow, batch.gap_ok, commits, runs)
            parts.append(part)
            sent.append(SentBatch(batch, part, batch.reply))
        return parts, sent

    def on_applied(self, sent: Iterable[SentBatch], result: PublishResult) -> None:
        """Sends the answers that are due after a command was applied."""
        for batch, part, reply in sent:
            batch.pending -= part.messages
            if batch.closed:
                continue
            self._open.touch(batch)
            settled = settle(part, result)
            batch.stored = settled.stored or batch.stored
            batch.settled = max(batch.settled, settled.seq)
            if not all(self._refused(batch, seq, error, reply) for seq, error in settled.refused):
                continue
            if isinstance(settled.last, Duplicate) and batch.commit_seq == 1 and not part.gap_ok:
                self._open.close(batch)
                self._tell(reply, self._answers.acks.batch_duplicate(settled.last.seq, batch.batch_id, 1))
            else:
                self._moved(batch, reply)

    def not_proposed(self, sent: Iterable[SentBatch], error: RaftError) -> None:
        """Answers messages that are lost because their command did not get into the log."""
        if isinstance(error, NotLeaderError) and not isinstance(error, LeavingError):
            return  # the next leader has them, or reports the gap
        self._all_lost(sent, self._answers.error_of(error))

    def on_refused(self, sent: Iterable[SentBatch], error: ApiError) -> None:
        """Answers messages of a command that could not be carried out: none is stored."""
        self._all_lost(sent, error)

    def _all_lost(self, sent: Iterable[SentBatch], error: ApiError | None) -> None:
        for batch, part, reply in sent:
            batch.pending -= part.messages
            if not batch.closed:
                self._lost(batch, part.runs[0].seq, part.runs[-1].end, error, reply)

    def on_dropped(self, first_index: int) -> None:
        for index in [index for index in self.waiting if index >= first_index]:
            for batch, _, _ in self.waiting.pop(index):
                self._open.close(batch)

    # -- arrival of a message --------------------------------------------------------------------------------------

    def _look(self, reply: bytes, headers: bytes, payload: bytes, place: int) -> bytes | None:
        mark = parse(reply)
        refused = self._refusal(mark, headers, payload)
        if refused is not None:
            self._answers.refuse((reply,), refused)
            return None
        assert mark is not None
        batch = self._open.get(mark.batch_id)
        if batch is None:
            if mark.seq != 1 or mark.operation == PING:
                self._answers.refuse((reply,), _UNKNOWN)
                return None
            if self._backlog.full:
                self._answers.too_many((reply,))
                return None
            batch = self._open.open(mark, len(payload))
            if batch is None:
                self._answers.refuse((reply,), _TOO_MANY)
                return None
        if LEVEL in headers:
            if not level_is_met(field(headers, LEVEL)):
                self._over(batch)
                self._answers.refuse((reply,), _LEVEL_TOO_LOW)
                return None
            headers = header_block.remove(headers, REQUIRED_LEVEL)
        self._open.touch(batch)
        if mark.operation == PING:
            self._ping(batch, mark.seq, reply)
        elif not batch.committing and not self._backlog.full and self._continues(batch, mark, reply):
            if mark.operation == COMMIT_EOB:
                self._end(batch, reply)
                return None
            return self._accept(batch, mark, reply, headers, len(payload), place)
        return None  # a message dropped because of the backlog shows as a gap at the next one

    def _refusal(self, mark: FastMark | None, headers: bytes, payload: bytes) -> ApiError | None:
        if self._early and (refused := refused_by(self._early, self, headers, payload)) is not None:
            return refused
        if mark is None:
            return _PATTERN
        return _INVALID_ID if len(mark.batch_id) > MAX_ID_BYTES else None

    def _continues(self, batch: FastBatch, mark: FastMark, reply: bytes) -> bool:
        """False when a gap before the message, or a repeated message, ends the batch."""
        expected = batch.seq + 1
        if mark.seq == expected:
            return True
        self._tell_gap(reply, expected, mark.seq)
        if batch.gap_ok and mark.seq > expected:
            return True
        self._end(batch, reply)
        return False

    def _accept(self, batch: FastBatch, mark: FastMark, reply: bytes, headers: bytes, size: int, place: int) -> bytes:
        batch.came_to(mark.seq)
        if mark.operation == COMMIT:
            batch.committing = True
            batch.commit_seq = mark.seq
        if mark.seq == 1 and not batch.committing and not self._answers.no_ack:
            self._tell_ack(batch, reply)
        self._mark(batch, place, reply, size)
        return headers

    def _ping(self, batch: FastBatch, seq: int, reply: bytes) -> None:
        """Answers a ping; `seq` is the last message that the publisher sent."""
        if seq > batch.seq:
            self._tell_gap(reply, batch.seq + 1, seq + 1)
            if batch.gap_ok:
                batch.came_to(seq)
                if not batch.pending:
                    batch.settled = seq
                self._open.is_due(batch)  # counts the ack
            else:
                self._end(batch, reply)
        if not batch.closed:
            self._tell_ack(batch, reply)

    def _mark(self, batch: FastBatch, place: int, reply: bytes, size: int) -> None:
        if batch.runs is None:
            batch.runs = []
            self.marked.append(batch)
        batch.place(place, batch.seq)
        batch.reply = reply
        batch.size += (size - batch.size) >> 3

    # -- progress of a batch ---------------------------------------------------------------------------------------

    def _refused(self, batch: FastBatch, seq: int, error: ApiError, reply: bytes) -> bool:
        """Reports the refused message `seq`; all before it are settled. False when that ends the batch at once."""
        if batch.gap_ok:
            self._tell(self._reply(batch, seq), answers.flow_error(seq, error))
            if seq == batch.commit_seq:
                self._cut(batch, seq - 1)
            return True
        if seq > batch.seq:
            return True  # after a lost command, which is reported already
        if seq == 1:  # the batch never began: the answer to an ordinary publish
            self._over(batch)
            self._answers.refuse((reply,), error)
        else:
            self._tell(self._reply(batch, seq), answers.flow_error(seq, error))
            self._cut(batch, seq - 1)
            self._finish(batch, reply)
        return False

    def _lost(self, batch: FastBatch, first: int, last: int, error: ApiError | None, reply: bytes) -> None:
        """Reports messages `first` to `last`, which could not be proposed; earlier ones may still be pending."""
        if first > batch.seq and not batch.gap_ok:  # after another lost command
            self._moved(batch, reply)
            return
        if error is not None and first == 1 and not batch.gap_ok:
            self._refused(batch, first, error, reply)
            return
        if error is not None:
            self._tell(self._reply(batch, first), answers.flow_error(first, error))
        if error is None or last > first:
            self._tell_gap(reply, first, last + 1)
        if not batch.gap_ok:
            self._cut(batch, first - 1)
        elif last == batch.commit_seq:
            self._cut(batch, last - 1)
        self._moved(batch, reply)

    def _cut(self, batch: FastBatch, seq: int) -> None:
        """Ends the batch with message `seq`."""
        batch.came_to(seq)
        batch.settled = min(batch.settled, seq)
        batch.committing = True

    def _end(self, batch: FastBatch, reply: bytes) -> None:
        """Ends the batch with the messages so far: answers to `reply` once they are applied."""
        batch.committing = True
        batch.end_reply = reply
        self._moved(batch, reply)

    def _moved(self, batch: FastBatch, reply: bytes) -> None:
        """Sends the ack or the end that is due after messages were settled."""
        if not batch.pending:
            batch.settled = batch.seq
            if batch.committing:
                self._finish(batch, batch.end_reply or reply)
                return
        if self._open.is_due(batch):
            self._tell_ack(batch, reply)

    def _over(self, batch: FastBatch) -> None:
        """Closes the batch; proposes its end if the log has a part but not the last message, for the next leader."""
        self._open.close(batch)
        if batch.seq and batch.seq != batch.commit_seq and len(self.marked) < MAX_PARTS:
            self.marked.append(FastPart(batch.batch_id, b"", batch.flow, batch.gap_ok, commits=False, ends=True))
            self._call_flush()

    def _finish(self, batch: FastBatch, reply: bytes) -> None:
        self._over(batch)
        self._tell(reply, self._answers.acks.batch(batch.stored, batch.batch_id, batch.seq))

    # -- answers to the publisher ----------------------------------------------------------------------------------

    def _reply(self, batch: FastBatch, seq: int) -> bytes:
        """The reply subject of message `seq`."""
        first = START if seq == 1 else APPEND
        operation = COMMIT if seq == batch.commit_seq else first
        return b"%b.%d.%d%b" % (batch.stem, seq, operation, SUFFIX)

    def _tell_ack(self, batch: FastBatch, reply: bytes) -> None:
        self._tell(reply, answers.flow_ack(batch.acked, batch.per_ack))

    def _tell_gap(self, reply: bytes, first: int, seq: int) -> None:
        """Reports `first` to `seq - 1` as missing."""
        self._tell(reply, answers.flow_gap(first, seq))

    def _tell(self, reply: bytes, body: bytes) -> None:
        self._answers.bus.publish_many([(reply, body)])
