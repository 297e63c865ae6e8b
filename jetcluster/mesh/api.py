"""The node mesh as the rooms above it see it: peers, Raft frames, request/reply between nodes, and notices."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import field
from typing import Protocol

from jetcluster.errors import PassingError
from jetcluster.records import dataclass


@dataclass(slots=True, frozen=True)
class NodeInfo:
    """Description of a node, told to others when a link comes up."""

    peer_id: str
    """8 characters, random, made at a node's first start and kept in its store: a wiped node is a new peer."""
    name: str
    boot_id: str
    """Random per process start."""
    cluster_url: str
    """host:port where other nodes dial this one."""
    client_url: str
    """host:port for clients (INFO connect_urls); "" when not advertised."""
    tags: tuple[str, ...] = field(default=())
    jetstream: bool = True
    cluster_id: str = ""
    """Id of the cluster whose meta group the node belongs to; "" before it belongs to one (cluster/cluster_id.py)."""
    server_id: str = ""
    """As clients see it in INFO; for monitoring."""
    leaf_url: str = ""
    """host:port for leaf links (INFO leafnode_urls); "" when there is no such port or it is not advertised."""
    ws_url: str = ""
    """The same for WebSocket clients."""
    key: str = ""
    """The node's public key, with which it has signed the link's greetings; "" from a version before, and from a node
    without a store."""


class MeshError(PassingError):
    """A request to a peer failed: not connected, timed out, refused, or the handler raised (its text is kept)."""


class MeshRefusedError(MeshError):
    """The peer answered, and the answer is no: asking the same again is of no use. Any other MeshError says that the
    answer, if there is one, did not come."""


class Mesh(Protocol):
    me: NodeInfo

    @property
    def peers(self) -> dict[str, NodeInfo]:
        """Connected peers by peer id, without this node."""
        ...

    def send_raft(self, peer: str, gid: int, frame: bytes) -> bool: ...

    def serve(self, method: str, handler: Callable[[str, bytes], Awaitable[bytes]], *, strangers: bool = False) -> None:
        """Answers `call(method)` from members of the cluster, and with `strangers` from whoever is linked:
        handler(peer_id, payload) -> reply payload. Raising answers an error."""
        ...

    async def call(self, peer: str, method: str, payload: bytes, timeout: float = 5.0) -> bytes:  # noqa: ASYNC109
        """Asks a peer; a call to this node's own id runs the local handler. Raises MeshError."""
        ...

    def notify(self, peer: str | None, kind: str, payload: bytes) -> None:
        """Fire and forget, in order with all else on the link; `None` tells every connected peer."""
        ...

    def on_notice(self, kind: str, handler: Callable[[str, bytes], None], *, strangers: bool = False) -> None:
        """As with `serve`. A handler that raises `frames.FrameError` has the link closed."""
        ...

    def on_peers(self, up: Callable[[NodeInfo], None], down: Callable[[NodeInfo], None]) -> None:
        """Registers a listener for links coming up (called at once for those already up) and going down."""
        ...
