"""`Keyring`: the data keys of one store, in a file of the store, wrapped by a key derived from the configured one.

Nothing but this file is sealed with the configured key. So another key (a rotation) is the replacement of one small
file: what the older data keys have sealed stays as it is, and a new data key seals what comes from then on. The file is
written twice, because without it nothing of the store can be read; a checksum tells its damage from a wrong key.

The key of names stays for the life of a store, for the same name must have the same ciphertext in all keys of the data
store.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from cryptography.exceptions import InvalidTag

from jetcluster.checksum import crc32
from jetcluster.clock import Rng, SystemRng
from jetcluster.files import Files, read, write_durably
from jetcluster.records import NamedTuple
from jetcluster.sealing.api import COPY_NAME, FILE_NAME, KeyringError
from jetcluster.sealing.ciphers import AES, CHACHAPOLY, KEY_BYTES, NONCE_BYTES, aead, derive

FORMAT: Final = 1
MAX_KEYS: Final = 1000
"""Data keys that a store has in its life: more rotations are refused."""
NAMES: Final = (FILE_NAME, COPY_NAME)
NAMES_KEY_BYTES: Final = 64
_NAMES: Final = 0
"""Number of the key of names among the wrapped keys."""


class DataKey(NamedTuple):
    """A key that seals what is stored."""

    number: int
    cipher: str
    key: bytes


class Keyring:
    """The opened keys of the store in `directory`. Made by `make` or `unlock`."""

    def __init__(
        self, directory: Path, keys: dict[int, DataKey], names: bytes, secret: str, files: Files, rng: Rng
    ) -> None:
        self._directory = directory
        self._files = files
        self._rng = rng
        self._secret = secret
        self.keys = keys
        """By number, from 1 on."""
        self.names = names
        """The key of names, NAMES_KEY_BYTES long."""
        self.current = keys[max(keys)]
        """The key that seals what is written from now on."""

    @classmethod
    def make(cls, directory: Path, secret: str, cipher: str, files: Files = os, rng: Rng | None = None) -> Keyring:
        """Make the keys of a store that has none, durably. Raises OSError."""
        rng = rng or SystemRng()
        first = DataKey(1, cipher, rng.token(KEY_BYTES))
        made = cls(directory, {1: first}, rng.token(NAMES_KEY_BYTES), secret, files, rng)
        made._write(secret)
        return made

    @classmethod
    def unlock(
        cls, directory: Path, secret: str, previous: str = "", files: Files = os, rng: Rng | None = None
    ) -> Keyring:
        """Open the keys of a store with `secret`, or else with `previous`. Changes nothing. Raises KeyringError and
        OSError."""
        if not secret:
            raise KeyringError(f"the store in {directory} is encrypted, and jetstream has no key")
        stored = _read(directory, files)
        for candidate in (secret, previous):
            opened = _unwrap(stored, candidate) if candidate else None
            if opened is not None:
                keys, names = opened
                return cls(directory, keys, names, candidate, files, rng or SystemRng())
        tried = "neither key nor prev_encryption_key is" if previous else "the configured key is not"
        raise KeyringError(f"the store in {directory} is encrypted, and {tried} the one that it was encrypted with")

    def settle(self, secret: str, cipher: str) -> bool:
        """Have the file wrapped by `secret`, and the current key one of `cipher`: if not, rotate, durably. Returns
        whether it did. Raises KeyringError and OSError; the old keys are then in force, and the files as they were, if
        possible."""
        if secret == self._secret and cipher == self.current.cipher:
            return False
        number = self.current.number + 1
        if len(self.keys) >= MAX_KEYS:
            raise KeyringError(f"the store had {MAX_KEYS} data keys: renew its server with an empty store")
        before, stored = self.keys, [_content(self._directory / name, self._files) for name in NAMES]
        self.keys = {**before, number: DataKey(number, cipher, self._rng.token(KEY_BYTES))}
        try:
            self._write(secret)
        except OSError as error:
            self.keys = before
            self._write_back(stored)
            why = f"the keys of the store could not be written ({error}), and the old ones are in force"
            keep = "the next start may need the new key or the old one: leave both, as key and prev_encryption_key"
            raise KeyringError(f"{why}; {keep}") from error
        self._secret = secret
        self.current = self.keys[number]
        return True

    def opens_with(self, secret: str) -> bool:
        """True when `secret` is the key in force."""
        return secret == self._secret

    def mend(self) -> str:
        """Write the file again where it is not the same as its copy: from the copy, if only that can be read. Returns
        the name of the file that was wrong, "" for none. Raises OSError."""
        stored = [_content(self._directory / name, self._files) for name in NAMES]
        if stored[0] == stored[1]:
            return ""
        good = 0 if _parsed(stored[0]) is not None else 1
        write_durably(self._directory / NAMES[1 - good], stored[good].decode().removesuffix("\n"), self._files)
        return NAMES[1 - good]

    def _write_back(self, stored: list[bytes]) -> None:
        """Write the files as they were, after a rotation that failed: another start would find the new key only."""
        for name, content in zip(NAMES, stored, strict=True):
            with suppress(OSError):
                if _parsed(content) is not None and _content(self._directory / name, self._files) != content:
                    write_durably(self._directory / name, content.decode().removesuffix("\n"), self._files)

    def _write(self, secret: str) -> None:
        salt = self._rng.token(16)
        kek = aead(AES, derive(secret.encode(), salt, "keyring"))
        wrapped: list[dict[str, Any]] = []
        for number, cipher, key in ((_NAMES, "siv", self.names), *self.keys.values()):
            nonce = self._rng.token(NONCE_BYTES)
            sealed = kek.encrypt(nonce, key, _bound(number, cipher))
            wrapped.append({"number": number, "cipher": cipher, "nonce": nonce.hex(), "wrapped": sealed.hex()})
        content = {"format": FORMAT, "salt": salt.hex(), "keys": wrapped}
        text = json.dumps({**content, "check": _check(content)}, indent=1)
        for name in (COPY_NAME, FILE_NAME):
            write_durably(self._directory / name, text, self._files)


def _bound(number: int, cipher: str) -> bytes:
    return f"{FORMAT} {number} {cipher}".encode()


def _check(content: dict[str, Any]) -> int:
    return crc32(json.dumps(content, sort_keys=True).encode())


def _read(directory: Path, files: Files) -> dict[str, Any]:
    """Return the content of the file, or of its copy. A crash between the two writes leaves the copy with the newer
    keys, of which nothing was used yet, and the file with the older ones: the file counts."""
    problem = "it is not there"
    for name in NAMES:
        text = _content(directory / name, files)
        content = _parsed(text)
        if content is None:
            problem = f"{name} is damaged" if text else problem
        elif content["format"] != FORMAT:
            what = f"{directory / name} is of format {content['format']}"
            raise KeyringError(f"{what}, and this version of jetcluster reads format {FORMAT}")
        else:
            return content
    raise KeyringError(f"the keys of the store in {directory} cannot be read ({FILE_NAME} and its copy): {problem}")


def _content(path: Path, files: Files) -> bytes:
    """Return what is in a file, b"" if it does not exist. Raises OSError."""
    try:
        return read(path, files)
    except FileNotFoundError:
        return b""


def _parsed(text: bytes) -> dict[str, Any] | None:
    """Return the content of a file; None for a damaged one."""
    try:
        content: dict[str, Any] = json.loads(text)
        check = content.pop("check")
        return content if check == _check(content) and "format" in content else None
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _unwrap(stored: dict[str, Any], secret: str) -> tuple[dict[int, DataKey], bytes] | None:
    """Return the data keys and the key of names; None when `secret` does not open them. Raises KeyringError."""
    keys: dict[int, DataKey] = {}
    names = b""
    try:
        kek = aead(AES, derive(secret.encode(), bytes.fromhex(stored["salt"]), "keyring"))
        for one in stored["keys"]:
            number, cipher = int(one["number"]), str(one["cipher"])
            key = kek.decrypt(bytes.fromhex(one["nonce"]), bytes.fromhex(one["wrapped"]), _bound(number, cipher))
            if number == _NAMES:
                names = key
            elif cipher in (AES, CHACHAPOLY):
                keys[number] = DataKey(number, cipher, key)
            else:
                raise KeyringError(f"the store has a key of the cipher {cipher}, which this version does not know")
    except InvalidTag:
        return None
    except (KeyError, TypeError, ValueError) as error:
        raise KeyringError(f"the keys of the store cannot be read: {error!r}") from error
    if not keys or not names:
        raise KeyringError("the keys of the store are not complete")
    return keys, names
