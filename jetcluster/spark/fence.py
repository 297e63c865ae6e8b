"""The fence: where an ordered job goes on, decided from the last message of the stream alone (pure).

The last message of every atomic batch that a job writes carries `Jc-Pipeline: <job>/<batch>/<rows>`: so many rows of
this batch of the job are stored, this message included. An atomic batch is stored whole or not at all, and its first
message carries Nats-Expected-Last-Sequence; so the last message of the stream is always a marker, unless somebody else
wrote. A writer asks the stream's leader for it and knows exactly what is stored, however often, and however
long ago, the job was tried before.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from jetcluster.errors import JetclusterError

MARKER: Final = b"Jc-Pipeline"
_JOB: Final = re.compile(r"[A-Za-z0-9_.:=+-]{1,128}")
_VALUE: Final = re.compile(rb"([A-Za-z0-9_.:=+-]{1,128})/(\d{1,18})/(\d{1,18})")


class FenceError(JetclusterError):
    """Somebody else wrote to the stream, or what the job wrote cannot be told any more. Trying again does not help."""


class Marker(NamedTuple):
    job: str
    batch: int
    rows: int
    """Rows of this batch that are stored, up to and with the message that carries the marker."""

    def encode(self) -> bytes:
        return f"{self.job}/{self.batch}/{self.rows}".encode()


class Last(NamedTuple):
    """The end of a stream, from its leader."""

    seq: int
    """0: nothing was ever stored."""
    marker: bytes | None = None
    """The marker of the message with that sequence."""
    there: bool = True
    """False: that message is deleted, expired or purged."""
    payload: bytes = b""


class Resume(NamedTuple):
    expected: int
    """Nats-Expected-Last-Sequence of the next batch."""
    rows: int
    """Rows of this batch that are stored already, and left out."""


def check_job(job: str) -> str:
    """Raises ValueError for what cannot be in a marker."""
    if not _JOB.fullmatch(job):
        raise ValueError(f"jobId {job!r}: 1 to 128 of letters, digits and _.:=+- are allowed")
    return job


def parse(value: bytes | None) -> Marker | None:
    """The marker in a header's value; None for none, or for what is none of ours."""
    found = _VALUE.fullmatch(value) if value else None
    return Marker(found[1].decode(), int(found[2]), int(found[3])) if found else None


def resume(stream: str, job: str, batch: int, last: Last, start_after: int | None) -> Resume:
    """Where batch number `batch` of `job` goes on.

    `start_after`: the stream's last sequence when the job began; None: it was empty. Raises FenceError.
    """
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
