"""`FenceWriter`: rows of one batch of one job, in order, each exactly once, as atomic batches behind the fence."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterable, Iterator
from typing import Any, Final

from jetcluster.errors import ApiError, JetclusterError
from jetcluster.protocol import headers as header_block
from jetcluster.spark import fence
from jetcluster.spark.connection import Connection
from jetcluster.spark.fence import FenceError, Last, Marker, Resume
from jetcluster.spark.publish import Message, Patience, PubAck, PublishError, ServerLink, check_size, read_ack
from jetcluster.spark.reply import ConnectionLostError, NoRespondersError, RequestTimeoutError

MAX_BATCH: Final = 1000
"""Messages in one atomic batch that a server takes (ADR-50)."""
MAX_BATCH_BYTES: Final = 4 << 20
"""Bytes of subjects, headers and payloads: a larger batch is cut into parts in the server's log."""
BATCH_SECONDS: Final = 8.0
"""For the answer to a commit."""
_FENCED: Final = frozenset({10071, 10164})
_NOT_COMPLETE: Final = 10176
_DUPLICATE_ID: Final = 10201
_NO_MESSAGE: Final = 10037


class _RefusedError(JetclusterError):
    """An answer to a batch: nothing of it is stored, or it is not known."""

    def __init__(self, ack: PubAck) -> None:
        super().__init__(ack.error)
        self.ack = ack


class FenceWriter:
    """Made for one batch of a job. Not for several threads."""

    def __init__(
        self,
        link: ServerLink,
        stream: str,
        job: str,
        batch: int,
        *,
        start_after: int | None = None,
        atomic_batch: int = MAX_BATCH,
        retry_seconds: float = 60.0,
    ) -> None:
        """`start_after`: see `fence.resume`. `atomic_batch` 1: single messages with a fence each, for a stream without
        allow_atomic."""
        assert 1 <= atomic_batch <= MAX_BATCH, atomic_batch
        self.stored = 0
        self.skipped = 0
        """Rows that were there before."""
        self.last_seq = 0
        self._link = link
        self._stream = stream
        self._job = job
        self._batch = batch
        self._start_after = start_after
        self._atomic_batch = atomic_batch
        self._patience = Patience(retry_seconds, f"writing to {stream}")
        self._at = Resume(0, 0)
        self._last = Last(0)

    def write(self, rows: Iterable[Message]) -> None:
        """All rows of the batch from its first one, the same as ever. Raises FenceError, PublishError, ServerError."""
        self._look()
        done = 0
        for chunk in self._chunks(rows):
            self._write_chunk(chunk, done)
            done += len(chunk)
        self.skipped = done - self.stored
        if done < self._at.rows:
            raise FenceError(
                f"{self._stream} holds {self._at.rows} rows of batch {self._batch} of job {self._job}, which has "
                f"only {done} now"
            )

    def _chunks(self, rows: Iterable[Message]) -> Iterator[list[Message]]:
        """Cut by what is stored already, by number and by bytes."""
        chunk: list[Message] = []
        size = 0
        for count, row in enumerate(rows):
            bytes_of = sum(map(len, row)) + 64
            if chunk and (
                count == self._at.rows or len(chunk) >= self._atomic_batch or size + bytes_of > MAX_BATCH_BYTES
            ):
                yield chunk
                chunk, size = [], 0
            chunk.append(row)
            size += bytes_of
        if chunk:
            yield chunk

    def _write_chunk(self, chunk: list[Message], first: int) -> None:
        """Rows `first` and on of the batch: writes what of them is not stored."""
        with_replies = False
        while True:
            left = self._not_stored(chunk, first)
            if not left:
                return
            try:
                self._send(left, first + len(chunk), with_replies=with_replies)
            except _RefusedError as refused:
                ack = refused.ack
                known = ack.try_again or ack.err_code in _FENCED or ack.err_code in (_NOT_COMPLETE, _DUPLICATE_ID)
                if not known:
                    raise PublishError(f"{self._stream} refused a batch: {ack.error}") from None
                with_replies = ack.err_code == _NOT_COMPLETE  # which message was it, and why?
                why: object = ack.error
            except NoRespondersError as error:
                why = error
            except (ConnectionLostError, RequestTimeoutError) as error:
                why = error
                self._link.lost()
            else:
                self.stored += len(left)
                self._patience.rest()
                return
            self._patience.pause(why)
            self._look()

    def _not_stored(self, chunk: list[Message], first: int) -> list[Message]:
        there = self._at.rows - first
        if there <= 0:
            if self._at.rows < first:
                raise FenceError(f"{self._stream}: rows that job {self._job} had written are gone")
            return chunk
        if there <= len(chunk):  # the last stored row is one of these: is it the same one?
            row = chunk[there - 1]
            if row.payload != self._last.payload:  # the subject may have been transformed
                raise FenceError(
                    f"{self._stream}: message {self._last.seq} is not row {self._at.rows} of batch {self._batch} as it "
                    f"is now: the rows of job {self._job} have changed, or their order has"
                )
        return chunk[there:]

    # ---- the end of the stream

    def _look(self) -> None:
        """Asks the leader where the stream ends. Raises FenceError, PublishError."""
        missing = None  # what is not there is asked for twice: a leader of old may not have it yet
        while True:
            try:
                last = read_last(self._link.connection, self._stream)
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
        self._last = last
        self._at = fence.resume(self._stream, self._job, self._batch, last, self._start_after)
        self.last_seq = last.seq

    # ---- one atomic batch

    def _send(self, messages: list[Message], rows: int, *, with_replies: bool) -> None:
        """Raises _RefusedError, NoRespondersError, ConnectionLostError, RequestTimeoutError."""
        connection = self._link.connection
        expected = self._at.expected
        final = len(messages) - 1
        batch_id = os.urandom(12).hex().encode()
        for index, message in enumerate(messages):
            fields = []
            if final:
                fields += [(b"Nats-Batch-Id", batch_id), (b"Nats-Batch-Sequence", b"%d" % (index + 1))]
            if index == 0:
                fields.append((b"Nats-Expected-Last-Sequence", b"%d" % expected))
            if index == final:
                if final:
                    fields.append((b"Nats-Batch-Commit", b"1"))
                fields.append((fence.MARKER, Marker(self._job, self._batch, rows).encode()))
            headers = extended(message.headers, fields)
            check_size(message, headers, connection.max_payload)
            if index == final:
                answer = connection.request(message.subject.decode(), message.payload, headers, BATCH_SECONDS)
            elif with_replies:
                _check_staged(connection, message, headers)
            else:
                connection.publish(message.subject, message.payload, headers)
        ack = read_ack(answer)
        if ack.error:
            raise _RefusedError(ack)
        if ack.seq != expected + len(messages):
            raise FenceError(f"{self._stream}: a batch ends at {ack.seq}, not at {expected + len(messages)}")
        self._at = Resume(ack.seq, rows)
        self._last = Last(ack.seq, payload=messages[-1].payload)
        self.last_seq = ack.seq


def _check_staged(connection: Connection, message: Message, headers: bytes) -> None:
    """Publishes a message of a batch that is not the last one; a refusal says what a missing answer would hide."""
    reply = connection.request(message.subject.decode(), message.payload, headers, BATCH_SECONDS)
    if reply.status or reply.data:
        raise _RefusedError(read_ack(reply))


def extended(block: bytes, fields: list[tuple[bytes, bytes]]) -> bytes:
    """The header block with `fields` behind its own."""
    added = header_block.build(fields) if fields else b""
    return block[:-2] + added[len(b"NATS/1.0\r\n") :] if block and added else block or added


def read_last(connection: Connection, stream: str) -> Last:
    """The end of the stream as its leader has it. Raises ApiError, and what `Connection.request` raises."""
    state: dict[str, Any] = connection.api(f"STREAM.INFO.{stream}")["state"]
    seq = int(state["last_seq"])
    if not seq:
        return Last(0)
    try:
        found = connection.api(f"STREAM.MSG.GET.{stream}", {"seq": seq})["message"]
    except ApiError as error:
        if error.err_code != _NO_MESSAGE:
            raise
        return Last(seq, there=False)
    block = base64.b64decode(found.get("hdrs", ""))
    return Last(seq, header_block.get(block, fence.MARKER), payload=base64.b64decode(found.get("data", "")))
