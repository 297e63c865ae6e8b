"""The fence: the point at which an ordered job resumes, decided from the last message of the stream alone.

The last message of every atomic batch that a job writes carries `Jc-Pipeline: <job>/<batch>/<rows>`: the number of rows
of the job's batch that are stored, this message included. An atomic batch is stored whole or not at all, and its first
message carries Nats-Expected-Last-Sequence; so the last message of the stream is always a marker, unless another writer
published. A writer asks the stream's leader for that message and knows exactly which rows are stored, however often and
however long ago the job was tried before.

A fence may be of a part of the subjects, too: then the part's filter says which message is the last one, and the first
message of a batch carries Nats-Expected-Last-Subject-Sequence with that filter (fence_parts.py).

`FenceWriter` (fence_writer.py) writes the rows of one batch of one job by it.
"""

from __future__ import annotations

import base64
import re
from typing import Any, Final, NamedTuple

from jetcluster.client.connection import Connection
from jetcluster.errors import ApiError, JetclusterError
from jetcluster.protocol import headers as header_block

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


_NO_MESSAGE: Final = 10037


def read_last(connection: Connection, stream: str, within: str = "") -> Last:
    """Returns the end of the stream, or of the messages that the filter `within` matches, as its leader has it. Raises
    ApiError, and what `Connection.request` raises."""
    if within:
        return _read_last_within(connection, stream, within)
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
    return _last_of(seq, found)


def _read_last_within(connection: Connection, stream: str, within: str) -> Last:
    try:
        found = connection.api(f"STREAM.MSG.GET.{stream}", {"last_by_subj": within})["message"]
    except ApiError as error:
        if error.err_code != _NO_MESSAGE:
            raise
        return Last(0)
    return _last_of(int(found["seq"]), found)


def _last_of(seq: int, message: dict[str, Any]) -> Last:
    block = base64.b64decode(message.get("hdrs", ""))
    payload = base64.b64decode(message.get("data", ""))
    return Last(seq, header_block.get(block, MARKER), payload=payload)
