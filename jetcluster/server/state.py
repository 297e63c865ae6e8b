"""`ServerState`: the options, names and counts that all parts of a server share; and the common part of INFO."""

from __future__ import annotations

import base64
import sys
from dataclasses import field
from typing import TYPE_CHECKING, Any, Final

from jetcluster import API_LEVEL, REPORTED_VERSION
from jetcluster.clock import Clock, Rng, Timers
from jetcluster.config.account_options import AccountLimitOptions
from jetcluster.config.nkeys import encode_key
from jetcluster.config.options import Options
from jetcluster.records import dataclass
from jetcluster.server.listener import advertised

if TYPE_CHECKING:
    import ssl

    from jetcluster.auth.authenticator import Authenticator
    from jetcluster.server.tracing import Tracer

LANGUAGE: Final = f"python{sys.version_info.major}.{sys.version_info.minor}"
"""The field `go` of INFO, in which nats-server tells its compiler."""
_NO_LIMITS: Final = AccountLimitOptions()
_PROTOCOL_VERSION: Final = 1


def new_server_id(rng: Rng) -> str:
    """Returns a server id: `N` and 55 base32 characters."""
    return encode_key("N", rng.token(32))


def new_nonce(rng: Rng) -> bytes:
    """Returns INFO's nonce: 11 random bytes as base64url without padding."""
    return base64.urlsafe_b64encode(rng.token(11)).rstrip(b"=")


@dataclass(slots=True)
class ServerState:
    """The shared state. A reload replaces `options`, `authenticator`, `tls` and `tracer`: do not keep copies."""

    options: Options
    """The options in force: the node's change in place before `Server.reconfigure` passes the new ones."""
    authenticator: Authenticator
    clock: Clock
    rng: Rng
    timers: Timers
    """The event loop outside tests."""
    server_id: str
    name: str
    start_ns: int
    """Nanoseconds since the epoch."""
    host: str
    """The bound address once the port is open: `options.host` may be a name."""
    port: int
    tls: ssl.SSLContext | None = None
    """The client port's context, made from `options.tls`."""
    tracer: Tracer | None = None
    """None when tracing is off."""
    lame_duck: bool = False
    stopping: bool = False
    peer_urls: list[str] = field(default_factory=list)
    """`host:port` of the other nodes' client ports."""
    slow_consumers: int = 0
    """Connections that did not keep up with their deliveries."""
    stale_connections: int = 0
    stalled_clients: int = 0

    def limits_of(self, account: str) -> AccountLimitOptions:
        """Returns the limits of an account; an account that is not configured has none."""
        found = (self.options.accounts or {}).get(account)
        return _NO_LIMITS if found is None else found.limits


def client_url(state: ServerState) -> str:
    """Returns `host:port` of this server for clients; "" if it is not advertised."""
    options = state.options
    return "" if options.no_advertise else advertised(options.client_advertise, options.host, state.port)


def connect_urls(state: ServerState) -> list[str]:
    """Returns INFO's `connect_urls`: this server unless it is in lame duck mode, then its peers."""
    url = client_url(state)
    own = [] if state.lame_duck or not url else [url]
    return own + [url for url in state.peer_urls if url not in own]


def server_info(state: ServerState) -> dict[str, Any]:
    """Returns the common part of INFO, with keys in nats-server's order."""
    options = state.options
    info: dict[str, Any] = {
        "server_id": state.server_id,
        "server_name": state.name,
        "version": REPORTED_VERSION,
        "proto": _PROTOCOL_VERSION,
        "go": LANGUAGE,
        "host": options.host,
        "port": state.port,
        "headers": not options.no_header_support,
    }
    if state.authenticator.required:
        info["auth_required"] = True
    if options.tls is not None:
        if not options.allow_non_tls:
            info["tls_required"] = True
        if options.tls.verify:
            info["tls_verify"] = True
        if options.allow_non_tls:
            info["tls_available"] = True
    info["max_payload"] = options.max_payload
    if options.jetstream.enabled:
        info["jetstream"] = True
    if options.cluster_name:
        info["cluster"] = options.cluster_name
        if not options.no_advertise:
            info["connect_urls"] = connect_urls(state)
    if options.domain:
        info["domain"] = options.domain
    if state.lame_duck:
        info["ldm"] = True
    info["api_lvl"] = API_LEVEL
    return info
