"""Identity of a node: a peer id that lives exactly as long as the node's store, and the mark of a store left out.

Raft counts votes by peer id, so an id must never outlive the votes and log entries it stands for. It is therefore kept
next to them: a node whose store was wiped comes back as a new member, never as an old one that forgot its promises.

The id and the data that it vouches for are separate files, so one may be lost without the other. The identity therefore
names its store by a random nonce, kept in `node.json` and in a marker in each guarded folder. Unrelated parts prevent a
start.

A node also has an Ed25519 key, by which the others know it, and which never leaves its store.

A peer id is no secret, and every operator of a node has the password of the routes. Each end of a new link therefore
signs both greetings, which have the ids, the names and a fresh nonce of each side: a signature for one link proves
nothing on another. The meta group's list of nodes keeps each member's first public key; from then on a peer must sign
with that key to be linked under its peer id.

The signature does not cover later frames: a process between two nodes can change them, unless the routes have TLS.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from jetcluster.clock import Clock, Rng, SystemClock, SystemRng
from jetcluster.config.nkeys import decode_key, decode_seed, encode_key, encode_seed
from jetcluster.errors import OperatorError
from jetcluster.files import FILE_MODE, Files, make_folder, names_in, read, read_text, write_durably
from jetcluster.records import dataclass

if TYPE_CHECKING:
    from jetcluster.clock import Rng

FILE_NAME = "node.json"
RESCUES_NAME = "rescues.json"  # cluster.rescue_record
MARKER_NAME = "STORE"
"""File in each guarded folder with the nonce of the store that the folder belongs to."""
PEER_ID_LENGTH = 8
BASE62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

_FORMAT = 1

LEFT_OUT_FILE: Final = "LEFT-OUT"
"""File name in the JetStream folder."""


class IdentityError(OperatorError):
    """The store's identity is unreadable, or a part of the store is missing or foreign. A new id would silently disown
    the data; the old one would break the promises that it stands for."""


@dataclass(slots=True, frozen=True)
class NodeIdentity:
    """The record that makes a store this node's: its peer id, and the cluster that it has joined."""

    peer_id: str
    """8 characters of base62."""
    name: str
    created: int
    """Unix nanoseconds of the node's first start."""
    store: str = ""
    """Nonce of the store."""
    cluster: str = ""
    """Id of the node's cluster (`cluster.cluster_id`); "" before it has met one."""
    member: bool = False
    """True when the meta group's log has been on this node's disk: a journal without it is not the id's."""
    key: str = ""
    """Public key of the node; "" before it has one."""

    def with_key(self, key: str) -> NodeIdentity:
        return replace(self, key=key)


def is_peer_id(text: object) -> bool:
    return isinstance(text, str) and len(text) == PEER_ID_LENGTH and all(c in BASE62 for c in text)


def new_id(rng: Rng) -> str:
    """Returns 8 base62 characters (47 bits) for peer ids and boot ids. Bytes from 248 on are skipped (modulo bias)."""
    digits: list[str] = []
    while len(digits) < PEER_ID_LENGTH:
        digits += [BASE62[byte % 62] for byte in rng.token(16) if byte < 248]
    return "".join(digits[:PEER_ID_LENGTH])


def load_identity(
    store_dir: str | os.PathLike[str] | None,
    name: str,
    *,
    guarded: tuple[str, ...] = (),
    rng: Rng | None = None,
    clock: Clock | None = None,
    files: Files = os,
) -> NodeIdentity:
    """Returns the identity kept in `store_dir`, made there at the first start; without a directory only in memory.

    `guarded` are the folders in `store_dir` that the peer id vouches for; they are made with their markers. `name` may
    change between starts; the peer id stays. Raises IdentityError for a damaged or incomplete store, and OSError.
    """
    rng = rng or SystemRng()
    fresh = NodeIdentity(new_id(rng), name, (clock or SystemClock()).time_ns(), new_id(rng))
    if store_dir is None:
        return fresh
    directory = Path(store_dir)
    path = directory / FILE_NAME
    try:
        stored = _parse(read(path, files), path)
    except FileNotFoundError:
        return _first(directory, fresh, guarded, files)
    _check(directory, stored, guarded, files)
    if stored.name != name:
        stored = replace(stored, name=name)
        save_identity(directory, stored, files)
    return stored


def read_identity(directory: Path) -> NodeIdentity:
    """Reads the identity of a store without changing it. Raises IdentityError and OSError."""
    return _parse((directory / FILE_NAME).read_bytes(), directory / FILE_NAME)


def tampered(directory: str | os.PathLike[str], what: str) -> IdentityError:
    """Returns the error for an operator whose store has lost a part."""
    return IdentityError(
        f"{what}. This store may have promised what it no longer holds, so this node must not come back as the one it "
        f"was. Put back what is missing, or move {directory} away: the node then starts empty, as a new member that "
        "takes the place of the old one, and fetches its replicas from the other nodes"
    )


def _first(directory: Path, fresh: NodeIdentity, guarded: tuple[str, ...], files: Files) -> NodeIdentity:
    """Makes the store's identity, which is written last: where it exists, the markers do."""
    for folder in guarded:
        content = [name for name in names_in(directory / folder, files) if not name.startswith(MARKER_NAME)]
        if content:
            raise tampered(directory, f"{directory / FILE_NAME} is missing, but {directory / folder} holds data")
    _mark(directory, fresh, guarded, files)
    save_identity(directory, fresh, files)
    return fresh


def _mark(directory: Path, identity: NodeIdentity, guarded: tuple[str, ...], files: Files) -> None:
    for folder in guarded:
        make_folder(directory / folder, files)
        write_durably(directory / folder / MARKER_NAME, identity.store, files)


def _check(directory: Path, identity: NodeIdentity, guarded: tuple[str, ...], files: Files) -> None:
    for folder in guarded:
        marker = directory / folder / MARKER_NAME
        try:
            found = read_text(marker, files, errors="replace").strip()
        except FileNotFoundError:
            what = f"{directory / folder} was deleted or replaced: it has no {MARKER_NAME}"
            raise tampered(directory, what) from None
        if found != identity.store:
            raise tampered(directory, f"{directory / folder} belongs to another store than {directory / FILE_NAME}")


def _parse(raw: bytes, path: Path) -> NodeIdentity:
    try:
        data = json.loads(raw)
    except ValueError as error:
        raise IdentityError(f"{path} is not JSON: {error}") from error
    if not isinstance(data, dict) or data.get("format") != _FORMAT:
        raise IdentityError(f"{path} is not a node identity of format {_FORMAT}")
    peer_id, name, created = data.get("peer_id"), data.get("name"), data.get("created")
    if not is_peer_id(peer_id) or not isinstance(name, str) or not isinstance(created, int):
        raise IdentityError(f"{path} holds a malformed identity")
    store, cluster, member = data.get("store"), data.get("cluster", ""), data.get("member", False)
    key = data.get("key", "")
    if not isinstance(store, str) or not isinstance(cluster, str) or not isinstance(member, bool):
        raise IdentityError(f"{path} holds a malformed identity")
    if not isinstance(key, str):
        raise IdentityError(f"{path} holds a malformed key")
    assert isinstance(peer_id, str)
    return NodeIdentity(peer_id, name, created, store, cluster, member, key)


def save_identity(store_dir: str | os.PathLike[str], identity: NodeIdentity, files: Files = os) -> None:
    """Writes the identity. Durable on return. Raises OSError."""
    fields = {"format": _FORMAT, **asdict(identity)}
    write_durably(Path(store_dir) / FILE_NAME, json.dumps(fields), files)


def mark_left_out(directory: Path, text: str, files: Files = os) -> None:
    """Marks the store of a node that its cluster was rescued without. Durable on return. Raises OSError.

    All nodes of the old majority may come back with their stores: by their own state they may elect leaders and take
    messages. The first member of the rescued cluster that one of them meets refuses it with the reason
    (`cluster.meta_rescue`). The node then stops, and the mark makes it refuse to start again with that store.

    A node that has been up since before the rescue and follows a leader is an exception: it was declared lost by
    mistake, on the other side of a partition. Ending the majority would make things worse, so it logs it and continues.
    """
    write_durably(directory / LEFT_OUT_FILE, text, files)


def left_out_reason(directory: Path, files: Files = os) -> str:
    """Returns why this store must not be used; "" when it may be. Raises OSError."""
    try:
        return read_text(directory / LEFT_OUT_FILE, files, errors="replace").strip()
    except FileNotFoundError:
        return ""


def left_out_advice(directory: Path, said: str) -> str:
    """Returns the text for the log of the node that was left out."""
    return (
        f"this store is of before: {said}. The node must not come back with it, all that it promised is void. Move "
        f"{directory} away: it then starts empty, as a new member that takes the place of the old one. What only this "
        'store has is still in it (docs/membership.md, "A majority is lost")'
    )


def two_clusters(said: str) -> str:
    """Returns the text for the log of a node that was up when the cluster was rescued without it."""
    return (
        f"there are two clusters: {said}, while this node was up and its side had a leader. Both go on and take "
        "messages. Decide which one is right, stop the nodes of the other one and start them with empty stores"
    )


KEY_FILE: Final = "node.key"
"""File beside `node.json` with the seed, as an nkey of a server (`SN...`)."""


class NodeKey:
    """The private key in memory. `sign` proves to a peer that the store is the known one."""

    def __init__(self, private: bytes) -> None:
        """`private`: 32 bytes."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

        self._key = Ed25519PrivateKey.from_private_bytes(private)
        raw = self._key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        self.public: Final = encode_key("N", raw)
        """The public key, as peers know it: an nkey of a server."""

    def sign(self, statement: bytes) -> bytes:
        return self._key.sign(statement)


def verify(public: str, statement: bytes, signature: bytes) -> bool:
    """Returns True when the owner of the key has signed the statement."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(decode_key("N", public)).verify(signature, statement)
    except (InvalidSignature, ValueError):
        return False
    return True


def load_key(directory: Path, identity: NodeIdentity, rng: Rng, files: Files = os) -> tuple[NodeKey, NodeIdentity]:
    """Returns the key of the store and the identity with it; makes a key where neither exists. Raises IdentityError for
    a lost or unexpected key, OSError when it cannot be written."""
    path = directory / KEY_FILE
    if identity.key:
        try:
            key = NodeKey(decode_seed("N", read_text(path, files).strip()))
        except FileNotFoundError:
            raise tampered(directory, f"{path} is missing, by which the other nodes know this one") from None
        except ValueError as error:
            raise tampered(directory, f"{path} is not a key: {error}") from None
        if key.public != identity.key:
            raise tampered(directory, f"{path} is the key of another store")
        files.chmod(path, FILE_MODE)
        return key, identity
    seed = rng.token(32)  # a key file without its name here is that of a first start that was cut short
    write_durably(path, encode_seed("N", seed), files)
    key = NodeKey(seed)
    identity = identity.with_key(key.public)
    save_identity(directory, identity, files)
    return key, identity
