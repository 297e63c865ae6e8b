"""`FenceWriter`: writes the rows of one batch of one job, in order and each exactly once, as atomic batches."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Final, NamedTuple

from jetcluster.client.connection import Gather
from jetcluster.client.reply import ConnectionLostError, NoRespondersError, RequestTimeoutError, make_reply
from jetcluster.errors import ApiError, JetclusterError
from jetcluster.spark.fence import MARKER, FenceError, Last, Marker, Resume, read_last, resume
from jetcluster.spark.message import MAX_BATCH_MESSAGES, PubAck, PublishError, read_ack
from jetcluster.spark.publish import (
    DUPLICATE_ID,
    MAX_BATCH_BYTES,
    NOT_COMPLETE,
    Patience,
    ServerLink,
    batch_frames,
    batch_lines,
)
from jetcluster.spark.render import Cutter, Rows, render, repeated

BATCH_SECONDS: Final = 8.0
"""Timeout of the answer to a commit."""
TURN_PAUSE_SECONDS: Final = 0.05
"""Pause between two looks whether the rows before are stored."""
_PASSING: Final = frozenset({10071, 10164, NOT_COMPLETE, DUPLICATE_ID})


class _RefusedError(JetclusterError):
    """The server's answer to a batch is an error: nothing of it is stored, or its outcome is unknown."""

    def __init__(self, ack: PubAck) -> None:
        super().__init__(ack.error)
        self.ack = ack


class _Part(NamedTuple):
    """Rows that were sent as one atomic batch."""

    rows: Rows
    end: int
    """Rows of the job's batch up to and with these."""
    answer: Gather
    seq: int
    """The stream's last sequence when they are stored."""


class FenceWriter:
    """The writer of one batch of a job. Not thread-safe."""

    def __init__(
        self,
        link: ServerLink,
        stream: str,
        job: str,
        batch: int,
        *,
        start_after: int | None = None,
        atomic_batch: int = MAX_BATCH_MESSAGES,
        retry_seconds: float = 60.0,
        first: int = 0,
        ends: bool = True,
        within: str = "",
    ) -> None:
        """`start_after`: see `resume`. `within`: the fence is of the messages that this filter matches, among them all
        rows; others may be published meanwhile. With `atomic_batch` 1 each message has its own fence: needs no
        allow_atomic. Several writers may share the job's batch: `first` is the number of rows that others write before
        these, and `ends` is false where others write more behind them."""
        assert 1 <= atomic_batch <= MAX_BATCH_MESSAGES, atomic_batch
        self.stored = 0
        self.skipped = 0
        """Rows that were already stored."""
        self.last_seq = 0
        self._link = link
        self._stream = stream
        self._job = job
        self._batch = batch
        self._start_after = start_after
        self._first = first
        self._ends = ends
        self._within = within
        self._name = within or stream
        self._done = first
        """Rows up to and with those that were taken."""
        self._cutter = Cutter(atomic_batch, MAX_BATCH_BYTES)
        self._patience = Patience(retry_seconds, f"writing to {stream}")
        self._at = Resume(0, 0)
        """The rows that are stored for sure."""
        self._last = Last(0)
        self._flying: _Part | None = None
        """The rows without an ack. Only one part: were it refused because of as many messages of another writer, the
        next one would fit behind those."""

    def rows_stored(self) -> int:
        """Asks how many rows of the batch are stored, whoever wrote them. Raises FenceError, PublishError,
        ServerError."""
        self._look()
        return self._at.rows

    def await_turn(self, seconds: float) -> bool:
        """Returns True once the rows before are stored; False when for so many seconds no more of them came. Raises as
        `rows_stored`."""
        most, deadline = -1, 0.0
        while (stored := self.rows_stored()) < self._first:
            now = time.monotonic()
            if stored > most:
                most, deadline = stored, now + seconds
            if now > deadline:
                return False
            time.sleep(TURN_PAUSE_SECONDS)
        return True

    def write(self, batches: Iterable[Rows]) -> None:
        """Writes its rows of the batch, the same on every attempt. Raises FenceError, PublishError, ServerError."""
        self.begin()
        for rows in batches:
            self.add(rows)
        self.finish()

    def begin(self) -> None:
        """Looks where the batch is. Then come its rows, and `finish`. Raises as `write`."""
        self._look()

    def add(self, rows: Rows) -> None:
        for part in self._cutter.add(rows):
            self._write_part(part)

    def finish(self) -> None:
        """Returns when all rows are stored. Raises as `write`."""
        for part in self._cutter.rest():
            self._write_part(part)
        self._settle()
        self.skipped = self._done - self._first - self.stored
        if self._ends and self._done < self._at.rows:
            raise FenceError(
                f"{self._name} holds {self._at.rows} rows of batch {self._batch} of job {self._job}, which has "
                f"only {self._done} now"
            )

    def _write_part(self, rows: Rows) -> None:
        """Sends the next rows, once those before have their ack, which comes meanwhile."""
        self._done = end = self._done + rows.count
        self._settle()
        try:
            self._send(rows, end)
        except ConnectionLostError as error:
            self._link.lost()
            self._recover(error, rows, end)

    def _settle(self) -> None:
        """Waits for the ack of what is in flight."""
        if self._flying is None:
            return
        rows, end = self._flying.rows, self._flying.end
        try:
            self._take()
        except _RefusedError as refused:
            self._check(refused.ack)
            self._recover(refused, rows, end, asking=refused.ack.err_code == NOT_COMPLETE)
        except (ConnectionLostError, RequestTimeoutError) as error:
            self._link.lost()
            self._recover(error, rows, end)

    def _recover(self, why: object, rows: Rows, end: int, *, asking: bool = False) -> None:
        """Asks for the end of the stream, and sends what is not stored of the rows until it is. `asking`: which message
        was refused, and why."""
        while True:
            self._flying = None
            self._patience.pause(why)
            self._look()
            try:
                if self._send(rows, end, ask=asking):
                    self._take()
            except _RefusedError as refused:
                self._check(refused.ack)
                why, asking = refused, refused.ack.err_code == NOT_COMPLETE
            except (ConnectionLostError, RequestTimeoutError) as error:
                why = error
                self._link.lost()
            else:
                return

    def _check(self, ack: PubAck) -> None:
        """Raises PublishError for a refusal that another look at the end of the stream does not help."""
        if not (ack.try_again or ack.err_code in _PASSING):
            raise PublishError(f"{self._stream} refused a batch: {ack.error}")

    def _not_stored(self, rows: Rows, end: int) -> Rows | None:
        """Returns the rows that are not stored yet, None for none. Raises FenceError."""
        first = end - rows.count
        there = self._at.rows - first
        if there <= 0:
            if self._at.rows < first:
                raise FenceError(f"{self._name}: rows that job {self._job} had written are gone")
            return rows
        # If the last stored row is among these, it must be unchanged; its subject may have been transformed.
        if there <= rows.count and rows.payloads[there - 1].as_py() != self._last.payload:
            raise FenceError(
                f"{self._name}: message {self._last.seq} is not row {self._at.rows} of batch {self._batch} as it "
                f"is now: the rows of job {self._job} have changed, or their order has"
            )
        return rows.part(there, rows.count) if there < rows.count else None

    # ---- the end of the stream

    def _look(self) -> None:
        """Asks the leader for the end of the stream. Raises FenceError, PublishError."""
        missing = None  # a missing message counts only the second time: a previous leader may not have it yet
        while True:
            try:
                last = read_last(self._link.connection, self._stream, self._within)
                if last.seq >= self.last_seq and (last.there or last == missing):
                    break
                missing = last
                why: object = f"it ends at {last.seq}, without that message or before {self.last_seq}, which it acked"
            except (ConnectionLostError, RequestTimeoutError, NoRespondersError) as error:
                why = error
                self._link.lost()
            except ApiError as error:
                if not error.retriable:
                    raise
                why = error
            self._patience.pause(why)
        start_after = self._start_after
        if self._within and start_after is not None and last.seq < start_after:
            start_after = last.seq  # of this part, what was there before ends there
        self._last = last
        self._at = resume(self._name, self._job, self._batch, last, start_after)
        self.last_seq = last.seq

    # ---- one atomic batch

    def _send(self, rows: Rows, end: int, *, ask: bool = False) -> bool:
        """Sends what is not stored of rows, the last of which is number `end`; False if all are. Raises FenceError,
        PublishError, ConnectionLostError."""
        left = self._not_stored(rows, end)
        if left is None:
            return False
        connection = self._link.connection
        expected = self._at.expected
        fence = b"Nats-Expected-Last-Sequence: %d\r\n" % expected
        if self._within:
            fence = (
                b"Nats-Expected-Last-Subject-Sequence: %d\r\nNats-Expected-Last-Subject-Sequence-Subject: %b\r\n"
                % (expected, self._within.encode())
            )
        marker = b"%b: %b\r\n" % (MARKER, Marker(self._job, self._batch, end).encode())
        answer = connection.expect(BATCH_SECONDS)
        limit = connection.max_payload
        if left.count == 1:
            frames: bytes | memoryview = render(left, answer.subject, limit, repeated(fence + marker, 1))
        else:
            frames = batch_frames(left, answer.subject, limit, batch_lines(left.count, fence, marker), ask=ask)
        connection.write_frames(frames)
        self._flying = _Part(left, end, answer, expected + left.count)
        return True

    def _take(self) -> None:
        """Waits for the answer to what is in flight. Raises _RefusedError, FenceError, ConnectionLostError,
        RequestTimeoutError."""
        part = self._flying
        assert part is not None
        answer, connection = part.answer, self._link.connection
        ack = None
        while ack is None or not (ack.error or ack.seq):
            while not answer.payloads and answer.end is None:
                connection.read_more(time.monotonic() + BATCH_SECONDS)
            if answer.end is not None:
                raise _RefusedError(read_ack(answer.end))
            for frame in answer.frames():  # rows that ask are answered with nothing while all is well
                if frame[1] or part.rows.count == 1:
                    ack = read_ack(make_reply(*frame))
                    break
        answer.forget()
        if ack.error:
            raise _RefusedError(ack)
        if ack.seq != part.seq and not self._within:
            raise FenceError(f"{self._stream}: a batch ends at {ack.seq}, not at {part.seq}")
        self._flying = None
        self._at = Resume(ack.seq, part.end)
        self._last = Last(ack.seq, payload=part.rows.payloads[-1].as_py())
        self.last_seq = ack.seq
        self.stored += part.rows.count
        self._patience.rest()
