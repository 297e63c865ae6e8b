"""`BackupLock`: one run at a time in a destination.

The lock is a file with a token and a time. Its run renews it; one that was not renewed for STALE_SECONDS is taken over.
Two runs that take over at the same moment may both believe to have it: so a run looks whether the token is still its
own before it writes a point, and before it deletes.
"""

from __future__ import annotations

import json
import os
from types import TracebackType
from typing import Any, Final

from jetcluster.backup.storage import BackupStorage, PresentError
from jetcluster.clock import Clock, Rng
from jetcluster.errors import CallerError

PATH: Final = "lock.json"
STALE_SECONDS: Final = 600.0
RENEW_SECONDS: Final = 60.0


class BackupLockedError(CallerError):
    """Another run works in this destination."""


class BackupLock:
    """The lock of one run, a context. Clocks of the machines must agree to within minutes."""

    def __init__(self, storage: BackupStorage, clock: Clock, rng: Rng) -> None:
        self._storage = storage
        self._clock = clock
        self._token = rng.token(8).hex()
        self._renewed = 0.0

    def __enter__(self) -> BackupLock:
        """Raises BackupLockedError."""
        try:
            self._storage.create(PATH, self._content())
        except PresentError:
            self._take_over()
        self._renewed = self._clock.monotonic()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._found().get("token") == self._token:
            self._storage.delete(PATH)

    def _take_over(self) -> None:
        found = self._found()
        age = (self._clock.time_ns() - int(found.get("renewed", 0))) / 1e9
        if found and -STALE_SECONDS < age < STALE_SECONDS:
            raise BackupLockedError(
                f"{self._storage.url}: {found.get('owner')} has been at work, {age:.0f} s ago; its lock ends "
                f"{STALE_SECONDS:.0f} s after its last sign of life"
            )
        self._storage.delete(PATH)
        try:
            self._storage.create(PATH, self._content())
        except PresentError:
            raise BackupLockedError(f"{self._storage.url}: another run has just begun") from None

    def renew(self) -> None:
        """Shows that the run is alive, if it is time to. Raises BackupLockedError as `check` does."""
        if self._clock.monotonic() - self._renewed >= RENEW_SECONDS:
            self.check()
            self._storage.write(PATH, self._content())
            self._renewed = self._clock.monotonic()

    def hold(self) -> None:
        """Renews the lock if it is time to, and looks whether it is still held. Raises BackupLockedError."""
        self.renew()
        self.check()

    def check(self) -> None:
        """Raises BackupLockedError if the lock was taken over."""
        if self._found().get("token") != self._token:
            raise BackupLockedError(f"{self._storage.url}: another run has taken the lock over")

    def _content(self) -> bytes:
        owner = f"process {os.getpid()} on {os.uname().nodename}"
        return json.dumps({"token": self._token, "renewed": self._clock.time_ns(), "owner": owner}).encode()

    def _found(self) -> dict[str, Any]:
        data = self._storage.read(PATH)
        try:
            found = json.loads(data or b"{}")
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}
