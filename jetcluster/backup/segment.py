"""Segments: the messages of a stretch of a stream's sequences, as nats-server's archive format V2 in zlib.

A segment is made once and never changed; the ones of a stream follow each other. What a restore point takes of a
segment are the messages whose sequences it lists.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Final, NamedTuple

from jetcluster.backup.sequences import DamagedBackupError, Sequences
from jetcluster.protocol import stream_archive
from jetcluster.protocol.stream_archive import ArchiveError, ArchiveReader

SEGMENT_BYTES: Final = 8 << 20
"""Bytes of encoded messages after which a segment ends, before compression."""
MAX_SEGMENT_BYTES: Final = SEGMENT_BYTES + stream_archive.MAX_BODY_BYTES + (1 << 20)
"""Bytes that a segment may have when it is read: the last message may be a large one."""
_STEP_BYTES: Final = 1 << 20
_DIGEST_BYTES: Final = 16
_MODULUS: Final = 1 << 8 * _DIGEST_BYTES


class StoredMessage(NamedTuple):
    """A stored message."""

    seq: int
    ts: int
    """Nanoseconds since 1970."""
    subject: bytes
    headers: bytes
    """The header block as it was stored, b"" for none."""
    payload: bytes

    def encoded(self) -> bytes:
        return stream_archive.encode(self.subject, self.ts, self.seq, self.headers, self.payload)


class MessageSum(NamedTuple):
    """The count of messages and the sum of their hashes: equal for equal messages, however they were read."""

    messages: int = 0
    total: int = 0

    def plus(self, encoded: bytes) -> MessageSum:
        found = int.from_bytes(blake2b(encoded, digest_size=_DIGEST_BYTES).digest(), "little")
        return MessageSum(self.messages + 1, (self.total + found) % _MODULUS)


def pack(entries: Sequence[bytes]) -> bytes:
    """Returns the segment of ascending encoded messages."""
    return zlib.compress(b"".join((stream_archive.MAGIC, *entries, stream_archive.END)), 3)


def unpack(data: bytes) -> Iterator[StoredMessage]:
    """Yields the messages of a segment. Raises DamagedBackupError."""
    inflate, reader = zlib.decompressobj(), ArchiveReader()
    size = before = 0
    while not inflate.eof:
        try:
            plain = inflate.decompress(data, _STEP_BYTES)
            data = inflate.unconsumed_tail
            if not plain and not inflate.eof:
                raise DamagedBackupError("a segment is cut off")
            size += len(plain)
            if size > MAX_SEGMENT_BYTES:
                raise DamagedBackupError("a segment is larger than any that is written")
            for entry in reader.feed(plain):
                if entry.seq <= before:
                    raise DamagedBackupError("a segment's messages are out of order")
                before = entry.seq
                yield StoredMessage(entry.seq, entry.ts, entry.name, entry.headers, entry.payload)
        except (zlib.error, ArchiveError) as error:
            raise DamagedBackupError(f"a segment cannot be read: {error}") from None
    if not reader.finished:
        raise DamagedBackupError("a segment is cut off")


def chosen(data: bytes, live: Sequences) -> Iterator[StoredMessage]:
    """Yields the messages of a segment that are in `live`. Raises DamagedBackupError."""
    return (message for message in unpack(data) if message.seq in live)
