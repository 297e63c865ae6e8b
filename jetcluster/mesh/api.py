"""`NodeInfo` and the errors of requests between nodes (`mesh.core.MeshCore`)."""

from __future__ import annotations

from dataclasses import field

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
    """The id that clients see in INFO; for monitoring."""
    leaf_url: str = ""
    """host:port for leaf links (INFO leafnode_urls); "" when there is no such port or it is not advertised."""
    ws_url: str = ""
    """The same for WebSocket clients."""
    key: str = ""
    """The node's public key, with which it has signed the link's greetings; "" from a node without a
    store."""
    frames: int = 0
    """The last kind of frame that the node understands (`mesh.frames.FRAMES`); 0 while it is not known."""
    sync_interval: float | None = None
    """Seconds that pass at most until what it acknowledges is on its disk; 0: it waits for that. None from a node
    without JetStream."""


class MeshError(PassingError):
    """A request to a peer failed: not connected, timed out, refused, or the handler raised (its text is kept)."""


class MeshRefusedError(MeshError):
    """The peer answered, and the answer is no: asking the same again is of no use. Any other MeshError says that the
    answer, if there is one, did not come."""

    blame = "peer"
    retriable = False
