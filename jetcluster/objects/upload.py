"""`Upload`: one upload in progress on the leader of the bucket's stream, and the commands that end it.

`count`, `size` and `sha` follow the committed chunks, never those that only arrived. After a leader change the new
leader reads the stored chunks again (`scanning`). The REPLACE commands of the object service replace an object by a new
one or a tombstone.
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
from jetcluster.stream.log.bodies import Guard
from jetcluster.stream.log.commands import encode_replace

Held = tuple[bytes, bytes, bytes]
"""Reply, header block, payload of a chunk that waits for those in flight."""


class UploadState(enum.Enum):
    """The progress of an upload."""

    OPEN = 1
    COMPLETE = 2
    """All content is stored and checked; the info must be proposed."""
    FINISHING = 3
    """The info is proposed."""
    FAILED = 4
    """The upload was refused; its stored parts must be removed once nothing is in flight."""
    DROPPING = 5
    """The removal is proposed."""


@dataclass(slots=True, eq=False)
class Upload:
    """An upload in progress."""

    meta: Meta
    subject: bytes
    """Subject of the info."""
    record_reply: bytes
    """Reply subject of the metadata's publisher."""
    touched: int
    """Unix nanoseconds of the last activity."""
    record_seq: int = 0
    """Sequence of the upload's record; 0 until it is committed."""
    state: UploadState = UploadState.OPEN
    count: int = 0
    """Chunks stored."""
    size: int = 0
    """Bytes of the chunks read so far."""
    sha: hashlib._Hash = field(default_factory=hashlib.sha256)
    last_seq: int = 0
    """Sequence of the last chunk stored."""
    in_flight: int = 0
    """Chunks proposed, whose outcome is open."""
    in_flight_bytes: int = 0
    scanning: bool = False
    scanned: int = 0
    """Sequence up to which stored chunks are read."""
    held: deque[Held] = field(default_factory=deque)
    waiters: list[bytes] = field(default_factory=list)
    """Reply subjects that wait for the end of the upload."""
    attempts: int = 0
    """Number of vain proposals of the end."""

    @property
    def idle(self) -> bool:
        """True while the upload waits for its client."""
        return self.state is UploadState.OPEN and not self.undecided()

    def undecided(self) -> bool:
        """Return True while stored chunks are being read, the record is missing, or chunks are in flight."""
        return self.scanning or not self.record_seq or self.in_flight > 0

    @property
    def full(self) -> bool:
        return self.count >= self.meta.chunks

    def fits(self, length: int, stored: int) -> bool:
        """Return True when a chunk of `length` bytes may be stored, whatever the outcome of those in flight. While
        stored chunks are being read, the last one may not: it would end the upload. `stored`: chunks in the stream."""
        if self.scanning:
            return stored + self.in_flight + 1 < self.meta.chunks
        if self.count + self.in_flight >= self.meta.chunks:
            return False
        return self.size + self.in_flight_bytes + length <= self.meta.size

    def take(self, seq: int, payload: bytes) -> None:
        """Note that the next chunk is stored."""
        self.count += 1
        self.size += len(payload)
        self.sha.update(payload)
        self.last_seq = self.scanned = seq

    def mismatch(self) -> str:
        """Return the fault in a full upload's content, apart from its digest; "" for none."""
        if self.count != self.meta.chunks:
            return f"{self.count} chunks instead of {self.meta.chunks}"
        if self.size != self.meta.size:
            return f"{self.size} bytes instead of {self.meta.size}"
        return ""


ROLLUP: Final = b"NATS/1.0\r\nNats-Rollup: sub\r\n\r\n"
"""Headers of metadata that stock clients write."""

Message = tuple[bytes, bytes, bytes]


def end_of_upload(layout: Layout, store: BlockStore, catalog: Catalog, upload: Upload, info: bytes, ts: int) -> bytes:
    """Return the command that stores the `info`, and removes the upload's record and the previous object."""
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
        if form.real:  # stock clients then see that the object is deleted, not that its chunks are missing
            messages.append((form.subject, ROLLUP, form.tombstone()))
    messages.append((upload.subject, b"", info))
    return encode_replace(ts, guards, list(purges), _batch(messages))


def removal_of_upload(layout: Layout, store: BlockStore, upload: Upload, ts: int) -> bytes:
    record = layout.upload(upload.meta.nonce)
    return encode_replace(ts, _as_now(store, [record]), [record, layout.chunks(upload.meta.nonce)])


def deletion(layout: Layout, store: BlockStore, forms: list[Info], ts: int) -> bytes:
    """Return the command that deletes an object. Each layout among its `forms`, oldest first, gets a tombstone."""
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
