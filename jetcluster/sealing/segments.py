"""The journal's cipher: one key for each segment, by which each record's body is sealed.

A segment's key is derived from a data key and a random salt, which its head names. Within a segment the nonce of a body
is its offset: a place is written once (the same bytes again after an error), as each process begins new segments. What
a record is about (kind, group, index, term) is bound to its body and stays readable, and the checksums are those of
the sealed bytes. So everything that a crash can do is told from damage as without a key.
"""

from __future__ import annotations

import struct
from typing import Final

from cryptography.exceptions import InvalidTag

from jetcluster.clock import Rng
from jetcluster.sealing.api import KeyringError, SealError
from jetcluster.sealing.ciphers import NONCE_BYTES, aead, derive
from jetcluster.sealing.keyring import Keyring

_HEAD: Final = struct.Struct("<I16s")
SALT_BYTES: Final = 16
HEAD_BYTES: Final = _HEAD.size


class OfSegment:
    """The `sealing.api.SegmentCipher` of one segment."""

    __slots__ = ("_aead", "head")

    def __init__(self, cipher: str, key: bytes, head: bytes) -> None:
        self._aead = aead(cipher, key)
        self.head = head
        """HEAD_BYTES for the segment's head, by which `SegmentKeys.known` finds this cipher again."""

    def seal(self, offset: int, bound: bytes, body: bytes) -> bytes:
        """Return the sealed body for `offset`, TAG_BYTES longer. `bound`: what has to be the same to open it."""
        return self._aead.encrypt(offset.to_bytes(NONCE_BYTES), body, bound)

    def open(self, offset: int, bound: bytes, sealed: bytes) -> bytes:
        """Return the body. Raises SealError."""
        try:
            return self._aead.decrypt(offset.to_bytes(NONCE_BYTES), sealed, bound)
        except (InvalidTag, ValueError) as error:  # ValueError: shorter than a tag
            raise SealError(f"{len(sealed)} bytes at {offset} of a segment do not open") from error


class Segments:
    """The `sealing.api.SegmentKeys` of a keyring."""

    def __init__(self, keyring: Keyring, rng: Rng) -> None:
        self.keyring = keyring
        self._rng = rng

    def fresh(self, number: int) -> OfSegment:
        return self.known(number, _HEAD.pack(self.keyring.current.number, self._rng.token(SALT_BYTES)))

    def known(self, number: int, head: bytes) -> OfSegment:
        key_number, salt = _HEAD.unpack(head)
        data_key = self.keyring.keys.get(key_number)
        if data_key is None:
            raise KeyringError(
                f"segment {number} of the journal is sealed with data key {key_number}, which is not here"
            )
        return OfSegment(data_key.cipher, derive(data_key.key, salt, f"segment {number}"), head)
