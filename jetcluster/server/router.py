"""The router of one account: takes messages from clients, peers and the server itself to all who want them.

It is the `protocol.bus.Bus` of the rooms below, serves client connections, and keeps the account's side of the
interest contract with the mesh (`protocol.interest`). Per publisher and subject, messages keep their order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import cast

from jetcluster.clock import Rng
from jetcluster.protocol import subjects
from jetcluster.protocol.bus import Callback, Origin, Subscription
from jetcluster.protocol.interest import FORWARDED, RemotePeer
from jetcluster.protocol.sublist import Sublist
from jetcluster.protocol.writer import CRLF, MSG_, SIZE_LINES, SIZE_LINES_LEN, size_line
from jetcluster.server.route import QueueRoute, Route
from jetcluster.server.subscription import (
    AnySubscription,
    ClientSubscription,
    InternalSubscription,
    RemoteInterest,
    Sink,
)

SYSTEM_QUEUE = b"_sys_"
"""The queue group of Direct Get responders: any member's answer is as good, so the nearest one gives it."""

_HERE = object()
"""What `_offer` answers when a local member took the message."""

Interest = tuple[bytes, bytes | None]
InterestChanged = Callable[[str, bytes, bytes | None, int], None]


class ServerOrigin:
    """Messages that the server itself publishes, or that a peer handed over."""

    __slots__ = ("account", "kind", "peer_id")

    def __init__(self, kind: str, account: str, peer_id: str = "") -> None:
        self.kind = kind
        self.account = account
        self.peer_id = peer_id


class Router:
    """Routes the subjects of one account.

    `interest_changed` is told when what this node wants changes, as `InterestListener` says.
    """

    def __init__(self, account: str, rng: Rng, interest_changed: InterestChanged | None = None) -> None:
        self.account = account
        self.index: Sublist[AnySubscription, Route] = Sublist(Route)
        self.literals = self.index.literals
        """Cached routes by subject, for the read loop's inlined lookup."""
        self._rng = rng
        self._interest_changed = interest_changed
        self._interest: dict[Interest, int] = {}
        self._remote: dict[RemotePeer, dict[Interest, RemoteInterest]] = {}
        self._internal = ServerOrigin("internal", account)
        self._origins: dict[RemotePeer, ServerOrigin] = {}

    # ---- subscriptions

    def subscribe(
        self, subject: bytes, callback: Callback, queue: bytes | None = None, *, local_only: bool = False
    ) -> Subscription:
        if not subjects.is_valid(subject):
            raise ValueError(f"invalid subject {subject!r}")
        subscription = InternalSubscription(subject, queue, callback, local_only)
        self.index.insert(subscription)
        if not local_only:
            self._count(subject, queue, 1)
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        """Removes an internal subscription; removing it twice does nothing."""
        assert isinstance(subscription, InternalSubscription)
        if subscription.closed:
            return
        subscription.closed = True
        if self.index.remove(subscription) and not subscription.local_only:
            self._count(subscription.subject, subscription.queue, -1)

    def add_client(self, subscription: ClientSubscription) -> None:
        self.index.insert(subscription)
        self._count(subscription.subject, subscription.queue, 1)

    def remove_client(self, subscription: ClientSubscription) -> None:
        """Removes a client's subscription; removing it twice does nothing."""
        if subscription.closed:
            return
        subscription.closed = True
        if self.index.remove(subscription):
            self._count(subscription.subject, subscription.queue, -1)

    def limit_client(self, subscription: ClientSubscription, maximum: int) -> None:
        """Lets a subscription go after `maximum` deliveries in all; it leaves the fast path for that."""
        subscription.max = maximum
        self.watch_client(subscription, True)

    def watch_client(self, subscription: ClientSubscription, special: bool) -> None:
        """Takes a client's subscription off the fast path of deliveries, or puts it back."""
        if subscription.special != special:
            subscription.special = special
            self.index.forget(subscription.subject)

    def _count(self, subject: bytes, queue: bytes | None, change: int) -> None:
        key = (subject, queue)
        before = self._interest.get(key, 0)
        count = before + change
        assert count >= 0
        if count:
            self._interest[key] = count
        else:
            del self._interest[key]
        if self._interest_changed is None:
            return
        if queue is not None:
            self._interest_changed(self.account, subject, queue, count)
        elif not before or not count:
            self._interest_changed(self.account, subject, None, count)

    def interests(self) -> Iterator[tuple[bytes, bytes | None, int]]:
        """(subject, queue, count) of what this node wants; the count of plain interest is 1."""
        for (subject, queue), count in list(self._interest.items()):
            yield subject, queue, count if queue is not None else 1

    def has_interest(self, subject: bytes) -> bool:
        return self.index.match(subject).takers > 0

    # ---- messages

    def lookup(self, subject: bytes) -> Route:
        """The route of a subject that is not among `literals`; a subject that comes twice running gets in there."""
        route = self.index.match(subject)
        if route.seen == subject:
            self.index.remember(subject, route)
        else:
            route.seen = subject
        return route

    def publish(self, subject: bytes, payload: bytes = b"", reply: bytes = b"", headers: bytes = b"") -> int:
        route = self.literals.get(subject) or self.lookup(subject)
        return self.deliver(route, subject, reply, headers, payload, self._internal)

    def publish_many(self, messages: Sequence[tuple[bytes, bytes]]) -> None:
        literals = self.literals
        prefixes = self.index.prefixes
        for subject, payload in messages:
            route = prefixes.get(subject.rpartition(b".")[0]) or literals.get(subject)
            if route is None or subject[-1] == 46:
                route = self.index.match(subject)
            subscription = route.client
            if subscription is None:
                self.deliver(route, subject, b"", b"", payload, self._internal)
                continue
            # ClientSubscription.take, without what a plain PubAck does not need.
            owner = subscription.owner
            out = owner.out
            if not out:
                owner.wake()
            size = len(payload)
            line = SIZE_LINES[size] if size < SIZE_LINES_LEN else size_line(size)
            out += (MSG_, subject, subscription.mid, line, payload, CRLF)
            owner.out_msgs += 1
            owner.out_bytes += size
            owner.pending += size + len(subject) + 24
            subscription.delivered += 1
            if owner.pending > owner.congestion_mark:
                owner.congested(self._internal)

    def publish_frames(self, subject: bytes, frames: Sequence[tuple[bytes, bytes]]) -> int:
        taken = 0
        route = self.literals.get(subject) or self.lookup(subject)
        for at, (headers, payload) in enumerate(frames):
            subscription = route.client
            if subscription is not None and not subscription.closed:
                return subscription.take_frames(subject, frames if not at else frames[at:], self._internal)
            taken = self.deliver(route, subject, b"", headers, payload, self._internal)
            route = self.literals.get(subject) or self.lookup(subject)  # a delivery may end a subscription
        return taken

    def deliver(
        self, route: Route, subject: bytes, reply: bytes, headers: bytes, payload: bytes, origin: Origin
    ) -> int:
        """Hands one message of this node to all takers of its route; returns how many there were."""
        taken = 0
        for callback in route.callbacks:
            callback(subject, reply, headers, payload, origin)
            taken += 1
        for client in route.clients:
            if client.take(subject, reply, headers, payload, origin):
                taken += 1
        if not route.queues:
            for peer in route.peers:
                peer.send_msg(self.account, subject, reply, [], headers, payload)
            return taken + len(route.peers)
        remote: dict[RemotePeer, list[bytes]] = {peer: [] for peer in route.peers}
        taken += len(remote)
        for group in route.queues:
            peer_of_queue = self._offer(group, subject, reply, headers, payload, origin)
            if peer_of_queue is None:
                continue
            taken += 1
            if peer_of_queue is not _HERE:
                remote.setdefault(cast(RemotePeer, peer_of_queue), []).append(group.name)
        for peer, queues in remote.items():
            peer.send_msg(self.account, subject, reply, queues, headers, payload)
        return taken

    def _offer(
        self, group: QueueRoute, subject: bytes, reply: bytes, headers: bytes, payload: bytes, origin: Origin
    ) -> object | None:
        """Finds one member of a queue group for a message: `_HERE` when a local one took it, the peer that is to get
        it, or None. The start is random over all members, local ones and those of peers weighing the same."""
        local = group.local
        count = len(local)
        start = int(self._rng.random() * group.weight) if group.weight > 1 else 0
        if count and start >= count and group.name == SYSTEM_QUEUE:
            start %= count
        if start >= count:
            return group.remote_at(start - count)
        for step in range(count):
            if local[(start + step) % count].take(subject, reply, headers, payload, origin):
                return _HERE
        return group.remote_at(int(self._rng.random() * (group.weight - count))) if group.remote else None

    def backlog(self, subject: bytes) -> int:
        """Bytes that the slowest connection of this node that takes `subject` has not been sent yet. Whoever publishes
        a lot to one reply subject waits while this is large: a client would be closed as a slow consumer, and a
        congested link drops messages in the middle of an answer."""
        route = self.index.match(subject)
        waiting = [client.owner.pending for client in route.clients]
        waiting += [peer.pending for peer in route.peers]
        return max(waiting, default=0)

    def subscription_of(self, owner: Sink, subject: bytes) -> ClientSubscription | None:
        """The first plain subscription of a connection that takes `subject`."""
        for client in self.index.match(subject).clients:
            if client.owner is owner:
                return client
        return None

    # ---- the mesh

    def set_remote_interest(self, peer: RemotePeer, subject: bytes, queue: bytes | None, count: int) -> None:
        """See `protocol.interest.Switchboard`; the account is this router's. An invalid subject is ignored."""
        wants = self._remote.setdefault(peer, {})
        known = wants.get((subject, queue))
        if known is not None:
            if count > 0:
                if known.count != count:
                    known.count = count
                    self.index.forget(subject)
            else:
                del wants[subject, queue]
                self.index.remove(known)
        elif count > 0 and subjects.is_valid(subject):
            interest = RemoteInterest(peer, subject, queue, count)
            wants[subject, queue] = interest
            self.index.insert(interest)

    def drop_peer(self, peer: RemotePeer) -> None:
        for interest in self._remote.pop(peer, {}).values():
            self.index.remove(interest)
        self._origins.pop(peer, None)

    def deliver_from_peer(
        self, peer: RemotePeer, subject: bytes, reply: bytes, queues: list[bytes], headers: bytes, payload: bytes
    ) -> None:
        """See `protocol.interest.Switchboard`; the account is this router's."""
        origin = self._origins.get(peer)
        if origin is None:
            origin = self._origins[peer] = ServerOrigin("peer", self.account, peer.peer_id)
        route = self.literals.get(subject) or self.lookup(subject)
        handed_on = bool(queues) and queues[0].startswith(FORWARDED)
        if not handed_on:
            for callback in route.shared_callbacks:
                callback(subject, reply, headers, payload, origin)
            for client in route.clients:
                client.take(subject, reply, headers, payload, origin)
        for name in queues:
            group = _group(route, name[len(FORWARDED) :] if handed_on else name)
            if group is None or self._take_here(group, subject, reply, headers, payload, origin) or handed_on:
                continue
            others = [other for other, _ in group.remote if other is not peer]
            if others:
                other = others[int(self._rng.random() * len(others))]
                other.send_msg(self.account, subject, reply, [FORWARDED + name], headers, payload)

    def _take_here(
        self, group: QueueRoute, subject: bytes, reply: bytes, headers: bytes, payload: bytes, origin: Origin
    ) -> bool:
        members = group.shared
        count = len(members)
        start = int(self._rng.random() * count) if count > 1 else 0
        return any(
            members[(start + step) % count].take(subject, reply, headers, payload, origin) for step in range(count)
        )


def _group(route: Route, name: bytes) -> QueueRoute | None:
    for group in route.queues:
        if group.name == name:
            return group
    return None
