"""The node mesh on TCP: one connection per pair of nodes, found by routes and gossip, authenticated both ways.

Two nodes may dial each other at once. The one with the lower peer id decides: it sends INFO on the connection it wants
and refuses the other as a duplicate, so both sides keep the same one, and a link that is up is never cut in favour of
an equal one. Of a peer with a known key it tries all connections; the first one with a signature becomes the link, and
both sides refuse the others. A new connection replaces the link of a peer that restarted (another boot id), or that was
not heard for `REPLACE_SECONDS`.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from jetcluster.clock import Clock, Rng, SystemClock, SystemRng
from jetcluster.health.descriptors import DescriptorWatch
from jetcluster.mesh.api import NodeInfo
from jetcluster.mesh.auth import (
    NONCE_BYTES,
    Greeting,
    Handshake,
    Reason,
    Refused,
    RouteCredentials,
    check_info,
    derive_key,
    first_info,
    shortened,
)
from jetcluster.mesh.core import MeshCore, MeshListener
from jetcluster.mesh.dialer import Dialer
from jetcluster.mesh.frames import FrameError
from jetcluster.mesh.info import (
    MAX_GOSSIP_NODES,
    decode_info,
    encode_gossip,
    encode_info,
    join_url,
    split_url,
)
from jetcluster.mesh.link import LinkContext, LinkEvents, TcpLink
from jetcluster.mesh.options import ConfiguredRoute, MeshOptions, MeshTls
from jetcluster.mesh.peer_link import PeerLink
from jetcluster.ordered import OrderedSet
from jetcluster.protocol.connection_states import CHOSEN, ConnectionEvent

if TYPE_CHECKING:
    from jetcluster.net.tls_listener import TlsListener

TICK_SECONDS = 0.25
REPLACE_SECONDS = 2.0
"""Silence after which a new connection of the peer may replace a link. Live peers ping in PING + TICK_SECONDS."""
MAX_STRANGERS = 256
"""Connections that are not authenticated yet; more are refused."""
MAX_OUTSIDERS = 64
"""Links of nodes that are no members: nodes without JetStream, and nodes about to become members."""
MAX_STRANGERS_WHEN_SCARCE = 16
"""Bound of both where the store needs the remaining descriptors."""
STOP_SECONDS = 1.0
REFUSAL_LOG_SECONDS = 60.0
MAX_REFUSAL_LOGS = 1024


class NodeMesh(MeshCore):
    """The mesh of one node. Create it, register handlers and listeners, then `await start()` on the event loop."""

    loop: asyncio.AbstractEventLoop

    def __init__(
        self,
        me: NodeInfo,
        options: MeshOptions,
        *,
        clock: Clock | None = None,
        rng: Rng | None = None,
        log: logging.Logger | None = None,
        descriptors: DescriptorWatch | None = None,
        listener: MeshListener | None = None,
    ) -> None:
        """`me.cluster_url` is filled in by `start`. Raises ValueError when name, tags or addresses are too long."""
        self.log = log or logging.getLogger("jetcluster.mesh")
        self.clock = clock or SystemClock()
        super().__init__(me, self.clock, options.max_frame, self.log, listener or MeshListener())
        self.options = options
        self.rng = rng or SystemRng()
        encode_info(me)
        self._key = derive_key(options.cluster_name, options.authorization) if options.authorization else b""
        self._server: asyncio.Server | TlsListener | None = None
        self._secure: TlsListener | None = None
        self.dialer = Dialer(
            lambda: self.me, lambda: self.options, self.links, lambda key: self.new_link(key, dialer=True),
            clock=self.clock, rng=self.rng, log=self.log,
        )  # fmt: skip
        self._link_events = LinkEvents(
            opened=self._connection_opened,
            authenticated=self._authenticated,
            info_received=self._info_received,
            frames_received=self._process,
            part_received=lambda peer: self.raft.heard(peer),  # noqa: PLW0108 (connected later)
            heard_again=lambda link: self.set_silent(link, False),
            refused=self._connection_refused,
            signature_of=self._signature_of,
            finished=self._connection_finished,
            is_member=lambda peer: self.members.is_member(peer),  # noqa: PLW0108 (as above)
        )
        self._connections: OrderedSet[TcpLink] = OrderedSet()
        self._chosen: dict[str, TcpLink] = {}
        self._next_rid = 1
        self._port = 0
        self._ticker: asyncio.TimerHandle | None = None
        self._last_tick = 0.0
        self._refusals_logged: dict[tuple[str, Reason | None], float] = {}
        self._stopping = False
        self.descriptors = descriptors or DescriptorWatch()

    def set_routes(self, routes: tuple[ConfiguredRoute, ...]) -> None:
        """Takes the configured routes of a reload. Links that are up stay: their nodes belong to the cluster anyway."""
        self.options = replace(self.options, routes=routes)
        self.dialer.set_routes(routes)

    def set_advertise(self, advertise: str) -> None:
        """Changes and announces the address at which other nodes reach this one, after a reload. Raises ValueError."""
        self.options = replace(self.options, advertise=advertise)
        self.update_me(replace(self.me, cluster_url=self._url()))

    def set_authorization(self, authorization: RouteCredentials | None, *, trusted: bool = False) -> None:
        """Takes the credentials of a reload, for later handshakes; links that are up stay."""
        self.options = replace(self.options, authorization=authorization, trusted_network=trusted)
        self._key = derive_key(self.options.cluster_name, authorization) if authorization else b""

    def _url(self) -> str:
        options = self.options
        return _advertised(options.advertise, self._port) if options.advertise else join_url(options.host, self._port)

    def set_tls(self, tls: MeshTls) -> None:
        """Takes the TLS of a reload, for later handshakes; links whose certificates are no longer valid are closed."""
        self.options = replace(self.options, tls=tls)
        if self._secure is not None:
            self._secure.context, self._secure.timeout = tls.accepting, tls.timeout
        for link in list(self._connections):
            link.check_certificate()

    async def start(self) -> None:
        """Listens and begins to dial. Raises OSError for an unusable address, ValueError for a bad `advertise`."""
        self.loop = asyncio.get_running_loop()
        options = self.options
        port = self._port = await self._listen()
        self.me = replace(self.me, cluster_url=self._url())
        encode_info(self.me)
        self.log.info("Listening for route connections on %s", join_url(options.host, port))
        if options.authorization is None and options.tls is None:
            from_where = "reaches" if options.trusted_network else "is on this machine and reaches"
            self.log.warning(
                "Cluster %r has no authorization: whoever %s %s may join it",
                options.cluster_name,
                from_where,
                join_url(options.host, port),
            )
        self._last_tick = self.clock.monotonic()
        self._ticker = self.loop.call_later(TICK_SECONDS, self._tick)
        self.dialer.start(options.routes)

    async def _listen(self) -> int:
        options, tls = self.options, self.options.tls
        if tls is None:
            plain = await self.loop.create_server(
                self._accept, options.host or None, max(0, options.port), reuse_port=options.held_port or None
            )
            self._server = plain
            return int(plain.sockets[0].getsockname()[1])
        from jetcluster.net.tls_listener import TlsListener

        secure = self._server = self._secure = TlsListener(
            tls.accepting, tls.timeout, self._accept, self._handshake_failed
        )
        return (await secure.start(options.host, max(0, options.port), shared=options.held_port))[1]

    async def stop(self) -> None:
        """Sends what is queued, closes all links and calls the listeners for each peer."""
        self._stopping = True
        if self._ticker is not None:
            self._ticker.cancel()
        if self._server is not None:
            self._server.close()
        await self.dialer.stop()
        connections = list(self._connections)
        for link in connections:
            link.close("shutting down")
        waiting = [link.lost for link in connections if not link.lost.done()]
        if waiting:
            await asyncio.wait(waiting, timeout=STOP_SECONDS)
        await self._rpc.stop()

    async def first_dials(self, seconds: float) -> None:
        """Returns when every configured route was dialled once, with or without success, or after `seconds`."""
        await self.dialer.first_dials(seconds)

    @property
    def connections(self) -> int:
        """Number of TCP connections to other nodes, also unauthenticated ones."""
        return len(self._connections)

    @property
    def settled(self) -> bool:
        """True when each configured route led to a peer that is connected now, or to this node itself."""
        return self.dialer.settled

    @property
    def expected_nodes(self) -> int:
        """Distinct nodes that the configured routes name, this one included. An upper bound until `settled`."""
        return self.dialer.expected_nodes

    def cut(self, peer: str) -> None:
        """Closes the link to a peer, if there is one; it is dialled again. For operators and tests."""
        link = self.links.get(peer)
        if link is not None:
            link.close("cut on request", abort=True)

    def new_link(self, key: bytes, *, dialer: bool) -> TcpLink:
        """Returns a connection that is about to be made. `key`: see `mesh.auth.derive_key`."""
        context = LinkContext(
            self.loop, self.clock, self.log, self.counters, self.traffic, lambda: self.options,
            lambda: self.me.cluster_url,
        )  # fmt: skip
        return TcpLink(context, self._link_events, Handshake(self.greeting(), key, dialer=dialer))

    def greeting(self) -> Greeting:
        """Returns the greeting of a new connection."""
        return Greeting(
            peer_id=self.me.peer_id,
            boot_id=self.me.boot_id,
            name=self.me.name,
            cluster=self.options.cluster_name,
            nonce=self.rng.token(NONCE_BYTES),
            authorization=bool(self._key),
        )

    # -- events of connections -----------------------------------------------------------------------------------

    def _connection_opened(self, link: TcpLink) -> bool:
        link.stats.rid = self._next_rid
        self._next_rid += 1
        self._connections.add(link)
        if self._stopping:
            link.close("shutting down")
        elif not link.handshake.dialer and len(self._connections) - len(self.links) > self._most_strangers(link):
            link.refuse(Refused(Reason.BUSY, "too many connections that are not authenticated"))
        return not link.closed

    def _most_strangers(self, link: TcpLink) -> int:
        return MAX_STRANGERS_WHEN_SCARCE if self.descriptors.nearly_out(link.descriptor) else MAX_STRANGERS

    def _check_room(self, link: TcpLink, peer_id: str) -> None:
        """Raises Refused when too many nodes are linked that are not members."""
        if peer_id in self.links or self.members.is_member(peer_id):
            return
        most = min(MAX_OUTSIDERS, self._most_strangers(link))
        if sum(not self.members.is_member(other) for other in self.links) >= most:
            raise Refused(Reason.BUSY, f"{most} nodes that are no members of the cluster are linked")

    def _authenticated(self, link: TcpLink) -> None:
        remote = link.handshake.remote
        assert remote is not None
        if text := self.left_out(remote.peer_id):
            raise Refused(Reason.LEFT_OUT, text)
        self._check_origin(link, remote.peer_id)
        self._check_name(remote.peer_id, remote.name)
        if not self._decides(remote.peer_id):
            return
        current = self._chosen.get(remote.peer_id)
        known = bool(self._known_key(remote.peer_id))
        if current is not None:
            # A connection that has yet to prove its node's key keeps no other out: the first to prove it is linked.
            if self._is_current(current, remote.boot_id) and (current.up or not known):
                raise Refused(Reason.DUPLICATE, f"already connected to {self.me.name}")
            if not known:
                current.close("replaced by a new connection", abort=True)
        if current is None or not known:
            self._choose(link)  # else it replaces the other once it has proven its key
        link.send(self._first_info(link))

    def _is_current(self, link: TcpLink, boot_id: str) -> bool:
        """Returns True for a link to this very process of the peer that is not silent."""
        assert link.handshake.remote is not None
        silent = self.clock.monotonic() - link.stats.last_activity
        return link.handshake.remote.boot_id == boot_id and silent < REPLACE_SECONDS

    def _info_received(self, link: TcpLink, body: bytes) -> None:
        remote = link.handshake.remote
        assert remote is not None
        info = decode_info(body, link.stats.ip)
        if (info.peer_id, info.boot_id, info.name) != (remote.peer_id, remote.boot_id, remote.name):
            raise FrameError("INFO differs from the greeting")
        self._check_name(info.peer_id, info.name)
        if reason := self.foreign(info):
            raise Refused(Reason.CLUSTER, reason)
        self._check_key(link, info, body)
        self._check_room(link, info.peer_id)
        if info.key and link.state is not CHOSEN:
            current = self._chosen.get(info.peer_id)
            if current is not None and current.up and self._is_current(current, info.boot_id):
                raise Refused(Reason.DUPLICATE, f"already connected to {self.me.name}")
        for other, linked in self.peers.items():
            if linked.name == info.name and other != info.peer_id:
                self.links[other].close(f"its name is that of member {info.peer_id}")
        if link.state is not CHOSEN:
            current = self._chosen.pop(info.peer_id, None)
            if current is not None:
                if current.up:
                    current.close("replaced by a new connection", abort=True)
                else:
                    current.advance(ConnectionEvent.YIELD)
            self._choose(link)
        if not self._decides(info.peer_id):
            link.send(self._first_info(link))
            # The peer waits for this INFO: frames that groups send as soon as the link is up must not overtake it.
            link.flush()
        self._came_up(link, info)

    def _connection_refused(self, link: TcpLink, refusal: Refused) -> None:
        if refusal.reason == Reason.DUPLICATE:
            self.counters.duplicates += not refusal.by_peer
            return
        if refusal.by_peer and refusal.reason == Reason.LEFT_OUT and link.handshake.done:
            self._on_left_out(link, refusal)
        if refusal.reason == Reason.SELF or refusal.by_peer:
            return
        self.counters.refused += 1
        remote = link.handshake.remote
        if remote is not None and self.members.knows(remote.peer_id):
            self.refused_members[remote.peer_id] = shortened(str(refusal)), self.clock.monotonic()
        if link.handshake.dialer and not link.up:
            return  # the dialer logs its own failures
        if self._may_log(link.stats.ip, refusal.reason):
            self.log.error("Refused connection of %s to the cluster port: %s", link.describe(), refusal)

    def _signature_of(self, link: TcpLink, refusal: Refused) -> bytes:
        sign, handshake = self.options.sign, link.handshake
        if refusal.reason != Reason.LEFT_OUT or sign is None or not handshake.done:
            return b""
        return sign(handshake.last_word(shortened(str(refusal)), dialer=handshake.dialer))

    def _connection_finished(self, link: TcpLink) -> None:
        self._connections.discard(link)
        if self._chosen.get(link.peer_id) is link:
            del self._chosen[link.peer_id]
        if self.links.get(link.peer_id) is link:
            self.log.info("Route to %s is down: %s", link.describe(), link.close_reason)
            self._set_down(link)
            self.dialer.peer_lost(link.peer_id)

    # -- internals -----------------------------------------------------------------------------------------------

    def _accept(self) -> TcpLink:
        return self.new_link(self._key, dialer=False)

    def _on_left_out(self, link: TcpLink, refusal: Refused) -> None:
        """Takes a report that this node was left out, if it is signed by a voter that this node itself knows."""
        remote, handshake = link.handshake.remote, link.handshake
        assert remote is not None
        members, peer = self.members, remote.peer_id
        key = (members.key_of(peer) or members.logged_key_of(peer)) if members.is_voter(peer) else ""
        if key and refusal.signature:
            from jetcluster.mesh.identity import verify

            if verify(key, handshake.last_word(str(refusal), dialer=not handshake.dialer), refusal.signature):
                self._report_left_out(str(refusal))
                return
        self.counters.strangers += 1
        if self._may_log(link.stats.ip, refusal.reason):
            self.log.error("%s says that this node was left out, and is not known for it: %s", link.describe(), refusal)

    def _handshake_failed(self, address: tuple[str, int], error: Exception) -> None:
        from jetcluster.config.tls import handshake_failure

        self.counters.refused += 1
        if self._may_log(address[0], None):
            where, why = join_url(*address), handshake_failure(error)
            self.log.error("Refused connection of %s to the cluster port: TLS handshake error: %s", where, why)

    def _may_log(self, ip: str, reason: Reason | None) -> bool:
        """Returns True once in a while for each address and reason; None is TLS."""
        now, key = self.clock.monotonic(), (ip, reason)
        if now - self._refusals_logged.get(key, -REFUSAL_LOG_SECONDS) < REFUSAL_LOG_SECONDS:
            return False
        if len(self._refusals_logged) >= MAX_REFUSAL_LOGS:
            self._refusals_logged.clear()
        self._refusals_logged[key] = now
        return True

    def _first_info(self, link: TcpLink) -> bytes:
        return first_info(self.me, link.handshake, self.options.sign, link.dialled, link.own_addresses)

    def _known_key(self, peer_id: str) -> str:
        """Returns the key that `peer_id` must prove: the cluster's, or that of the node linked under this id."""
        known, linked = self.members.key_of(peer_id), self.peers.get(peer_id)
        return known or (linked.key if linked is not None else "")

    def _check_key(self, link: TcpLink, info: NodeInfo, body: bytes) -> None:
        """Raises Refused when the peer does not prove the key by which it is known."""
        known = self._known_key(info.peer_id)
        if known and info.key != known:
            raise Refused(
                Reason.AUTHORIZATION, f"node {info.name!r} is not the one that the cluster knows as {info.peer_id}"
            )
        if info.key:
            check_info(info, body, link.handshake, link.dialled, link.own_addresses)

    def _check_origin(self, link: TcpLink, peer_id: str) -> None:
        """Raises Refused for a peer that proved nothing, unless it is a member, or on this machine."""
        options = self.options
        if self._key or options.tls is not None or options.trusted_network or link.local or self.members.knows(peer_id):
            return
        raise Refused(
            Reason.AUTHORIZATION,
            "it is on another machine, and this cluster has no authorization: configure cluster { authorization } or "
            "cluster { tls }, or, where nobody else reaches the port, cluster { trusted_network: true }",
        )

    def _decides(self, peer_id: str) -> bool:
        return self.me.peer_id < peer_id

    def _check_name(self, peer_id: str, name: str) -> None:
        """Raises Refused for a second node of one name, which operators and clients could not tell apart."""
        if name == self.me.name:
            raise Refused(Reason.NAME, f"server name {name!r} is taken by node {self.me.peer_id}")
        for other, info in self.peers.items():
            if info.name == name and other != peer_id and not self._outranks(peer_id, other):
                raise Refused(Reason.NAME, f"server name {name!r} is taken by node {other}")

    def _outranks(self, peer_id: str, other: str) -> bool:
        """Returns True for a member whose name a stranger has taken while it was away."""
        return self.members.knows(peer_id) and not self.members.is_member(other)

    def _choose(self, link: TcpLink) -> None:
        assert link.peer_id not in self._chosen
        link.advance(ConnectionEvent.CHOOSE)
        self._chosen[link.peer_id] = link

    def _came_up(self, link: TcpLink, info: NodeInfo) -> None:
        self._set_up(link, info)
        link.became_up()
        if link.closed:
            return
        self.log.info("Route to %s is up", link.describe())
        others = [
            (peer, other.cluster_url)
            for peer, other in self.peers.items()
            if peer != info.peer_id and other.cluster_url
        ]
        link.send(encode_gossip(others[:MAX_GOSSIP_NODES]))
        self._tell_others(link, info)

    def _tell_others(self, link: PeerLink, info: NodeInfo) -> None:
        if info.cluster_url:
            self.dialer.learn(info.peer_id, info.cluster_url, hearsay=not self.members.is_member(info.peer_id))
            gossip = encode_gossip([(info.peer_id, info.cluster_url)])
            for other in self.links.values():
                if other is not link:
                    other.send(gossip)

    def _on_info(self, link: PeerLink, body: bytes) -> None:
        before = link.info
        super()._on_info(link, body)
        if before is not None and link.info is not None and before.cluster_url != link.info.cluster_url:
            self._tell_others(link, link.info)

    def _on_gossip(self, link: PeerLink, nodes: list[tuple[str, str]]) -> None:
        for peer_id, url in nodes:
            if peer_id not in self.links:
                self.dialer.learn(peer_id, url, hearsay=not self.members.is_member(link.peer_id))

    def _tick(self) -> None:
        """Keeps all links alive. After a standstill of this process (SIGSTOP, a long collection) the peers' frames are
        still unread, so their time limits are extended."""
        now, options = self.clock.monotonic(), self.options
        stood_still = now - self._last_tick - TICK_SECONDS
        self._last_tick = now
        for link in list(self.links.values()):
            assert isinstance(link, TcpLink)
            if stood_still > 2 * TICK_SECONDS:
                link.excuse(stood_still)
            if link.info is not None and link.info.jetstream and now - link.stats.last_activity > options.silent_after:
                self.set_silent(link, True)
            link.keepalive(now, options.stale_after)
        self._ticker = self.loop.call_later(TICK_SECONDS, self._tick)


def _advertised(address: str, port: int) -> str:
    """Returns `address`, with `port` where it has none."""
    try:
        split_url(address)
    except ValueError:
        return join_url(address.removeprefix("[").removesuffix("]"), port)
    return address
