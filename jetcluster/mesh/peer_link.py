"""`PeerLink`: a link to one peer, as the mesh, requests and the router see it, whatever moves its bytes."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

from jetcluster.mesh.api import NodeInfo
from jetcluster.mesh.frames import MAX_DELIVER, Kind, encode_backlog, encode_deliver, encode_msg
from jetcluster.mesh.traffic import RouteTraffic
from jetcluster.protocol.bus import Outgoing
from jetcluster.protocol.connection_states import CLOSED, JOINED, NEW, ConnectionEvent, after
from jetcluster.protocol.valve import Valve
from jetcluster.records import dataclass


@dataclass(slots=True)
class MeshCounters:
    """Since the start of the process."""

    malformed: int = 0
    """Connections closed because of bytes that are not the protocol, before or after authentication."""
    refused: int = 0
    """Connections refused by this node: wrong secret, cluster name, version, name taken."""
    duplicates: int = 0
    stale: int = 0
    slow: int = 0
    """Links closed because too much was pending for a peer."""
    dropped_msgs: int = 0
    """Messages not forwarded because their link was congested or they do not fit a frame."""
    strangers: int = 0
    """Requests and notices refused because they came from no member."""
    oversize: int = 0
    """Raft frames that do not fit `max_frame`: a bug, or nodes with different limits."""
    callback_errors: int = 0
    links_up: int = 0
    links_down: int = 0


@dataclass(slots=True)
class LinkStats:
    """The figures of one link, for /routez. Times are the mesh clock's monotonic seconds."""

    rid: int = 0
    did_solicit: bool = False
    configured: bool = False
    ip: str = ""
    port: int = 0
    started: float = 0.0
    started_ns: int = 0
    """The same by the wall clock, nanoseconds since the Unix epoch."""
    last_activity: float = 0.0
    rtt: float = 0.0
    """Seconds; 0.0 until the first PONG."""
    in_msgs: int = 0
    out_msgs: int = 0
    in_bytes: int = 0
    out_bytes: int = 0


class PeerLink:
    """An authenticated link to one peer; the router's `RemotePeer`. Subclasses move the bytes.

    `max_frame` is the bound of what the peer takes; `counters` and `traffic` are those of the node."""

    def __init__(self, max_frame: int, counters: MeshCounters, traffic: RouteTraffic) -> None:
        self._max_frame = max_frame
        self._counters = counters
        self._traffic = traffic
        self.peer_id = ""
        self.info: NodeInfo | None = None
        """The peer's, once the link is up."""
        self.state = NEW
        """Changed by `advance` alone."""
        self.congested = False
        """True while the connection takes no more; a producer that can wait should."""
        self.silent = False
        """See `MeshCore.set_silent`."""
        self.stats = LinkStats()
        self.valve = Valve()
        """See `protocol.interest.RemotePeer`."""

    def advance(self, event: ConnectionEvent) -> None:
        """Goes on to the next `state`. Raises AssertionError when there is none for `event`."""
        self.state = after(self.state, event)

    @property
    def server_name(self) -> str:
        return self.peer_id if self.info is None else self.info.name

    @property
    def route_id(self) -> int | None:
        return self.stats.rid

    @property
    def up(self) -> bool:
        """It takes part in the mesh."""
        return self.state is JOINED

    @property
    def closed(self) -> bool:
        return self.state is CLOSED

    def send(self, frame: bytes) -> None:
        """Queues a frame in the ordered lane; dropped when the link is closed."""
        raise NotImplementedError

    def greet(self, frames: Iterator[bytes]) -> None:
        """Queues frames in the ordered lane, of which there may be very many: they are made when their turn has come,
        and frames that are sent later come after the last one. Once, when the link is up."""
        for frame in frames:
            self.send(frame)

    def send_urgent(self, frame: bytes) -> bool:
        """Queues a frame in the Raft lane. False: dropped."""
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

    def send_many(self, account: str, target: bytes, queues: list[bytes], messages: Sequence[Outgoing]) -> None:
        try:
            frame = encode_deliver(account, target, queues, messages)
        except struct.error:
            frame = b""
        count = len(messages)
        if len(frame) > MAX_DELIVER and count > 1:
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
