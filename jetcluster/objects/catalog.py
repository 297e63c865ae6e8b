"""`Catalog`: the objects of a bucket, read from its stream. If an object is in both layouts, the newer one counts.

`Content`: the chunks of one object as of its request, even when it is replaced or deleted meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from jetcluster.errors import OBJECT_DELETED, OBJECT_MISMATCH, OBJECT_NOT_FOUND, OBJECT_TOO_LARGE_FOR_LIST, by_code
from jetcluster.objects.layout import Layout
from jetcluster.objects.metadata import Info, dump, invalid, parse_info
from jetcluster.records import NamedTuple
from jetcluster.store.api import Msg
from jetcluster.store.block_store import BlockStore
from jetcluster.stream.read.direct_get import Frame

LIST_BYTES: Final = 900 << 10
"""Bytes of the objects in one answer, which must fit into a message of the default max_payload."""
OBJECTS_PER_STEP: Final = 200
"""Objects read in one step."""
MAX_SEARCHED_OBJECTS: Final = 1000
"""Objects, from the newest on, that are searched for a nonce."""


class Download(NamedTuple):
    """An object that can be read, and the subject of its chunks."""

    info: Info
    subject: bytes

    def head(self) -> bytes:
        """Return the header block of the message that announces the chunks."""
        fields = self.info.fields
        return b"NATS/1.0\r\nNats-Object-Size: %d\r\nNats-Object-Chunks: %d\r\nNats-Object-Digest: %b\r\n\r\n" % (
            fields["size"],
            fields["chunks"],
            str(fields["digest"]).encode("ascii", "replace"),
        )


class Catalog:
    """The objects of a bucket. Every method that reads raises DamagedError."""

    def __init__(self, layout: Layout, store: BlockStore) -> None:
        self._layout = layout
        self._store = store

    def forms(self, name: str) -> list[Info]:
        """Return an object's stored metadata, oldest first: one for each layout and form of its subject."""
        found = [self._at(subject) for subject in self._layout.infos_of(name)]
        return sorted((info for info in found if info is not None and info.name == name), key=lambda info: info.seq)

    def find(self, name: str) -> Info:
        """Return the object, deleted or not. Raises ApiError 11001."""
        forms = self.forms(name)
        if not forms:
            raise by_code(OBJECT_NOT_FOUND)
        return forms[-1]

    def at(self, subject: bytes) -> Info | None:
        """Return the metadata stored at a subject."""
        return self._at(subject)

    def by_nonce(self, nonce: str) -> Info | None:
        """Return the finished object whose chunks have this nonce, if it is among the newest ones."""
        seqs: list[int] = []
        for subject_filter in self._layout.infos[:1]:
            seqs += self._store.last_seqs(subject_filter)
        for seq in reversed(seqs[-MAX_SEARCHED_OBJECTS:]):
            message = self._store.get(seq)
            info = self._info(message) if message is not None else None
            if info is not None and info.nonce == nonce and not info.deleted:
                return info
        return None

    def download(self, name: str) -> Download:
        """Return an object's download. Raises ApiError: 11001 or 11006 without the object, 11003 if chunks are gone."""
        info = self.find(name)
        if info.deleted:
            raise by_code(OBJECT_DELETED)
        if info.link:
            raise invalid("the object is a link")
        subject = self._layout.chunks(info.nonce, real=info.real)
        stored = self._store.count_of(subject)
        if stored != info.chunks:
            raise by_code(OBJECT_MISMATCH, err=f"{stored} of {info.chunks} chunks are stored")
        return Download(info, subject)

    def listing(self, offset: int, limit: int) -> Listing:
        return Listing(self._layout, self._store, offset, limit)

    def _at(self, subject: bytes) -> Info | None:
        message = self._store.queries.last_by_subject(subject)
        return self._info(message) if message is not None else None

    def _info(self, message: Msg) -> Info | None:
        return parse_info(message, self._layout.bucket)


class Listing:
    """The answer to a list request, built in steps: a bucket may hold very many objects."""

    def __init__(self, layout: Layout, store: BlockStore, offset: int, limit: int) -> None:
        """`limit`: most objects, 0 for as many as fit."""
        self._layout = layout
        self._store = store
        self._offset = offset
        self._limit = limit
        self.answer = b""
        """The JSON answer, set by the last step."""

    def __iter__(self) -> Iterator[int]:
        """Build the answer in steps, between which other work may run. Raises DamagedError, and ApiError 11009."""
        newest: dict[str, tuple[int, bool]] = {}
        looked = 0
        for subject_filter in self._layout.infos:
            for _, state in self._store.queries.subjects(subject_filter):
                looked += 1
                if not looked % OBJECTS_PER_STEP:
                    yield looked
                info = self._read(state.last)
                if info is not None and info.seq > newest.get(info.name, (0, False))[0]:
                    newest[info.name] = info.seq, info.deleted
        names = sorted(name for name, (_, deleted) in newest.items() if not deleted)
        chosen = names[self._offset : self._offset + self._limit if self._limit else None]
        objects: list[bytes] = []
        size = 0
        for at, name in enumerate(chosen):
            if at and not at % OBJECTS_PER_STEP:
                yield at
            info = self._read(newest[name][0])
            if info is None:
                continue  # replaced or deleted just now
            text = dump(info.wire())
            size += len(text) + 1
            if size > LIST_BYTES:
                if not objects:
                    raise by_code(OBJECT_TOO_LARGE_FOR_LIST)
                break
            objects.append(text)
        self.answer = self._render(objects, len(names), partly=len(objects) < len(chosen))

    def _render(self, objects: list[bytes], total: int, *, partly: bool) -> bytes:
        head: dict[str, Any] = {"bucket": self._layout.bucket, "total": total}
        if self._offset or self._limit or partly:
            head |= {"offset": self._offset, "limit": self._limit or len(objects)}
        return b'%b,"objects":[%b]}' % (dump(head)[:-1], b",".join(objects))

    def _read(self, seq: int) -> Info | None:
        message = self._store.get(seq)
        return parse_info(message, self._layout.bucket) if message is not None else None


MESSAGE_OVERHEAD: Final = 64
"""Bytes that a message costs besides its payload."""


class Content:
    """The chunks of a download: `take`, then `hold` before other work runs; `close` at the end."""

    def __init__(self, store: BlockStore, download: Download) -> None:
        self._view = store.view(download.subject, 0)
        self._left = download.info.chunks
        self.done = not self._left

    @property
    def frozen(self) -> bool:
        return self._view.frozen

    def take(self, size: int) -> list[Frame]:
        """Return the next chunks, about `size` bytes. Raises DamagedError, KvError, LostViewError."""
        frames: list[Frame] = []
        while size > 0 and self._left:
            payloads = self._view.take(self._left, size).payloads
            if not payloads:
                break
            frames += [(b"", payload) for payload in payloads]
            size -= sum(map(len, payloads)) + MESSAGE_OVERHEAD * len(payloads)
            self._left -= len(payloads)
        self.done = not self._left or self._view.ended
        return frames

    def hold(self) -> None:
        self._view.hold()

    def close(self) -> None:
        self._view.close()
