"""All leaf links of a node: the port for leaves, and the loops that keep the links to hubs up."""

from __future__ import annotations

import asyncio
import base64
import logging
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from jetcluster import API_LEVEL, REPORTED_VERSION
from jetcluster.auth.authenticator import AuthResult
from jetcluster.auth.remote_login import signed_login
from jetcluster.auth.secrets import PasswordChecker, SlowPart, is_signed
from jetcluster.config.nkeys import decode_user_key
from jetcluster.config.options import LeafOptions, LeafRemoteOptions, LeafUserOptions
from jetcluster.protocol import writer
from jetcluster.server.identity import new_nonce
from jetcluster.server.leaf_link import LeafLink
from jetcluster.server.leaf_url import host_of, place, wants_tls
from jetcluster.server.listener import ListenError, advertised, bound_address, host_port
from jetcluster.server.server import Server

if TYPE_CHECKING:
    import ssl

    from jetcluster.auth.certificates import PeerCertificate
    from jetcluster.net.tls_listener import TlsListener
    from jetcluster.server.leaf_tls import LeafTls

log = logging.getLogger("jetcluster.server")

DIAL_TIMEOUT = 5.0
TLS_TIMEOUT = 2.0
MAX_DELAY = 8.0
"""Seconds between attempts at a hub that refuses, at most; a loop waits longer."""
MAX_UNREACHED_DELAY = 2.0
"""At one that is not reached."""
LOG_EVERY = 60.0
"""Seconds between two lines about a hub that is not reached."""
MAX_TOLD = 256
_PROTOCOL = 3


class LeafNodes:
    """The links of one server, by its `options.leafnodes`."""

    def __init__(self, server: Server) -> None:
        self.server = server
        options = self.options = server.options.leafnodes
        self.system_account = server.options.system_account_name
        self.host = options.host
        self.port = 0
        """Bound port for leaves; 0: none."""
        self.links: list[LeafLink] = []
        """Those that take part in their accounts."""
        self._passwords = PasswordChecker()
        self._listener: asyncio.Server | TlsListener | None = None
        self._marks: dict[str, bytes] = {}
        self._found: dict[int, list[str]] = {}
        """By remote: addresses that hubs have told."""
        self._neighbours: list[str] = []
        self._unreached: dict[str, tuple[str, float]] = {}
        """By address, what was told in the log, and when."""
        self._loops: dict[int, asyncio.Future[None]] = {}
        """By the id of a remote: what keeps its link up."""
        self._tls: LeafTls | None = None
        if options.tls is not None or any(remote.tls is not None for remote in options.remotes):
            self._tls = self.tls

    # ---- life

    async def start(self) -> None:
        """Opens the port, if there is to be one, and begins to connect to hubs. Raises ListenError."""
        options = self.options
        if options.port:
            try:
                await self._listen(max(options.port, 0))
            except OSError as error:
                address = host_port(options.host, max(options.port, 0))
                raise ListenError(f"Error listening on leafnode port: {address} - {error.strerror or error}") from error
            log.info("Listening for leafnode connections on %s", host_port(options.host, self.port))
        self._follow(options.remotes)

    def reconfigure(self, options: LeafOptions) -> None:
        """After a reload: links to hubs come and go, the port stays. Remotes that are as before keep their links."""
        kept = [next((old for old in self.options.remotes if old == new), new) for new in options.remotes]
        self.options = replace(options, remotes=kept)
        if self._tls is not None:
            self._tls.follow(self.options)
        self._follow(kept)

    def _follow(self, remotes: Sequence[LeafRemoteOptions]) -> None:
        wanted = {id(remote): remote for remote in remotes if not remote.disabled}
        for key in [key for key in self._loops if key not in wanted]:
            self._loops.pop(key).cancel()
            self._found.pop(key, None)
        for key, remote in wanted.items():
            if key not in self._loops:
                self._loops[key] = asyncio.ensure_future(self._keep_up(remote))

    async def _listen(self, port: int) -> None:
        options = self.options
        if options.tls is not None and options.tls.handshake_first:
            from jetcluster.net.tls_listener import TlsListener

            assert self.tls.accepting is not None
            first = TlsListener(
                self.tls.accepting,
                options.tls.timeout,
                lambda: LeafLink(self),
                _handshake_failed,
                fallback=options.tls.fallback_delay,
            )
            self.host, self.port = await first.start(options.host, port)
            self._listener = first
            return
        plain = await asyncio.get_running_loop().create_server(
            lambda: LeafLink(self), options.host or None, port, backlog=128
        )
        self.host, self.port = bound_address(plain)
        self._listener = plain

    @property
    def tls(self) -> LeafTls:
        """Made when it is needed: a hub may ask for TLS that nobody has configured. Raises ConfigError."""
        if self._tls is None:
            from jetcluster.server.leaf_tls import LeafTls

            self._tls = LeafTls(self.options)
        return self._tls

    def tls_for(self, link: LeafLink) -> tuple[ssl.SSLContext, str | None, float]:
        """(context, name that the accepting end's certificate must have or None there, seconds). Raises ConfigError."""
        if link.remote is not None:
            return self._tls_to(link.remote, link.url)
        assert self.tls.accepting is not None
        assert self.options.tls is not None
        return self.tls.accepting, None, self.options.tls.timeout

    def _tls_to(self, remote: LeafRemoteOptions, url: str) -> tuple[ssl.SSLContext, str, float]:
        from jetcluster.config.tls import name_to_check

        name = name_to_check(host_of(url), [host_of(url) for url in remote.urls])
        return self.tls.connecting(remote), name, remote.tls.timeout if remote.tls is not None else TLS_TIMEOUT

    def renew_certificates(self) -> None:
        """Reads them again, for handshakes to come. Raises ConfigError."""
        if self._tls is not None:
            self._tls.renew()

    async def stop(self) -> None:
        """Closes the port, and tries no hub again. The server ends the links with its other connections."""
        for loop in self._loops.values():
            loop.cancel()
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    async def _keep_up(self, remote: LeafRemoteOptions) -> None:
        """Connects to one hub, again and again."""
        failures = 0
        urls = list(remote.urls)
        if not remote.no_randomize:
            urls.sort(key=lambda _: self.server.rng.random())
        turn = 0
        while True:
            known = urls + [url for url in self._found.get(id(remote), []) if url not in urls]
            url = known[turn % len(known)]
            turn += 1
            link = await self._dial(remote, url)
            wait, longest = 0.0, MAX_UNREACHED_DELAY
            if link is not None:
                longest = MAX_DELAY
                try:
                    await asyncio.shield(link.over)
                finally:
                    link.abort("Server Shutdown")
                wait = link.retry_after
                failures = 0 if link.was_up else failures
            failures += 1
            delay = min(self.options.reconnect * 2 ** min(failures - 1, 8), max(longest, self.options.reconnect))
            await asyncio.sleep(max(delay * (1 + 0.2 * self.server.rng.random()), wait))

    async def _dial(self, remote: LeafRemoteOptions, url: str) -> LeafLink | None:
        _, _, host, port = place(url)
        context = name = None
        if remote.tls is not None and remote.tls.handshake_first:
            context, name, _ = self._tls_to(remote, url)
        link = LeafLink(self, remote, url)
        try:
            async with asyncio.timeout(remote.dial_timeout or self.options.dial_timeout or DIAL_TIMEOUT):
                await asyncio.get_running_loop().create_connection(
                    lambda: link, host, port, ssl=context, server_hostname=name
                )
        except (OSError, TimeoutError, asyncio.CancelledError) as error:
            if link.made:  # just now
                link.abort("Server Shutdown")
            if isinstance(error, asyncio.CancelledError):  # a reload takes the remote away
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
        now = self.server.clock.monotonic()
        told, at = self._unreached.get(where, ("", 0.0))
        if why != told or now - at >= LOG_EVERY:
            if len(self._unreached) >= MAX_TOLD:
                self._unreached.clear()
            self._unreached[where] = (why, now)
            log.warning("Error trying to connect as leafnode to remote server %s: %s", where, why)

    # ---- what links ask

    def new_nonce(self) -> bytes:
        return new_nonce(self.server.rng)

    def loop_mark(self, account: str) -> bytes:
        """The subject by which this server knows its own interest when it comes back (`$LDS.<22 characters>`)."""
        mark = self._marks.get(account)
        if mark is None:
            token = base64.b32encode(self.server.rng.token(15))[:22]
            mark = self._marks[account] = b"$LDS." + token
        return mark

    def joined(self, link: LeafLink) -> None:
        """A server that connects anew may be here before its old link is known to be dead."""
        link.was_up = True
        for other in list(self.links):
            same = (other.peer_id, other.account, other.remote_cluster) == (
                link.peer_id,
                link.account,
                link.remote_cluster,
            )
            if same and not other.solicited and not link.solicited:
                other.close("Duplicate Remote LeafNode Connection")
        self.links.append(link)

    def forget(self, link: LeafLink) -> None:
        if link in self.links:
            self.links.remove(link)

    def recheck(self, account: str) -> None:
        """The account is not what it was: may its leaves stay? The newest go where there are too many."""
        found = [link for link in self.links if link.account == account and not link.solicited]
        limit = self.server.limits_of(account).max_leafnodes
        for link in found[limit:] if limit >= 0 else ():
            link.close("Maximum Account Connections Exceeded", "maximum account active connections exceeded")
        for link in found:
            if not link.close_reason and not self.options.users:
                link.recheck()

    def has_room(self, account: str) -> bool:
        limit = self.server.limits_of(account).max_leafnodes
        return limit < 0 or sum(link.account == account and not link.solicited for link in self.links) < limit

    def slow_part(self, connect: dict[str, Any]) -> SlowPart | None:
        """The part of `log_in` that computes for longer than an event loop can wait: see `auth.secrets`."""
        if not self.options.users:
            return self.server.authenticator.slow_part(connect)
        found = next((user for user in self.options.users if user.user and user.user == connect.get("user")), None)
        return None if found is None else self._passwords.slow_part(found.password, str(connect.get("pass") or ""))

    def log_in(
        self, connect: dict[str, Any], nonce: bytes, address: str, certificate: PeerCertificate | None = None
    ) -> AuthResult | None:
        """The user that a leaf connects as; None when it may not. `certificate`: what it has shown, which decides when
        the port has verify_and_map."""
        tls = self.options.tls
        if self.options.users and tls is not None and tls.verify_and_map:
            return self._named(certificate, str(connect.get("pass") or ""))
        if self.options.users:
            for user in self.options.users:
                if self._is(user, connect, nonce):
                    return AuthResult(user.account, user.user or user.nkey, None)
            return None
        try:
            return self.identify(connect, nonce, address, certificate)
        except Exception as error:  # noqa: BLE001 - whatever goes wrong in there, the answer is no
            work = self.server.look_up(error)
            if work is not None:
                self.server.spawn(work)  # the leaf comes again
            log.info("leafnode refused: %s", error)
            return None

    def identify(
        self, connect: dict[str, Any], nonce: bytes, address: str, certificate: PeerCertificate | None
    ) -> AuthResult:
        """By the rules for clients. Raises AuthError."""
        tls = self.options.tls
        return self.server.authenticator.check(
            connect, nonce, address, "LEAFNODE",
            certificate=certificate, by_certificate=tls is not None and tls.verify_and_map,
        )  # fmt: skip

    def has_jetstream(self, account: str) -> bool:
        """True when the account has JetStream on this server."""
        options = self.server.options
        return options.jetstream.enabled and account != options.system_account_name and options.has_jetstream(account)

    def _named(self, certificate: PeerCertificate | None, password: str) -> AuthResult | None:
        from jetcluster.auth.certificates import user_of

        users = {user.user: user for user in self.options.users}
        name = user_of(certificate, users) if certificate is not None else None
        if name is None or not self._passwords.matches(users[name].password, password):
            return None
        return AuthResult(users[name].account, name, None)

    def _is(self, user: LeafUserOptions, connect: dict[str, Any], nonce: bytes) -> bool:
        if user.nkey:
            signature = str(connect.get("sig") or "")
            return connect.get("nkey") == user.nkey and is_signed(decode_user_key(user.nkey), nonce, signature)
        password = str(connect.get("pass") or "")
        return connect.get("user") == user.user and self._passwords.matches(user.password, password)

    def set_neighbours(self, urls: Sequence[str]) -> None:
        """Where the other nodes of this cluster take leaf links: told to leaves."""
        self._neighbours = list(urls)
        for link in self.links:
            if not link.solicited:
                link.send(writer.info(self.info_for(link)))

    def discovered(self, remote: LeafRemoteOptions, urls: list[str]) -> None:
        """Addresses of the hub's cluster, for when the configured ones do not answer; they take its credentials."""
        if remote.ignore_discovered_servers:
            return
        user, password, _, _ = place(remote.urls[0])
        credentials = f"{user}:{password}@" if password else f"{user}@" if user else ""
        scheme = "tls" if wants_tls(remote.urls[0]) else "nats-leaf"
        self._found[id(remote)] = [f"{scheme}://{credentials}{url}" for url in urls[:64]]

    # ---- handshake

    def connect_for(self, link: LeafLink, remote: LeafRemoteOptions, nonce: bytes) -> dict[str, Any]:
        """CONNECT of a connecting end. Raises LoginError."""
        server, options = self.server, self.server.options
        connect: dict[str, Any] = {"version": REPORTED_VERSION}
        connect |= signed_login(remote.credentials, remote.nkey, nonce)
        user, password, _, _ = place(link.url)
        if password:
            connect |= {"user": user, "pass": password}
        elif user:
            connect |= {"user": user, "auth_token": user}
        connect |= {"server_id": server.server_id, "name": server.name, "cluster": self.cluster_name}
        if options.domain:
            connect["domain"] = options.domain
        if remote.hub:
            connect["is_hub"] = True
        if remote.deny_imports:
            connect["deny_pub"] = remote.deny_imports
        return connect | {
            "headers": not options.no_header_support,
            "jetstream": options.jetstream.enabled,
            "remote_account": remote.account,
            "protocol": _PROTOCOL,
        }

    def info_for(self, link: LeafLink) -> dict[str, Any]:
        """INFO of an accepting end: the first, or the one that says which account the other end is bound to."""
        server, options = self.server, self.server.options
        info: dict[str, Any] = {
            "server_id": server.server_id,
            "server_name": server.name,
            "version": REPORTED_VERSION,
            "proto": _PROTOCOL,
            "go": f"python{sys.version_info.major}.{sys.version_info.minor}",
            "host": self.host,
            "port": self.port,
            "headers": not options.no_header_support,
            "auth_required": True,
            "max_payload": options.max_payload,
            "jetstream": options.jetstream.enabled,
            "client_id": link.cid,
        }
        if self.options.tls is not None:
            info["tls_required"] = True
            if self.options.tls.verify:
                info["tls_verify"] = True
        if options.cluster_name:
            info["cluster"] = options.cluster_name
        if options.domain:
            info["domain"] = options.domain
        if link.account:
            info |= {"connect_info": True, "remote_account": link.account}
        else:
            info["nonce"] = link.nonce.decode()
        own = [self.own_url] if self.own_url else []
        urls = [*own, *(url for url in self._neighbours if url not in own)]
        return info | {"api_lvl": API_LEVEL, "info_on_connect": True, "leafnode_urls": urls}

    @property
    def cluster_name(self) -> str:
        """The name by which the other end knows this one; a single server is a cluster of its own name."""
        return self.server.options.cluster_name or self.server.name

    @property
    def own_url(self) -> str:
        """host:port for leaves, as it is advertised."""
        if not self.port or self.options.no_advertise:
            return ""
        return advertised(self.options.advertise, self.host, self.port)


def _handshake_failed(address: tuple[str, int], error: Exception) -> None:
    from jetcluster.config.tls import handshake_failure

    log.warning("leafnode connection of %s: TLS handshake error: %s", host_port(*address), handshake_failure(error))
