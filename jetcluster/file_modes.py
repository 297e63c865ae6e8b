"""The modes of the files that a server writes: messages, keys and tokens are for its own user alone, the log and the
pid and ports files for those whom the umask lets.

The umask is the one way to the files that RocksDB makes, some of them in its own threads. It is the process's, so that
it is set where the process begins (`keep_private`), and what is for others gets its mode by name.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from jetcluster.files import FILE, Files

UMASK: Final = 0o077
_OTHERS: Final = 0o077
"""The bits that nobody but the owner has any use for."""

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


def tighten(root: Path, files: Files = os) -> tuple[int, OSError | None]:
    """Takes from others what an earlier version has left them under `root`. Returns how many files and folders had
    been open, and the first error: what cannot be closed stays as it is. Links are not followed."""
    closed, failed = 0, None
    for path in _under(root, files):
        try:
            closed += _close(path, files, is_root=path == root)
        except FileNotFoundError:
            continue  # RocksDB has removed it meanwhile
        except OSError as error:
            failed = failed or error
    return closed, failed


def _under(root: Path, files: Files) -> Iterator[Path]:
    """`root`, and all that is in it and below; a folder that cannot be listed is empty."""
    yield root
    try:
        names = sorted(files.listdir(root))
    except OSError:
        return
    for name in names:
        path = root / name
        try:
            folder = stat.S_ISDIR(files.lstat(path).st_mode)
        except OSError:
            continue
        if folder:
            yield from _under(path, files)
        else:
            yield path


def tighten_files(folder: Path, pattern: str) -> None:
    """The same of some files of a folder that may hold others, which stay as they are. Raises OSError."""
    for path in folder.glob(pattern):
        _close(path, os, is_root=False)


def _close(path: Path, files: Files, *, is_root: bool) -> bool:
    found = (files.stat(path) if is_root else files.lstat(path)).st_mode
    if not (stat.S_ISREG(found) or stat.S_ISDIR(found)) or not found & _OTHERS:
        return False
    files.chmod(path, stat.S_IMODE(found) & ~_OTHERS)
    return True
