"""The replacement of a data store with damaged files at a start: sound streams are copied, the others come from peers.

RocksDB keeps many streams in one file and goes on reading damaged files when it compacts, until it takes no writes any
more; so a replica that is rebuilt beside a damaged file would not last. The old files are moved to `quarantine/` and
never deleted: they may hold the only copy of something.

Order on disk: `data.next` is filled and flushed, and gets its marker of the store (`mesh.identity`) last; then
`data` goes to `quarantine/`, then `data.next` becomes `data`. `settle` finishes what a crash cuts off between the two.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from jetcluster.file_modes import make_folder
from jetcluster.mesh.identity import MARKER_NAME, write_durably
from jetcluster.store import keys, transfer
from jetcluster.store.api import DamagedError
from jetcluster.store.block_store import ALL_KINDS, BlockStore
from jetcluster.store.kv import KvDamagedError
from jetcluster.store.rocks_kv import RocksKv

DATA, NEXT, QUARANTINE = "data", "data.next", "quarantine"
MARKER = "DAMAGED"
SMALL_DISK = 1 << 30
CHUNK = 1 << 20
COOL_DOWN = 600.0
"""Seconds between two renewals: a disk that rots faster is no longer worth it."""


class Renewal(NamedTuple):
    reason: str
    kept: tuple[int, ...]
    """Streams that were copied."""
    left: tuple[int, ...]
    """Streams that were not whole; their replicas are fetched from peers that have them."""
    quarantine: Path


def mark(directory: Path, reason: str) -> None:
    """Has the data renewed at the next start. Durable once this returns. Raises OSError."""
    write_durably(directory / DATA / MARKER, reason)


def recently_renewed(directory: Path, now: float) -> bool:
    """`now`: seconds since the Unix epoch."""
    stamps = [path.name.removeprefix("data-") for path in (directory / QUARANTINE).glob("data-*")]
    # Not what somebody put there, and nothing of a time that is still to come: the clock was wrong then.
    return any(stamp.isdecimal() and 0 <= now - int(stamp) < COOL_DOWN for stamp in stamps)


def settle(directory: Path) -> None:
    """Finishes a renewal that was cut off. Raises OSError."""
    if not (directory / DATA).exists() and (directory / NEXT / MARKER_NAME).exists():
        (directory / NEXT).rename(directory / DATA)
        _sync(directory)


def open_data(directory: Path, *, renewable: bool, now: float) -> tuple[RocksKv, Renewal | None]:
    """The data store of the node, renewed first where that is needed; `renewable`: peers may have what is lost. Raises
    KvError and OSError."""
    data = directory / DATA
    reason = (data / MARKER).read_text().strip() if (data / MARKER).exists() else ""
    if not reason or not renewable:
        try:
            return _open_kept(data), None
        except KvDamagedError as error:
            if not renewable:
                raise
            reason = str(error)
    renewal = _renew(directory, reason, int(now))
    return _open_kept(data), renewal


def _open_kept(data: Path) -> RocksKv:
    """On a small disk RocksDB flushes by itself as well, early: where it did not, an import that was given up for want
    of room was seen to keep it."""
    make_folder(data)
    return RocksKv(data, owner_flushes=shutil.disk_usage(data).total >= SMALL_DISK)


def _renew(directory: Path, reason: str, stamp: int) -> Renewal:
    data, fresh = directory / DATA, directory / NEXT
    shutil.rmtree(fresh, ignore_errors=True)  # of an attempt that did not get as far as its marker
    new = RocksKv(fresh)
    try:
        kept, left = _fill(new, data)
        new.flush_now()
    finally:
        new.close()
    shutil.copyfile(data / MARKER_NAME, fresh / MARKER_NAME)
    for path in (*fresh.iterdir(), fresh):
        _sync(path)
    old = directory / QUARANTINE / f"data-{stamp}"
    make_folder(old.parent)
    data.rename(old)
    fresh.rename(data)
    _sync(old.parent)
    _sync(directory)
    return Renewal(reason, tuple(kept), tuple(left), old)


def _fill(new: RocksKv, data: Path) -> tuple[list[int], list[int]]:
    try:
        old = RocksKv(data, salvage=True)
    except KvDamagedError:
        return [], []
    try:
        _attempt(lambda: _copy_all(new, old.scan(b"\x00", b"\x01")))  # of the node itself; the meta group has it too
        found: list[int] = []
        start, end = bytes([keys.STATE]), bytes([keys.STATE + 1])
        _attempt(lambda: found.extend(int.from_bytes(key[1 : keys.STREAM_PREFIX]) for key, _ in old.scan(start, end)))
        kept = [stream for stream in found if _copy_stream(old, new, stream)]
        return kept, [stream for stream in found if stream not in kept]
    finally:
        _attempt(old.close)


def _copy_all(new: RocksKv, pairs: Iterable[tuple[bytes, bytes]]) -> None:
    for key, value in pairs:
        new.put(key, value)
    new.commit()


def _copy_stream(old: RocksKv, new: RocksKv, stream: int) -> bool:
    """Whole or not at all."""
    try:
        if old.get(keys.stream_prefix(keys.INSTALLING, stream)) is None:
            for key, value in transfer.copy(old.snapshot(), stream):
                new.put(key, value)
                if new.open_bytes >= CHUNK:
                    new.commit()
            BlockStore(new, stream, memory=False)  # its records agree with each other
            new.commit()
            return True
    except (DamagedError, KvDamagedError):
        new.discard(stream)
    for kind in ALL_KINDS:
        new.delete_range(keys.stream_prefix(kind, stream), keys.stream_end(kind, stream))
    new.commit()
    return False


def _attempt(work: Callable[[], None]) -> None:
    try:
        work()
    except KvDamagedError:
        return  # what cannot be read is not copied


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
