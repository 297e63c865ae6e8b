"""The types of encryption at rest that the journal and the data store know. `cryptography` is not imported for them."""

from __future__ import annotations

from typing import Final, Protocol

from jetcluster.errors import DiskError

TAG_BYTES: Final = 16
"""Bytes by which a sealed text is longer than the plain one."""


class SealError(DiskError):
    """Sealed bytes do not open: they were changed, are in another's place, or are of another key."""


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
