"""Deliveries of many messages to the takers of one subject, as of consumers (`consumer.owner.delivery.DeliveryBus`).

Takers see each message's own subject. The common case, a single client, is one call; only queue groups choose a member
per message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from jetcluster.clock import Rng
from jetcluster.protocol.bus import Origin, Outgoing
from jetcluster.protocol.interest import FORWARDED, RemotePeer
from jetcluster.server.accounts.remote_peers import RemoteBacklog
from jetcluster.server.accounts.route import QueueRoute, Route
from jetcluster.server.accounts.subscription import LeafPeer, LocalSubscription, take_origin

_HERE = object()

LAGGING_BYTES = 1 << 20
"""Backlog above which a member of a queue group is passed over: it must neither delay the others nor be overrun."""


def deliver(
    route: Route,
    account: str,
    target: bytes,
    messages: Sequence[Outgoing],
    origin: Origin,
    rng: Rng,
    far: RemoteBacklog,
) -> int:
    """Delivers messages of this node by the route of `target`; returns the number of takers of the last message."""
    taken = 0
    for callback in route.callbacks:
        for subject, reply, headers, payload in messages:
            callback(subject, reply, headers, payload, origin)
        taken += 1
    for client in route.clients:
        taken += client.take_many(messages, origin, target)
    if not route.queues:
        for peer in route.peers:
            _send(peer, account, target, [], messages, far)
        return taken + len(route.peers)
    members = 0
    # Consecutive messages for the same queue groups of a peer are sent in one call.
    runs: dict[RemotePeer, list[tuple[list[bytes], list[Outgoing]]]] = {}
    for message in messages:
        named: dict[RemotePeer, list[bytes]] = {peer: [] for peer in route.peers}
        members = 0
        for group in route.queues:
            chosen = _choose(group, target, message, origin, rng, far)
            members += chosen is not None
            if chosen is not None and chosen is not _HERE:
                named.setdefault(cast(RemotePeer, chosen), []).append(group.name)
        for peer, queues in named.items():
            sent = runs.setdefault(peer, [])
            if not sent or sent[-1][0] != queues:
                sent.append((queues, []))
            sent[-1][1].append(message)
    for peer, sent in runs.items():
        for queues, some in sent:
            _send(peer, account, target, queues, some, far)
    return taken + members + len(route.peers)


def deliver_from_peer(
    route: Route,
    account: str,
    peer: RemotePeer,
    target: bytes,
    queues: list[bytes],
    messages: Sequence[Outgoing],
    origin: Origin,
    rng: Rng,
) -> None:
    """See `protocol.interest.Switchboard.deliver_many_from_peer`."""
    came_from, queues = take_origin(queues)
    handed_on = bool(queues) and queues[0].startswith(FORWARDED)
    leaves: dict[LeafPeer, list[bytes]] = {}
    if not handed_on:
        for callback in route.shared_callbacks:
            for subject, reply, headers, payload in messages:
                callback(subject, reply, headers, payload, origin)
        for client in route.clients:
            client.take_many(messages, origin, target)
        leaves = {leaf: [] for leaf in route.leaves if not leaf.spoke and leaf.remote_cluster != came_from}
    for name in queues:
        group = route.group(name[len(FORWARDED) :] if handed_on else name)
        if group is None:
            continue
        behind = [leaf for leaf, _ in group.leaves if not leaf.spoke and leaf.remote_cluster != came_from]
        if not group.shared and behind:
            leaves.setdefault(behind[int(rng.random() * len(behind))], []).append(group.name)
            continue
        rest = [message for message in messages if not _take_one(group.shared, message, origin, rng)]
        others = [other for other, _ in group.remote if other is not peer]
        if rest and others and not handed_on:
            other = others[int(rng.random() * len(others))]
            other.send_many(account, target, [FORWARDED + name], rest)
    for leaf, names in leaves.items():
        leaf.send_many(account, target, names, messages)


def _send(
    peer: RemotePeer, account: str, target: bytes, queues: list[bytes], messages: Sequence[Outgoing], far: RemoteBacklog
) -> None:
    peer.send_many(account, target, queues, messages)
    far.sent(peer, target, sum([len(s) + len(r) + len(h) + len(p) for s, r, h, p in messages]))


def _choose(
    group: QueueRoute, target: bytes, message: Outgoing, origin: Origin, rng: Rng, far: RemoteBacklog
) -> object | None:
    """Returns `_HERE` if a local member of the group took the message, the peer to send it to, or None."""
    count = len(group.local)
    start = int(rng.random() * group.weight) if group.weight > 1 else 0
    if start >= count and group.remote:
        peer = group.remote_at(start - count)
        if max(peer.pending, far.of(peer, target)) <= LAGGING_BYTES or not any(
            member.backlog <= LAGGING_BYTES for member in group.local
        ):
            return peer
    if _take_one(group.local, message, origin, rng):
        return _HERE
    if group.remote:
        return group.remote_at(int(rng.random() * (group.weight - count)))
    return group.leaves[int(rng.random() * len(group.leaves))][0] if group.leaves else None


def _take_one(members: Sequence[LocalSubscription], message: Outgoing, origin: Origin, rng: Rng) -> bool:
    """Delivers a message to a random member, if possible one with a small backlog; False if no member took it."""
    count = len(members)
    start = int(rng.random() * count) if count > 1 else 0
    turn = [members[(start + step) % count] for step in range(count)]
    if count > 1 and turn[0].backlog > LAGGING_BYTES:
        turn.sort(key=_is_behind)
    return any(member.take(*message, origin) for member in turn)


def _is_behind(member: LocalSubscription) -> bool:
    return member.backlog > LAGGING_BYTES
