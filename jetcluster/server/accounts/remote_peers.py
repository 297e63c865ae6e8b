"""`RemotePeers`: the other nodes, and the other ends of leaf links, for the router of one account: their interest,
their messages' origin (`ServerOrigin`) and their backlog (`RemoteBacklog`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Final

from jetcluster.budget import exhaust
from jetcluster.protocol import subjects
from jetcluster.protocol.bus import Origin
from jetcluster.protocol.interest import RemotePeer
from jetcluster.protocol.sublist import Sublist
from jetcluster.server.accounts.local_interest import LocalInterest, Subject
from jetcluster.server.accounts.route import Route
from jetcluster.server.accounts.subscription import AnySubscription, LeafInterest, LeafPeer, RemoteInterest

ASK_BYTES: Final = 256 * 1024
"""Bytes sent since the last answer after which a peer is asked, and the backlog up to which it is not asked again."""
MAX_FLOWS: Final = 4096
"""Tracked pairs of peer and subject; beyond it the least recently sent to is dropped."""
MAX_WANTED_SUBJECTS = 1 << 22
"""Largest interest of one peer, in subjects and queue groups."""
Wanted = tuple[RemotePeer | None, bytes, bytes | None, int]
"""Interest in an account: (peer or None for this node, subject, queue, number of members)."""
LeafInterestChanged = Callable[[RemoteInterest | None, RemoteInterest | None], None]
"""Called with (previous entry, new entry) of a leaf link's interest when they differ."""


class ServerOrigin(Origin):
    """The origin of messages that the server itself publishes, or that a peer sends."""

    __slots__ = ("account", "kind", "peer_id")

    def __init__(self, kind: str, account: str, peer_id: str = "") -> None:
        self.kind = kind
        self.account = account
        self.peer_id = peer_id


class _Flow:
    __slots__ = ("asked", "confirmed", "sent", "waiting")

    def __init__(self) -> None:
        self.sent = 0
        """Bytes in total."""
        self.confirmed = 0
        """`sent` at the last answered question."""
        self.waiting = 0
        """Bytes that waited at the peer according to that answer."""
        self.asked = False


class RemoteBacklog:
    """Bytes sent to one subject of an account that wait at other nodes for their clients.

    A publisher of many messages to one subject must not overrun a slow client, on any node (`Bus.backlog`). A link's
    own queue does not show that, so the other node is asked: the question travels in order with the messages, and the
    answer is the number of bytes not sent yet to the slowest taker there."""

    def __init__(self, account: str) -> None:
        self._account = account
        self._flows: OrderedDict[tuple[RemotePeer, bytes], _Flow] = OrderedDict()

    def sent(self, peer: RemotePeer, target: bytes, size: int) -> None:
        key = peer, target
        flow = self._flows.get(key)
        if flow is None:
            flow = self._flows[key] = _Flow()
            if len(self._flows) > MAX_FLOWS:
                self._flows.popitem(last=False)
        else:
            self._flows.move_to_end(key)
        flow.sent += size
        if flow.sent - flow.confirmed >= ASK_BYTES:
            self._ask(peer, target, flow)

    def of(self, peer: RemotePeer, target: bytes) -> int:
        """Returns the bytes in flight to, and waiting at, the peer for `target`. While many wait, it asks again."""
        flow = self._flows.get((peer, target))
        if flow is None:
            return 0
        if flow.waiting > ASK_BYTES:
            self._ask(peer, target, flow)
        return flow.waiting + flow.sent - flow.confirmed

    def answered(self, peer: RemotePeer, target: bytes, mark: int, waiting: int) -> None:
        """Takes the peer's answer; `mark` is `sent` at the question."""
        flow = self._flows.get((peer, target))
        if flow is None or not flow.asked or mark > flow.sent:
            return
        flow.asked = False
        flow.confirmed, flow.waiting = mark, waiting
        if flow.sent - mark >= ASK_BYTES:
            self._ask(peer, target, flow)
        elif flow.sent == mark and waiting <= ASK_BYTES:
            del self._flows[peer, target]

    def drop_peer(self, peer: RemotePeer) -> None:
        for key in [key for key in self._flows if key[0] is peer]:
            del self._flows[key]

    def _ask(self, peer: RemotePeer, target: bytes, flow: _Flow) -> None:
        if not flow.asked:
            flow.asked = True
            peer.ask_backlog(self._account, target, flow.sent)


class RemotePeers:
    """The peers of one account. Their interest is in its index as `RemoteInterest`."""

    def __init__(
        self,
        account: str,
        index: Sublist[AnySubscription, Route],
        local: LocalInterest,
        leaf_interest_changed: LeafInterestChanged,
    ) -> None:
        self._account = account
        self._index = index
        self._local = local
        self._leaf_interest_changed = leaf_interest_changed
        self._wants: dict[RemotePeer, dict[Subject, RemoteInterest]] = {}
        self.backlog = RemoteBacklog(account)
        self.origins: dict[RemotePeer, ServerOrigin] = {}

    def origin_of(self, peer: RemotePeer) -> ServerOrigin:
        """Returns the origin of a peer's messages, always the same object."""
        origin = self.origins.get(peer)
        if origin is None:
            origin = self.origins[peer] = ServerOrigin("peer", self._account, peer.peer_id)
        return origin

    def wanted_by(self, peer: RemotePeer) -> int:
        """Returns the number of a peer's interests."""
        return len(self._wants.get(peer, ()))

    # ---- other nodes

    def set_interest(self, peer: RemotePeer, subject: bytes, queue: bytes | None, count: int) -> None:
        """See `protocol.interest.Switchboard.set_remote_interest`. An invalid subject is ignored."""
        change = self._want(peer, subject, queue, count, RemoteInterest)
        if change:
            self._local.count_elsewhere(peer, subject, queue, change)

    def _want(
        self, peer: RemotePeer, subject: bytes, queue: bytes | None, count: int, kind: type[RemoteInterest]
    ) -> int:
        """Sets the number of a peer's members; returns its change."""
        wants = self._wants.setdefault(peer, {})
        known = wants.get((subject, queue))
        if known is not None:
            before = known.count
            if count > 0:
                if before != count:
                    known.count = count
                    self._index.forget(subject)
            else:
                del wants[subject, queue]
                self._index.remove(known)
                known.set_valve(closed=False)
                self._local.note(subject, ended=True)
            return max(count, 0) - before
        accepted = count > 0 and len(wants) < MAX_WANTED_SUBJECTS
        if not accepted or not subjects.is_valid(subject):
            return 0
        interest = kind(peer, subject, queue, count)
        wants[subject, queue] = interest
        self._index.insert(interest)
        self._local.note(subject, ended=False)
        return count

    def drop_peer(self, peer: RemotePeer) -> None:
        """Forgets a node whose link is gone."""
        exhaust(self.dropping_peer(peer))

    def dropping_peer(self, peer: RemotePeer) -> Iterator[None]:
        """Returns the steps of `drop_peer`, one per interest."""
        self.origins.pop(peer, None)
        self.backlog.drop_peer(peer)
        wants = self._wants.get(peer, {})
        while wants:
            (subject, queue), interest = wants.popitem()
            self._index.remove(interest)
            interest.set_valve(closed=False)
            self._local.note(subject, ended=True)
            self._local.count_elsewhere(peer, subject, queue, -interest.count)
            yield
        self._wants.pop(peer, None)

    def valve_told(self, peer: RemotePeer, subject: bytes, closed: bool) -> None:
        """See `protocol.interest.Switchboard`."""
        interest = self._wants.get(peer, {}).get((subject, None))
        if interest is not None:
            interest.set_valve(closed)

    # ---- leaf links

    def set_leaf_interest(self, link: LeafPeer, subject: bytes, queue: bytes | None, count: int) -> int:
        """Sets the number of members at the other end of a link; 0 removes the entry. An invalid subject is ignored.
        Returns 1 for a new entry, -1 for a removed one, else 0."""
        wants = self._wants.get(link)
        before = len(wants) if wants else 0
        known = wants.get((subject, queue)) if wants else None
        change = self._want(link, subject, queue, count if queue is not None else min(count, 1), LeafInterest)
        if change and not link.spoke:
            self._local.count(subject, queue, change, link)
        elif change:
            self._local.count_elsewhere(link, subject, queue, change)
        now = self._wants[link].get((subject, queue)) if link in self._wants else None
        if known is not now:
            self._leaf_interest_changed(known, now)
        return len(self._wants[link]) - before

    def add_leaf(self, link: LeafPeer) -> list[Wanted]:
        """Adds a link and returns the current interest; later changes go to `LeafPeer.interest_changed`."""
        here = self._local.counts()
        found: list[Wanted] = []
        for peer, wants in self._wants.items():
            for key, interest in wants.items():
                found.append((peer, *key, interest.count))
                if isinstance(interest, LeafInterest) and not interest.peer.spoke:
                    here[key] -= interest.count
        found += [(None, *key, count) for key, count in here.items() if count]
        found += [(None, subject, None, count) for subject, count in self._local.offered().items()]
        self._local.leaf_links.append(link)
        return found

    def drop_leaf(self, link: LeafPeer) -> None:
        """Forgets a link that is gone."""
        exhaust(self.dropping_leaf(link))

    def dropping_leaf(self, link: LeafPeer) -> Iterator[None]:
        """Returns the steps of `drop_leaf`, one per interest. Until the last one the link stays in `leaf_links`, so
        that the same interest is withdrawn from other links that was announced to them."""
        self.backlog.drop_peer(link)
        if link in self._local.leaf_links:
            for subject, queue in list(self._wants.get(link, ())):
                self.set_leaf_interest(link, subject, queue, 0)
                yield
            self._local.leaf_links.remove(link)
        self._wants.pop(link, None)
