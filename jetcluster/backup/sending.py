"""`Sending`: the messages of a stored stream on their way to the servers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from jetcluster.backup.segment import MessageSum
from jetcluster.backup.verify import Renamed, StoredStream
from jetcluster.client.restore_transfer import framed

BLOB_BYTES: Final = 512 * 1024


class Sending:
    """One stream, as often as it is sent."""

    def __init__(self, stored: StoredStream, renamed: Renamed | None) -> None:
        self.stored = stored
        self.renamed = renamed
        self.digests: list[MessageSum] = []
        """By segment."""

    def blobs(self) -> Iterator[bytes]:
        """Yields the messages, as `RestoreTransfer` takes them. Raises DamagedBackupError."""
        self.digests = []
        entries: list[bytes] = []
        size = 0
        for one in self.stored.point.segments:
            digest = MessageSum()
            for message in self.stored.messages(one):
                entry = (self.renamed.message(message) if self.renamed else message).encoded()
                digest = digest.plus(entry)
                entries.append(entry)
                size += len(entry)
                if size >= BLOB_BYTES:
                    yield framed(b"".join(entries))
                    entries, size = [], 0
            self.digests.append(digest)
        if entries:
            yield framed(b"".join(entries))

    def check(self) -> None:
        """Raises DamagedBackupError."""
        self.stored.check_count(sum(one.messages for one in self.digests))
