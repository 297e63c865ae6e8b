"""The REPLACE commands of the object service: an object takes the place of what was there, or a tombstone does."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from jetcluster.objects.catalog import Catalog
from jetcluster.objects.layout import Layout
from jetcluster.objects.metadata import Info
from jetcluster.objects.upload import Upload
from jetcluster.store.batch import Batch
from jetcluster.store.block_store import BlockStore
from jetcluster.stream.commands import encode_replace
from jetcluster.stream.replacing import Guard

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
