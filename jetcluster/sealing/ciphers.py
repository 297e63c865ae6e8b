"""The ciphers of encryption at rest, all of the package `cryptography`, and the derivation of keys."""

from __future__ import annotations

from typing import Final, Protocol

from cryptography.hazmat.primitives.ciphers.aead import AESGCM, AESSIV, ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

AES: Final = "aes"
CHACHAPOLY: Final = "chachapoly"
KEY_BYTES: Final = 32
NONCE_BYTES: Final = 12


class Aead(Protocol):
    """An authenticated cipher with one key. A nonce must never be used for two texts."""

    def encrypt(self, nonce: bytes, data: bytes, associated_data: bytes | None) -> bytes: ...
    def decrypt(self, nonce: bytes, data: bytes, associated_data: bytes | None) -> bytes:
        """Raises cryptography.exceptions.InvalidTag."""


def aead(cipher: str, key: bytes) -> Aead:
    """Return the cipher: AES-256 in GCM, or ChaCha20-Poly1305 (RFC 8439)."""
    return AESGCM(key) if cipher == AES else ChaCha20Poly1305(key)


def siv(key: bytes) -> AESSIV:
    """Return AES-SIV (RFC 5297), which needs no nonce: equal texts have equal ciphertexts. `key`: 64 bytes."""
    return AESSIV(key)


def derive(key: bytes, salt: bytes, purpose: str, length: int = KEY_BYTES) -> bytes:
    """Return a key of `length` bytes for one purpose (HKDF with SHA-256, RFC 5869)."""
    return HKDF(SHA256(), length, salt, b"jetcluster " + purpose.encode()).derive(key)
