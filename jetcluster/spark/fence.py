"""The fence: the point at which an ordered job resumes, decided from the last message of the stream alone.

The last message of every atomic batch that a job writes carries `Jc-Pipeline: <job>/<batch>/<rows>`: the number of rows
of the job's batch that are stored, this message included. An atomic batch is stored whole or not at all, and its first
message carries Nats-Expected-Last-Sequence; so the last message of the stream is always a marker, unless another writer
published. A writer asks the stream's leader for that message and knows exactly which rows are stored, however often and
however long ago the job was tried before.

`FenceWriter` writes the rows of one batch of one job, in order and each exactly once, as atomic batches.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from jetcluster.client.connection import Connection
from jetcluster.client.reply import ConnectionLostError, NoRespondersError, RequestTimeoutError
from jetcluster.errors import ApiError, JetclusterError
from jetcluster.protocol import headers as header_block
from jetcluster.spark.publish import Message, Patience, PubAck, PublishError, ServerLink, check_size, read_ack

MARKER: Final = b"Jc-Pipeline"
_JOB: Final = re.compile(r"[A-Za-z0-9_.:=+-]{1,128}")
_VALUE: Final = re.compile(rb"([A-Za-z0-9_.:=+-]{1,128})/(\d{1,18})/(\d{1,18})")


class FenceError(JetclusterError):
    """Another writer published to the stream, or the job's last rows cannot be determined. A retry does not help."""


class Marker(NamedTuple):
    """The value of the header `Jc-Pipeline`."""

    job: str
    batch: int
    rows: int
    """Rows of this batch that are stored, including the message that carries the marker."""

    def encode(self) -> bytes:
        return f"{self.job}/{self.batch}/{self.rows}".encode()


class Last(NamedTuple):
    """The end of a stream as reported by its leader."""

    seq: int
    """0: nothing was ever stored."""
    marker: bytes | None = None
    """The marker of the message with that sequence."""
    there: bool = True
    """False: that message is deleted, expired or purged."""
    payload: bytes = b""


class Resume(NamedTuple):
    """The point at which a batch resumes."""

    expected: int
    """Nats-Expected-Last-Sequence of the next batch."""
    rows: int
    """Rows of this batch that are already stored, and are skipped."""


def check_job(job: str) -> str:
    """Raises ValueError for a name that cannot be in a marker."""
    if not _JOB.fullmatch(job):
        raise ValueError(f"jobId {job!r}: 1 to 128 of letters, digits and _.:=+- are allowed")
    return job


def parse(value: bytes | None) -> Marker | None:
    """Returns the marker in a header's value, None if it is not one."""
    found = _VALUE.fullmatch(value) if value else None
    return Marker(found[1].decode(), int(found[2]), int(found[3])) if found else None


def resume(stream: str, job: str, batch: int, last: Last, start_after: int | None) -> Resume:
    """Returns the point at which batch number `batch` of `job` resumes. `start_after` is the stream's last sequence
    when the job began; None: the stream was empty. Raises FenceError."""
    if last.seq == (start_after or 0):
        return Resume(last.seq, 0)
    if not last.there:
        raise FenceError(
            f"{stream}: its last message, {last.seq}, is gone (deleted, expired or purged), and with it the place of "
            f"job {job}. If you know that nothing of this batch is stored: startAfter={last.seq}"
        )
    marker = parse(last.marker)
    if marker is None or marker.job != job:
        who = f"job {marker.job}" if marker else "another writer"
        raise FenceError(
            f"{stream}: the last message, {last.seq}, was written by {who}, not by job {job}. Only one may write to a "
            f"fenced stream. If this is the first run of the job: startAfter={last.seq}"
        )
    if marker.batch > batch:
        raise FenceError(
            f"{stream}: job {job} is at batch {marker.batch} there, and is to write batch {batch}: the checkpoint is "
            "older than the stream"
        )
    return Resume(last.seq, marker.rows if marker.batch == batch else 0)


MAX_BATCH_MESSAGES: Final = 1000
"""The most messages that a server accepts in one atomic batch (ADR-50)."""
MAX_BATCH_BYTES: Final = 4 << 20
"""Bytes of subjects, headers and payloads: the server's log cuts a larger batch into parts."""
BATCH_SECONDS: Final = 8.0
"""Timeout of the answer to a commit."""
_FENCED: Final = frozenset({10071, 10164})
_NOT_COMPLETE: Final = 10176
_DUPLICATE_ID: Final = 10201
_NO_MESSAGE: Final = 10037


class _RefusedError(JetclusterError):
    """The server's answer to a batch is an error: nothing of it is stored, or its outcome is unknown."""

    def __init__(self, ack: PubAck) -> None:
        super().__init__(ack.error)
        self.ack = ack


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
    ) -> None:
        """`start_after`: see `resume`. With `atomic_batch` 1 each message has its own fence: needs no allow_atomic."""
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
        self._atomic_batch = atomic_batch
        self._patience = Patience(retry_seconds, f"writing to {stream}")
        self._at = Resume(0, 0)
        self._last = Last(0)

    def write(self, rows: Iterable[Message]) -> None:
        """Writes all rows of the batch, the same on every attempt. Raises FenceError, PublishError, ServerError."""
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
        """Yields chunks of limited number and bytes; one chunk ends exactly after the last row already stored."""
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
        """Writes the rows of a chunk, which begins at row `first` of the batch, that are not stored."""
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
                with_replies = ack.err_code == _NOT_COMPLETE  # the next attempt learns which message, and why
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
        if there <= len(chunk):  # the last stored row is in this chunk and must be unchanged
            row = chunk[there - 1]
            if row.payload != self._last.payload:  # not by subject, which may have been transformed
                raise FenceError(
                    f"{self._stream}: message {self._last.seq} is not row {self._at.rows} of batch {self._batch} as it "
                    f"is now: the rows of job {self._job} have changed, or their order has"
                )
        return chunk[there:]

    # ---- the end of the stream

    def _look(self) -> None:
        """Asks the leader for the end of the stream. Raises FenceError, PublishError."""
        missing = None  # a missing message counts only the second time: a previous leader may not have it yet
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
        self._at = resume(self._stream, self._job, self._batch, last, self._start_after)
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
                fields.append((MARKER, Marker(self._job, self._batch, rows).encode()))
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
    """Publishes a message of a batch, not the last, as a request, so that a refusal is reported for this message."""
    reply = connection.request(message.subject.decode(), message.payload, headers, BATCH_SECONDS)
    if reply.status or reply.data:
        raise _RefusedError(read_ack(reply))


def extended(block: bytes, fields: list[tuple[bytes, bytes]]) -> bytes:
    """Returns the header block with `fields` appended."""
    added = header_block.build(fields) if fields else b""
    return block[:-2] + added[len(b"NATS/1.0\r\n") :] if block and added else block or added


def read_last(connection: Connection, stream: str) -> Last:
    """Returns the end of the stream as its leader has it. Raises ApiError, and what `Connection.request` raises."""
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
    return Last(seq, header_block.get(block, MARKER), payload=base64.b64decode(found.get("data", "")))
