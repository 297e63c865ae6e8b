"""Who a node is: a peer id that lives exactly as long as the node's store.

Raft counts votes by peer id, so an id must never outlive the votes and log entries it stands for. It is therefore kept
next to them: a node whose store was wiped comes back under a new id and is a new member, never an old member that
forgot what it promised.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from jetcluster.clock import Clock, Rng, SystemClock, SystemRng

FILE_NAME = "node.json"
PEER_ID_LENGTH = 8
BASE62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

_FORMAT = 1


class IdentityError(Exception):
    """The store's identity file is there but unreadable. Making a new id would silently disown the store's data."""


@dataclass(slots=True, frozen=True)
class NodeIdentity:
    peer_id: str
    """8 characters of base62."""
    name: str
    created: int
    """Wall clock of the node's first start, nanoseconds since the Unix epoch."""


def is_peer_id(text: object) -> bool:
    return isinstance(text, str) and len(text) == PEER_ID_LENGTH and all(c in BASE62 for c in text)


def new_id(rng: Rng) -> str:
    """8 base62 characters (47 bits): for peer ids and boot ids. Bytes of 248 and above are skipped: no modulo bias."""
    digits: list[str] = []
    while len(digits) < PEER_ID_LENGTH:
        digits += [BASE62[byte % 62] for byte in rng.token(16) if byte < 248]
    return "".join(digits[:PEER_ID_LENGTH])


def load_identity(
    store_dir: str | os.PathLike[str] | None,
    name: str,
    *,
    rng: Rng | None = None,
    clock: Clock | None = None,
) -> NodeIdentity:
    """The identity kept in `store_dir`, made there at the first start; without a directory it lives in memory only.

    `name` may change between starts; the peer id stays. Raises IdentityError for a damaged file and OSError when it
    cannot be written.
    """
    fresh = NodeIdentity(new_id(rng or SystemRng()), name, (clock or SystemClock()).time_ns())
    if store_dir is None:
        return fresh
    path = Path(store_dir) / FILE_NAME
    try:
        stored = _parse(path.read_bytes(), path)
    except FileNotFoundError:
        _write(path, fresh)
        return fresh
    if stored.name == name:
        return stored
    renamed = NodeIdentity(stored.peer_id, name, stored.created)
    _write(path, renamed)
    return renamed


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
    assert isinstance(peer_id, str)
    return NodeIdentity(peer_id, name, created)


def _write(path: Path, identity: NodeIdentity) -> None:
    """Atomic and durable: after a crash there is the old file or the new one, and once this returns, the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(
        {
            "format": _FORMAT,
            "peer_id": identity.peer_id,
            "name": identity.name,
            "created": identity.created,
        }
    )
    temporary = path.with_name(path.name + ".tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text + "\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
