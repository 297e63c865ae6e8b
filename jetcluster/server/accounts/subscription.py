"""The kinds of takers of a subject: a client's subscription, an internal callback, a peer, a leaf link, and a passage
to another subject or account (`imports`).

A leaf link has a hub end and a spoke end. The hub end behaves like a client of this node: the spoke's interest and its
messages go to the mesh. The spoke end is local to this node: each node of a leaf cluster has its own link, so nothing
of it crosses the mesh.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from jetcluster import native
from jetcluster.protocol.bus import BulkCallback, Callback, Origin, Outgoing, Valve
from jetcluster.protocol.interest import FORWARDED, NEAR, RemotePeer
from jetcluster.protocol.writer import CRLF, HMSG_, MSG_, SIZE_LINES, SIZE_LINES_LEN, size_line
from jetcluster.server.accounts.told import Told

ORIGIN = b"\x01"
"""First byte of the first entry of `queues` when a message came from a leaf link; the name of the cluster at its other
end follows, which must not get the message again. Clients and leaf nodes cannot send such entries: see `is_marked`."""
SMALL_FRAME_BYTES = 1024
"""Frames up to this size are rendered in one piece: copying twice costs less than joining several pieces."""


class LeafPeer(Origin):
    """One leaf link of one account: a `RemotePeer` and the origin of its messages. Implemented by `LeafLink`."""

    peer_id: str
    valve: Valve
    pending: int
    """All three as in `RemotePeer`."""

    spoke: bool
    """True at the spoke end: the other end is the hub."""

    remote_cluster: bytes
    """Name of the cluster at the other end, or of its only node."""

    route_id: int | None = None
    distance = NEAR

    @property
    def server_name(self) -> str:
        return self.peer_id

    @property
    def joined(self) -> bool:
        """False once the link is gone, although its interest may still be in the index (`accounts.Removals`)."""
        raise NotImplementedError

    def send_msg(
        self, account: str, subject: bytes, reply: bytes, queues: list[bytes], headers: bytes, payload: bytes
    ) -> None:
        raise NotImplementedError

    def send_run(self, account: str, messages: list[Outgoing], size: int) -> None:
        for subject, reply, headers, payload in messages:
            self.send_msg(account, subject, reply, [], headers, payload)

    def send_many(self, account: str, target: bytes, queues: list[bytes], messages: Sequence[Outgoing]) -> None:
        raise NotImplementedError

    def ask_backlog(self, account: str, target: bytes, mark: int) -> None:
        raise NotImplementedError

    def interest_changed(self, source: RemotePeer | None, subject: bytes, queue: bytes | None, change: int) -> None:
        """Called when `change` members of (subject, queue) were added (negative: removed). `source`: the node or the
        other link that has them, None for this node and its clients. Must not block."""
        raise NotImplementedError


def passes(source: RemotePeer | None, link: LeafPeer, leaves: Sequence[LeafPeer]) -> bool:
    """Returns True when `link` announces the interest of `source`, and so its messages may go to `source`."""
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
    """Returns True for marks that nodes send each other as queue names; clients and leaf nodes must not use them."""
    return queue.startswith((ORIGIN, FORWARDED))


def take_origin(queues: list[bytes]) -> tuple[bytes, list[bytes]]:
    """Splits a peer's `queues` into (cluster of origin or b"", queue names)."""
    if queues and queues[0].startswith(ORIGIN):
        return queues[0][1:], queues[1:]
    return b"", queues


class Sink(Origin):
    """A client connection as deliveries see it. Implemented by `ClientConnection`."""

    cid: int
    name: str
    """The name in its CONNECT, or ""."""
    out: list[bytes]
    """Pieces to write, joined once per loop turn."""
    pending: int
    """Bytes in `out`, and bytes that the transport held at the last flush."""
    congestion_mark: int
    """`congested` is called when `pending` exceeds this."""
    echo: bool
    headers: bool
    out_msgs: int
    out_bytes: int
    told: Told | None = None
    """None before its first PubAck."""

    def wake(self) -> None:
        """Requests a flush at the end of the loop turn; must be called before an append to an empty `out`."""
        raise NotImplementedError

    def congested(self, origin: Origin) -> None:
        """Stalls the publisher, or closes this connection beyond max_pending."""
        raise NotImplementedError

    def admits(self, subject: bytes, reply: bytes, queue: bytes | None) -> bool:
        """Checks the user's permissions for a delivery, and opens its reply subject if it is permitted."""
        raise NotImplementedError

    def expire(self, subscription: ClientSubscription) -> None:
        """Removes a subscription after its last message."""
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
        """Total deliveries after which it is removed (UNSUB sid max); 0 for no limit."""
        self.special = special
        """True when a delivery needs more than an append: `max` or permissions."""
        self.closed = False

    def take(self, subject: bytes, reply: bytes, headers: bytes, payload: bytes, origin: Origin) -> bool:
        """Queues one message; False if the subscription is closed, echo is off, or permissions deny it."""
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
        owner.pending += size + len(subject) + len(reply) + 24  # 24: an estimate of the rest of the frame
        self.delivered += 1
        if self.special and self.max and self.delivered >= self.max:
            owner.expire(self)
        if owner.pending > owner.congestion_mark:
            owner.congested(origin)
        return True

    def take_frames(self, subject: bytes, frames: Sequence[tuple[bytes, bytes]], origin: Origin) -> int:
        """Queues each (headers, payload), for a subscription that is not special; returns 1, or 0 when it is
        closed."""
        owner = self.owner
        if self.closed:
            return 0
        if not owner.out:
            owner.wake()
        lead = b"MSG %b%b" % (subject, self.mid)
        pieces, size = frames_rendered(lead, frames, owner.headers)
        owner.out += pieces
        count = len(frames)
        owner.out_msgs += count
        owner.out_bytes += size
        owner.pending += size + count * (len(lead) + 24)
        self.delivered += count
        if owner.pending > owner.congestion_mark:
            owner.congested(origin)
        return 1

    def take_many(self, messages: Sequence[Outgoing], origin: Origin, target: bytes = b"") -> int:
        """Queues each message; returns 1 if it took the last one, else 0. `target`: see `Passage.take_many`."""
        if self.special:
            taken = False
            for subject, reply, headers, payload in messages:
                taken = self.take(subject, reply, headers, payload, origin)
            return taken
        owner = self.owner
        if self.closed:
            return 0
        if not owner.out:
            owner.wake()
        pieces, size, overhead = rendered(self.mid, messages, owner.headers)
        owner.out += pieces
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
        """Bytes not sent to its connection yet."""
        return self.owner.pending


def rendered(mid: bytes, messages: Sequence[Outgoing], shows_headers: bool) -> tuple[Sequence[bytes], int, int]:
    """Returns (pieces of frames for one subscription, bytes of headers and payloads, bytes of subjects and replies)."""
    if native.render is not None and isinstance(messages, list):
        piece, size, names = native.render(mid, messages, shows_headers)
        return (piece,), size, names
    out: list[bytes] = []
    size = names = 0
    for subject, reply, headers, payload in messages:
        length = len(payload)
        names += len(subject) + len(reply)
        if headers and shows_headers:
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
    return out, size, names


def frames_rendered(
    lead: bytes, frames: Sequence[tuple[bytes, bytes]], shows_headers: bool
) -> tuple[Sequence[bytes], int]:
    """Returns (pieces of the frames of one reply, bytes of headers and payloads); `lead` precedes the sizes in each."""
    if native.render_frames is not None and isinstance(frames, list):
        piece, size = native.render_frames(lead, frames, shows_headers)
        return (piece,), size
    pieces: list[bytes] = []
    size = 0
    for headers, payload in frames:
        total = len(payload)
        if headers and shows_headers:
            total += len(headers)
            pieces.append(b"H%b%d %d\r\n%b%b\r\n" % (lead, len(headers), total, headers, payload))
        else:
            pieces.append(b"%b%d\r\n%b\r\n" % (lead, total, payload))
        size += total
    return pieces, size


class InternalSubscription:
    """A callback of the server itself."""

    __slots__ = ("bulk", "callback", "closed", "exclusive", "local_only", "queue", "subject")

    backlog = 0

    def __init__(
        self,
        subject: bytes,
        queue: bytes | None,
        callback: Callback,
        local_only: bool,
        exclusive: bool = False,
        bulk: BulkCallback | None = None,
    ) -> None:
        self.subject = subject
        self.queue = queue
        self.callback = callback
        self.bulk = bulk
        """See `Bus.subscribe`."""
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
    """A taker that passes messages on, to another account or under another subject. It returns whether anything took
    them, so that a requester without responders gets its 503."""

    __slots__ = ("queue", "subject")

    special = True
    """Deliveries go through `take`."""
    leads_away = False
    """True for a service import, whose messages are requests to another account."""
    owner: Sink | None = None
    closed = False
    delivered = 0

    def __init__(self, subject: bytes, queue: bytes | None = None) -> None:
        self.subject = subject
        self.queue = queue

    def take(self, subject: bytes, reply: bytes, headers: bytes, payload: bytes, origin: Origin) -> bool:
        raise NotImplementedError

    def take_many(self, messages: Sequence[Outgoing], origin: Origin, target: bytes) -> int:
        """Takes messages that are routed by `target` and show their own subjects; 1 if it took the last one, else 0."""
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
        """The valve of the taker at the peer, once it has closed (`Switchboard.valve_told`)."""

    @property
    def closed(self) -> bool:
        """True while publishers wait at it: `hold` has an effect."""
        return (self.valve is not None and self.valve.closed) or self.peer.valve.closed

    def hold(self, origin: Origin) -> None:
        """Makes the publisher wait if the valve of the taker at the peer, or of the link, is closed."""
        if self.valve is not None and self.valve.closed:
            origin.wait_at(self.valve)
        elif self.peer.valve.closed:
            origin.wait_at(self.peer.valve)

    def set_valve(self, closed: bool) -> None:
        if closed:
            if self.valve is None:
                self.valve = Valve()
            self.valve.close()
        elif self.valve is not None:
            self.valve.open()


class LeafInterest(RemoteInterest):
    """The interest of the other end of a leaf link."""

    __slots__ = ()

    peer: LeafPeer


ClientTaker = ClientSubscription | Passage
LocalSubscription = ClientSubscription | InternalSubscription | Passage
AnySubscription = ClientSubscription | InternalSubscription | Passage | RemoteInterest
