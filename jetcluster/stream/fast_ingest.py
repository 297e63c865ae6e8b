"""`FastIngest`: messages of fast-ingest batches (ADR-50) on their way into the log of the stream whose leader is here.

They are published like any others: one command of the log holds what came in a turn of the loop, and apply admits each
message by itself. Only the answers differ. The publisher sends on without waiting for every ack, and is told

- `{"type":"ack","seq":S,"msgs":N}`: all up to S is settled, and the next ack comes after N messages;
- `{"type":"gap","last_seq":A,"seq":B}`: A to B-1 never came, or could not be taken;
- `{"type":"err","seq":S,"error":{...}}`: S was refused;
- a PubAck with `batch` and `count` at the end.

In gap mode `fail` the first thing that is missing or refused ends the batch with what was stored before it. Nothing is
told before it is applied, which means committed and durable on a majority. A new leader goes on with what the replicas
know of each batch (`fast_rows`). The order of the checks is that of nats-server 2.15, except that a message is refused
when it is applied, not when it comes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from jetcluster import errors
from jetcluster.errors import ApiError
from jetcluster.protocol import headers as header_block
from jetcluster.raft.api import LeavingError, NotLeaderError, RaftError
from jetcluster.stream import answers
from jetcluster.stream.answers import Answers, Backlog
from jetcluster.stream.atomic_stage import LEVEL, MAX_ID, field, level_is_met
from jetcluster.stream.checks import EARLY_FAST, early, refused_by
from jetcluster.stream.fast_open import (
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
from jetcluster.stream.fast_parts import FastPart, settle
from jetcluster.stream.fast_rows import FastRow
from jetcluster.stream.ports import Duplicate, PublishResult
from jetcluster.stream.rules import StreamRules

_LEVEL_TOO_LOW: Final = errors.by_code(10185)
_PATTERN: Final = errors.by_code(10206)
_INVALID_ID: Final = errors.by_code(10207)
_UNKNOWN: Final = errors.by_code(10208)
_TOO_MANY: Final = errors.by_code(10211)
_APPEND: Final = b".%d%b" % (APPEND, SUFFIX)


MOST_MARKED: Final = 32_768
"""Parts of one command; they are counted in 16 bits."""


class SentBatch(NamedTuple):
    """The messages of one batch in a proposed command."""

    batch: FastBatch
    part: FastPart
    reply: bytes
    """Reply subject of the last one."""


class FastIngest:
    def __init__(
        self, rules: StreamRules, opened: FastOpen, answers: Answers, backlog: Backlog, call_flush: Callable[[], None]
    ) -> None:
        """`call_flush` has the open command proposed at the end of the turn, even if there are no messages in it."""
        self.rules = rules
        self._early = early(EARLY_FAST, rules)
        self._open = opened
        self._answers = answers
        self._backlog = backlog
        self._call_flush = call_flush
        self.marked: list[FastBatch | FastPart] = []
        """Batches with messages in the open command; and those that end with it, without a message."""
        self.waiting: dict[int, list[SentBatch]] = {}
        """By log index of the command."""

    def __len__(self) -> int:
        """Open batches."""
        return len(self._open)

    def configure(self, rules: StreamRules) -> None:
        """The configuration in force. Switching fast batches off drops the open ones silently."""
        self.rules = rules
        self._early = early(EARLY_FAST, rules)
        if not rules.allow_batched:
            self._open.clear()

    def clear(self) -> None:
        """Drops everything without a word: not the leader any more, or the stream is gone."""
        self._open.clear()
        self.waiting.clear()

    def tick(self) -> None:
        self._open.expire()

    def resume(self, rows: Mapping[bytes, FastRow], now: int) -> None:
        """This replica has become the leader, at `now` (Unix nanoseconds): the batches of late go on, and their
        publishers hear from where."""
        self._open.clear()  # of an earlier term, if any
        horizon = now - int(self._open.timeout * 1e9)
        for batch_id, row in rows.items():
            if row.ts < horizon or not self.rules.allow_batched:
                continue
            if row.ended and not row.seq:
                continue  # its first message was refused: nobody waits for the end of a batch that never began
            batch = FastBatch(batch_id, row.stem, row.flow, gap_ok=row.gap_ok)
            batch.came_to(row.seq)
            batch.settled = batch.told = row.seq
            batch.stored = row.stored
            self._open.add(batch)
            if row.ended:
                batch.committing = True
                self._finish(batch, self._reply(batch, row.seq))
            else:
                self._tell_ack(batch, self._reply(batch, row.seq))

    def on_message(self, reply: bytes, headers: bytes, payload: bytes, place: int) -> bytes | None:
        """A message whose reply subject ends with `fast_mark.SUFFIX`, its headers as they are to be stored. Returns
        those it is to be put into the open command with, as its number `place`; None: there is nothing to store."""
        stem, _, rest = reply.rpartition(b".")[0].rpartition(b".")[0].rpartition(b".")
        batch = self._open.by_stem.get(stem)
        if (
            batch is None
            or batch.runs is None  # the first one in its command is looked at
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
        """Takes the parts of the open command that belong to batches, and whose messages these are; the next command
        begins."""
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
        """The command was applied; everything that is due is told."""
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
        """The command did not get into the log: its messages are lost."""
        if isinstance(error, NotLeaderError) and not isinstance(error, LeavingError):
            return  # the next leader has them, or tells of the gap
        self._all_lost(sent, self._answers.error_of(error))

    def on_refused(self, sent: Iterable[SentBatch], error: ApiError) -> None:
        """The command could not be carried out: nothing of it is stored."""
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

    # -- a message as it comes -------------------------------------------------------------------------------------

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
            headers = header_block.remove(headers, b"Nats-Required-Api-Level")
        self._open.touch(batch)
        if mark.operation == PING:
            self._ping(batch, mark.seq, reply)
        elif not batch.committing and not self._backlog.full and self._continues(batch, mark, reply):
            if mark.operation == COMMIT_EOB:
                self._end(batch, reply)
                return None
            return self._accept(batch, mark, reply, headers, len(payload), place)
        return None

    def _refusal(self, mark: FastMark | None, headers: bytes, payload: bytes) -> ApiError | None:
        if self._early and (refused := refused_by(self._early, self, headers, payload)) is not None:
            return refused
        if mark is None:
            return _PATTERN
        return _INVALID_ID if len(mark.batch_id) > MAX_ID else None

    def _continues(self, batch: FastBatch, mark: FastMark, reply: bytes) -> bool:
        """False when something is missing before the message, or it came before, and the batch ends with that."""
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
        """`seq` is the last one that the publisher has sent."""
        if seq > batch.seq:
            self._tell_gap(reply, batch.seq + 1, seq + 1)
            if not batch.gap_ok:
                self._end(batch, reply)
                return
            batch.came_to(seq)
            if not batch.pending:
                batch.settled = seq
            if self._open.is_due(batch):
                self._tell_ack(batch, reply)
                return
        self._tell_ack(batch, reply)

    def _mark(self, batch: FastBatch, place: int, reply: bytes, size: int) -> None:
        if batch.runs is None:
            batch.runs = []
            self.marked.append(batch)
        batch.place(place, batch.seq)
        batch.reply = reply
        batch.size += (size - batch.size) >> 3

    # -- how a batch goes on ---------------------------------------------------------------------------------------

    def _refused(self, batch: FastBatch, seq: int, error: ApiError, reply: bytes) -> bool:
        """Message `seq` was not stored, and all before it are settled. False when that ends the batch at once."""
        if batch.gap_ok:
            self._tell(self._reply(batch, seq), answers.flow_error(seq, error))
            if seq == batch.commit_seq:
                self._cut(batch, seq - 1)
            return True
        if seq > batch.seq:
            return True  # behind a command that was lost: that has been told
        if seq == 1:  # nothing came before it: an answer like that to any publish
            self._over(batch)
            self._answers.refuse((reply,), error)
        else:
            self._tell(self._reply(batch, seq), answers.flow_error(seq, error))
            self._cut(batch, seq - 1)
            self._finish(batch, reply)
        return False

    def _lost(self, batch: FastBatch, first: int, last: int, error: ApiError | None, reply: bytes) -> None:
        """Messages `first` to `last` could not be proposed; others before them may still be on their way."""
        if first > batch.seq and not batch.gap_ok:  # behind another command that was lost
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
        """It ends with message `seq`."""
        batch.came_to(seq)
        batch.settled = min(batch.settled, seq)
        batch.committing = True

    def _end(self, batch: FastBatch, reply: bytes) -> None:
        """It ends with what came so far, as soon as that is applied; then `reply` is told."""
        batch.committing = True
        batch.end_reply = reply
        self._moved(batch, reply)

    def _moved(self, batch: FastBatch, reply: bytes) -> None:
        """Something was settled: what is due is told."""
        if not batch.pending:
            batch.settled = batch.seq
            if batch.committing:
                self._finish(batch, batch.end_reply or reply)
                return
        if self._open.is_due(batch):
            self._tell_ack(batch, reply)

    def _over(self, batch: FastBatch) -> None:
        """Closes it. If the log has some of it but no last message, its end goes there as well: else the next leader
        would take it for open."""
        self._open.close(batch)
        if batch.seq and batch.seq != batch.commit_seq and len(self.marked) < MOST_MARKED:
            self.marked.append(FastPart(batch.batch_id, b"", batch.flow, batch.gap_ok, commits=False, ends=True))
            self._call_flush()

    def _finish(self, batch: FastBatch, reply: bytes) -> None:
        self._over(batch)
        self._tell(reply, self._answers.acks.batch(batch.stored, batch.batch_id, batch.seq))

    # -- what the publisher is told --------------------------------------------------------------------------------

    def _reply(self, batch: FastBatch, seq: int) -> bytes:
        """The reply subject of message `seq`."""
        first = START if seq == 1 else APPEND
        operation = COMMIT if seq == batch.commit_seq else first
        return b"%b.%d.%d%b" % (batch.stem, seq, operation, SUFFIX)

    def _tell_ack(self, batch: FastBatch, reply: bytes) -> None:
        self._tell(reply, answers.flow_ack(batch.told, batch.per_ack))

    def _tell_gap(self, reply: bytes, first: int, seq: int) -> None:
        """`first` to `seq - 1` are missing."""
        self._tell(reply, answers.flow_gap(first, seq))

    def _tell(self, reply: bytes, body: bytes) -> None:
        self._answers.bus.publish(reply, body)
