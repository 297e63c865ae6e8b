"""All leaf links of a node: the port for leaf nodes, and the loops that maintain the links to hubs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from jetcluster.config.lexer import ConfigError
from jetcluster.config.options import LeafOptions, LeafRemoteOptions
from jetcluster.log_limit import FROM_STRANGERS
from jetcluster.server.client.clients import ServerParts
from jetcluster.server.leaf.connection import LeafConnection, LinkParts
from jetcluster.server.leaf.link import LeafLink
from jetcluster.server.leaf.rules import LeafLogins
from jetcluster.server.leaf.state import LeafState, place
from jetcluster.server.listener import ListenError, bound_address, host_port

if TYPE_CHECKING:
    from jetcluster.net.tls_listener import TlsListener

log = logging.getLogger("jetcluster.server")

DIAL_SECONDS = 5.0
LOG_INTERVAL_SECONDS = 60.0
"""Pause between two log lines about an unreachable hub."""
MAX_UNREACHED = 256


class LeafNodes:
    """The leaf links of one server, as `options.leafnodes` configures them."""

    def __init__(self, parts: ServerParts) -> None:
        self._parts = parts
        self.state = LeafState(parts.state)
        self.links: list[LeafConnection] = []
        """Links that have joined their accounts."""
        self.link_parts = LinkParts(parts, self.state, LeafLogins(parts, self.state), self.links)
        self._listener: asyncio.Server | TlsListener | None = None
        self._first: TlsListener | None = None
        """The listener, where links begin with a TLS handshake."""
        self._unreached: dict[str, tuple[str, float]] = {}
        """Address -> (last logged error, its monotonic time)."""
        self._loops: dict[int, asyncio.Future[None]] = {}
        """`id()` of a remote -> the task that maintains its link."""

    @property
    def host(self) -> str:
        return self.state.host

    @property
    def port(self) -> int:
        """Bound port for leaf nodes; 0 if there is none."""
        return self.state.port

    @property
    def own_url(self) -> str:
        """See `LeafState.own_url`."""
        return self.state.own_url

    # ---- life

    async def start(self) -> None:
        """Opens the port, if one is configured, and starts to connect to hubs. Raises ListenError."""
        options = self.state.options
        if options.port:
            try:
                await self._listen(max(options.port, 0))
            except OSError as error:
                address = host_port(options.host, max(options.port, 0))
                raise ListenError(f"Error listening on leafnode port: {address} - {error.strerror or error}") from error
            log.info("Listening for leafnode connections on %s", host_port(options.host, self.port))
        self._follow(options.remotes)

    def reconfigure(self, options: LeafOptions) -> None:
        """Applies a reload: unchanged remotes keep their links, others are added or removed; the port stays."""
        kept = [next((old for old in self.state.options.remotes if old == new), new) for new in options.remotes]
        self.state.options = replace(options, remotes=kept)
        if (tls := self.state.tls_if_any) is not None:
            tls.follow(self.state.options)
        self._follow(kept)

    def _follow(self, remotes: Sequence[LeafRemoteOptions]) -> None:
        wanted = {id(remote): remote for remote in remotes if not remote.disabled}
        for key in [key for key in self._loops if key not in wanted]:
            self._loops.pop(key).cancel()
            self.state.found.pop(key, None)
        for key, remote in wanted.items():
            if key not in self._loops:
                self._loops[key] = asyncio.ensure_future(self._keep_up(remote))

    async def _listen(self, port: int) -> None:
        options, shared = self.state.options, self._parts.state.options.worker is not None
        if options.tls is not None and options.tls.handshake_first:
            from jetcluster.net.tls_listener import TlsListener

            assert self.state.tls.accepting is not None
            first = TlsListener(
                self.state.tls.accepting,
                options.tls.timeout,
                lambda: LeafLink(self.link_parts),
                _handshake_failed,
                fallback=options.tls.fallback_delay,
            )
            self.state.host, self.state.port = await first.start(options.host, port, shared=shared)
            self._listener = self._first = first
            return
        plain = await asyncio.get_running_loop().create_server(
            lambda: LeafLink(self.link_parts), options.host or None, port, backlog=128, reuse_port=shared or None
        )
        self.state.host, self.state.port = bound_address(plain)
        self._listener = plain

    def renew_certificates(self) -> None:
        """Reads the files of certificates and authorities again, for later handshakes. Raises ConfigError."""
        if (tls := self.state.tls_if_any) is None:
            return
        tls.renew()
        if self._first is not None and tls.accepting is not None:
            self._first.context = tls.accepting

    async def stop(self) -> None:
        """Closes the port and stops connecting to hubs. The server closes the links with its other connections."""
        for loop in self._loops.values():
            loop.cancel()
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    async def _keep_up(self, remote: LeafRemoteOptions) -> None:
        """Connects to one hub, and again after each loss, with growing pauses."""
        from jetcluster.server.leaf.redial import Redial  # a server without a hub needs none

        redial = Redial(self._parts.state.rng.random)
        urls = list(remote.urls)
        if not remote.no_randomize:
            urls.sort(key=lambda _: self._parts.state.rng.random())
        turn = 0
        while True:
            known = urls + [url for url in self.state.found.get(id(remote), []) if url not in urls]
            url = known[turn % len(known)]
            turn += 1
            link = await self._dial(remote, url)
            if link is not None:
                try:
                    await asyncio.shield(link.over)
                finally:
                    link.abort("Server Shutdown")
            pause = redial.pause(
                self._parts.state.clock.monotonic(),
                self.state.options.reconnect,
                reached=link is not None,
                was_up=link is not None and link.was_up,
                told=0.0 if link is None else link.retry_after,
            )
            await asyncio.sleep(pause)

    async def _dial(self, remote: LeafRemoteOptions, url: str) -> LeafLink | None:
        _, _, host, port = place(url)
        context = name = None
        link = LeafLink(self.link_parts, remote, url)
        try:
            if remote.tls is not None and remote.tls.handshake_first:
                context, name, _ = self.state.tls_to(remote, url)
            async with asyncio.timeout(remote.dial_timeout or self.state.options.dial_timeout or DIAL_SECONDS):
                await asyncio.get_running_loop().create_connection(
                    lambda: link, host, port, ssl=context, server_hostname=name
                )
        except (OSError, TimeoutError, ValueError, OverflowError, ConfigError, asyncio.CancelledError) as error:
            # ValueError, OverflowError: no address that can be looked up; ConfigError: files that may be mended.
            if link.made:  # connected as the timeout or the cancellation came
                link.abort("Server Shutdown")
            if isinstance(error, asyncio.CancelledError):  # a reload removed the remote, or the server stops
                raise
            why = str(error)
            if context is not None and not isinstance(error, ConnectionRefusedError):
                from jetcluster.config.tls import handshake_failure

                why = f"TLS handshake error: {handshake_failure(error)}"
            self._log_unreached(host_port(host, port), why)
            return None
        self._unreached.pop(host_port(host, port), None)
        return link

    def _log_unreached(self, where: str, why: str) -> None:
        now = self._parts.state.clock.monotonic()
        logged, at = self._unreached.get(where, ("", 0.0))
        if why != logged or now - at >= LOG_INTERVAL_SECONDS:
            if len(self._unreached) >= MAX_UNREACHED:
                self._unreached.clear()
            self._unreached[where] = (why, now)
            log.warning("Error trying to connect as leafnode to remote server %s: %s", where, why)

    # ---- changes

    def recheck(self, account: str) -> None:
        """Checks the leaf nodes of an account that changed; closes the newest where there are too many."""
        found = [link for link in self.links if link.account == account and not link.solicited]
        limit = self._parts.state.limits_of(account).max_leafnodes
        for link in found[limit:] if limit >= 0 else ():
            link.close("Maximum Account Connections Exceeded", "maximum account active connections exceeded")
        for link in found:
            if not link.close_reason and not self.state.options.users:
                link.recheck()

    def set_neighbours(self, urls: Sequence[str]) -> None:
        """Sets the other nodes' addresses for leaf nodes, and sends INFO to the leaf nodes."""
        self.state.neighbours = list(urls)
        for link in self.links:
            if not link.solicited:
                link.send_info()


def _handshake_failed(address: tuple[str, int], error: Exception) -> None:
    from jetcluster.config.tls import handshake_failure

    where, why = host_port(*address), handshake_failure(error)
    log.warning("leafnode connection of %s: TLS handshake error: %s", where, why, extra=FROM_STRANGERS)
