"""`Values`: the cipher of the data store's values.

A sealed value is `data key u16 | salt | number u48 | ciphertext`. Each run of a server, and each data key, has a key of
its own, derived from the data key and a random salt; its nonces count values. So no nonce repeats, whatever a crash
took back, and also where a copy of the store goes on beside it. The key of the pair is bound to its value: a value in
another's place does not open.
"""

from __future__ import annotations

import struct
from typing import Final

from cryptography.exceptions import InvalidTag

from jetcluster.clock import Rng
from jetcluster.sealing.api import TAG_BYTES, SealError
from jetcluster.sealing.ciphers import NONCE_BYTES, Aead, aead, derive
from jetcluster.sealing.keyring import Keyring

SALT_BYTES: Final = 12
_RUN: Final = struct.Struct("<H12s")
NUMBER_BYTES: Final = 6
HEAD_BYTES: Final = _RUN.size + NUMBER_BYTES
OVERHEAD_BYTES: Final = HEAD_BYTES + TAG_BYTES
"""Bytes by which a sealed value is longer."""
MAX_RUNS: Final = 4096
"""Ciphers of earlier runs that are kept in memory, some hundred bytes each."""


class Values:
    """The values of one opened store. Used on one thread."""

    def __init__(self, keyring: Keyring, rng: Rng) -> None:
        self._keyring = keyring
        self._rng = rng
        self._runs: dict[bytes, Aead] = {}
        self._begin()

    def _begin(self) -> None:
        """Begin a run with the keyring's current key."""
        self._key = self._keyring.current
        self._head = _RUN.pack(self._key.number, self._rng.token(SALT_BYTES))
        self._seal = self._cipher(self._head).encrypt
        self._count = 0

    def seal(self, key: bytes, value: bytes) -> bytes:
        """Return `value` sealed for the pair with `key`."""
        if self._keyring.current is not self._key:
            self._begin()
        self._count += 1
        number = self._count.to_bytes(NUMBER_BYTES)
        return self._head + number + self._seal(number.rjust(NONCE_BYTES, b"\0"), value, key)

    def open(self, key: bytes, sealed: bytes) -> bytes:
        """Return the value of `key`. Raises SealError."""
        head = sealed[: _RUN.size]
        cipher = self._runs.get(head) or self._cipher(head)
        nonce = sealed[_RUN.size : HEAD_BYTES].rjust(NONCE_BYTES, b"\0")
        try:
            return cipher.decrypt(nonce, sealed[HEAD_BYTES:], key)
        except (InvalidTag, ValueError) as error:
            raise SealError(f"a value of {len(sealed)} bytes does not open") from error

    def _cipher(self, head: bytes) -> Aead:
        if len(head) < _RUN.size:
            raise SealError("a value is too short to be sealed")
        number, salt = _RUN.unpack(head)
        data_key = self._keyring.keys.get(number)
        if data_key is None:
            raise SealError(f"a value is sealed with data key {number}, which is not here")
        if len(self._runs) >= MAX_RUNS:
            self._runs.clear()
        made = self._runs[head] = aead(data_key.cipher, derive(data_key.key, salt, "values"))
        return made
