"""The modes of a server's files: messages, keys and tokens are for its own user only, while the umask decides on the
log and the pid and ports files.

RocksDB makes files in its own threads, and only the umask governs them. The umask belongs to the process, so it is set
at its start (`keep_private`), and files for others get their mode explicitly.
"""

from __future__ import annotations

import os
from typing import Final

from jetcluster.files import FILE_MODE

UMASK: Final = 0o077

_given: list[int] = []
"""The umask at the process's start, once `keep_private` has changed it."""


def keep_private() -> int:
    """Have this process make files and folders for its own user only. Returns the previous umask."""
    before = os.umask(UMASK)
    if not _given:
        _given.append(before)
    return before


def restore(umask: int) -> None:
    """Undo `keep_private`, for the process that replaces this one."""
    os.umask(umask)
    _given.clear()


def open_to_others(descriptor: int, mode: int) -> None:
    """Give a new file `mode`, less the umask that the process was started with."""
    if _given:
        os.fchmod(descriptor, mode & ~_given[0])


def private(path: str, flags: int) -> int:
    """Open a file for this server's user only: an `opener` of `open`."""
    return os.open(path, flags | os.O_CLOEXEC, FILE_MODE)


def given() -> int:
    """Return the umask that the process was started with, for its children; -1 if it was not changed."""
    return _given[0] if _given else -1
