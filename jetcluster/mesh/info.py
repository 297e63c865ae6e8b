"""JSON that nodes send each other, once per link and after changes: INFO (about the node) and GOSSIP (about others).

Both are validated field by field: they come from another process, and steer where this node connects to.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from jetcluster.config.nkeys import is_key
from jetcluster.mesh.api import NodeInfo
from jetcluster.mesh.frames import MAX_HANDSHAKE_BYTES, FrameError, Kind, frame
from jetcluster.mesh.identity import is_peer_id
from jetcluster.records import dataclass

MAX_TAGS = 64
MAX_TEXT_CHARACTERS = 512
MAX_SYNC_SECONDS = 1e9
MAX_GOSSIP_NODES = 256
"""Addresses per frame; a cluster is far smaller."""
MAX_GOSSIP_BYTES = 256 * 1024

SIGNATURE_BYTES = 64
MAX_SIGNED_BYTES = 2048
"""Bytes of an INFO that are reserved for its signature and signed addresses."""
MAX_ADDRESSES = 4
"""Addresses of one node."""

WILDCARDS = frozenset(("", "0.0.0.0", "::", "[::]"))  # noqa: S104 - recognised, not bound


def split_url(url: str) -> tuple[str, int]:
    """Returns (host, port) of "host:port" or "[v6]:port". Raises ValueError."""
    host, separator, port = url.rpartition(":")
    if not separator or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"not host:port: {url[:80]!r}")
    if host.startswith("["):
        if not host.endswith("]"):
            raise ValueError(f"not host:port: {url[:80]!r}")
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"an IPv6 address needs brackets: {url[:80]!r}")
    if any(c.isspace() or not c.isprintable() or c in '"\\/@' for c in host):
        raise ValueError(f"bad host: {url[:80]!r}")
    return host, int(port)


def join_url(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def reachable_url(url: str, remote_ip: str) -> str:
    """Returns `url`, in which the address that the peer was seen from replaces a wildcard host (all addresses)."""
    if not url:
        return ""
    host, port = split_url(url)
    return join_url(remote_ip if host in WILDCARDS and remote_ip else host, port)


@dataclass(slots=True, frozen=True)
class Proof:
    """Further fields of the first INFO of a link; see `mesh.auth`."""

    signature: bytes = b""
    dialled: str = ""
    at: tuple[str, ...] = ()
    bound: bytes = b""
    """Signature of `at`."""


def encode_info(info: NodeInfo, signature: bytes = b"", more: Mapping[str, object] | None = None) -> bytes:
    """Encodes INFO; `signature` and `more` are in a link's first one (`Proof`). Raises ValueError if too long."""
    for url in (info.cluster_url, info.client_url, info.leaf_url, info.ws_url):
        if url:
            split_url(url)
    encoded = frame(
        Kind.INFO,
        json.dumps(
            {
                "peer_id": info.peer_id,
                "name": info.name,
                "boot_id": info.boot_id,
                "cluster_url": info.cluster_url,
                "client_url": info.client_url,
                "tags": info.tags,
                "jetstream": info.jetstream,
                "cluster_id": info.cluster_id,
                "server_id": info.server_id,
                "leaf_url": info.leaf_url,
                "ws_url": info.ws_url,
                **({"key": info.key} if info.key else {}),
                **({"sync_interval": info.sync_interval} if info.sync_interval is not None else {}),
                **({"signature": signature.hex()} if signature else {}),
                **(more or {}),
            },
            separators=(",", ":"),
        ).encode(),
    )
    if len(encoded) > MAX_HANDSHAKE_BYTES - (0 if signature else MAX_SIGNED_BYTES) or len(info.tags) > MAX_TAGS:
        raise ValueError("server name, tags and addresses are too long to tell other nodes")
    return encoded


def decode_proof(body: bytes) -> Proof:
    """Returns the proof in an INFO that `decode_info` has accepted. Raises FrameError."""
    data = _load(body, "INFO")
    at = data.get("at", [])
    if not isinstance(at, list) or len(at) > MAX_ADDRESSES:
        raise FrameError("INFO holds bad addresses")
    return Proof(
        _signature(data.get("signature", "")),
        _text(data.get("dialled", ""), "dialled"),
        tuple(_text(address, "at") for address in at),
        _signature(data.get("bound", "")),
    )


def _signature(text: Any) -> bytes:
    try:
        signature = bytes.fromhex(text)
    except (TypeError, ValueError) as error:
        raise FrameError("INFO holds a bad signature") from error
    if len(signature) not in (0, SIGNATURE_BYTES):
        raise FrameError("INFO holds a bad signature")
    return signature


def decode_info(body: bytes, remote_ip: str) -> NodeInfo:
    """Raises FrameError."""
    data = _load(body, "INFO")
    tags = data.get("tags")
    if not isinstance(tags, list) or len(tags) > MAX_TAGS or not isinstance(data.get("jetstream"), bool):
        raise FrameError("INFO holds bad tags or flags")
    texts = {key: _text(data.get(key), key) for key in ("peer_id", "name", "boot_id", "cluster_url", "client_url")}
    if not is_peer_id(texts["peer_id"]) or not is_peer_id(texts["boot_id"]):
        raise FrameError("INFO holds a bad id")
    key = _text(data.get("key", ""), "key")
    if key and not is_key("N", key):
        raise FrameError("INFO holds a bad key")
    sync_interval = data.get("sync_interval")
    if sync_interval is not None and (
        type(sync_interval) not in (int, float) or not 0 <= sync_interval < MAX_SYNC_SECONDS
    ):
        raise FrameError("INFO holds a bad sync interval")
    try:
        cluster_url = reachable_url(texts["cluster_url"], remote_ip)
        client_url = reachable_url(texts["client_url"], remote_ip)
        leaf_url = reachable_url(_text(data.get("leaf_url", ""), "leaf_url"), remote_ip)
        ws_url = reachable_url(_text(data.get("ws_url", ""), "ws_url"), remote_ip)
    except ValueError as error:
        raise FrameError(f"INFO: {error}") from error
    return NodeInfo(
        peer_id=texts["peer_id"],
        name=texts["name"],
        boot_id=texts["boot_id"],
        cluster_url=cluster_url,
        client_url=client_url,
        tags=tuple(_text(tag, "tag") for tag in tags),
        jetstream=data["jetstream"],
        cluster_id=_text(data.get("cluster_id", ""), "cluster_id"),
        server_id=_text(data.get("server_id", ""), "server_id"),
        leaf_url=leaf_url,
        ws_url=ws_url,
        key=key,
        sync_interval=sync_interval,
    )


def encode_gossip(nodes: list[tuple[str, str]]) -> bytes:
    """Encodes `nodes`, which are (peer id, cluster url) of peers that the sender is connected to."""
    body = json.dumps({"nodes": nodes[:MAX_GOSSIP_NODES]}, separators=(",", ":")).encode()
    assert len(body) <= MAX_GOSSIP_BYTES
    return frame(Kind.GOSSIP, body)


def decode_gossip(body: bytes) -> list[tuple[str, str]]:
    """Raises FrameError."""
    if len(body) > MAX_GOSSIP_BYTES:
        raise FrameError("GOSSIP is too long")
    nodes = _load(body, "GOSSIP").get("nodes")
    if not isinstance(nodes, list) or len(nodes) > MAX_GOSSIP_NODES:
        raise FrameError("GOSSIP holds no list of nodes")
    checked: list[tuple[str, str]] = []
    for node in nodes:
        if not isinstance(node, list) or len(node) != 2 or not is_peer_id(node[0]):
            raise FrameError("GOSSIP holds a bad node")
        url = _text(node[1], "url")
        try:
            split_url(url)
        except ValueError as error:
            raise FrameError(f"GOSSIP: {error}") from error
        checked.append((node[0], url))
    return checked


def _load(body: bytes, what: str) -> dict[str, Any]:
    try:
        data = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise FrameError(f"{what} is not JSON") from error
    if not isinstance(data, dict):
        raise FrameError(f"{what} is not an object")
    return data


def _text(value: object, what: str) -> str:
    if not isinstance(value, str) or len(value) > MAX_TEXT_CHARACTERS or not value.isprintable():
        raise FrameError(f"{what} is not a short printable text")
    return value
