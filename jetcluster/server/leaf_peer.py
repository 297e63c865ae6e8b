"""A leaf link as the router of its account sees it, and the way of a message that came in on one.

A link has a hub's end and a spoke's end. The hub's end is like a client of this node: what the spoke wants is told to
the mesh, and what it sends goes to the mesh. The spoke's end is this node's own affair: each node of a cluster that is
a leaf has its own link, so nothing that concerns it crosses the mesh.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, cast

from jetcluster.protocol.bus import Origin
from jetcluster.protocol.interest import FORWARDED, RemotePeer

if TYPE_CHECKING:
    from jetcluster.server.route import QueueRoute, Route
    from jetcluster.server.router import Router

ORIGIN = b"\x01"
"""First entry of `queues` of a message that a leaf link brought into this cluster: this byte and the name of the
cluster at the other end, which has the message already. Clients and leaves cannot make such a queue name: see
`is_marked`."""


class LeafPeer(RemotePeer, Origin, Protocol):
    """One leaf link of one account."""

    spoke: bool
    """True at the spoke's end: the other end is the hub."""

    joined: bool
    """False once it is gone, though what it wanted may still be here (`removals`)."""

    remote_cluster: bytes
    """Name of the cluster at the other end, or of its only node."""

    def interest_changed(self, source: RemotePeer | None, subject: bytes, queue: bytes | None, change: int) -> None:
        """Members of (subject, queue) that came, or went when `change` is negative. `source`: None for this node's
        clients and itself, else the node or the other link that has them. Queue a frame, never block."""
        ...


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


def deliver_from_leaf(
    router: Router,
    link: LeafPeer,
    target: bytes,
    shown: bytes,
    reply: bytes,
    queues: list[bytes],
    headers: bytes,
    payload: bytes,
    route: Route | None = None,
) -> None:
    """Routes a message by `target` to all takers but those at the other end of its link; to one member of each of the
    queue groups that the other end has named. Takers see the subject `shown`. `route`: of `target`, if it is known."""
    route = route or router.literals.get(target) or router.lookup(target)
    if route.reserved:
        return
    for callback in route.callbacks:
        callback(shown, reply, headers, payload, link)
    for client in route.clients:
        client.take(shown, reply, headers, payload, link)
    if not queues and not route.peers:
        return
    onward: dict[RemotePeer, list[bytes]] = {}
    if not link.spoke:
        onward = {node: [] for node in route.nodes}
    onward |= {leaf: [] for leaf in route.leaves if passes(leaf, link, router.leaf_links)}
    for name in queues:
        group = route.group(name)
        if group is not None:
            chosen = _choose(router, link, group, shown, reply, headers, payload)
            if chosen is not None:
                onward.setdefault(chosen, []).append(name)
    _send_onward(router, link, route, onward, target, shown, reply, headers, payload)


def _choose(
    router: Router, link: LeafPeer, group: QueueRoute, shown: bytes, reply: bytes, headers: bytes, payload: bytes
) -> RemotePeer | None:
    """Gives a message to one member of this node, or says which other place is to have it. Links come last."""
    rng = router.rng
    local, remote = group.local, group.remote
    start = int(rng.random() * (len(local) if link.spoke else group.weight))
    if start >= len(local) and remote and not link.spoke:
        return group.remote_at(start - len(local))
    for step in range(len(local)):
        if local[(start + step) % len(local)].take(shown, reply, headers, payload, link):
            return None
    if remote:
        return remote[int(rng.random() * len(remote))][0]
    others = [leaf for leaf, _ in group.leaves if passes(leaf, link, router.leaf_links)]
    return others[int(rng.random() * len(others))] if others else None


def _send_onward(
    router: Router,
    link: LeafPeer,
    route: Route,
    onward: dict[RemotePeer, list[bytes]],
    target: bytes,
    shown: bytes,
    reply: bytes,
    headers: bytes,
    payload: bytes,
) -> None:
    for peer, names in onward.items():
        marked = names
        if peer not in router.leaf_links:
            # At the spoke's end other nodes have had their plain copies on their own links.
            marked = [FORWARDED + name for name in names] if link.spoke else [ORIGIN + link.remote_cluster, *names]
        if shown is target:
            peer.send_msg(router.account, target, reply, marked, headers, payload)
        else:
            peer.send_many(router.account, target, marked, [(shown, reply, headers, payload)])
