"""`NodeInfo` and the errors of requests between nodes (`mesh.core.MeshCore`)."""

from __future__ import annotations

from dataclasses import field

from jetcluster.errors import PassingError
from jetcluster.records import dataclass


@dataclass(slots=True, frozen=True)
class NodeInfo:
    """Description of a node, sent to its peers when a link comes up."""

    peer_id: str
    """8 random characters, made at a node's first start and kept in its store: a wiped node is a new peer."""
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
    """Id of the node's cluster; "" before it belongs to one (cluster/cluster_id.py)."""
    server_id: str = ""
    """Id that clients see in INFO; for monitoring."""
    leaf_url: str = ""
    """host:port for leaf links (INFO leafnode_urls); "" when there is no such port or it is not advertised."""
    ws_url: str = ""
    """host:port for WebSocket clients, likewise."""
    key: str = ""
    """Public key, with which the node has signed the link's greetings; "" from a node without a store."""
    sync_interval: float | None = None
    """Most seconds until what it acknowledges is on its disk; 0: it waits for the disk. None without JetStream."""

    def zones(self, prefix: str) -> frozenset[str]:
        """Returns the tags that begin with `prefix`; none for an empty one."""
        return frozenset(tag for tag in self.tags if prefix and tag.startswith(prefix))


class MeshError(PassingError):
    """A request to a peer failed: not connected, timed out, refused, or the handler raised (its text is kept)."""


class MeshRefusedError(MeshError):
    """The peer answered with a refusal, so a retry is useless. Any other MeshError: no answer arrived."""

    blame = "peer"
    retriable = False
