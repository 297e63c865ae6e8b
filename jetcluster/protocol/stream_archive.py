"""The archive of a stream, which SNAPSHOT sends, RESTORE takes, and backups hold: nats-server's format V2. The older
one, V1, is in `tar_archive`.

"NATSARC1", then entries of

    uvarint length of name | varint time, nanoseconds | uvarint sequence | uvarint size of headers | uvarint of payload
    | name | headers | payload

The first entry is `state.json` and the next ones are `consumers/<name>`, all with sequence 0. The messages follow,
ascending, named by their subjects; an entry of zeros ends the archive. Numbers are Go's varints (signed ones: zigzag).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from jetcluster.errors import PeerError
from jetcluster.records import NamedTuple

MAGIC: Final = b"NATSARC1"
END: Final = bytes(5)
STATE_NAME: Final = b"state.json"
CONSUMER_PREFIX: Final = b"consumers/"
MAX_NAME_BYTES: Final = 65_535
MAX_BODY_BYTES: Final = 72 << 20
MAX_CONSUMER_BYTES: Final = 8 << 20
"""Bytes of one consumer that a restore takes."""
MAX_CONSUMERS_BYTES: Final = 64 << 20
"""Bytes of all consumers that a restore takes, with CONSUMER_OVERHEAD_BYTES for each: they are created when the
messages are there."""
CONSUMER_OVERHEAD_BYTES: Final = 512
"""Bytes of an entry's header block and payload: above nats-server's largest max_payload."""
_TAR_MAGIC: Final = b"ustar"


class ArchiveError(PeerError):
    """The bytes are no readable archive."""


class ArchiveEntry(NamedTuple):
    """One entry, as in the module's docstring."""

    name: bytes
    ts: int
    seq: int
    """Sequence of a message; 0 for other entries."""
    headers: bytes
    payload: bytes


def encode(name: bytes, ts: int, seq: int, headers: bytes, payload: bytes) -> bytes:
    head = (uvarint(len(name)), uvarint(_zigzag(ts)), uvarint(seq), uvarint(len(headers)), uvarint(len(payload)))
    return b"".join((*head, name, headers, payload))


class ArchiveReader:
    """Reads an archive in pieces of any size; holds at most one incomplete entry."""

    def __init__(self) -> None:
        self.finished = False
        self._pending = bytearray()
        self._begun = False

    @property
    def held(self) -> int:
        """Bytes of the incomplete entry."""
        return len(self._pending)

    def feed(self, data: bytes) -> Iterator[ArchiveEntry]:
        """The entries that `data` completes. Raises ArchiveError."""
        pending = self._pending
        pending += data
        if not self._begun and not self._begin():
            return
        at = 0
        try:
            while not self.finished and (found := _entry(pending, at)) is not None:
                entry, at = found
                if entry is None:
                    self.finished = True
                else:
                    yield entry
            if self.finished and at < len(pending):
                raise ArchiveError("bytes behind the end of the archive")
        finally:
            del pending[:at]

    def _begin(self) -> bool:
        pending = self._pending
        if bytes(pending[:8]) == MAGIC:
            del pending[:8]
            self._begun = True
            return True
        if not MAGIC.startswith(bytes(pending[:8])):
            tar = bytes(pending[:8]) in (b"meta.inf", b"meta.sum") or _TAR_MAGIC in pending[:512]
            known = "a tar archive of nats-server before 2.15, which only STREAM.RESTORE takes"
            raise ArchiveError(known if tar else "unknown archive format")
        return False


def _entry(data: bytearray, at: int) -> tuple[ArchiveEntry | None, int] | None:
    """The entry at `at` and the place of the next one; (None, place) for the end, None for an incomplete entry."""
    numbers: list[int] = []
    for _ in range(5):
        value = shift = 0
        while True:
            if at >= len(data):
                return None
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift > 63:
                raise ArchiveError("number too long")
        numbers.append(value)
    name_size, ts, seq, header_size, payload_size = numbers
    if not any(numbers):
        return None, at
    if (
        not 0 < name_size <= MAX_NAME_BYTES
        or header_size + payload_size > MAX_BODY_BYTES
        or seq >= 1 << 63
        or ts >= 1 << 64
    ):
        raise ArchiveError("entry out of bounds")
    headers_at = at + name_size
    payload_at = headers_at + header_size
    end = payload_at + payload_size
    if end > len(data):
        return None
    name, headers = bytes(data[at:headers_at]), bytes(data[headers_at:payload_at])
    return ArchiveEntry(name, ts >> 1 ^ -(ts & 1), seq, headers, bytes(data[payload_at:end])), end


def _zigzag(value: int) -> int:
    return value << 1 if value >= 0 else (-value << 1) - 1


def uvarint(value: int) -> bytes:
    """Encodes a number as Go's `binary.AppendUvarint` does."""
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
