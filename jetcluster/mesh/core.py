"""The part of the mesh that is independent of the transport: links that are up, dispatch, requests, notices.

`NodeMesh` (mesh.py) puts it on TCP; a server without a cluster has this one alone.

Order: a link that is up delivers its frames as sent, with one exception: Raft frames form a lane of their own that may
overtake the others while the connection is congested (see link.py). `peer_down` is called before `peer_up` of the same
peer, and no frame of a link is delivered after its `peer_down`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from logging import Logger
from operator import attrgetter

from jetcluster.clock import Clock
from jetcluster.mesh.api import MeshError, NodeInfo
from jetcluster.mesh.auth import decode_refused
from jetcluster.mesh.frames import (
    DELIVER,
    MSG,
    MSGS,
    RAFT,
    RAFT_EXTRA_BYTES,
    FrameError,
    Kind,
    Span,
    decode_answer,
    decode_backlog,
    decode_call,
    decode_deliver,
    decode_msg,
    decode_msgs,
    decode_notice,
    decode_ping,
    decode_sub,
    encode_backlog,
    encode_error,
    encode_notice,
    encode_ping,
    pack_raft,
    unpack_gid,
)
from jetcluster.mesh.info import decode_gossip, decode_info, encode_info
from jetcluster.mesh.peer_link import MeshCounters, PeerLink, RouteTraffic, size_of
from jetcluster.mesh.rpc import Handler, Rpc
from jetcluster.protocol.connection_states import JOINED, ConnectionEvent
from jetcluster.protocol.interest import RemotePeer, Switchboard
from jetcluster.records import NamedTuple

SYNC_METHOD = "mesh.sync"
_LOGGED_ERRORS = 20
MAX_ACCOUNT_CHARACTERS = 1024
"""Characters of an account's name."""

UpListener = Callable[[NodeInfo], None]
NoticeHandler = Callable[[str, bytes], None]
LinkHandler = Callable[[PeerLink], None]
_URLS = {"client": attrgetter("client_url"), "leaf": attrgetter("leaf_url"), "ws": attrgetter("ws_url")}


class RaftReceiver(NamedTuple):
    """The receiver of Raft frames; by default they are ignored."""

    on_frame: Callable[[str, int, bytes], str | None] = lambda peer, gid, frame: None
    """Takes each Raft frame, in order. Returns an error, upon which the link is closed."""
    heard: Callable[[str], object] = lambda peer: None
    """Notes a peer that sent only a part of a frame: not even a heartbeat overtakes a large frame."""
    end_of_batch: Callable[[], None] = lambda: None
    """Called once after all frames of one read are delivered; dirty groups are ticked here."""


class MeshListener:
    """The listener to the mesh as a whole: by default nobody."""

    def left_out(self, age: int, said: str) -> None:
        """The cluster was rescued without this node, `age` seconds ago, in a peer's words."""

    def urls_changed(self, kind: str, urls: tuple[str, ...]) -> None:
        """`MeshCore.urls` has changed."""


class KnownMembers(NamedTuple):
    """The members of the cluster, each function by peer id. By default of a node without JetStream."""

    is_member: Callable[[str], bool] = lambda peer: True
    """True for members, which may send all notices and requests; other peers only messages and interest."""
    knows: Callable[[str], bool] = lambda peer: False
    """Like `is_member`, but False until this node has met its cluster."""
    is_voter: Callable[[str], bool] = lambda peer: False
    """True for a known voter of the meta group, which may report that this node was left out."""
    key_of: Callable[[str], str] = lambda peer: ""
    """The public key by which the cluster knows a peer, or "" (`identity`)."""
    logged_key_of: Callable[[str], str] = lambda peer: ""
    """A peer's key in this node's log, where it is not known to be committed."""


class MeshCore:
    """Peers, Raft frames, requests and notices over the links that the subclass brings up."""

    def __init__(self, me: NodeInfo, clock: Clock, max_frame: int, log: Logger, listener: MeshListener) -> None:
        self.me = me
        self.max_frame = max_frame
        self.counters = MeshCounters()
        self.traffic = RouteTraffic()
        self.links: dict[str, PeerLink] = {}
        """Links that are up, by peer id."""
        self.refused_members: dict[str, tuple[str, float]] = {}
        """By peer id, why this node last refused who says to be that member, and when (monotonic seconds)."""
        self.urls: dict[str, tuple[str, ...]] = dict.fromkeys(_URLS, ())
        """Sorted URLs of all connected peers: "client" (INFO connect_urls), "leaf" and "ws"."""
        self.raft, self.members = RaftReceiver(), KnownMembers()
        self.zone_tag = ""
        self.listener = listener
        self._clock = clock
        self._log = log
        self._rpc = Rpc(me.peer_id, max_frame, log)
        self._rpc.serve(SYNC_METHOD, _answer_sync)
        self._notices: dict[str, NoticeHandler] = {}
        self._open = {SYNC_METHOD}
        """Methods and notices that strangers may use."""
        self._listeners: list[tuple[UpListener, UpListener]] = []
        self._peers: dict[str, NodeInfo] = {}
        self._left_out: Mapping[str, tuple[int, str]] = {}
        self._switchboard: Switchboard | None = None
        self._greet: LinkHandler = lambda link: None
        self._silence: LinkHandler = lambda link: None
        self._deliver: Callable[[RemotePeer, str, bytes, bytes, list[bytes], bytes, bytes], None] = (
            lambda peer, account, subject, reply, queues, headers, payload: None
        )

    def connect(self, raft: RaftReceiver, members: KnownMembers) -> None:
        """Connects this node's Raft, and the members that it knows, before the first link."""
        self.raft, self.members = raft, members

    # -- mesh_api.Mesh -------------------------------------------------------------------------------------------

    @property
    def peers(self) -> dict[str, NodeInfo]:
        """Connected peers by peer id, without this node: replaced when it changes, so safe to keep and iterate."""
        return self._peers

    def send_raft(self, peer: str, gid: int, frame: bytes) -> bool:
        link = self.links.get(peer)
        if link is None:
            return False
        if len(frame) + RAFT_EXTRA_BYTES > self.max_frame:
            self.counters.oversize += 1
            self._log.error("Raft frame of %d bytes for group %d does not fit the mesh", len(frame), gid)
            return False
        return link.send_urgent(pack_raft(len(frame) + RAFT_EXTRA_BYTES, RAFT, gid) + frame)

    def serve(self, method: str, handler: Handler, *, strangers: bool = False) -> None:
        """Answers `call(method)` from members of the cluster, and with `strangers` from all linked peers:
        handler(peer_id, payload) -> reply payload. An exception is answered as an error."""
        self._rpc.serve(method, handler)
        if strangers:
            self._open.add(method)

    async def call(self, peer: str, method: str, payload: bytes, timeout: float = 5.0) -> bytes:  # noqa: ASYNC109
        """Asks a peer; a call to this node's own id runs the local handler. Raises MeshError."""
        if peer == self.me.peer_id:
            return await self._rpc.call_self(method, payload, timeout)
        link = self.links.get(peer)
        if link is None:
            raise MeshError(f"{method}: not connected to {peer}")
        return await self._rpc.call(link, method, payload, timeout)

    def notify(self, peer: str | None, kind: str, payload: bytes) -> None:
        """Sends a notice without an answer, in order with the link's other frames; `None` is every connected peer."""
        frame = encode_notice(kind.encode("ascii"), payload)
        if len(frame) - 4 > self.max_frame:
            raise ValueError(f"notice {kind!r} of {len(payload)} bytes is too large")
        if peer is None:
            for link in self.links.values():
                link.send(frame)
        elif peer in self.links:
            self.links[peer].send(frame)

    def on_notice(self, kind: str, handler: NoticeHandler, *, strangers: bool = False) -> None:
        """Registers a handler, as `serve` does. The link is closed when it raises `frames.FrameError`."""
        if kind in self._notices:
            raise ValueError(f"notice {kind!r} has a handler already")
        self._notices[kind] = handler
        if strangers:
            self._open.add(kind)

    def on_peers(self, up: UpListener, down: UpListener) -> None:
        """Registers a listener for links coming up (called at once for those already up) and going down."""
        self._listeners.append((up, down))
        for info in self._peers.values():
            self._guarded(up, info)

    # -- interest ------------------------------------------------------------------------------------------------

    def attach(self, switchboard: Switchboard, greet: LinkHandler, silence: LinkHandler = lambda link: None) -> None:
        """Connects the router: `greet` sends this node's interest on a new link, before anything else; `silence` is
        called with a link that becomes silent, or is heard again."""
        assert self._switchboard is None
        self._switchboard, self._silence = switchboard, silence
        self._deliver = switchboard.deliver_from_peer
        self._greet = greet
        for link in self.links.values():
            greet(link)

    async def sync_interest(self, timeout: float = 5.0) -> None:  # noqa: ASYNC109
        """Returns when all connected peers have processed all interest sent so far (a request on the same ordered
        lane). A peer lost meanwhile does not count. Raises MeshError when one does not answer in time."""
        links = list(self.links.values())
        results = await asyncio.gather(
            *(self._rpc.call(link, SYNC_METHOD, b"", timeout) for link in links), return_exceptions=True
        )
        for link, result in zip(links, results, strict=True):
            if isinstance(result, BaseException) and not link.closed:
                raise MeshError(f"peer {link.peer_id} did not confirm our interest: {result}") from result

    def set_silent(self, link: PeerLink, silent: bool) -> None:
        """Marks a link whose peer is overdue as silent, or as heard again. Publishers do not wait for a silent peer."""
        if link.silent != silent and link.up:
            link.silent = silent
            if silent:
                link.valve.open()
            self._guarded(self._silence, link)

    # -- own info ------------------------------------------------------------------------------------------------

    def update_me(self, me: NodeInfo) -> None:
        """Sends changed addresses, tags or flags to all peers. The ids and the name must stay."""
        assert (me.peer_id, me.boot_id, me.name) == (self.me.peer_id, self.me.boot_id, self.me.name)
        self.me = me
        frame = encode_info(self.me)
        for link in self.links.values():
            link.send(frame)
        self.set_zone_tag(self.zone_tag)

    def set_zone_tag(self, prefix: str) -> None:
        """Takes the prefix of the tags that name a node's zone; "": there are no zones. A peer is in this node's zone
        when they share such a tag, and every peer is for a node that has none."""
        self.zone_tag = prefix
        for link in self.links.values():
            self._find_zone(link)

    def _find_zone(self, link: PeerLink) -> None:
        mine = self.me.zones(self.zone_tag)
        link.in_zone = not mine or (link.info is not None and not mine.isdisjoint(link.info.zones(self.zone_tag)))

    def join_cluster(self, cluster_id: str) -> None:
        """Takes the cluster that this node belongs to: informs peers, and cuts links to nodes of another one."""
        self.update_me(replace(self.me, cluster_id=cluster_id))
        for link in list(self.links.values()):
            if link.info is not None:
                self._cut_if_foreign(link, link.info)

    def leave_out(self, peers: Mapping[str, tuple[int, str]]) -> None:
        """Cuts and refuses links with nodes that a rescue left out: by peer id, time (Unix ns) and text."""
        self._left_out = peers
        for link in list(self.links.values()):
            if text := self.left_out(link.peer_id):
                link.close(text)

    def check_keys(self) -> None:
        """Cuts links with nodes whose key is not the known one; called when keys become known."""
        for link in list(self.links.values()):
            known = self.members.key_of(link.peer_id)
            if known and link.info is not None and link.info.key != known:
                self.counters.refused += 1
                self._log.error("Closing the route to %s: it is not the node that the cluster knows", link.info.name)
                link.close("not the node that the cluster knows")

    def left_out(self, peer: str) -> str:
        """Returns the seconds since `peer` was left out of the cluster and the text for it, or ""."""
        found = self._left_out.get(peer)
        return "" if found is None else f"{max((self._clock.time_ns() - found[0]) // 10**9, 0)} {found[1]}"

    def _report_left_out(self, text: str) -> None:
        age, _, said = text.partition(" ")
        if age.isascii() and age.isdigit():
            self._guarded(self.listener.left_out, int(age), said)

    def foreign(self, info: NodeInfo) -> str:
        """Returns why a node of this `info` must not be linked; "" when it may be."""
        mine, theirs = self.me.cluster_id, info.cluster_id
        if not mine or not theirs or mine == theirs:
            return ""
        return (
            f"node {info.name!r} belongs to another JetStream cluster of this name (id {theirs}, ours is {mine}): one "
            "of the two was started anew while the other one ran elsewhere"
        )

    def _cut_if_foreign(self, link: PeerLink, info: NodeInfo) -> bool:
        reason = self.foreign(info)
        if reason:
            self.counters.refused += 1
            self._log.error("Closing the route to %s: %s", info.name, reason)
            link.close(reason)
        return bool(reason)

    # -- for the subclasses --------------------------------------------------------------------------------------

    def _set_up(self, link: PeerLink, info: NodeInfo) -> None:
        """Brings up an authenticated link: interest is sent first, then the listeners are called."""
        assert info.peer_id not in self.links
        link.info = info
        self._find_zone(link)
        link.advance(ConnectionEvent.JOIN)
        self.links[info.peer_id] = link
        self._peers = {**self._peers, info.peer_id: info}
        self.counters.links_up += 1
        self._greet(link)
        for up, _ in self._listeners:
            self._guarded(up, info)
        self._refresh_urls()

    def _set_down(self, link: PeerLink) -> None:
        """Takes a link down, once. No frame of it is delivered afterwards."""
        info = link.info
        if info is None or self.links.get(info.peer_id) is not link:
            return
        assert link.closed
        del self.links[info.peer_id]
        self._peers = {peer: other for peer, other in self._peers.items() if peer != info.peer_id}
        self.counters.links_down += 1
        self._rpc.link_lost(info.peer_id)
        if self._switchboard is not None:
            self._guarded(self._switchboard.drop_peer, link)
        for _, down in self._listeners:
            self._guarded(down, info)
        self._refresh_urls()

    def _process(self, link: PeerLink, buffer: bytes, spans: list[Span]) -> None:
        """Delivers the frames of one read. Raises FrameError for a malformed one; logs errors of callbacks."""
        deliver, on_raft, peer = self._deliver, self.raft.on_frame, link.peer_id
        messages = run = size = 0
        of = ""  # successive messages are mostly of one account: counted as a run
        try:
            for kind, start, end in spans:
                if link.state is not JOINED:
                    break
                if kind == MSG:
                    messages += 1
                    account, subject, reply, queues, headers, payload = decode_msg(buffer, start, end)
                    if account != of:
                        if run:
                            self.traffic.received(of, run, size)
                        of, run, size = account, 0, 0
                    run += 1
                    size += len(headers) + len(payload)
                    try:
                        deliver(link, account, subject, reply, queues, headers, payload)
                    except Exception:  # noqa: BLE001 - one message's failure must not cut the link of all groups
                        self._callback_failed("message")
                elif kind == RAFT:
                    if end - start < 4:
                        raise FrameError("RAFT is too short")
                    (gid,) = unpack_gid(buffer, start)
                    try:
                        wrong = on_raft(peer, gid, buffer[start + 4 : end])
                    except Exception:  # noqa: BLE001
                        self._callback_failed("Raft frame")
                        wrong = None
                    if wrong:
                        raise FrameError(wrong)
                elif kind == MSGS:
                    account, each = decode_msgs(buffer, start, end)
                    messages += len(each)
                    self.traffic.received(account, len(each), size_of(each))
                    if self._switchboard is not None:
                        self._switchboard.deliver_each_from_peer(link, account, each, self._message_failed)
                elif kind == DELIVER:
                    delivery = decode_deliver(buffer, start, end)
                    messages += len(delivery[3])
                    self.traffic.received(delivery[0], len(delivery[3]), size_of(delivery[3]))
                    if self._switchboard is not None:
                        self._guarded(self._switchboard.deliver_many_from_peer, link, *delivery)
                else:
                    self._control(link, kind, buffer[start:end])
        finally:  # also for a malformed frame: those before it count
            link.stats.in_msgs += messages
            if run:
                self.traffic.received(of, run, size)
            try:
                self.raft.end_of_batch()
            except Exception:  # noqa: BLE001
                self._callback_failed("end of read")

    def _control(self, link: PeerLink, kind: int, body: bytes) -> None:
        if kind == Kind.PING:
            link.send_urgent(encode_ping(Kind.PONG, decode_ping(body)))
        elif kind == Kind.PONG:
            sent = decode_ping(body) / 1e9
            link.stats.rtt = max(0.0, self._clock.monotonic() - sent)
        elif kind == Kind.CALL:
            call_id, method, payload = decode_call(body)
            if method in self._open or self.members.is_member(link.peer_id):
                self._rpc.on_call(link, call_id, method, payload)
            else:
                self.counters.strangers += 1
                link.send(encode_error(call_id, f"{method}: {link.peer_id} is not known as a member of the cluster"))
        elif kind == Kind.REPLY:
            call_id, payload = decode_answer(body)
            self._rpc.on_answer(link.peer_id, call_id, payload, "")
        elif kind == Kind.ERROR:
            call_id, text = decode_answer(body)
            self._rpc.on_answer(link.peer_id, call_id, None, text.decode(errors="replace"))
        elif kind == Kind.SUB:
            self._on_sub(link, body)
        elif kind == Kind.ASK_BACKLOG:
            account, target, mark, _ = decode_backlog(body)
            waiting = self._switchboard.backlog_here(account, target) if self._switchboard is not None else 0
            link.send(encode_backlog(Kind.BACKLOG, account, target, mark, waiting))
        elif kind == Kind.BACKLOG:
            if self._switchboard is not None:
                self._guarded(self._switchboard.backlog_told, link, *decode_backlog(body))
        elif kind == Kind.NOTICE:
            name, payload = decode_notice(body)
            handler = self._notices.get(name)
            if handler is None:
                pass
            elif name in self._open or self.members.is_member(link.peer_id):
                self._noticed(handler, link.peer_id, payload)
            else:
                self.counters.strangers += 1
        elif kind == Kind.INFO:
            self._on_info(link, body)
        elif kind == Kind.GOSSIP:
            self._on_gossip(link, decode_gossip(body))
        elif kind == Kind.REFUSED:  # it refused this node's INFO, after which the link was up here
            link.close(f"refused by the peer: {decode_refused(body)}")
        else:
            raise FrameError(f"frame of kind {kind} on a link that is up")

    def _on_sub(self, link: PeerLink, body: bytes) -> None:
        account, subject, queue, count = decode_sub(body)
        if len(account) > MAX_ACCOUNT_CHARACTERS:
            raise FrameError("SUB of no account")
        if self._switchboard is not None:
            self._guarded(self._switchboard.set_remote_interest, link, account, subject, queue, count)

    def _on_info(self, link: PeerLink, body: bytes) -> None:
        info = decode_info(body, link.stats.ip)
        old = link.info
        assert old is not None
        if (info.peer_id, info.boot_id, info.name, info.key) != (old.peer_id, old.boot_id, old.name, old.key):
            raise FrameError("INFO changes who the peer is")
        if self._cut_if_foreign(link, info):
            return
        link.info = info
        self._find_zone(link)
        self._peers = {**self._peers, info.peer_id: info}
        self._refresh_urls()

    def _on_gossip(self, link: PeerLink, nodes: list[tuple[str, str]]) -> None:
        """Takes addresses of nodes that the peer is connected to."""

    def _refresh_urls(self) -> None:
        for kind, url_of in _URLS.items():
            urls = tuple(sorted({url_of(info) for info in self._peers.values()} - {""}))
            if urls != self.urls[kind]:
                self.urls[kind] = urls
                self._guarded(self.listener.urls_changed, kind, urls)

    def _guarded(self, callback: Callable[..., None], *args: object) -> None:
        try:
            callback(*args)
        except Exception:  # noqa: BLE001
            self._callback_failed(getattr(callback, "__qualname__", "callback"))

    def _noticed(self, handler: NoticeHandler, peer: str, payload: bytes) -> None:
        """Calls a handler and logs its errors, except FrameError for what no proper peer would send."""
        try:
            handler(peer, payload)
        except FrameError:
            raise
        except Exception:  # noqa: BLE001
            self._callback_failed("notice")

    def _message_failed(self) -> None:
        self._callback_failed("message")

    def _callback_failed(self, what: str) -> None:
        """Logs the current exception, a bug in another room; of a flood only some, so as not to make it worse."""
        self.counters.callback_errors += 1
        if self.counters.callback_errors <= _LOGGED_ERRORS or self.counters.callback_errors % 1000 == 0:
            self._log.exception("Mesh: %s failed (%d so far)", what, self.counters.callback_errors)


async def _answer_sync(peer: str, payload: bytes) -> bytes:
    return b""
