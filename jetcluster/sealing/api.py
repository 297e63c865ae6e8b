"""The types of encryption at rest that the journal and the data store know. `cryptography` is not imported for them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, Protocol

from jetcluster.errors import DiskError, OperatorError
from jetcluster.files import Files, exists

FILE_NAME: Final = "encryption.json"
COPY_NAME: Final = "encryption.copy.json"
"""Files of a store with its keys (`keyring`)."""
SEALED_FILE: Final = "data/ENCRYPTED"
"""File that says that the records of the data are sealed."""
TAG_BYTES: Final = 16
"""Bytes by which a sealed text is longer than the plain one."""


def is_sealed(directory: Path, files: Files = os) -> bool:
    """True when the store in `directory` is encrypted, or was begun to be."""
    return any(exists(directory / name, files) for name in (FILE_NAME, COPY_NAME, SEALED_FILE))


class SealError(DiskError):
    """Sealed bytes do not open: they were changed, are in another's place, or are of another key."""


class KeyringError(OperatorError):
    """The store's keys cannot be had: a wrong key, none, or a damaged file. Nothing was changed."""


class SegmentCipher(Protocol):
    """The cipher of one segment of the journal."""

    @property
    def head(self) -> bytes:
        """Bytes for the segment's head, by which `SegmentKeys.known` finds this cipher again."""

    def seal(self, offset: int, bound: bytes, body: bytes) -> bytes:
        """Return the sealed body for `offset`, TAG_BYTES longer. `bound`: what has to be the same to open it."""

    def open(self, offset: int, bound: bytes, sealed: bytes) -> bytes:
        """Return the body. Raises SealError."""


class SegmentKeys(Protocol):
    """The source of the segments' ciphers."""

    def fresh(self, number: int) -> SegmentCipher:
        """Return the cipher of a new segment."""

    def known(self, number: int, head: bytes) -> SegmentCipher:
        """Return the cipher of the segment with this head. Raises KeyringError."""
