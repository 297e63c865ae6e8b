"""Delivery of a leaf link's messages (`subscription.LeafPeer`) to this node, other nodes and other links, once each."""

from __future__ import annotations

from jetcluster.protocol.bus import Origin
from jetcluster.protocol.interest import FORWARDED, RemotePeer
from jetcluster.server.accounts.route import SYSTEM_QUEUE, QueueRoute, Route
from jetcluster.server.accounts.router import Router
from jetcluster.server.accounts.subscription import ORIGIN, LeafPeer, passes


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
    """Routes a message by `target` to all takers except at the other end of its link, and to one member of each queue
    group in `queues`, which the other end chose. Takers see the subject `shown`. `route`: that of `target`, or None."""
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
    """Delivers a message to one member of this node, or returns the peer to send it to; links come last."""
    rng = router.rng
    local, remote = group.local, group.remote
    here_first = link.spoke or group.name == SYSTEM_QUEUE
    start = int(rng.random() * (len(local) if here_first else group.weight))
    if start >= len(local) and remote and not here_first:
        return group.remote_at(start - len(local))
    for step in range(len(local)):
        if local[(start + step) % len(local)].take(shown, reply, headers, payload, link):
            return None
    if remote:
        return group.nearest(rng.random)
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
            # At the spoke end, other nodes have got their plain copies on their own links.
            marked = [FORWARDED + name for name in names] if link.spoke else [ORIGIN + link.remote_cluster, *names]
        if shown is target:
            peer.send_msg(router.account, target, reply, marked, headers, payload)
        else:
            peer.send_many(router.account, target, marked, [(shown, reply, headers, payload)])


def deliver_mapped(
    router: Router, route: Route, subject: bytes, reply: bytes, headers: bytes, payload: bytes, origin: Origin
) -> int:
    """Delivers a message under its mapped subject, whose route this is; returns the number of takers."""
    for link in router.leaf_links:
        if link is origin:  # the link must not get it back
            queues = [group.name for group in route.queues]
            deliver_from_leaf(router, link, subject, subject, reply, queues, headers, payload, route)
            return route.takers
    return router.deliver(route, subject, reply, headers, payload, origin)
