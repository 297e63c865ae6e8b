"""Replacement of a damaged data store at a start: sound streams are copied, the others are fetched from peers.

RocksDB keeps many streams in one file, and reads damaged files when it compacts, until it refuses all writes; a replica
rebuilt beside a damaged file would not last. The old files, perhaps the only copy, are kept in `quarantine/`.

A renewed store that lacks the state of the meta group is marked with a record, `LOST_KEY`.

Order on disk: `data.next` is filled and flushed, and gets the marker of the store (`mesh.identity`) last; then `data`
is moved to `quarantine/`, then `data.next` becomes `data`. `settle` finishes an interruption between the two moves.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from jetcluster.clock import Clock
from jetcluster.cluster.meta_replica import LOST_KEY, STATE_KEY
from jetcluster.files import (
    Files,
    exists,
    free_bytes,
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
from jetcluster.records import NamedTuple
from jetcluster.sealing import api as sealing
from jetcluster.store import keys, transfer
from jetcluster.store.api import DamagedError
from jetcluster.store.block_store import ALL_KINDS, BlockStore
from jetcluster.store.kv import KvDamagedError, KvError, KvFullError
from jetcluster.store.rocks_kv import RocksKv

if TYPE_CHECKING:
    from jetcluster.logs import Log
    from jetcluster.store.seal import StoreSeal

DATA, NEXT, QUARANTINE = "data", "data.next", "quarantine"
PLAIN: Final = "data.plain"
"""The plain store of before, until it is deleted."""
_SEALED_TEXT: Final = "docs/security/encryption.md\n"
MARKER_FILE = "DAMAGED"
SEALED_FILE: Final = sealing.SEALED_FILE.rpartition("/")[2]
SMALL_DISK_BYTES = 1 << 30
COPY_BYTES = 1 << 20
RENEWAL_PAUSE_SECONDS = 600.0
"""Least time between two renewals: a disk that decays faster is not worth another."""


class Renewal(NamedTuple):
    """A renewal that was carried out."""

    reason: str
    kept: tuple[int, ...]
    """Streams that were copied."""
    left: tuple[int, ...]
    """Streams that were not complete; their replicas are fetched from peers."""
    quarantine: Path


def mark(directory: Path, reason: str, files: Files = os) -> None:
    """Marks the data for renewal at the next start. Durable on return. Raises OSError."""
    write_durably(directory / DATA / MARKER_FILE, reason, files)


def last_renewed(directory: Path, now: float, files: Files = os) -> int:
    """Returns the time of the newest renewal whose data is in the quarantine, 0 for none; both in Unix seconds."""
    names = names_in(directory / QUARANTINE, files)
    stamps = [name.removeprefix("data-") for name in names if name.startswith("data-")]
    # Ignores foreign files, and times in the future, which a wrong clock has written.
    return max((int(stamp) for stamp in stamps if stamp.isdecimal() and int(stamp) <= now), default=0)


def recently_renewed(directory: Path, now: float, files: Files = os) -> bool:
    """Returns True when a renewal is in its pause at `now`, in Unix seconds."""
    return now - last_renewed(directory, now, files) < RENEWAL_PAUSE_SECONDS


def settle(directory: Path, files: Files = os) -> None:
    """Finishes an interrupted renewal. Raises OSError."""
    if (found := data_folder(directory, files)).name == NEXT:
        files.rename(found, directory / DATA)
        sync(directory, files)


def data_folder(directory: Path, files: Files = os) -> Path:
    """Returns the folder that is the data store once `settle` has been called."""
    is_moved = not exists(directory / DATA, files) and exists(directory / NEXT / MARKER_NAME, files)
    return directory / (NEXT if is_moved else DATA)


class OpenStore(Protocol):
    """Opens or makes the data store in a folder; see `store.rocks_kv.RocksKv`. Raises KvError and OSError."""

    def __call__(self, path: Path, *, salvage: bool = False, owner_flushes: bool = False) -> RocksKv: ...


def open_data(
    directory: Path, renewable: bool, now: float, files: Files = os, open_store: OpenStore = RocksKv
) -> tuple[RocksKv, Renewal | None]:
    """Returns the data store, renewed where needed. `renewable`: peers may have it. Raises KvError and OSError."""
    data = directory / DATA
    reason = read_text(data / MARKER_FILE, files).strip() if exists(data / MARKER_FILE, files) else ""
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
    """Opens the store. On a small disk RocksDB also flushes by itself: else it kept an import that found no room."""
    make_folder(data, files)
    owner_flushes = total_bytes(data, files) >= SMALL_DISK_BYTES
    return open_store(data, owner_flushes=owner_flushes)


def _renew(directory: Path, reason: str, stamp: int, files: Files, open_store: OpenStore) -> Renewal:
    data, fresh = directory / DATA, directory / NEXT
    remove_tree(fresh, files)  # of an attempt that did not reach its marker
    new = open_store(fresh)
    try:
        kept, left = _fill(new, data, open_store)
        new.flush_now()
    finally:
        new.close()
    for name in (SEALED_FILE, MARKER_NAME):
        if exists(data / name, files):
            write(fresh / name, read(data / name, files), files)
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
    """Copies the records of the node itself, in key order. Missing records at the end are fetched from the meta group;
    the store is marked then, as it would look like that of a new node."""
    _attempt(lambda: _copy_all(new, pairs))
    new.commit()
    if new.get(STATE_KEY) is None:
        new.put(LOST_KEY, b"")
        new.commit()


def _copy_all(new: RocksKv, pairs: Iterable[tuple[bytes, bytes]]) -> None:
    for key, value in pairs:
        new.put(key, value)


def _copy_stream(old: RocksKv, new: RocksKv, stream: int) -> bool:
    """Copies a stream completely, or not at all; returns whether it did."""
    try:
        if old.get(keys.stream_prefix(keys.INSTALLING, stream)) is None:
            for key, value in transfer.copy(old.snapshot(), stream):
                new.put(key, value)
                if new.open_bytes >= COPY_BYTES:
                    new.commit()
            BlockStore(new, stream, memory=False)  # checks that its records agree
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
        return  # unreadable records are not copied


def is_plain(data: Path, files: Files = os) -> bool:
    """Returns True when the folder has a data store of before the encryption, or one whose mark was lost."""
    return exists(data / "CURRENT", files) and not exists(data / SEALED_FILE, files)


def needs_key(directory: Path, files: Files = os) -> bool:
    """Returns True when something of the store is sealed. A store whose encryption did not come to its end has the
    files of the keys, and is plain. Raises OSError."""
    if not sealing.is_sealed(directory, files):
        return False
    if not is_plain(data_folder(directory, files), files):
        return True
    from jetcluster.raft.journal.inspection import has_sealed  # few stores are asked

    return has_sealed(directory / "journal", files)


def stay_plain(directory: Path, log: Log, files: Files = os) -> None:
    """Removes what an encryption that did not come to its end has left. For a start without a key, of a plain store."""
    if sealing.is_sealed(directory, files):
        if exists(directory / DATA, files):  # else it is what `settle` takes
            remove_tree(directory / NEXT, files)
        log.warning("an encryption of the store did not come to its end: it stays plain, as jetstream has no key")


PROBED_VALUES: Final = 8


def looks_sealed(kv: RocksKv, seal: StoreSeal) -> bool:
    """Returns True when values of a store that was opened as a plain one open with `seal`."""
    for kind in (0, keys.STATE):
        try:
            for key, value in islice(kv.scan(bytes([kind]), bytes([kind + 1])), PROBED_VALUES):
                with suppress(KvDamagedError):
                    if value:
                        seal.opened(key, value)
                        return True
        except KvDamagedError:
            continue  # where the disk is damaged, the copy says so
    return False


def mark_again(directory: Path, files: Files, open_plain: OpenStore, seal: StoreSeal) -> bool:
    """Marks a store as sealed that is, and has lost its mark; returns True if so. Raises KvError and OSError."""
    data = directory / DATA
    if not is_plain(data, files):
        return False
    kv = open_plain(data)
    try:
        found = looks_sealed(kv, seal)
    finally:
        kv.close()
    if found:
        write_durably(data / SEALED_FILE, _SEALED_TEXT, files)
    return found


def room_to_encrypt(directory: Path, files: Files) -> int:
    """Returns the bytes of a plain data store, 0 for none. Raises KvFullError where there is no room for a copy, and
    OSError. The copy may need more: what is sealed is not compressed."""
    data, fresh = directory / DATA, directory / NEXT
    if not is_plain(data, files):
        return 0
    size = _bytes_in(data, files)
    free = free_bytes(directory, files) + _bytes_in(fresh, files)
    if free <= size:
        text = f"its data has {size / 1e9:.3f} GB, and {free / 1e9:.3f} GB are free; it was left as it is"
        raise KvFullError(f"there is no room to encrypt the store: {text}")
    return size


def _bytes_in(folder: Path, files: Files) -> int:
    return sum(files.lstat(folder / name).st_size for name in names_in(folder, files))


def encrypt(directory: Path, files: Files, open_plain: OpenStore, open_sealed: OpenStore) -> bool:
    """Makes the data store one that is sealed: copies all of it, then deletes the plain one, as far as possible;
    returns True if there was any. Until then nothing is changed. Raises KvError, KvDamagedError for a store that is not
    sound, and OSError."""
    data, fresh, plain = directory / DATA, directory / NEXT, directory / PLAIN
    if not is_plain(data, files):
        if not exists(data / SEALED_FILE, files):
            write_durably(data / SEALED_FILE, _SEALED_TEXT, files)
        _remove_plain(directory, files)  # of an encryption that was interrupted
        return False
    remove_tree(fresh, files)
    try:
        _fill_sealed(data, fresh, files, open_plain, open_sealed)
    except (KvError, OSError):
        remove_tree(fresh, files)
        raise
    files.rename(data, plain)
    files.rename(fresh, data)
    sync(directory, files)
    _remove_plain(directory, files)
    return True


def _remove_plain(directory: Path, files: Files) -> None:
    if exists(directory / PLAIN, files):
        remove_tree(directory / PLAIN, files)
        sync(directory, files)


def _fill_sealed(data: Path, fresh: Path, files: Files, open_plain: OpenStore, open_sealed: OpenStore) -> None:
    new = open_sealed(fresh)
    try:
        old = open_plain(data)
        try:
            _copy_sound(old, new)
        finally:
            old.close()
        new.flush_now()
    finally:
        new.close()
    write(fresh / SEALED_FILE, _SEALED_TEXT.encode(), files)
    if exists(data / MARKER_NAME, files):
        write(fresh / MARKER_NAME, read(data / MARKER_NAME, files), files)
    for path in (*(fresh / name for name in names_in(fresh, files)), fresh):
        sync(path, files)


def _copy_sound(old: RocksKv, new: RocksKv) -> None:
    """Copies the node's records and all streams; what was being fetched from a peer is fetched again."""
    _copy_all(new, old.scan(b"\x00", b"\x01"))
    new.commit()
    for key, _ in old.scan(bytes([keys.STATE]), bytes([keys.STATE + 1])):
        stream = int.from_bytes(key[1 : keys.STREAM_PREFIX])
        fetching = old.get(keys.stream_prefix(keys.INSTALLING, stream)) is not None
        if not fetching and not _copy_stream(old, new, stream):
            raise KvDamagedError(f"stream {stream} cannot be read as a whole: start without a key until it is repaired")


RESTARTS_FILE: Final = "started-again"
"""File beside the data with the times of the last restarts, one per line in Unix seconds."""
RESTART_PAUSE_SECONDS: Final = 60
"""Least time between two restarts: clients lose their connections each time."""
RESTART_PERIOD_SECONDS, MAX_RESTARTS = 3600, 3
"""Period, and most restarts in it: a fault that a restart does not repair comes back with each."""


class DataRestarts:
    """Restarts of the server in place for the sake of its data store; a supervisor sees the same process."""

    def __init__(self, directory: Path, clock: Clock, files: Files, log: Log, start: Callable[[], None]) -> None:
        """`start` stops the process as on SIGTERM, and makes it begin anew."""
        self._directory = directory
        self._clock = clock
        self._files = files
        self._log = log
        self._start = start

    def renew(self, reason: str) -> None:
        """Restarts with a renewed data store, unless the last renewal was recent."""
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
        """Restarts with the present data store, opened anew, unless too many restarts were recent."""
        stamp = self._directory / RESTARTS_FILE
        try:
            now = int(self._now())
            lines = read_text(stamp, self._files, errors="replace").split() if exists(stamp, self._files) else []
            # Ignores times that a wrong clock has written.
            recent = [int(line) for line in lines if line.isdecimal() and 0 <= now - int(line) < RESTART_PERIOD_SECONDS]
            if recent and (now - max(recent) < RESTART_PAUSE_SECONDS or len(recent) >= MAX_RESTARTS):
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
