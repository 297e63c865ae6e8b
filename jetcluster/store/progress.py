"""`Progress`: what a data store is doing and for how long, and what failed; the node's health asks.

A commit is in memory and quick, but now and then it has to wait: while a flush begins, while so much is written that a
flush has to end first, or because RocksDB says so. A flush is done by a thread, and may not return at all.

`probe` looks at a disk that failed a write: does it keep one now?
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from jetcluster.files import Files
from jetcluster.store.kv import KvDamagedError, KvError, KvFullError

COMMIT_HANGS: Final = 2.0
"""Commits that wait for so long: replicas here apply little more."""
FLUSH_HANGS: Final = 10.0
"""A memtable takes seconds on a slow disk."""
READ_FAILED: Final = 5.0
"""A read that failed counts for so long."""


class Progress:
    """One per store. `monotonic`: a clock's."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self.held_since: float | None = None
        """Since when there are open writes that could not be committed."""
        self.flush_since: float | None = None
        self._monotonic = monotonic
        self._failures: dict[str, str] = {}
        self._read_failed = float("-inf")

    @property
    def busy_since(self) -> float | None:
        return min((since for since in (self.held_since, self.flush_since) if since is not None), default=None)

    @property
    def failing(self) -> str:
        """Why the last commit, the last flush or a read of the last seconds failed; "" when none did."""
        if "read" in self._failures and self._monotonic() - self._read_failed >= READ_FAILED:
            del self._failures["read"]
        return next(iter(self._failures.values()), "")

    def trouble(self) -> str:
        """Trouble of the moment; "" when nothing is."""
        now = self._monotonic()
        if self.flush_since is not None and now - self.flush_since >= FLUSH_HANGS:
            return f"a flush has not returned for {now - self.flush_since:.1f} s"
        failing = self.failing
        if not failing and self.held_since is not None and now - self.held_since >= COMMIT_HANGS:
            return f"nothing could be committed for {now - self.held_since:.1f} s"
        return failing

    def committed(self) -> None:
        self.held_since = None
        self._failures.pop("commit", None)

    def held(self) -> None:
        """A commit has to wait."""
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
        """A full disk and damage are looked after by others."""
        if not isinstance(error, KvFullError | KvDamagedError):
            self._failures[what] = str(error) or repr(error)


NAME: Final = "probe"
SIZE: Final = 1 << 16


def probe(directory: Path, files: Files = os) -> None:
    """Makes a file of SIZE bytes durable in `directory`, and removes it. Blocks; raises OSError."""
    path = directory / NAME
    descriptor = files.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        files.pwrite(descriptor, bytes(SIZE), 0)
        files.fsync(descriptor)
    finally:
        files.close(descriptor)
        files.unlink(path)
