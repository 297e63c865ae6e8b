"""`RemotePeers`: the other nodes, and the other ends of leaf links, as the router of one account sees them: what each
wants, who it is as the origin of messages (`ServerOrigin`), and what waits there (`RemoteBacklog`).
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
"""Bytes sent without an answer after which the peer is asked; and what a client may have waiting without being asked
about again."""
MAX_FLOWS: Final = 4096
"""Subjects and peers that are kept track of; the one sent to least recently is forgotten."""
MAX_WANTED = 1 << 22
"""Subjects of one peer."""
Wanted = tuple[RemotePeer | None, bytes, bytes | None, int]
"""Interest of an account: who has it (None: this node), the subject, the queue, and how many members."""
LeafInterestChanged = Callable[[RemoteInterest | None, RemoteInterest | None], None]
"""(the entry before, the entry now) of what a leaf link wants, where they are not the same one."""


class ServerOrigin(Origin):
    """Messages that the server itself publishes, or that a peer handed over."""

    __slots__ = ("account", "kind", "peer_id")

    def __init__(self, kind: str, account: str, peer_id: str = "") -> None:
        self.kind = kind
        self.account = account
        self.peer_id = peer_id


class _Flow:
    __slots__ = ("asked", "confirmed", "sent", "waiting")

    def __init__(self) -> None:
        self.sent = 0
        """Bytes, ever."""
        self.confirmed = 0
        """As far as the last answer goes."""
        self.waiting = 0
        """The bytes that it said are waiting."""
        self.asked = False


class RemoteBacklog:
    """Bytes that wait at other nodes, for clients there, of what this node sends to one subject of an account.

    A sender of much to one subject must not bury a slow client, on any node (`Bus.backlog`). What is queued on a link
    says nothing of a client behind it, so the other node is asked: the question travels in order with the messages, and
    the answer is how much the slowest taker there has not been sent yet."""

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
        """Bytes on their way to the peer's takers of `target`, or waiting there. Who looks again while it is much
        makes the peer be asked again."""
        flow = self._flows.get((peer, target))
        if flow is None:
            return 0
        if flow.waiting > ASK_BYTES:
            self._ask(peer, target, flow)
        return flow.waiting + flow.sent - flow.confirmed

    def told(self, peer: RemotePeer, target: bytes, mark: int, waiting: int) -> None:
        """The peer's answer: `mark` is what had been sent when it was asked."""
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
    """Those of one account. Their interest stands in its index as `RemoteInterest`."""

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
        """The origin of a peer's messages: always the same one."""
        origin = self.origins.get(peer)
        if origin is None:
            origin = self.origins[peer] = ServerOrigin("peer", self._account, peer.peer_id)
        return origin

    def wanted_by(self, peer: RemotePeer) -> int:
        """Counts the subscriptions that a peer has told."""
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
        """Returns by how much the number of members has changed."""
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
                known.told(closed=False)
                self._local.note(subject, ended=True)
            return max(count, 0) - before
        told = count > 0 and len(wants) < MAX_WANTED
        if not told or not subjects.is_valid(subject):
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
        """`drop_peer`, a subject at a time."""
        self.origins.pop(peer, None)
        self.backlog.drop_peer(peer)
        wants = self._wants.get(peer, {})
        while wants:
            (subject, queue), interest = wants.popitem()
            self._index.remove(interest)
            interest.told(closed=False)
            self._local.note(subject, ended=True)
            self._local.count_elsewhere(peer, subject, queue, -interest.count)
            yield
        self._wants.pop(peer, None)

    def valve_told(self, peer: RemotePeer, subject: bytes, closed: bool) -> None:
        """See `protocol.interest.Switchboard`."""
        interest = self._wants.get(peer, {}).get((subject, None))
        if interest is not None:
            interest.told(closed)

    # ---- leaf links

    def set_leaf_interest(self, link: LeafPeer, subject: bytes, queue: bytes | None, count: int) -> int:
        """Replaces what the other end of a link wants; count 0 removes it. An invalid subject is ignored. Returns 1
        when that is a new entry, -1 when one is gone."""
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
        """Takes a link in; returns what is wanted now, as `LeafPeer.interest_changed` hears of what comes later."""
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
        """`drop_leaf`, a subject at a time. To other links it is one of those here until the end, as what they have
        been told of it goes by that."""
        self.backlog.drop_peer(link)
        if link in self._local.leaf_links:
            for subject, queue in list(self._wants.get(link, ())):
                self.set_leaf_interest(link, subject, queue, 0)
                yield
            self._local.leaf_links.remove(link)
        self._wants.pop(link, None)
