"""`Upload`: one upload that is under way, as the leader of the bucket's stream knows it.

What is stored decides: `count`, `size` and `sha` follow the chunks that were committed, never those that only arrived.
After a leader change the new leader reads the stored chunks again (`scanning`).
"""

from __future__ import annotations

import enum
import hashlib
from collections import deque
from dataclasses import field

from jetcluster.objects.metadata import Meta
from jetcluster.records import dataclass

Held = tuple[bytes, bytes, bytes]
"""Reply, header block, payload of a chunk that waits for what is in flight."""


class UploadState(enum.Enum):
    OPEN = 1
    COMPLETE = 2
    """All content is stored and checked; the info is to be proposed."""
    FINISHING = 3
    """The info is proposed."""
    FAILED = 4
    """Refused; what is stored of it is to be removed, once nothing is in flight any more."""
    DROPPING = 5
    """The removal is proposed."""


@dataclass(slots=True, eq=False)
class Upload:
    meta: Meta
    subject: bytes
    """The subject of the info."""
    record_reply: bytes
    """Reply of the metadata."""
    touched: int
    """Unix nanoseconds."""
    record_seq: int = 0
    """Sequence of the upload's record; 0 until it is committed."""
    state: UploadState = UploadState.OPEN
    count: int = 0
    """Chunks stored."""
    size: int = 0
    """Bytes of those, as far as they were read."""
    sha: hashlib._Hash = field(default_factory=hashlib.sha256)
    last_seq: int = 0
    """Sequence of the last chunk stored."""
    in_flight: int = 0
    """Chunks proposed, outcome open."""
    in_flight_bytes: int = 0
    scanning: bool = False
    scanned: int = 0
    """Sequence up to which stored chunks were read."""
    held: deque[Held] = field(default_factory=deque)
    waiters: list[bytes] = field(default_factory=list)
    """Replies that wait for the end of the upload."""
    attempts: int = 0
    """Number of times that the end was proposed in vain."""

    @property
    def idle(self) -> bool:
        """It waits for the client."""
        return self.state is UploadState.OPEN and not self.undecided()

    def undecided(self) -> bool:
        """Its content is not settled: stored chunks are being read, it has no record yet, or chunks are on the way."""
        return self.scanning or not self.record_seq or self.in_flight > 0

    @property
    def full(self) -> bool:
        return self.count >= self.meta.chunks

    def fits(self, length: int, stored: int) -> bool:
        """May a chunk of so many bytes be stored, with any outcome of those in flight? While stored chunks are being
        read again the last one may not: it would end the upload. `stored`: chunks in the stream now."""
        if self.scanning:
            return stored + self.in_flight + 1 < self.meta.chunks
        if self.count + self.in_flight >= self.meta.chunks:
            return False
        return self.size + self.in_flight_bytes + length <= self.meta.size

    def take(self, seq: int, payload: bytes) -> None:
        """The next chunk is stored."""
        self.count += 1
        self.size += len(payload)
        self.sha.update(payload)
        self.last_seq = self.scanned = seq

    def mismatch(self) -> str:
        """Fault in a full upload's content; "" when nothing is, but for the digest."""
        if self.count != self.meta.chunks:
            return f"{self.count} chunks instead of {self.meta.chunks}"
        if self.size != self.meta.size:
            return f"{self.size} bytes instead of {self.meta.size}"
        return ""
