"""A disk that failed a write is looked at: does it keep one now?"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from jetcluster.files import Files

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
