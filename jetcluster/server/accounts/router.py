"""The router of one account: delivers messages of clients, peers and the server itself to all takers.

It implements `protocol.bus.Bus` for the rooms below, serves client connections, and fulfils the account's part of the
interest contract with the mesh (`protocol.interest`). Per publisher and subject, messages keep their order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, cast

from jetcluster import native
from jetcluster.clock import Clock, Rng
from jetcluster.protocol import subjects
from jetcluster.protocol.bus import BulkCallback, Callback, Origin, Outgoing, Subscription
from jetcluster.protocol.interest import FORWARDED, RemotePeer
from jetcluster.protocol.sublist import ACK_TOKENS, MAX_CACHED_BYTES, Sublist
from jetcluster.protocol.writer import CRLF, MSG_, SIZE_LINES, SIZE_LINES_LEN, size_line
from jetcluster.records import NamedTuple
from jetcluster.server.accounts import bulk
from jetcluster.server.accounts.local_interest import InterestChanged, LocalInterest
from jetcluster.server.accounts.remote_peers import RemotePeers, ServerOrigin
from jetcluster.server.accounts.route import SYSTEM_QUEUE, GoneOwners, QueueRoute, Route, take_one
from jetcluster.server.accounts.subscription import (
    AnySubscription,
    ClientSubscription,
    InternalSubscription,
    LeafPeer,
    Passage,
    RemoteInterest,
    Sink,
    take_origin,
)
from jetcluster.server.accounts.told_tables import ToldTables

if TYPE_CHECKING:
    from jetcluster.server.accounts.shared_routes import MappedSubject, Shadows, SharedRoute

ACKS = b"$JS.ACK."
"""Prefix of ack subjects, each of which is published to once: they are not worth caching."""
ANSWERS_TOGETHER = 128
"""Answers to clients of one other node that go there in one piece of a frame."""
_HERE = object()
"""The answer of `_offer` when a local member took the message."""


class Requesters(NamedTuple):
    """Requesters of other accounts that wait for responses in an account."""

    prefix: bytes
    """Prefix of the reply subjects made for them."""
    find: Callable[[bytes], tuple[Router, bytes] | None]
    """Returns the requester's account and its own reply subject for one of them; None if no requester waits."""


class Router:
    """The router of one account. `interest_changed`: called as `InterestListener` defines."""

    def __init__(self, account: str, rng: Rng, clock: Clock, interest_changed: InterestChanged | None = None) -> None:
        self.account = account
        self.index: Sublist[AnySubscription, Route] = Sublist(Route)
        self.gone = GoneOwners(self.index, Route)
        self.literals = self.index.literals
        """Cached routes by subject, for the inlined lookup of the read loop."""
        self.rng = rng
        self.local = LocalInterest(account, interest_changed)
        self.peers = RemotePeers(account, self.index, self.local, self._leaf_interest_changed)
        self.leaf_links = self.local.leaf_links
        self._internal = ServerOrigin("internal", account)
        self._asker = ServerOrigin("asker", account)
        self._away: list[Passage] = []
        """The account's service imports."""
        self.shadows: Shadows | None = None
        """The account's stream imports; None if it has none."""
        self.requesters: Requesters | None = None
        """None until another account has sent a request to this one."""
        self._shared = False
        """True when all routes are `SharedRoute`s."""
        self._told = ToldTables(clock)

    # ---- subscriptions

    def subscribe(
        self,
        subject: bytes,
        callback: Callback,
        queue: bytes | None = None,
        *,
        local_only: bool = False,
        exclusive: bool = False,
        bulk: BulkCallback | None = None,
    ) -> Subscription:
        if not subjects.is_valid(subject):
            raise ValueError(f"invalid subject {subject!r}")
        assert not exclusive or (local_only and queue is None)
        subscription = InternalSubscription(subject, queue, callback, local_only, exclusive, bulk)
        self.index.insert(subscription)
        if not local_only:
            self.local.count(subject, queue, 1)
            if self.shadows is not None:
                self.shadows.add(subscription)
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        """Removes an internal subscription; removing it twice does nothing."""
        assert isinstance(subscription, InternalSubscription)
        if subscription.closed:
            return
        subscription.closed = True
        if self.index.remove(subscription) and not subscription.local_only:
            self.local.count(subscription.subject, subscription.queue, -1)
            if self.shadows is not None:
                self.shadows.remove(subscription)

    def add_client(self, subscription: ClientSubscription) -> None:
        self.index.insert(subscription)
        self.local.count(subscription.subject, subscription.queue, 1)
        if self.shadows is not None:
            self.shadows.add(subscription)

    def remove_client(self, subscription: ClientSubscription) -> None:
        """Removes a client's subscription; removing it twice does nothing."""
        if not subscription.closed:
            subscription.closed = True
            self.take_out(subscription)

    def take_out(self, subscription: ClientSubscription) -> None:
        """Removes a `closed` client's subscription from the index; removing it twice does nothing."""
        if self.index.remove(subscription):
            self.local.count(subscription.subject, subscription.queue, -1)
            if self.shadows is not None:
                self.shadows.remove(subscription)

    def limit_client(self, subscription: ClientSubscription, maximum: int) -> None:
        """Ends a subscription after `maximum` deliveries in total, for which it leaves the fast path."""
        subscription.max = maximum
        self.watch_client(subscription, True)

    def watch_client(self, subscription: ClientSubscription, special: bool) -> None:
        """Takes a client's subscription off the fast path of deliveries, or puts it back."""
        if subscription.special != special:
            subscription.special = special
            self.index.forget(subscription.subject)

    def _leaf_interest_changed(self, before: RemoteInterest | None, now: RemoteInterest | None) -> None:
        if self.shadows is not None:
            if before is not None:
                self.shadows.remove(before)
            if now is not None:
                self.shadows.add(now)

    def has_interest(self, subject: bytes) -> bool:
        if self.requesters is not None and subject.startswith(self.requesters.prefix):
            asker = self.requesters.find(subject)
            return asker is not None and asker[0].has_interest(asker[1])
        return self._open(subject).takers > 0

    def has_listener(self, subject: bytes) -> bool:
        return any(subscription.subject == subject for subscription in self._open(subject).clients)

    def queue_interest(self, subject: bytes, queue: bytes) -> bool:
        """Returns True when the queue group `queue` would get a message published to `subject`."""
        return self._open(subject).group(queue) is not None

    def others_with_interest(self, subject: bytes) -> int:
        """Counts the other nodes of the cluster that would get a message published to `subject`."""
        return len(self._open(subject).nodes)

    def _open(self, subject: bytes) -> Route:
        """Returns the route of messages that this node itself publishes."""
        route = self.literals.get(subject) or self.index.match(subject)
        return route.open or route

    def watch_interest(self, subject: bytes, callback: Callable[[], None]) -> Callable[[], None]:
        """See `consumer.owner.delivery.DeliveryBus`. Subscriptions with `local_only` are not watched."""
        return self.local.watch(subject, callback)

    # ---- messages

    def lookup(self, subject: bytes) -> Route:
        """Returns the route of a subject that is not in `literals`; two lookups in a row put it there."""
        if subject.startswith(ACKS):
            return self.index.match_deep(subject)
        head, _, last = subject.rpartition(b".")
        route = self.index.prefixes.get(head) if last else None  # the most frequent case of `match`, inlined
        if route is None:
            route = self.index.match(subject)
        if route.seen == subject:
            self.index.remember(subject, route)
        elif len(subject) <= MAX_CACHED_BYTES:
            route.seen = subject
        return route

    def route_of(self, subject: bytes) -> Route:
        """Returns the route of clients' messages to `subject`."""
        return self.literals.get(subject) or self.lookup(subject)

    def publish(self, subject: bytes, payload: bytes = b"", reply: bytes = b"", headers: bytes = b"") -> int:
        route = self.literals.get(subject) or self.lookup(subject)
        subscription = (route.open or route).client
        if subscription is not None:
            return subscription.take(subject, reply, headers, payload, self._internal)
        return self.deliver(route, subject, reply, headers, payload, self._internal)

    def ask(self, subject: bytes, payload: bytes = b"", reply: bytes = b"", headers: bytes = b"") -> int:
        route = self.literals.get(subject) or self.lookup(subject)
        return self.deliver(route.open or route, subject, reply, headers, payload, self._asker)

    def publish_many(self, messages: Sequence[tuple[bytes, bytes]]) -> None:
        literals, prefixes = self.literals, self.index.prefixes
        place = 0
        while place < len(messages):
            subject, payload = messages[place]
            head = subject.rpartition(b".")[0]
            shared = prefixes.get(head)
            route = shared or literals.get(subject)
            if route is None or subject[-1] == 46:
                route = self.index.match(subject)
            taker = route.client
            if taker is None:
                if route is shared and route.node is not None and native.as_messages is not None:
                    place += self._answer_elsewhere(route.node, messages, place, len(head))
                    continue
                self.deliver(route, subject, b"", b"", payload, self._internal)
                if payload and route.node is None:
                    self._told.note(route, payload)
                place += 1
            elif native.render_answers is not None and route is shared and isinstance(messages, list):
                piece, count, size, names = native.render_answers(taker.mid, messages, place, len(head))
                self._answer(taker, (piece,), count, size, names)
                if payload:
                    self._told.note_run(taker.owner, messages, place, count)
                place += count
            else:
                size = len(payload)
                line = SIZE_LINES[size] if size < SIZE_LINES_LEN else size_line(size)
                self._answer(taker, (MSG_, subject, taker.mid, line, payload, CRLF), 1, size, len(subject))
                if payload:
                    self._told.note_run(taker.owner, messages, place, 1)
                place += 1

    def told(self, reply: bytes, stream: bytes, age: int) -> int:
        return self._told.last(self._open(reply), stream, age)

    def _answer_elsewhere(
        self, interest: RemoteInterest, answers: Sequence[tuple[bytes, bytes]], place: int, head: int
    ) -> int:
        """Sends the answers from `place` on to clients of another node together, as far as their subjects have the same
        first `head` bytes and one token more; returns how many."""
        assert native.as_messages is not None
        run, size = native.as_messages(answers, place, ANSWERS_TOGETHER, head)
        interest.peer.send_run(self.account, run, size)
        return len(run)

    def publish_answers(self, answers: list[tuple[bytes, bytes, bytes]]) -> None:
        prefixes = self.index.prefixes
        place = 0
        while place < len(answers):
            subject, headers, payload = answers[place]
            head, _, last = subject.rpartition(b".")
            route = prefixes.get(head) if last else None
            taker = None if route is None else route.client
            if taker is None or native.render_answers is None:
                self.publish(subject, payload, b"", headers)
                place += 1
            else:
                rendered = native.render_answers(taker.mid, answers, place, len(head), taker.owner.headers)
                piece, count, size, names = rendered
                self._answer(taker, (piece,), count, size, names)
                place += count

    def _answer(self, taker: ClientSubscription, pieces: tuple[bytes, ...], count: int, size: int, names: int) -> None:
        """Does what `ClientSubscription.take` does for plain answers, in `pieces`, to a taker that is not special."""
        owner = taker.owner
        if not owner.out:
            owner.wake()
        owner.out += pieces
        owner.out_msgs += count
        owner.out_bytes += size
        owner.pending += size + names + 24 * count
        taker.delivered += count
        if owner.pending > owner.congestion_mark:
            owner.congested(self._internal)

    def publish_frames(self, subject: bytes, frames: Sequence[tuple[bytes, bytes]]) -> int:
        route = self.literals.get(subject) or self.lookup(subject)
        subscription = (route.open or route).client
        if subscription is not None:
            return subscription.take_frames(subject, frames, self._internal)
        return self.deliver_many(subject, [(subject, b"", headers, payload) for headers, payload in frames])

    def deliver_many(self, target: bytes, messages: Sequence[Outgoing]) -> int:
        if not messages:
            return 0
        route = self.literals.get(target) or self.lookup(target)
        route = route.open or route
        subscription = route.client
        if subscription is not None:
            return subscription.take_many(messages, self._internal)
        return bulk.deliver(route, self.account, target, messages, self._internal, self.rng, self.peers.backlog)

    def deliver(
        self, route: Route, subject: bytes, reply: bytes, headers: bytes, payload: bytes, origin: Origin
    ) -> int:
        """Delivers one message of this node to all takers of its route; returns their number."""
        if route.open is not None and origin is self._internal:
            route = route.open
        taken = 0
        for callback in route.callbacks:
            callback(subject, reply, headers, payload, origin)
            taken += 1
        for client in route.clients:
            if client.take(subject, reply, headers, payload, origin):
                taken += 1
        for interest in route.remote:
            if interest.closed:
                interest.hold(origin)
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
        """Chooses a member of a queue group: returns `_HERE` if a local one took the message, the peer to send it to,
        or None. The first choice is random over all members, local and remote ones alike; of SYSTEM_QUEUE the nearest
        member takes it."""
        local = group.local
        count = len(local)
        if group.name == SYSTEM_QUEUE:
            if take_one(local, self.rng, subject, reply, headers, payload, origin):
                return _HERE
            if group.remote:
                return group.nearest(self.rng.random)
        else:
            start = int(self.rng.random() * group.weight) if group.weight > 1 else 0
            if start >= count and group.remote:
                return group.remote_at(start - count)
            for step in range(count):
                if local[(start + step) % count].take(subject, reply, headers, payload, origin):
                    return _HERE
            if group.remote:
                return group.remote_at(int(self.rng.random() * (group.weight - count)))
        return group.leaves[int(self.rng.random() * len(group.leaves))][0] if group.leaves else None

    def backlog(self, subject: bytes) -> int:
        """Returns the bytes not sent yet to the slowest taker of `subject`, on this node or another; -1 if there is no
        taker. A publisher of many messages to one reply subject waits while this is large: a client would be closed as
        a slow consumer, and a congested link would drop messages in the middle of an answer."""
        if self.requesters is not None and subject.startswith(self.requesters.prefix):
            asker = self.requesters.find(subject)
            return -1 if asker is None else asker[0].backlog(asker[1])
        route = self._open(subject)
        if not route.takers:
            return -1
        waiting = [client.backlog for client in route.clients]
        waiting += [max(peer.pending, self.peers.backlog.of(peer, subject)) for peer in route.peers]
        waiting += [self._group_backlog(group, subject) for group in route.queues]
        return max(waiting, default=0)

    def _group_backlog(self, group: QueueRoute, subject: bytes) -> int:
        """Returns the smallest backlog of a member: `bulk` passes over slower ones."""
        waiting = [member.backlog for member in group.local]
        waiting += [max(peer.pending, self.peers.backlog.of(peer, subject)) for peer, _ in group.remote]
        waiting += [leaf.pending for leaf, _ in group.leaves]
        return min(waiting, default=0)

    def backlog_here(self, subject: bytes) -> int:
        """Returns the backlog of `subject` on this node alone."""
        if self.requesters is not None and subject.startswith(self.requesters.prefix):
            asker = self.requesters.find(subject)
            return 0 if asker is None else asker[0].backlog_here(asker[1])
        route = self._open(subject)
        waiting = [client.backlog for client in route.clients]
        waiting += [leaf.pending for leaf in route.leaves]
        waiting += [min([member.backlog for member in group.local], default=0) for group in route.queues]
        return max(waiting, default=0)

    def subscription_of(self, owner: Sink, subject: bytes) -> ClientSubscription | None:
        """Returns a connection's first plain subscription that takes `subject`."""
        for client in self._open(subject).clients:
            if client.owner is owner:
                return cast(ClientSubscription, client)
        return None

    # ---- other accounts

    def use_routes(self, kind: type[SharedRoute]) -> None:
        """Makes all routes `kind`: this account maps subjects, or others import its streams."""
        if not self._shared:
            self._shared = True
            self.gone.use(kind)

    def imports_service(self, subject: bytes) -> bool:
        """Returns True when a request to `subject` goes to another account."""
        return any(client.leads_away for client in self._open(subject).clients)

    def is_guarded(self, filter: bytes) -> bool:
        if filter[:1] in {b"$", b"*", b">"}:
            return True
        return any(subjects.collide(filter, passage.subject) for passage in self._away)

    def mapping_of(self, subject: bytes) -> MappedSubject | None:
        """Returns the mapping of clients' messages to `subject`."""
        if not self._shared:
            return None
        return cast("SharedRoute", self.literals.get(subject) or self.lookup(subject)).mapping

    def add_passage(self, passage: Passage, *, announced: bool, to_leaves: bool = False) -> None:
        """Adds a passage. `announced`: its interest is announced to other nodes; `to_leaves`: to leaf links only."""
        self.index.insert(passage)
        if passage.leads_away:
            self._away.append(passage)
        if announced:
            self.local.count(passage.subject, passage.queue, 1)
        elif to_leaves:
            self.local.offer(passage.subject, 1)

    def remove_passage(self, passage: Passage, *, announced: bool, to_leaves: bool = False) -> None:
        self.index.remove(passage)
        if passage.leads_away:
            self._away.remove(passage)
        if announced:
            self.local.count(passage.subject, passage.queue, -1)
        elif to_leaves:
            self.local.offer(passage.subject, -1)

    def enter(self, subject: bytes, reply: bytes, headers: bytes, payload: bytes, origin: Origin) -> int:
        """Routes a message that a service import brings from another account, as a client's of this one, but never
        exports it again as a stream. Returns the number of takers."""
        route = self.literals.get(subject) or self.lookup(subject)
        if route.reserved:
            return 0
        if self._shared:
            shared = cast("SharedRoute", route)
            if shared.mapping is not None:
                return shared.mapping.pass_on(subject, reply, headers, payload, origin, bare=True)
            route = shared.bare
        return self.deliver(route, subject, reply, headers, payload, origin)

    def enter_many(self, target: bytes, messages: Sequence[Outgoing], origin: Origin) -> int:
        """Does the same for responses that are routed by `target` and show their own subjects."""
        route = self.literals.get(target) or self.lookup(target)
        if self._shared:
            route = cast("SharedRoute", route).bare
        route = route.open or route
        return bulk.deliver(route, self.account, target, messages, origin, self.rng, self.peers.backlog)

    # ---- messages of the mesh

    def deliver_from_peer(
        self, peer: RemotePeer, subject: bytes, reply: bytes, queues: list[bytes], headers: bytes, payload: bytes
    ) -> None:
        """See `protocol.interest.Switchboard`; the account is this router's."""
        origin = self.peers.origins.get(peer) or self.peers.origin_of(peer)
        route = self.literals.get(subject) or self.lookup(subject)
        route = route.open or route
        came_from, queues = take_origin(queues)
        # A forwarded message is only for the queue groups it names; it is not forwarded twice.
        handed_on = bool(queues) and queues[0].startswith(FORWARDED)
        leaves: dict[LeafPeer, list[bytes]] = {}
        if not handed_on:
            self._told.note(route, payload)
            for callback in route.shared_callbacks:
                callback(subject, reply, headers, payload, origin)
            for client in route.clients:
                client.take(subject, reply, headers, payload, origin)
            leaves = {leaf: [] for leaf in route.leaves if not leaf.spoke and leaf.remote_cluster != came_from}
        for name in queues:
            group = route.group(name[len(FORWARDED) :] if handed_on else name)
            if group is None or take_one(group.shared, self.rng, subject, reply, headers, payload, origin):
                continue
            behind = [leaf for leaf, _ in group.leaves if not leaf.spoke and leaf.remote_cluster != came_from]
            if behind:
                leaves.setdefault(behind[int(self.rng.random() * len(behind))], []).append(group.name)
                continue
            if handed_on:
                continue
            other = group.nearest(self.rng.random, but=peer)
            if other is not None:
                other.send_msg(self.account, subject, reply, [FORWARDED + name], headers, payload)
        for leaf, names in leaves.items():
            leaf.send_msg(self.account, subject, reply, names, headers, payload)

    def deliver_many_from_peer(
        self, peer: RemotePeer, target: bytes, queues: list[bytes], messages: Sequence[Outgoing]
    ) -> None:
        """See `protocol.interest.Switchboard`; the account is this router's."""
        origin = self.peers.origins.get(peer) or self.peers.origin_of(peer)
        route = self.literals.get(target) or self.lookup(target)
        route = route.open or route
        bulk.deliver_from_peer(route, self.account, peer, target, queues, messages, origin, self.rng)

    def deliver_each_from_peer(
        self, peer: RemotePeer, messages: Sequence[Outgoing], failed: Callable[[], None]
    ) -> None:
        """See `protocol.interest.Switchboard`; the account is this router's. Messages in a row to one client, or to a
        callback that takes several, go there in one call. The route is looked up per call: a taker may change it."""
        origin = self.peers.origins.get(peer) or self.peers.origin_of(peer)
        subjects = [subject for subject, _, _, _ in messages]
        same = subjects.count(subjects[0]) == len(subjects)
        run: list[Outgoing] = []
        taker: ClientSubscription | None = None
        place = alike = 0
        together = True
        """False once a taker wanted its messages one by one: those that it gives back would be looked at again."""
        while place < len(messages):
            route = self.literals.get(subjects[place]) or self.lookup(subjects[place])
            if place >= alike:  # their subjects are alike up to there, whatever happens to their takers
                alike = len(messages) if same else place + self._alike(messages, place)
            count = alike - place if same or self._is_shared(subjects[place], route) else 1
            route = route.open or route
            client = route.client
            if client is not taker:
                if taker is not None:
                    self._take_run(taker, run, origin, failed)
                    run = []
                taker = client
            if client is not None:
                run += messages[place : place + count]
                place += count
                continue
            try:
                if count > 1 and together and route.bulk is not None and route.shared_callbacks:
                    bare = _bare_length(messages, place, count)
                    if bare:
                        taken = route.bulk(list(messages[place : place + bare]), origin)
                        together = taken > 1
                        place += max(taken, 1)
                        continue
                self._deliver_one(peer, route, messages[place], origin)
            except Exception:  # noqa: BLE001 - a failure loses one message, not those after it
                failed()
            place += 1
        if taker is not None:
            self._take_run(taker, run, origin, failed)

    def _take_run(
        self, taker: ClientSubscription, run: list[Outgoing], origin: Origin, failed: Callable[[], None]
    ) -> None:
        self._told.note_run(taker.owner, run, 0, len(run))
        try:
            taker.take_many(run, origin)
        except Exception:  # noqa: BLE001 - as above
            failed()

    @staticmethod
    def _alike(messages: Sequence[Outgoing], place: int) -> int:
        """Returns how many messages from this one on have subjects that may share a route (`_is_shared`)."""
        if native.run_length is None or not isinstance(messages, list):
            return 1
        subject = messages[place][0]
        tokens = ACK_TOKENS if subject.startswith(ACKS) else 1
        return native.run_length(messages, place, len(subject.rsplit(b".", tokens)[0]), tokens)

    def _is_shared(self, subject: bytes, route: Route) -> bool:
        """Returns True when all subjects that differ from this one in the last tokens have this route."""
        if subject.startswith(ACKS):
            return self.index.deep.get(subject.rsplit(b".", ACK_TOKENS)[0]) is route
        return self.index.prefixes.get(subject.rpartition(b".")[0]) is route

    def _deliver_one(self, peer: RemotePeer, route: Route, message: Outgoing, origin: Origin) -> None:
        subject, reply, headers, payload = message
        if len(route.shared_callbacks) == route.takers:
            self._told.note(route, payload)
            for callback in route.shared_callbacks:
                callback(subject, reply, headers, payload, origin)
        else:
            self.deliver_from_peer(peer, subject, reply, [], headers, payload)


def _bare_length(messages: Sequence[Outgoing], place: int, count: int) -> int:
    """Returns how many messages from this one on, at most `count`, have no headers before one that has."""
    if native.bare_length is not None and isinstance(messages, list):
        return native.bare_length(messages, place, count)
    return sum(1 for _ in takewhile(_is_bare, messages[place : place + count]))


def _is_bare(message: Outgoing) -> bool:
    return not message[2]
