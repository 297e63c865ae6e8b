"""The replacement of a data store with damaged files at a start: sound streams are copied, the others come from peers.

RocksDB keeps many streams in one file and goes on reading damaged files when it compacts, until it takes no writes any
more; so a replica that is rebuilt beside a damaged file would not last. The old files are moved to `quarantine/` and
never deleted: they may hold the only copy of something.

A renewed store that lacks the state of the meta group says so with a record, `LOST_KEY`.

Order on disk: `data.next` is filled and flushed, and gets its marker of the store (`mesh.identity`) last; then
`data` goes to `quarantine/`, then `data.next` becomes `data`. `settle` finishes what a crash cuts off between the two.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from jetcluster.clock import Clock
from jetcluster.cluster.meta_replica import LOST_KEY, STATE_KEY
from jetcluster.files import (
    Files,
    exists,
    make_folder,
    names_in,
    read,
    read_text,
    remove_tree,
    sync,
    total_bytes,
    write,
    write_durably,
)
from jetcluster.mesh.identity import MARKER_NAME
from jetcluster.store import keys, transfer
from jetcluster.store.api import DamagedError
from jetcluster.store.block_store import ALL_KINDS, BlockStore
from jetcluster.store.kv import KvDamagedError
from jetcluster.store.rocks_kv import RocksKv

if TYPE_CHECKING:
    from jetcluster.logs import Log

DATA, NEXT, QUARANTINE = "data", "data.next", "quarantine"
MARKER = "DAMAGED"
SMALL_DISK_BYTES = 1 << 30
COPY_BYTES = 1 << 20
RENEWAL_PAUSE_SECONDS = 600.0
"""Seconds between two renewals: a disk that rots faster is no longer worth it."""


class Renewal(NamedTuple):
    reason: str
    kept: tuple[int, ...]
    """Streams that were copied."""
    left: tuple[int, ...]
    """Streams that were not whole; their replicas are fetched from peers that have them."""
    quarantine: Path


def mark(directory: Path, reason: str, files: Files = os) -> None:
    """Has the data renewed at the next start. Durable once this returns. Raises OSError."""
    write_durably(directory / DATA / MARKER, reason, files)


def recently_renewed(directory: Path, now: float, files: Files = os) -> bool:
    """`now`: seconds since the Unix epoch."""
    names = names_in(directory / QUARANTINE, files)
    stamps = [name.removeprefix("data-") for name in names if name.startswith("data-")]
    # Not what somebody put there, and nothing of a time that is still to come: the clock was wrong then.
    return any(stamp.isdecimal() and 0 <= now - int(stamp) < RENEWAL_PAUSE_SECONDS for stamp in stamps)


def settle(directory: Path, files: Files = os) -> None:
    """Finishes a renewal that was cut off. Raises OSError."""
    if not exists(directory / DATA, files) and exists(directory / NEXT / MARKER_NAME, files):
        files.rename(directory / NEXT, directory / DATA)
        sync(directory, files)


class OpenStore(Protocol):
    """Opens or makes the data store in a folder; see `store.rocks_kv.RocksKv`. Raises KvError and OSError."""

    def __call__(self, path: Path, *, salvage: bool = False, owner_flushes: bool = False) -> RocksKv: ...


def open_data(
    directory: Path, renewable: bool, now: float, files: Files = os, open_store: OpenStore = RocksKv
) -> tuple[RocksKv, Renewal | None]:
    """The data store of the node, renewed first where that is needed; `renewable`: peers may have what is lost. Raises
    KvError and OSError."""
    data = directory / DATA
    reason = read_text(data / MARKER, files).strip() if exists(data / MARKER, files) else ""
    if not reason or not renewable:
        try:
            return _open_kept(data, files, open_store), None
        except KvDamagedError as error:
            if not renewable:
                raise
            reason = str(error)
    renewal = _renew(directory, reason, int(now), files, open_store)
    return _open_kept(data, files, open_store), renewal


def _open_kept(data: Path, files: Files, open_store: OpenStore) -> RocksKv:
    """On a small disk RocksDB flushes by itself as well, early: where it did not, an import that was given up for want
    of room was seen to keep it."""
    make_folder(data, files)
    owner_flushes = total_bytes(data, files) >= SMALL_DISK_BYTES
    return open_store(data, owner_flushes=owner_flushes)


def _renew(directory: Path, reason: str, stamp: int, files: Files, open_store: OpenStore) -> Renewal:
    data, fresh = directory / DATA, directory / NEXT
    remove_tree(fresh, files)  # of an attempt that did not get as far as its marker
    new = open_store(fresh)
    try:
        kept, left = _fill(new, data, open_store)
        new.flush_now()
    finally:
        new.close()
    write(fresh / MARKER_NAME, read(data / MARKER_NAME, files), files)
    for path in (*(fresh / name for name in names_in(fresh, files)), fresh):
        sync(path, files)
    old = directory / QUARANTINE / f"data-{stamp}"
    make_folder(old.parent, files)
    files.rename(data, old)
    files.rename(fresh, data)
    sync(old.parent, files)
    sync(directory, files)
    return Renewal(reason, tuple(kept), tuple(left), old)


def _fill(new: RocksKv, data: Path, open_store: OpenStore) -> tuple[list[int], list[int]]:
    try:
        old = open_store(data, salvage=True)
    except KvDamagedError:
        _copy_node(new, [])
        return [], []
    try:
        _copy_node(new, old.scan(b"\x00", b"\x01"))
        found: list[int] = []
        start, end = bytes([keys.STATE]), bytes([keys.STATE + 1])
        _attempt(lambda: found.extend(int.from_bytes(key[1 : keys.STREAM_PREFIX]) for key, _ in old.scan(start, end)))
        kept = [stream for stream in found if _copy_stream(old, new, stream)]
        return kept, [stream for stream in found if stream not in kept]
    finally:
        _attempt(old.close)


def _copy_node(new: RocksKv, pairs: Iterable[tuple[bytes, bytes]]) -> None:
    """Copies the records of the node itself, in the order of their keys. What is missing at their end is fetched from
    the meta group, and the store says so: one without them would look like that of a new node."""
    _attempt(lambda: _copy_all(new, pairs))
    new.commit()
    if new.get(STATE_KEY) is None:
        new.put(LOST_KEY, b"")
        new.commit()


def _copy_all(new: RocksKv, pairs: Iterable[tuple[bytes, bytes]]) -> None:
    for key, value in pairs:
        new.put(key, value)


def _copy_stream(old: RocksKv, new: RocksKv, stream: int) -> bool:
    """Whole or not at all."""
    try:
        if old.get(keys.stream_prefix(keys.INSTALLING, stream)) is None:
            for key, value in transfer.copy(old.snapshot(), stream):
                new.put(key, value)
                if new.open_bytes >= COPY_BYTES:
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


AGAIN: Final = "started-again"
"""A file beside the data: when the last starts of this kind were, in seconds since the Unix epoch, one a line."""
RESTART_PAUSE_SECONDS: Final = 60
"""Seconds between two of them: clients lose their connections each time."""
RESTART_PERIOD_SECONDS, MOST_RESTARTS = 3600, 3
"""Seconds, and the most restarts in them: what a start does not put right comes back with each."""


class DataRestarts:
    """Restarts of the server, in place, for the sake of its data store; a supervisor sees the same process."""

    def __init__(self, directory: Path, clock: Clock, files: Files, log: Log, start: Callable[[], None]) -> None:
        """`start` stops the process as on SIGTERM, and has it begin anew."""
        self._directory = directory
        self._clock = clock
        self._files = files
        self._log = log
        self._start = start

    def renew(self, reason: str) -> None:
        """With another data store."""
        if recently_renewed(self._directory, self._now(), self._files):
            self._log.error("the data store is damaged again: the disk may be failing", damage=reason)
            return
        try:
            mark(self._directory, reason, self._files)
        except OSError as error:
            self._log.error("the damaged data store cannot be marked", error=str(error))
            return
        self._log.error("the data store is damaged: the server starts again and renews it", damage=reason)
        self._start()

    def again(self, reason: str) -> None:
        """With the data store that there is, opened anew."""
        stamp = self._directory / AGAIN
        try:
            now = int(self._now())
            lines = read_text(stamp, self._files, errors="replace").split() if exists(stamp, self._files) else []
            # Not what a clock has written that was wrong.
            recent = [int(line) for line in lines if line.isdecimal() and 0 <= now - int(line) < RESTART_PERIOD_SECONDS]
            if recent and (now - max(recent) < RESTART_PAUSE_SECONDS or len(recent) >= MOST_RESTARTS):
                text = "the data store failed again soon after a start: the disk may be failing"
                self._log.warning(text, error=reason)
                return
            write(stamp, "".join(f"{when}\n" for when in (*recent, now)).encode(), self._files)
        except OSError as error:
            self._log.error("the disk is not well", error=str(error))
            return
        self._log.error("the data store failed, and the disk is well: the server starts again", error=reason)
        self._start()

    def _now(self) -> float:
        return self._clock.time_ns() / 1e9
