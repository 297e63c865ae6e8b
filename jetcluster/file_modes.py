"""The modes of the files that a server writes: messages, keys and tokens are for its own user alone, the log and the
pid and ports files for those whom the umask lets.

The umask is the one way to the files that RocksDB makes, some of them in its own threads. It is the process's, so that
it is set where the process begins (`keep_private`), and what is for others gets its mode by name.
"""

from __future__ import annotations

import os
from typing import Final

from jetcluster.files import FILE

UMASK: Final = 0o077

_given: list[int] = []
"""The umask that the process was started with, once `keep_private` has changed it."""


def keep_private() -> int:
    """From now on this process makes files and folders for its own user alone. Returns the umask of before."""
    before = os.umask(UMASK)
    if not _given:
        _given.append(before)
    return before


def restore(umask: int) -> None:
    """Undoes `keep_private`: for the process that is to come in this one's place."""
    os.umask(umask)
    _given.clear()


def open_to_others(descriptor: int, mode: int) -> None:
    """Gives a file that was just made `mode`, less the umask that the process was started with."""
    if _given:
        os.fchmod(descriptor, mode & ~_given[0])


def private(path: str, flags: int) -> int:
    """An `opener` of `open`."""
    return os.open(path, flags | os.O_CLOEXEC, FILE)
