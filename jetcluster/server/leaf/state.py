"""`LeafState`: the state shared by all leaf links of a server, and their INFO and CONNECT. URLs of hubs have the form
`nats-leaf://[user:password@ | token@]host[:port]`; the scheme `tls://` requires TLS.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from jetcluster import API_LEVEL, REPORTED_VERSION
from jetcluster.auth.remote_login import signed_login
from jetcluster.config.links_block import split_url
from jetcluster.config.options import LeafRemoteOptions
from jetcluster.config.reader import FieldError
from jetcluster.model.account_hash import AccountNames
from jetcluster.server import state as server_state
from jetcluster.server.listener import advertised
from jetcluster.server.state import ServerState

if TYPE_CHECKING:
    import ssl

    from jetcluster.server.leaf.tls import LeafTls

DEFAULT_PORT = 7422
MAX_PORT = 65_535
TLS_SECONDS = 2.0
MAX_DISCOVERED = 64
"""Addresses kept of a hub's cluster."""
_PROTOCOL = 3


def wants_tls(url: str) -> bool:
    return url.startswith("tls://")


def host_of(url: str) -> str:
    return place(url)[2]


def place(url: str) -> tuple[str, str, str, int]:
    """Splits a URL into (user, password, host, port); a token is the user."""
    address = url.split("://", 1)[-1].split("/", 1)[0]
    if ":" not in address.rpartition("@")[2]:
        address += f":{DEFAULT_PORT}"
    return split_url(address)


def _is_place(url: str) -> bool:
    """Returns True for an address that may be dialled, of those that another server tells."""
    try:
        _, _, host, port = place(url)
    except FieldError:
        return False
    return bool(host) and 0 < port <= MAX_PORT


class LeafState:
    """The state of all leaf links of a server. A reload replaces `options`."""

    def __init__(self, server: ServerState) -> None:
        self._server = server
        self.options = server.options.leafnodes
        self.system_account = server.options.system_account_name
        self.host = self.options.host
        self.port = 0
        """Bound port for leaf nodes; 0 if there is none."""
        self.neighbours: list[str] = []
        """`host:port` for leaf nodes of the other nodes of this cluster."""
        self.found: dict[int, list[str]] = {}
        """`id()` of a remote -> URLs from its hub's INFO."""
        self._marks: dict[str, bytes] = {}
        self._tls: LeafTls | None = None
        if self.options.tls is not None or any(remote.tls is not None for remote in self.options.remotes):
            self._tls = self.tls

    # ---- TLS

    @property
    def tls(self) -> LeafTls:
        """Made when first needed: a hub may require TLS that is not configured here. Raises ConfigError."""
        if self._tls is None:
            from jetcluster.server.leaf.tls import LeafTls

            self._tls = LeafTls(self.options)
        return self._tls

    @property
    def tls_if_any(self) -> LeafTls | None:
        """None until a link needs TLS."""
        return self._tls

    def tls_for(self, remote: LeafRemoteOptions | None, url: str) -> tuple[ssl.SSLContext, str | None, float]:
        """Returns (context, name to check in the certificate, timeout in seconds); the name is None at the accepting
        end, and so is `remote`. Raises ConfigError."""
        if remote is not None:
            return self.tls_to(remote, url)
        assert self.tls.accepting is not None
        assert self.options.tls is not None
        return self.tls.accepting, None, self.options.tls.timeout

    def tls_to(self, remote: LeafRemoteOptions, url: str) -> tuple[ssl.SSLContext, str, float]:
        """Returns the same at the connecting end."""
        from jetcluster.config.tls import name_to_check

        name = name_to_check(host_of(url), [host_of(url) for url in remote.urls])
        return self.tls.connecting(remote), name, remote.tls.timeout if remote.tls is not None else TLS_SECONDS

    # ---- for links

    def loop_mark(self, account: str) -> bytes:
        """Returns the subject, `$LDS.<22 characters>`, by which this server recognises its own interest in a loop."""
        mark = self._marks.get(account)
        if mark is None:
            token = base64.b32encode(self._server.rng.token(15))[:22]
            mark = self._marks[account] = b"$LDS." + token
        return mark

    def has_jetstream(self, account: str) -> bool:
        """Returns True when the account has JetStream on this server."""
        options = self._server.options
        return options.jetstream.enabled and account != options.system_account_name and options.has_jetstream(account)

    def discovered(self, remote: LeafRemoteOptions, urls: list[str]) -> None:
        """Keeps the addresses of a hub's cluster, with the remote's credentials, as alternatives to its URLs."""
        if remote.ignore_discovered_servers:
            return
        user, password, _, _ = place(remote.urls[0])
        credentials = f"{user}:{password}@" if password else f"{user}@" if user else ""
        scheme = "tls" if wants_tls(remote.urls[0]) else "nats-leaf"
        self.found[id(remote)] = [f"{scheme}://{credentials}{url}" for url in urls[:MAX_DISCOVERED] if _is_place(url)]

    # ---- handshake

    def connect_for(self, remote: LeafRemoteOptions, url: str, nonce: bytes) -> dict[str, Any]:
        """Returns the CONNECT of a connecting end. Raises LoginError."""
        server, options = self._server, self._server.options
        connect: dict[str, Any] = {"version": REPORTED_VERSION}
        connect |= signed_login(remote.credentials, remote.nkey, nonce)
        user, password, _, _ = place(url)
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
            connect["deny_pub"] = AccountNames(remote.account, leaf_remote=None).expand_all(remote.deny_imports)
        return connect | {
            "headers": not options.no_header_support,
            "jetstream": options.jetstream.enabled,
            "remote_account": remote.account,
            "protocol": _PROTOCOL,
        }

    def info_for(self, cid: int, account: str, nonce: bytes) -> dict[str, Any]:
        """Returns the INFO of an accepting end: the first, or with `account` the one after the login."""
        server, options = self._server, self._server.options
        info: dict[str, Any] = {
            "server_id": server.server_id,
            "server_name": server.name,
            "version": REPORTED_VERSION,
            "proto": _PROTOCOL,
            "go": server_state.LANGUAGE,
            "host": self.host,
            "port": self.port,
            "headers": not options.no_header_support,
            "auth_required": True,
            "max_payload": options.max_payload,
            "jetstream": options.jetstream.enabled,
            "client_id": cid,
        }
        if self.options.tls is not None:
            info["tls_required"] = True
            if self.options.tls.verify:
                info["tls_verify"] = True
        if options.cluster_name:
            info["cluster"] = options.cluster_name
        if options.domain:
            info["domain"] = options.domain
        if account:
            info |= {"connect_info": True, "remote_account": account}
        else:
            info["nonce"] = nonce.decode()
        own = [self.own_url] if self.own_url else []
        urls = [*own, *(url for url in self.neighbours if url not in own)]
        return info | {"api_lvl": API_LEVEL, "info_on_connect": True, "leafnode_urls": urls}

    @property
    def cluster_name(self) -> str:
        """The cluster's name for the other end; a single server uses its own name."""
        return self._server.options.cluster_name or self._server.name

    @property
    def own_url(self) -> str:
        """The advertised `host:port` for leaf nodes; "" if there is none."""
        if not self.port or self.options.no_advertise:
            return ""
        return advertised(self.options.advertise, self.host, self.port)
