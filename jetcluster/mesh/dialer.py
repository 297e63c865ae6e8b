"""Dialling of other nodes: configured routes always, nodes known by gossip until they stay away too long."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import field

from jetcluster.cancelling import cancelled
from jetcluster.clock import Clock, Rng
from jetcluster.mesh.api import NodeInfo
from jetcluster.mesh.auth import Reason, Refused, derive_key
from jetcluster.mesh.info import join_url, split_url
from jetcluster.mesh.link import TcpLink
from jetcluster.mesh.options import ConfiguredRoute, MeshOptions
from jetcluster.mesh.peer_link import PeerLink
from jetcluster.records import dataclass

RETRY_MIN_SECONDS = 0.1
RETRY_MAX_SECONDS = 2.0
"""Time between attempts: doubles from the first to the second, +-20%."""
DIAL_SECONDS = 2.0
POLITE_SECONDS = 0.5
"""Time for which, of two nodes that learn of each other, the one with the higher id leaves dialling to the other."""
MAX_TARGETS = 2048
MAX_HEARSAY = 64
"""Most addresses known from strangers: the rest is for those that members report."""
LEARNED_SECONDS = 3600.0
"""Time without any answer after which an address known by gossip only is forgotten."""
LOG_SECONDS = 60.0


@dataclass(slots=True, eq=False)
class DialTarget:
    """An address that is dialled repeatedly: a configured route, or one that other nodes have announced."""

    route: ConfiguredRoute
    configured: bool
    peer_id: str | None = None
    """Peer that answered there last, or is announced there."""
    is_self: bool = False
    hearsay: bool = False
    """Known from strangers only."""
    failing_since: float | None = None
    logged: float | None = None
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    dialled: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the first attempt has shown whether a node is there."""
    task: asyncio.Task[None] | None = None

    def __str__(self) -> str:
        return join_url(self.route.host, self.route.port)


class Dialer:
    """`me` and `options` are called each time, since a reload changes them; `links` are those that are up, by peer id;
    `new_link(key)` makes the connection to dial with."""

    def __init__(
        self, me: Callable[[], NodeInfo], options: Callable[[], MeshOptions], links: Mapping[str, PeerLink],
        new_link: Callable[[bytes], TcpLink], *, clock: Clock, rng: Rng, log: logging.Logger,
    ) -> None:  # fmt: skip
        self._me = me
        self._options = options
        self._links = links
        self._new_link = new_link
        self._clock = clock
        self._rng = rng
        self._log = log
        self._targets: dict[tuple[str, int], DialTarget] = {}

    @property
    def targets(self) -> Mapping[tuple[str, int], DialTarget]:
        """The dialled addresses, by host and port."""
        return self._targets

    def start(self, routes: tuple[ConfiguredRoute, ...]) -> None:
        self.set_routes(routes)

    def set_routes(self, routes: tuple[ConfiguredRoute, ...]) -> None:
        """Dials new routes; an address that is a configured route no longer counts as learned."""
        wanted = {(route.host, route.port): route for route in routes}
        for key, target in self._targets.items():
            target.configured = key in wanted
            if target.configured:
                target.route = wanted.pop(key)
        for route in wanted.values():
            self._add(DialTarget(route, configured=True))

    async def first_dials(self, seconds: float) -> None:
        waiting = [
            asyncio.ensure_future(target.dialled.wait()) for target in self._targets.values() if target.configured
        ]
        if waiting:
            await asyncio.wait(waiting, timeout=seconds)
            for one in waiting:
                one.cancel()

    async def stop(self) -> None:
        await cancelled([target.task for target in self._targets.values() if target.task is not None])

    @property
    def settled(self) -> bool:
        """True when each configured route led to a peer that is connected now, or to this node itself."""
        return all(
            target.is_self or target.peer_id in self._links for target in self._targets.values() if target.configured
        )

    @property
    def expected_nodes(self) -> int:
        """Number of nodes by the routes. An address without an answer counts, unless this node announces it."""
        me = self._me()
        nodes = {me.peer_id}
        for target in self._targets.values():
            if target.configured and not target.is_self and str(target) != me.cluster_url:
                nodes.add(target.peer_id or str(target))
        return len(nodes)

    def learn(self, peer_id: str, url: str, *, hearsay: bool = False) -> None:
        """Adds a peer's announced address to the attempts. `hearsay`, from a stranger, overrides nothing else."""
        if not url or peer_id == self._me().peer_id:
            return
        host, port = split_url(url)
        known = self._targets.get((host, port))
        if known is not None:
            if not known.configured and known.peer_id not in self._links and (known.hearsay or not hearsay):
                known.peer_id, known.hearsay = peer_id, hearsay
            return
        crowded = hearsay and sum(target.hearsay for target in self._targets.values()) >= MAX_HEARSAY
        if len(self._targets) < MAX_TARGETS and not crowded:
            self._add(DialTarget(ConfiguredRoute(host, port), configured=False, peer_id=peer_id, hearsay=hearsay))

    def peer_lost(self, peer_id: str) -> None:
        for target in self._targets.values():
            if target.peer_id == peer_id:
                target.wake.set()

    def _add(self, target: DialTarget) -> None:
        key = (target.route.host, target.route.port)
        if key not in self._targets:
            self._targets[key] = target
            target.task = asyncio.get_running_loop().create_task(self._run(target), name=f"dial {target}")

    async def _run(self, target: DialTarget) -> None:
        retry = RETRY_MIN_SECONDS
        while not self._expired(target):
            if target.peer_id is not None:
                if self._connected(target.peer_id):
                    target.dialled.set()
                    await self._until_lost(target)
                    retry = RETRY_MIN_SECONDS
                    await self._sleep(retry)
                if self._me().peer_id > target.peer_id:
                    await asyncio.sleep(POLITE_SECONDS)
                if self._connected(target.peer_id):
                    continue
            refusal = await self._attempt(target)
            if refusal is None or refusal.reason != Reason.DUPLICATE:  # a duplicate is about to be linked the other way
                target.dialled.set()
            if refusal is None:
                target.failing_since = target.logged = None
                retry = RETRY_MIN_SECONDS
                continue
            if refusal.reason == Reason.SELF:
                target.is_self = True
                return
            self._failed(target, refusal)
            await self._sleep(retry)
            retry = min(retry * 2, RETRY_MAX_SECONDS)
        self._log.info("Forgot route %s: nobody answered for %.0f s", target, LEARNED_SECONDS)
        del self._targets[target.route.host, target.route.port]

    async def _until_lost(self, target: DialTarget) -> None:
        while target.peer_id is not None and self._connected(target.peer_id):
            target.wake.clear()
            await target.wake.wait()

    async def _sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds * self._rng.uniform(0.8, 1.2))

    def _connected(self, peer_id: str) -> bool:
        return peer_id in self._links

    def _expired(self, target: DialTarget) -> bool:
        since = target.failing_since
        return not target.configured and since is not None and self._clock.monotonic() - since > LEARNED_SECONDS

    async def _attempt(self, target: DialTarget) -> Refused | None:
        """Returns None when the connection became a link."""
        options, route = self._options(), target.route
        credentials = route.credentials or options.authorization
        link = self._new_link(derive_key(options.cluster_name, credentials) if credentials is not None else b"")
        link.stats.configured = target.configured
        link.dialled = "" if target.configured else str(target)
        try:
            await self._connect(link, route)
        except (OSError, TimeoutError, ValueError) as error:  # ValueError: a host that cannot be looked up
            return Refused(Reason.BUSY, f"{error or 'timed out'}", by_peer=True)
        refusal = await link.outcome
        if link.handshake.done and link.handshake.remote is not None:
            target.peer_id = link.handshake.remote.peer_id
        return refusal

    async def _connect(self, link: TcpLink, route: ConfiguredRoute) -> None:
        tls, loop = self._options().tls, asyncio.get_running_loop()
        if tls is None:
            async with asyncio.timeout(DIAL_SECONDS):
                await loop.create_connection(lambda: link, route.host, route.port)
            return
        import ssl

        from jetcluster.config.tls import handshake_failure, name_to_check

        name = name_to_check(route.host, [target.route.host for target in self._targets.values() if target.configured])
        try:
            async with asyncio.timeout(DIAL_SECONDS + tls.timeout):
                await loop.create_connection(
                    lambda: link, route.host, route.port,
                    ssl=tls.connecting, server_hostname=name, ssl_handshake_timeout=tls.timeout,
                )  # fmt: skip
        except ssl.SSLError as error:
            raise ConnectionError(f"TLS handshake error: {handshake_failure(error)}") from error

    def _failed(self, target: DialTarget, refusal: Refused) -> None:
        now = self._clock.monotonic()
        if target.failing_since is None:
            target.failing_since = now
        if refusal.reason == Reason.DUPLICATE:
            return
        if target.logged is None or now - target.logged >= LOG_SECONDS:
            target.logged = now
            said = "refused by the peer: " if refusal.by_peer and refusal.reason != Reason.BUSY else ""
            self._log.error("Error trying to connect to route %s: %s%s", target, said, refusal)
