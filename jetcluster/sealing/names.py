"""`HiddenNames`: the cipher of names in the data store's keys: subjects, and names that clients choose.

A look-up must find a key again, so equal names have equal ciphertexts (AES-SIV): who has the disk sees that two records
have the same name, and how long it is. The stream's id is bound to a name: in another stream it looks different.
"""

from __future__ import annotations

from typing import Final

from cryptography.exceptions import InvalidTag

from jetcluster.sealing.api import SealError
from jetcluster.sealing.ciphers import siv

MORE_BYTES: Final = 16
"""Bytes by which a hidden name is longer."""
MAX_KEPT: Final = 65_536
"""Names whose ciphertexts are kept in memory: a publisher's subjects come again."""


class HiddenNames:
    """The names of one store. `key`: see `Keyring.names`."""

    def __init__(self, key: bytes) -> None:
        self._siv = siv(key)
        self.kept: dict[tuple[bytes, bytes], bytes] = {}

    def hide(self, owner: bytes, name: bytes) -> bytes:
        """Return the ciphertext of `name` for one owner; b"" stays as it is."""
        found = self.kept.get((owner, name))
        if found is None:
            if not name:
                return name
            if len(self.kept) >= MAX_KEPT:
                self.kept.clear()
            found = self.kept[owner, name] = self._siv.encrypt(name, [owner])
        return found

    def show(self, owner: bytes, hidden: bytes) -> bytes:
        """Return the name. Raises SealError."""
        if not hidden:
            return hidden
        try:
            return self._siv.decrypt(hidden, [owner])
        except (InvalidTag, ValueError) as error:
            raise SealError("a name in a key does not open") from error
