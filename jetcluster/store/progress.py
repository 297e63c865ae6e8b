"""`Progress`: how long a data store's flush or commit has taken, and what failed, for the node's health.

A commit is quick, but must wait while a flush begins, while too much is written before a flush has ended, or when
RocksDB stalls writes. A flush runs in a thread, and may never return.

`probe` tests whether a disk that failed a write takes one now.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from jetcluster.files import Files
from jetcluster.store.kv import KvDamagedError, KvError, KvFullError

COMMIT_HANG_SECONDS: Final = 2.0
"""Wait of a commit that counts as trouble: replicas on this node apply little more."""
FLUSH_HANG_SECONDS: Final = 10.0
"""Duration of a flush that counts as trouble; a memtable takes seconds on a slow disk."""
READ_FAILURE_SECONDS: Final = 5.0
"""Time for which a failed read counts as trouble."""


class Progress:
    """The progress of one store. `monotonic` is a clock's."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self.held_since: float | None = None
        """Monotonic seconds since which open writes could not be committed."""
        self.flush_since: float | None = None
        self._monotonic = monotonic
        self._failures: dict[str, str] = {}
        self._read_failed = float("-inf")

    @property
    def busy_since(self) -> float | None:
        return min((since for since in (self.held_since, self.flush_since) if since is not None), default=None)

    @property
    def failing(self) -> str:
        """Why the last commit, the last flush or a recent read failed; "" when none did."""
        if "read" in self._failures and self._monotonic() - self._read_failed >= READ_FAILURE_SECONDS:
            del self._failures["read"]
        return next(iter(self._failures.values()), "")

    def trouble(self) -> str:
        """Return the current trouble, "" for none."""
        now = self._monotonic()
        if self.flush_since is not None and now - self.flush_since >= FLUSH_HANG_SECONDS:
            return f"a flush has not returned for {now - self.flush_since:.1f} s"
        failing = self.failing
        if not failing and self.held_since is not None and now - self.held_since >= COMMIT_HANG_SECONDS:
            return f"nothing could be committed for {now - self.held_since:.1f} s"
        return failing

    def committed(self) -> None:
        self.held_since = None
        self._failures.pop("commit", None)

    def held(self) -> None:
        """Note that a commit must wait."""
        if self.held_since is None:
            self.held_since = self._monotonic()

    def commit_failed(self, error: KvError) -> None:
        self.held()
        self._note("commit", error)

    @contextlib.contextmanager
    def flushing(self) -> Iterator[None]:
        self.flush_since = self._monotonic()
        try:
            yield
        except KvError as error:
            self._note("flush", error)
            raise
        else:
            self._failures.pop("flush", None)
        finally:
            self.flush_since = None

    def read_failed(self, error: KvError) -> None:
        self._read_failed = self._monotonic()
        self._note("read", error)

    def _note(self, what: str, error: KvError) -> None:
        """Note a failure; a full disk and damage are watched elsewhere."""
        if not isinstance(error, KvFullError | KvDamagedError):
            self._failures[what] = str(error) or repr(error)


PROBE_NAME: Final = "probe"
PROBE_BYTES: Final = 1 << 16


def probe(directory: Path, files: Files = os) -> None:
    """Make a file of PROBE_BYTES durable in `directory`, and remove it. Blocks; raises OSError."""
    path = directory / PROBE_NAME
    descriptor = files.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        files.pwrite(descriptor, bytes(PROBE_BYTES), 0)
        files.fsync(descriptor)
    finally:
        files.close(descriptor)
        files.unlink(path)
