"""`PeerLink`: a link to one peer as the mesh, requests and the router see it, whatever the transport."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

from jetcluster import native
from jetcluster.mesh.api import NodeInfo
from jetcluster.mesh.frames import (
    MAX_DELIVER_BYTES,
    MSGS_HEAD_BYTES,
    MSGS_LENGTH_BYTES,
    Kind,
    encode_backlog,
    encode_deliver,
    encode_msg,
    encode_msgs,
)
from jetcluster.protocol.bus import Outgoing, Valve
from jetcluster.protocol.connection_states import CLOSED, JOINED, NEW, ConnectionEvent, after
from jetcluster.protocol.interest import AWAY, ELSEWHERE, NEAR
from jetcluster.records import dataclass

MAX_ACCOUNTS = 16_384

MAX_GATHERED_BYTES = 16 * 1024
"""Most bytes of a message that is sent together with others; larger ones gain nothing by it."""
EXPECT_BYTES = 16 * 1024
"""Bytes of gathered messages after which they count as queued."""


@dataclass(slots=True)
class Traffic:
    """Messages and bytes (of headers and payloads) of one account."""

    in_msgs: int = 0
    in_bytes: int = 0
    out_msgs: int = 0
    out_bytes: int = 0


class RouteTraffic:
    """Traffic of all links of a node since its start, by account; /accstatz shows it apart from that of clients. Names
    come from peers: beyond `MAX_ACCOUNTS` new ones are not counted."""

    def __init__(self) -> None:
        self.by_account: dict[str, Traffic] = {}

    def __getitem__(self, account: str) -> Traffic:
        found = self.by_account.get(account)
        if found is None:
            found = Traffic()
            if len(self.by_account) < MAX_ACCOUNTS:
                self.by_account[account] = found
        return found

    def sent(self, account: str, size: int) -> None:
        """Counts one message."""
        traffic = self[account]
        traffic.out_msgs += 1
        traffic.out_bytes += size

    def sent_many(self, account: str, messages: Sequence[Outgoing]) -> None:
        traffic = self[account]
        traffic.out_msgs += len(messages)
        traffic.out_bytes += size_of(messages)

    def received(self, account: str, messages: int, size: int) -> None:
        traffic = self[account]
        traffic.in_msgs += messages
        traffic.in_bytes += size


def size_of(messages: Sequence[Outgoing]) -> int:
    if native.payload_bytes is not None and isinstance(messages, list):
        return native.payload_bytes(messages)
    return sum(len(headers) + len(payload) for _, _, headers, payload in messages)


@dataclass(slots=True)
class MeshCounters:
    """Counters since the start of the process."""

    malformed: int = 0
    """Connections closed because of malformed bytes, before or after authentication."""
    refused: int = 0
    """Connections refused by this node: wrong secret, cluster name, version, name taken."""
    duplicates: int = 0
    stale: int = 0
    slow: int = 0
    """Links closed because too much was pending for a peer."""
    dropped_msgs: int = 0
    """Messages not forwarded because their link was congested or they do not fit a frame."""
    strangers: int = 0
    """Requests and notices refused because their sender is no member."""
    oversize: int = 0
    """Raft frames that do not fit `max_frame`: a bug, or nodes with different limits."""
    callback_errors: int = 0
    links_up: int = 0
    links_down: int = 0


@dataclass(slots=True)
class LinkStats:
    """Figures of one link, for /routez. Times are the mesh clock's monotonic seconds."""

    rid: int = 0
    did_solicit: bool = False
    configured: bool = False
    ip: str = ""
    port: int = 0
    started: float = 0.0
    started_ns: int = 0
    """`started` by the wall clock, in Unix nanoseconds."""
    last_activity: float = 0.0
    rtt: float = 0.0
    """Seconds; 0.0 until the first PONG."""
    in_msgs: int = 0
    out_msgs: int = 0
    in_bytes: int = 0
    out_bytes: int = 0


class PeerLink:
    """An authenticated link to one peer; the router's `RemotePeer`. Subclasses move the bytes. `max_frame` is the most
    that the peer takes; `counters` and `traffic` are those of the node."""

    def __init__(self, max_frame: int, counters: MeshCounters, traffic: RouteTraffic) -> None:
        self._max_frame = max_frame
        self._counters = counters
        self._traffic = traffic
        self.peer_id = ""
        self.info: NodeInfo | None = None
        """The peer's INFO, once the link is up."""
        self.state = NEW
        """Changed by `advance` only."""
        self.congested = False
        """True while the connection is congested; a producer that can wait should."""
        self.silent = False
        """See `MeshCore.set_silent`."""
        self.in_zone = True
        """See `MeshCore.set_zone_tag`."""
        self.stats = LinkStats()
        self.valve = Valve()
        """See `protocol.interest.RemotePeer`."""
        self._gathered: list[Outgoing] = []
        self._gathered_of = ""
        self._gathered_bytes = 0
        """Messages of this loop turn that will be sent as one frame, their account, and the frame's most bytes."""
        self._told_bytes = 0
        """The part of `_gathered_bytes` that counts as queued already."""

    def advance(self, event: ConnectionEvent) -> None:
        """Changes `state`. Raises AssertionError when `event` is impossible."""
        self.state = after(self.state, event)

    @property
    def server_name(self) -> str:
        return self.peer_id if self.info is None else self.info.name

    @property
    def route_id(self) -> int | None:
        return self.stats.rid

    @property
    def up(self) -> bool:
        """True while the link takes part in the mesh."""
        return self.state is JOINED

    @property
    def closed(self) -> bool:
        return self.state is CLOSED

    @property
    def distance(self) -> int:
        """See `protocol.interest.RemotePeer`."""
        if self.silent or self.congested:
            return AWAY
        return NEAR if self.in_zone else ELSEWHERE

    def send(self, frame: bytes) -> None:
        """Queues a frame in the ordered lane; drops it when the link is closed."""
        raise NotImplementedError

    def _expect(self, size: int) -> None:
        """Counts bytes that are queued, or will be in this turn; negative when a frame is shorter than announced."""
        raise NotImplementedError

    def _queue_expected(self, frame: bytes) -> None:
        """Queues a frame in the ordered lane that `_expect` has counted."""
        raise NotImplementedError

    def _seal(self) -> None:
        """Makes one frame of the gathered messages, if any. Must come before any other use of the ordered lane."""
        messages = self._gathered
        if messages:
            self._gathered = []
            self.stats.out_msgs += len(messages)
            self._traffic.sent_many(self._gathered_of, messages)
            frame = encode_msgs(self._gathered_of, messages)
            self._expect(len(frame) - self._told_bytes)
            self._queue_expected(frame)

    def greet(self, frames: Iterator[bytes]) -> None:
        """Queues a possibly very long series of frames in the ordered lane, made when their turn comes; later frames
        follow the last one. Called once, when the link is up."""
        for frame in frames:
            self.send(frame)

    def send_urgent(self, frame: bytes) -> bool:
        """Queues a frame in the Raft lane; returns False when it was dropped."""
        raise NotImplementedError

    def accepts_msgs(self) -> bool:
        return True

    def close(self, reason: str, *, abort: bool = False) -> None:
        raise NotImplementedError

    @property
    def pending(self) -> int:
        """Bytes queued and not yet handed to the operating system."""
        return 0

    def send_msg(
        self, account: str, subject: bytes, reply: bytes, queues: list[bytes], headers: bytes, payload: bytes
    ) -> None:
        if not queues:
            size = MSGS_LENGTH_BYTES + len(subject) + len(reply) + len(headers) + len(payload)
            if size <= MAX_GATHERED_BYTES and size + MSGS_HEAD_BYTES + len(account) * 4 < self._max_frame:
                self._gather(account, size, (subject, reply, headers, payload))
                return
        try:
            frame = encode_msg(account, subject, reply, queues, headers, payload)
        except struct.error:
            frame = b""
        if not frame or len(frame) - 4 > self._max_frame or not self.accepts_msgs():
            self._counters.dropped_msgs += 1
            return
        self.stats.out_msgs += 1
        self._traffic.sent(account, len(headers) + len(payload))
        self.send(frame)

    def send_run(self, account: str, messages: list[Outgoing], size: int) -> None:
        """Queues messages without queues. `size`: bytes of all their parts."""
        size += MSGS_LENGTH_BYTES * len(messages)
        if size <= MAX_GATHERED_BYTES and size + MSGS_HEAD_BYTES + len(account) * 4 < self._max_frame:
            self._gather(account, size, *messages)
            return
        for subject, reply, headers, payload in messages:
            self.send_msg(account, subject, reply, [], headers, payload)

    def _gather(self, account: str, size: int, *messages: Outgoing) -> None:
        total = self._gathered_bytes + size
        if not self._gathered or account != self._gathered_of or total > min(MAX_DELIVER_BYTES, self._max_frame):
            if self._gathered:
                self._seal()
            self._gathered_of = account
            total = size + MSGS_HEAD_BYTES + len(account.encode())
            self._told_bytes = 0
        if not self._told_bytes or total - self._told_bytes > EXPECT_BYTES:
            if not self.accepts_msgs():
                self._counters.dropped_msgs += len(messages)
                return
            told, self._told_bytes = self._told_bytes, total
            self._expect(total - told)
        self._gathered += messages
        self._gathered_bytes = total

    def send_many(self, account: str, target: bytes, queues: list[bytes], messages: Sequence[Outgoing]) -> None:
        try:
            frame = encode_deliver(account, target, queues, messages)
        except struct.error:
            frame = b""
        count = len(messages)
        if len(frame) > MAX_DELIVER_BYTES and count > 1:
            # Raft traffic cannot overtake a frame in its middle, so it must not be large.
            self.send_many(account, target, queues, messages[: count // 2])
            self.send_many(account, target, queues, messages[count // 2 :])
            return
        if not frame or len(frame) - 4 > self._max_frame or not self.accepts_msgs():
            self._counters.dropped_msgs += count
            return
        self.stats.out_msgs += count
        self._traffic.sent_many(account, messages)
        self.send(frame)

    def ask_backlog(self, account: str, target: bytes, mark: int) -> None:
        self.send(encode_backlog(Kind.ASK_BACKLOG, account, target, mark))
