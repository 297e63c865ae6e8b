"""Reading STREAM.SNAPSHOT: the archive of a stream, as its leader has it at one moment.

State and consumers come first in an archive of format V2. So the consumers, with what is pending, cost a frame of it,
64 KiB, and a window: then the reader goes away, and the server ends the transfer.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from jetcluster.client.connection import Connection
from jetcluster.errors import ApiError, PassingError
from jetcluster.protocol import s2
from jetcluster.protocol.stream_archive import CONSUMER_PREFIX, STATE_NAME, ArchiveEntry, ArchiveReader

CHUNK_BYTES: Final = 128 * 1024
SMALL_CHUNK_BYTES: Final = 4 * 1024
WINDOW_CHUNKS: Final = 4
"""Chunks on their way; the small ones are for consumers, which are read alone."""

Fields = dict[str, Any]


_FAILED: Final = 10064


class SnapshotEndedError(PassingError):
    """The server did not begin a snapshot, as too many are under way, or ended it before its end, as when another one
    leads the stream."""


def entries(connection: Connection, stream: str, timeout: float, *, consumers: bool) -> Iterator[ArchiveEntry]:
    """Yields the entries of a snapshot. Raises SnapshotEndedError, ArchiveError for a format that is not V2, and what
    `Connection.api` raises."""
    size = SMALL_CHUNK_BYTES if consumers else CHUNK_BYTES
    gather = connection.receive(timeout)
    last = b""
    try:
        body = {
            "deliver_subject": gather.subject.decode(), "no_consumers": not consumers, "chunk_size": size,
            "window_size": WINDOW_CHUNKS * size,
        }  # fmt: skip
        _begin(connection, stream, body, timeout)
        frames, reader = s2.Decoder(), ArchiveReader()
        for chunks in gather:
            if gather.replies:
                last = gather.replies[-1]
            for _, data in chunks:
                for content in frames.feed(data):
                    yield from reader.feed(content)
            for reply in gather.replies:
                connection.publish(reply)
            gather.replies.clear()
            if reader.finished:
                return
        raise SnapshotEndedError(f"the snapshot of {stream} ended: {gather.end.description if gather.end else ''}")
    finally:
        gather.forget()
        if last:
            # An acknowledgement of no bytes: the sender looks, and sees that nobody is there. Else it would wait for
            # seconds, and a server has only so many snapshots under way.
            prefix, _, number = last.rpartition(b".")
            connection.publish(b"%b.0.%b" % (prefix.rpartition(b".")[0], number))
            connection.flush(timeout)


def _begin(connection: Connection, stream: str, body: Fields, timeout: float) -> None:
    """Raises SnapshotEndedError, and what `Connection.api` raises."""
    try:
        connection.api(f"STREAM.SNAPSHOT.{stream}", body, timeout=timeout)
    except ApiError as error:
        if error.err_code == _FAILED:
            raise SnapshotEndedError(str(error)) from error
        raise


def consumers_in(connection: Connection, stream: str, timeout: float) -> dict[str, Fields]:
    """Consumer -> its entry: {"config": {...}, "state": {...}}. Raises what `entries` raises."""
    found: dict[str, Fields] = {}
    count = -1
    for entry in entries(connection, stream, timeout, consumers=True):
        if entry.name == STATE_NAME and not entry.seq:
            count = int(json.loads(entry.payload).get("consumer_count") or 0)
        elif entry.name.startswith(CONSUMER_PREFIX) and not entry.seq:
            found[entry.name.removeprefix(CONSUMER_PREFIX).decode()] = json.loads(entry.payload)
        if entry.seq or len(found) == count:
            break
    return found
