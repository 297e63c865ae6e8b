"""`BackupLock`: one run at a time in a destination, and one restore at a time into an account.

The lock is a file with a token, the process that has it, and a number that the process raises every RENEW_SECONDS in a
thread of its own, so also while a request takes long. Who finds a lock watches it: it is taken over when it was not
renewed for STALE_SECONDS of the watcher's own time, so clocks of machines need not agree; at once if its process was of
this machine and is gone. Two that take over at the same moment may both believe to have it: so a run looks whether the
token is still its own before it writes a point, and before it deletes.

A run that removes blobs and a restore each write their own lock first and look for the other's then, so at least one of
them sees the other.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final

from jetcluster.backup.owner import LockOwner
from jetcluster.backup.storage import BackupStorage, BackupStorageError, PresentError, StorageAwayError
from jetcluster.clock import Clock, Rng
from jetcluster.errors import CallerError

PATH: Final = "lock.json"
RESTORES: Final = "restores"
LOCK_END: Final = ".lock"
STALE_SECONDS: Final = 120.0
RENEW_SECONDS: Final = 20.0
OLD_STALE_SECONDS: Final = 600.0
"""For a lock of versions that renewed it only between two requests; and by the wall clock, without watching."""
LOOK_SECONDS: Final = 2.0

BACKUP: Final = "backup"
REMOVAL: Final = "removal"
RESTORE: Final = "restore"

Fields = dict[str, Any]


class BackupLockedError(CallerError):
    """Another run works in this destination, or another restore into this account."""


class BackupLock:
    """The lock of one run, a context. `say` is told when it waits; `pause` sleeps."""

    def __init__(
        self,
        storage: BackupStorage,
        clock: Clock,
        rng: Rng,
        say: Callable[[str], None] = lambda _: None,
        *,
        path: str = PATH,
        work: str = BACKUP,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._storage = storage
        self._clock = clock
        self._say = say
        self._path = path
        self._work = work
        self._pause = pause
        self._token = rng.token(8).hex()
        self._owner = LockOwner.here()
        self._beats = 0
        self._renewed = 0.0
        self._writing = threading.Lock()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> BackupLock:
        """Raises BackupLockedError."""
        while True:
            try:
                self._storage.create(self._path, self._content())
                break
            except PresentError:
                self._end_stale()
        self._renewed = self._clock.monotonic()
        self._thread = threading.Thread(target=self._keep, name="backup-lock", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        try:
            if self._found().get("token") == self._token:
                self._storage.delete(self._path)
        except (BackupStorageError, StorageAwayError) as refused:
            self._say(f"the lock stays until it is stale: {refused}")

    def _end_stale(self) -> None:
        """Returns when the lock that is there is away. Raises BackupLockedError if its owner is alive."""
        if self._storage.read(self._path) is None:
            return
        first = self._found()
        owner = LockOwner.read(first)
        stale = STALE_SECONDS if owner is not None else OLD_STALE_SECONDS
        if not first.get("token"):
            self._delete(first, "cannot be read")
            return
        if owner is not None and owner.is_gone:
            self._delete(first, f"is of {owner}, which has ended")
            return
        self._say(
            f"{self._url} is of {_told(first)}, renewed {age(first, self._clock):.0f} s ago; it is taken over if it is "
            f"not renewed for {stale:.0f} s from now"
        )
        since = self._clock.monotonic()
        while self._clock.monotonic() - since < stale:
            self._pause(LOOK_SECONDS)
            found = self._found()
            if not found:
                return
            if found != first:
                raise BackupLockedError(f"{self._url}: {_told(found)} is at work")
        self._delete(first, f"was not renewed for {stale:.0f} s")

    def _delete(self, seen: Fields, why: str) -> None:
        """Raises BackupLockedError if it is another lock by now."""
        if self._found() != seen:
            raise BackupLockedError(f"{self._url}: another run has just begun")
        self._say(f"{self._url} {why}: it is taken over")
        self._storage.delete(self._path)

    def renew(self) -> None:
        """Shows that the run is alive, if it is time to. Raises BackupLockedError as `check` does."""
        if self._clock.monotonic() - self._renewed >= RENEW_SECONDS:
            self._renew()

    def hold(self) -> None:
        """Renews the lock if it is time to, and looks whether it is still held. Raises BackupLockedError."""
        self.renew()
        self.check()

    def check(self) -> None:
        """Raises BackupLockedError if the lock was taken over."""
        if self._found().get("token") != self._token:
            raise BackupLockedError(f"{self._url}: another run has taken the lock over")

    def become(self, work: str) -> None:
        """Tells another kind of work from now on. Raises BackupLockedError as `check` does."""
        self._work = work
        self._renew()

    def _renew(self) -> None:
        with self._writing:
            self.check()
            self._beats += 1
            self._storage.write(self._path, self._content())
            self._renewed = self._clock.monotonic()

    def _keep(self) -> None:
        while not self._over.wait(RENEW_SECONDS):
            try:
                self._renew()
            except BackupLockedError:
                return  # the run learns it from its own next look
            except (BackupStorageError, StorageAwayError):
                continue

    @property
    def _url(self) -> str:
        return f"{self._storage.url}/{self._path}"

    def _content(self) -> bytes:
        found = {"token": self._token, "beats": self._beats, "renewed": self._clock.time_ns(), "work": self._work}
        return json.dumps({**found, "owner": str(self._owner), **self._owner.to_json()}).encode()

    def _found(self) -> Fields:
        return read_lock(self._storage, self._path)


def read_lock(storage: BackupStorage, path: str) -> Fields:
    """Returns the content of a lock; nothing if there is none, or if it cannot be read."""
    try:
        found = json.loads(storage.read(path) or b"{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _told(found: Fields) -> str:
    return f"{found.get('owner')} ({found.get('work', BACKUP)})"


def seems_alive(found: Fields, clock: Clock) -> bool:
    """Returns whether the owner of a lock may be at work, without watching it: clocks may differ by minutes."""
    owner = LockOwner.read(found)
    if not found.get("token") or (owner is not None and owner.is_gone):
        return False
    return abs(age(found, clock)) < OLD_STALE_SECONDS


def age(found: Fields, clock: Clock) -> float:
    """Seconds since a lock was renewed, by the clocks of both machines."""
    renewed = found.get("renewed")
    return (clock.time_ns() - (renewed if isinstance(renewed, int) else 0)) / 1e9


def refuse_beside_restore(storage: BackupStorage, clock: Clock) -> None:
    """Raises BackupLockedError if a restore from this destination is at work, so nothing that it reads is removed."""
    for file in storage.list(RESTORES):
        if file.path.endswith(LOCK_END) and seems_alive(found := read_lock(storage, file.path), clock):
            raise BackupLockedError(f"{storage.url}/{file.path}: {_told(found)} is at work, so nothing is removed")


def refuse_beside_removal(storage: BackupStorage, clock: Clock) -> None:
    """Raises BackupLockedError if a run removes blobs from this destination."""
    found = read_lock(storage, PATH)
    if found.get("work") == REMOVAL and seems_alive(found, clock):
        raise BackupLockedError(f"{storage.url}/{PATH}: {_told(found)} is at work: wait until it has ended")
