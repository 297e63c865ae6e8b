"""A disk that failed a write is looked at: does it keep one now?"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

NAME: Final = "probe"
SIZE: Final = 1 << 16


def probe(directory: Path) -> None:
    """Makes a file of SIZE bytes durable in `directory`, and removes it. Blocks; raises OSError."""
    path = directory / NAME
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, bytes(SIZE))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
        path.unlink()
