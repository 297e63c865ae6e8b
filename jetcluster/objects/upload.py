"""`Upload`: one upload that is under way, as the leader of the bucket's stream knows it; and the commands it ends with.

What is stored decides: `count`, `size` and `sha` follow the chunks that were committed, never those that only arrived.
After a leader change the new leader reads the stored chunks again (`scanning`). The REPLACE commands of the object
service put an object, or a tombstone, in the place of the previous one.
"""

from __future__ import annotations

import enum
import hashlib
from collections import deque
from collections.abc import Iterable
from dataclasses import field
from typing import Final

from jetcluster.objects.catalog import Catalog
from jetcluster.objects.layout import Layout
from jetcluster.objects.metadata import Info, Meta
from jetcluster.records import dataclass
from jetcluster.store.batch import Batch
from jetcluster.store.block_store import BlockStore
from jetcluster.stream.bodies import Guard
from jetcluster.stream.commands import encode_replace

Held = tuple[bytes, bytes, bytes]
"""Reply, header block, payload of a chunk that waits for what is in flight."""


class UploadState(enum.Enum):
    OPEN = 1
    COMPLETE = 2
    """All content is stored and checked; the info must be proposed."""
    FINISHING = 3
    """The info is proposed."""
    FAILED = 4
    """Refused; its stored parts must be removed, once nothing is in flight any more."""
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
        """True while the upload waits for the client."""
        return self.state is UploadState.OPEN and not self.undecided()

    def undecided(self) -> bool:
        """Its content is not settled: stored chunks are being read, it has no record yet, or chunks are on the way."""
        return self.scanning or not self.record_seq or self.in_flight > 0

    @property
    def full(self) -> bool:
        return self.count >= self.meta.chunks

    def fits(self, length: int, stored: int) -> bool:
        """True when a chunk of `length` bytes may be stored, with any outcome of those in flight. While stored chunks
        are being read again the last chunk may not: it would end the upload. `stored`: chunks in the stream now."""
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


ROLLUP: Final = b"NATS/1.0\r\nNats-Rollup: sub\r\n\r\n"
"""Headers of metadata that real clients write."""

Message = tuple[bytes, bytes, bytes]


def end_of_upload(layout: Layout, store: BlockStore, catalog: Catalog, upload: Upload, info: bytes, ts: int) -> bytes:
    """Stores the `info`; the record goes, and with it all that the name stood for: its metadata and its chunks."""
    meta = upload.meta
    record, chunks = layout.upload(meta.nonce), layout.chunks(meta.nonce)
    guards = [(record, upload.record_seq), (chunks, upload.last_seq)]
    guards += _as_now(store, [upload.subject, *layout.infos_of(meta.name)])
    purges = {record: None, upload.subject: None}
    messages: list[Message] = []
    for form in catalog.forms(meta.name):
        purges[form.subject] = None
        if form.nonce != meta.nonce or form.real:
            purges[layout.chunks(form.nonce, real=form.real)] = None
        if form.real:  # real clients see that their object is gone, not that its chunks are missing
            messages.append((form.subject, ROLLUP, form.tombstone()))
    messages.append((upload.subject, b"", info))
    return encode_replace(ts, guards, list(purges), _batch(messages))


def removal_of_upload(layout: Layout, store: BlockStore, upload: Upload, ts: int) -> bytes:
    record = layout.upload(upload.meta.nonce)
    return encode_replace(ts, _as_now(store, [record]), [record, layout.chunks(upload.meta.nonce)])


def deletion(layout: Layout, store: BlockStore, forms: list[Info], ts: int) -> bytes:
    """`forms` of the object, oldest first: each layout it is in gets a tombstone."""
    purges = {form.subject: None for form in forms}
    purges |= {layout.chunks(form.nonce, real=form.real): None for form in forms}
    stones = {form.real: form for form in forms}
    messages = [(form.subject, ROLLUP if form.real else b"", form.tombstone()) for form in stones.values()]
    guards = _as_now(store, [*layout.infos_of(forms[-1].name), *purges])
    return encode_replace(ts, guards, list(purges), _batch(messages))


def _as_now(store: BlockStore, subjects: Iterable[bytes]) -> list[Guard]:
    return [(subject, store.last_seq_of(subject)) for subject in dict.fromkeys(subjects)]


def _batch(messages: list[Message]) -> bytes:
    subjects, headers, payloads = zip(*messages, strict=True)
    return Batch.encode(subjects, headers, payloads)
