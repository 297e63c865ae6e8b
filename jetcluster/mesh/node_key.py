"""A node's key: an Ed25519 key beside its peer id, by which the others know it, and which never leaves its store.

A peer id is no secret, and the password of the routes is everybody's who runs a node. So each end of a new link signs
both greetings, which hold the ids, the names and a fresh nonce of either side: what was signed for one link proves
nothing on another. The meta group's list of nodes keeps each member's public key, that with which it came first; from
then on nobody is linked under its peer id who cannot sign with it.

What is signed does not cover what comes after: a process on the way between two nodes can change it, unless the
routes have TLS.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from jetcluster.config.nkeys import decode_key, decode_seed, encode_key, encode_seed
from jetcluster.files import FILE, Files, read_text, write_durably
from jetcluster.mesh.identity import NodeIdentity, save_identity, tampered

if TYPE_CHECKING:
    from jetcluster.clock import Rng

FILE_NAME: Final = "node.key"
"""Beside `node.json`: the seed, as an nkey of a server (`SN...`)."""


class NodeKey:
    """The private half of the key, in memory. `sign` proves to a peer that the store is the one that it knows."""

    def __init__(self, private: bytes) -> None:
        """`private`: 32 bytes."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

        self._key = Ed25519PrivateKey.from_private_bytes(private)
        raw = self._key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        self.public: Final = encode_key("N", raw)
        """The public half, as others know it: an nkey of a server."""

    def sign(self, statement: bytes) -> bytes:
        return self._key.sign(statement)


def verify(public: str, statement: bytes, signature: bytes) -> bool:
    """True when the owner of the key has signed it."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(decode_key("N", public)).verify(signature, statement)
    except (InvalidSignature, ValueError):
        return False
    return True


def load_key(directory: Path, identity: NodeIdentity, rng: Rng, files: Files = os) -> tuple[NodeKey, NodeIdentity]:
    """The key of the store, made where there is none and the identity knows of none, and the identity with it. Raises
    IdentityError where it is lost or another one than the others know, OSError when it cannot be written."""
    path = directory / FILE_NAME
    if identity.key:
        try:
            key = NodeKey(decode_seed("N", read_text(path, files).strip()))
        except FileNotFoundError:
            raise tampered(directory, f"{path} is missing, by which the other nodes know this one") from None
        except ValueError as error:
            raise tampered(directory, f"{path} is not a key: {error}") from None
        if key.public != identity.key:
            raise tampered(directory, f"{path} is the key of another store")
        files.chmod(path, FILE)
        return key, identity
    kept = _left_by_a_later_version(path, files)
    if kept is None:
        seed = rng.token(32)
        write_durably(path, encode_seed("N", seed), files)
        kept = NodeKey(seed)
    identity = identity.with_key(kept.public)
    save_identity(directory, identity, files)
    return kept, identity


def _left_by_a_later_version(path: Path, files: Files) -> NodeKey | None:
    """The others may know this node by it: a version without keys, that this one was rolled back to, has written the
    identity anew, and told of no key. None where there is no key; then nobody knows one."""
    try:
        key = NodeKey(decode_seed("N", read_text(path, files, errors="replace").strip()))
    except (FileNotFoundError, ValueError):
        return None
    files.chmod(path, FILE)
    return key
