"""The kinds of takers a subject can have on a node: a client's subscription, an internal callback, a peer, a leaf
link, and what hands a message on to another subject or account (`imports`).

A leaf link has a hub's end and a spoke's end. The hub's end is like a client of this node: what the spoke wants is
told to the mesh, and what it sends goes to the mesh. The spoke's end is this node's own affair: each node of a
cluster that is a leaf has its own link, so nothing that concerns it crosses the mesh.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from jetcluster.protocol.bus import Callback, Origin, Outgoing, Valve
from jetcluster.protocol.interest import FORWARDED, RemotePeer
from jetcluster.protocol.writer import CRLF, HMSG_, MSG_, SIZE_LINES, SIZE_LINES_LEN, size_line

ORIGIN = b"\x01"
"""First entry of `queues` of a message that a leaf link brought into this cluster: this byte and the name of the
cluster at the other end, which has the message already. Clients and leaves cannot make such a queue name: see
`is_marked`."""
SMALL_FRAME_BYTES = 1024
"""Bytes: a frame up to there is rendered in one piece, as joining many costs more than copying twice."""


class LeafPeer(Origin):
    """One leaf link of one account: a `RemotePeer` and the origin of its messages. `leaf.link.LeafLink` is it."""

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


class Sink(Origin):
    """A client connection as deliveries see it: `client.connection.ClientConnection`."""

    cid: int
    name: str
    """The name it gave itself; "" when it gave none."""
    out: list[bytes]
    """Pieces to write, joined once per loop turn."""
    pending: int
    """Bytes in `out`, plus what the transport still holds as of the last flush."""
    congestion_mark: int
    """`pending` beyond this calls `congested`."""
    echo: bool
    headers: bool
    out_msgs: int
    out_bytes: int

    def wake(self) -> None:
        """Asks for a flush at the end of the loop turn; to be called before the first append to an empty `out`."""
        raise NotImplementedError

    def congested(self, origin: Origin) -> None:
        """Stalls the publisher, or closes this connection when it is beyond max_pending."""
        raise NotImplementedError

    def admits(self, subject: bytes, reply: bytes, queue: bytes | None) -> bool:
        """The user's permissions at delivery: denied subjects are filtered, a reply subject is opened."""
        raise NotImplementedError

    def expire(self, subscription: ClientSubscription) -> None:
        """Removes a subscription that has had its last message."""
        raise NotImplementedError


class ClientSubscription:
    """One SUB of a client connection."""

    __slots__ = ("closed", "delivered", "max", "mid", "owner", "queue", "sid", "special", "subject")

    leads_away = False
    """See `Passage.leads_away`."""

    def __init__(self, owner: Sink, subject: bytes, queue: bytes | None, sid: bytes, special: bool = False) -> None:
        self.owner = owner
        self.subject = subject
        self.queue = queue
        self.sid = sid
        self.mid = b" %b " % sid
        """The part of a frame between the subject and the reply or size."""
        self.delivered = 0
        self.max = 0
        """Total deliveries after which it goes (UNSUB sid max); 0 is no limit."""
        self.special = special
        """True when a delivery needs more than an append: a maximum, or permissions to look at."""
        self.closed = False

    def take(self, subject: bytes, reply: bytes, headers: bytes, payload: bytes, origin: Origin) -> bool:
        """Queues one message; False when this subscription cannot have it (closed, own message without echo)."""
        owner = self.owner
        if self.closed or (origin is owner and not owner.echo):
            return False
        if self.special and not owner.admits(subject, reply, self.queue):
            return False
        out = owner.out
        if not out:
            owner.wake()
        size = len(payload)
        if headers and owner.headers:
            length = len(headers)
            size += length
            if reply or size > SMALL_FRAME_BYTES:
                lead = b"%b %d " % (reply, length) if reply else b"%d " % length
                out += (HMSG_, subject, self.mid, lead, size_line(size), headers, payload, CRLF)
            else:
                out.append(b"HMSG %b%b%d %d\r\n%b%b\r\n" % (subject, self.mid, length, size, headers, payload))
        elif reply:
            line = SIZE_LINES[size] if size < SIZE_LINES_LEN else size_line(size)
            out += (MSG_, subject, self.mid, reply, b" ", line, payload, CRLF)
        else:
            line = SIZE_LINES[size] if size < SIZE_LINES_LEN else size_line(size)
            out += (MSG_, subject, self.mid, line, payload, CRLF)
        owner.out_msgs += 1
        owner.out_bytes += size
        owner.pending += size + len(subject) + len(reply) + 24
        self.delivered += 1
        if self.special and self.max and self.delivered >= self.max:
            owner.expire(self)
        if owner.pending > owner.congestion_mark:
            owner.congested(origin)
        return True

    def take_frames(self, subject: bytes, frames: Sequence[tuple[bytes, bytes]], origin: Origin) -> int:
        """As `take` for each (headers, payload), for a subscription that is not special; 1, or 0 when it is closed. The
        pieces are few and large, as they are many."""
        owner = self.owner
        if self.closed:
            return 0
        if not owner.out:
            owner.wake()
        plain = b"MSG %b%b" % (subject, self.mid)
        with_headers = b"H" + plain
        show = owner.headers
        size = 0
        pieces = []
        for headers, payload in frames:
            if headers and show:
                length = len(headers)
                total = length + len(payload)
                pieces.append(b"%b%d %d\r\n%b%b\r\n" % (with_headers, length, total, headers, payload))
            else:
                total = len(payload)
                pieces.append(b"%b%d\r\n%b\r\n" % (plain, total, payload))
            size += total
        owner.out += pieces
        count = len(pieces)
        owner.out_msgs += count
        owner.out_bytes += size
        owner.pending += size + count * (len(plain) + 24)
        self.delivered += count
        if owner.pending > owner.congestion_mark:
            owner.congested(origin)
        return 1

    def take_many(self, messages: Sequence[Outgoing], origin: Origin, target: bytes = b"") -> int:
        """As `take` for each message; 1 when it took the last one, else 0. `target`: see `Passage.take_many`."""
        if self.special:
            taken = False
            for subject, reply, headers, payload in messages:
                taken = self.take(subject, reply, headers, payload, origin)
            return taken
        owner = self.owner
        if self.closed:
            return 0
        out = owner.out
        if not out:
            owner.wake()
        mid = self.mid
        show = owner.headers
        size = overhead = 0
        for subject, reply, headers, payload in messages:
            length = len(payload)
            overhead += len(subject) + len(reply)
            if headers and show:
                block = len(headers)
                lead = b"%b %d " % (reply, block) if reply else b"%d " % block
                length += block
                out += (HMSG_, subject, mid, lead, size_line(length), headers, payload, CRLF)
            else:
                line = SIZE_LINES[length] if length < SIZE_LINES_LEN else size_line(length)
                if reply:
                    out += (MSG_, subject, mid, reply, b" ", line, payload, CRLF)
                else:
                    out += (MSG_, subject, mid, line, payload, CRLF)
            size += length
        count = len(messages)
        owner.out_msgs += count
        owner.out_bytes += size
        owner.pending += size + overhead + count * 24
        self.delivered += count
        if owner.pending > owner.congestion_mark:
            owner.congested(origin)
        return 1

    @property
    def backlog(self) -> int:
        """Bytes that its connection has not been sent yet."""
        return self.owner.pending


class InternalSubscription:
    """A callback of the server itself."""

    __slots__ = ("callback", "closed", "exclusive", "local_only", "queue", "subject")

    backlog = 0

    def __init__(
        self, subject: bytes, queue: bytes | None, callback: Callback, local_only: bool, exclusive: bool = False
    ) -> None:
        self.subject = subject
        self.queue = queue
        self.callback = callback
        self.local_only = local_only
        self.exclusive = exclusive
        """See `Bus.subscribe`."""
        self.closed = False

    def take(self, subject: bytes, reply: bytes, headers: bytes, payload: bytes, origin: Origin) -> bool:
        if self.closed:
            return False
        self.callback(subject, reply, headers, payload, origin)
        return True


class Passage:
    """A taker that hands messages on: to another account, or under another subject. Of what it is given it says itself
    whether somebody had it, so that who asks where nobody answers is told."""

    __slots__ = ("queue", "subject")

    special = True
    """Deliveries go through `take`."""
    leads_away = False
    """Its messages are requests to another account."""
    owner: Sink | None = None
    closed = False
    delivered = 0

    def __init__(self, subject: bytes, queue: bytes | None = None) -> None:
        self.subject = subject
        self.queue = queue

    def take(self, subject: bytes, reply: bytes, headers: bytes, payload: bytes, origin: Origin) -> bool:
        raise NotImplementedError

    def take_many(self, messages: Sequence[Outgoing], origin: Origin, target: bytes) -> int:
        """Messages that are routed by `target` and show their own subjects; 1 when it took the last one, else 0."""
        raise NotImplementedError

    @property
    def backlog(self) -> int:
        return 0


class RemoteInterest:
    """A peer's interest in one (subject, queue): `count` members, 1 for plain interest."""

    __slots__ = ("count", "peer", "queue", "subject", "valve")

    def __init__(self, peer: RemotePeer, subject: bytes, queue: bytes | None, count: int) -> None:
        self.peer = peer
        self.subject = subject
        self.queue = queue
        self.count = count
        self.valve: Valve | None = None
        """The valve of the taker there, once it had enough to do (`Switchboard.valve_told`)."""

    def hold(self, origin: Origin) -> None:
        """Has the publisher wait if the taker there, or the link, has enough to do."""
        if self.valve is not None and self.valve.closed:
            origin.wait_at(self.valve)
        elif self.peer.valve.closed:
            origin.wait_at(self.peer.valve)

    def told(self, closed: bool) -> None:
        if closed:
            if self.valve is None:
                self.valve = Valve()
            self.valve.close()
        elif self.valve is not None:
            self.valve.open()


class LeafInterest(RemoteInterest):
    """Interest of the other end of a leaf link."""

    __slots__ = ()

    peer: LeafPeer


ClientTaker = ClientSubscription | Passage
LocalSubscription = ClientSubscription | InternalSubscription | Passage
AnySubscription = ClientSubscription | InternalSubscription | Passage | RemoteInterest
