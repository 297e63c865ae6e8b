"""Comparison of secrets: plain text in constant time, bcrypt hashes, Ed25519 signatures over the nonce."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import threading
from collections.abc import Callable

from jetcluster.clock import Rng, SystemRng
from jetcluster.records import dataclass

_BCRYPT = re.compile(r"\$2[abxy]\$\d\d\$")
_BCRYPT_MAX_BYTES = 72
"""bcrypt uses only these; newer libraries raise for longer passwords, Go ignores the rest."""
_MAX_REMEMBERED_PASSWORDS = 4096


@dataclass(slots=True, frozen=True)
class SlowPart:
    """A computation for one password. Equal `key`s mean the same computation."""

    key: bytes
    compute: Callable[[], None]

    def __call__(self) -> None:
        self.compute()


class PasswordChecker:
    """Compares a given password with a stored one, which may be a bcrypt hash.

    A bcrypt check takes 50 ms or more by design. Correct passwords are remembered (as a keyed digest), so that a
    thousand clients that reconnect cost one check per user; wrong ones of `slow_part` too. An event loop must run the
    `slow_part` in a thread first; `matches` then uses its remembered result.
    """

    def __init__(self, rng: Rng | None = None) -> None:
        """`rng` makes the key; the operating system's by default."""
        self._key = (rng or SystemRng()).token(32)
        self._right: dict[bytes, None] = {}
        self._wrong: dict[bytes, None] = {}
        self._lock = threading.Lock()

    def matches(self, stored: str, given: str) -> bool:
        if not _BCRYPT.match(stored):
            return hmac.compare_digest(stored.encode(), given.encode())
        digest = self._digest(stored, given)
        if digest in self._right:
            return True
        if digest in self._wrong:
            return False
        return self._compute(digest, stored, given)

    def slow_part(self, stored: str, given: str) -> SlowPart | None:
        """Returns the computation that `matches` would need, for a thread; None when its result is remembered."""
        if not _BCRYPT.match(stored):
            return None
        digest = self._digest(stored, given)
        if digest in self._right or digest in self._wrong:
            return None

        def compute() -> None:
            if not self._compute(digest, stored, given):
                self._remember(self._wrong, digest)

        return SlowPart(digest, compute)

    def _digest(self, stored: str, given: str) -> bytes:
        return hmac.digest(self._key, stored.encode() + b"\0" + given.encode(), hashlib.sha256)

    def _compute(self, digest: bytes, stored: str, given: str) -> bool:
        import bcrypt

        try:
            right = bool(bcrypt.checkpw(given.encode()[:_BCRYPT_MAX_BYTES], stored.encode()))
        except ValueError:  # not a hash after all, or a NUL in the password
            return False
        if right:
            self._remember(self._right, digest)
        return right

    def _remember(self, known: dict[bytes, None], digest: bytes) -> None:
        with self._lock:
            if len(known) >= _MAX_REMEMBERED_PASSWORDS:
                del known[next(iter(known))]
            known[digest] = None


def decode_signature(text: str) -> bytes:
    """Decodes base64url without padding or standard base64, since clients send both. Raises ValueError."""
    padded = text.rstrip("=").replace("+", "-").replace("/", "_")
    padded += "=" * (-len(padded) % 4)
    try:
        return base64.b64decode(padded, altchars=b"-_", validate=True)
    except binascii.Error as error:
        raise ValueError("signature is not base64") from error


def is_signed(key: bytes, nonce: bytes, signature: str) -> bool:
    """Returns True when `signature` is the Ed25519 signature of the nonce's text bytes by the 32-byte public `key`."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(key).verify(decode_signature(signature), nonce)
    except (InvalidSignature, ValueError):
        return False
    return True
