"""A leaf link as the router of its account sees it.

A link has a hub's end and a spoke's end. The hub's end is like a client of this node: what the spoke wants is told to
the mesh, and what it sends goes to the mesh. The spoke's end is this node's own affair: each node of a cluster that is
a leaf has its own link, so nothing that concerns it crosses the mesh.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from jetcluster.protocol.bus import Origin, Outgoing
from jetcluster.protocol.interest import FORWARDED, RemotePeer
from jetcluster.protocol.valve import Valve

ORIGIN = b"\x01"
"""First entry of `queues` of a message that a leaf link brought into this cluster: this byte and the name of the
cluster at the other end, which has the message already. Clients and leaves cannot make such a queue name: see
`is_marked`."""


class LeafPeer(Origin):
    """One leaf link of one account: a `RemotePeer` and where messages come from. `leaf_link.LeafLink` is the one."""

    peer_id: str
    valve: Valve
    pending: int
    """These as in `RemotePeer`."""

    spoke: bool
    """True at the spoke's end: the other end is the hub."""

    remote_cluster: bytes
    """Name of the cluster at the other end, or of its only node."""

    route_id: int | None = None

    @property
    def server_name(self) -> str:
        return self.peer_id

    @property
    def joined(self) -> bool:
        """False once it is gone, though what it wanted may still be here (`accounts.Removals`)."""
        raise NotImplementedError

    def send_msg(
        self, account: str, subject: bytes, reply: bytes, queues: list[bytes], headers: bytes, payload: bytes
    ) -> None:
        raise NotImplementedError

    def send_many(self, account: str, target: bytes, queues: list[bytes], messages: Sequence[Outgoing]) -> None:
        raise NotImplementedError

    def ask_backlog(self, account: str, target: bytes, mark: int) -> None:
        raise NotImplementedError

    def interest_changed(self, source: RemotePeer | None, subject: bytes, queue: bytes | None, change: int) -> None:
        """Members of (subject, queue) that came, or went when `change` is negative. `source`: None for this node's
        clients and itself, else the node or the other link that has them. Queue a frame, never block."""
        raise NotImplementedError


def passes(source: RemotePeer | None, link: LeafPeer, leaves: Sequence[LeafPeer]) -> bool:
    """True when what `source` wants is told on `link`, and so what comes on `link` may go to `source`."""
    if source is link:
        return False
    if source is None:
        return True
    if source in leaves:
        other = cast(LeafPeer, source)
        if other.spoke:
            return not link.spoke
        return link.spoke or other.remote_cluster != link.remote_cluster
    return not link.spoke


def is_marked(queue: bytes) -> bool:
    """True for what nodes put among queue names for each other, and nobody else may."""
    return queue.startswith((ORIGIN, FORWARDED))


def take_origin(queues: list[bytes]) -> tuple[bytes, list[bytes]]:
    """(cluster the message came from or b"", queue names) of a peer's `queues`."""
    if queues and queues[0].startswith(ORIGIN):
        return queues[0][1:], queues[1:]
    return b"", queues
