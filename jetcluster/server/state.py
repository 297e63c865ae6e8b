"""`ServerState`: the options, names and counts that all parts of a server share; it holds no part of it.

INFO, as far as all clients are told the same, is made of it, with the addresses and the server's public name in it.
"""

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

_NO_LIMITS: Final = AccountLimitOptions()
_PROTOCOL_VERSION: Final = 1


def new_server_id(rng: Rng) -> str:
    """`N` and 55 base32 characters."""
    return encode_key("N", rng.token(32))


def new_nonce(rng: Rng) -> bytes:
    """INFO.nonce: 11 random bytes, base64url without padding."""
    return base64.urlsafe_b64encode(rng.token(11)).rstrip(b"=")


@dataclass(slots=True)
class ServerState:
    """A reload replaces `options`, `authenticator`, `tls` and `tracer`: who needs them asks here each time."""

    options: Options
    """The server's own: the node's change in place before `Server.reconfigure` brings the new ones."""
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
    """The address that is bound, once it is: `options.host` may be a name."""
    port: int
    tls: ssl.SSLContext | None = None
    """The client port's, made of `options.tls`."""
    tracer: Tracer | None = None
    """None: nothing is traced."""
    lame_duck: bool = False
    stopping: bool = False
    peer_urls: list[str] = field(default_factory=list)
    """`host:port` for clients of the other nodes."""
    slow_consumers: int = 0
    """Connections that did not read what they were sent."""
    stale_connections: int = 0
    stalled_clients: int = 0

    def limits_of(self, account: str) -> AccountLimitOptions:
        """The limits of an account, which has none if it is not configured."""
        found = (self.options.accounts or {}).get(account)
        return _NO_LIMITS if found is None else found.limits


def client_url(state: ServerState) -> str:
    """`host:port` of this server for clients; "" when it is not to be advertised."""
    options = state.options
    return "" if options.no_advertise else advertised(options.client_advertise, options.host, state.port)


def connect_urls(state: ServerState) -> list[str]:
    """This server first, then the peers; in lame duck mode without this server."""
    url = client_url(state)
    own = [] if state.lame_duck or not url else [url]
    return own + [url for url in state.peer_urls if url not in own]


def server_info(state: ServerState) -> dict[str, Any]:
    """Keys in nats-server's order."""
    options = state.options
    info: dict[str, Any] = {
        "server_id": state.server_id,
        "server_name": state.name,
        "version": REPORTED_VERSION,
        "proto": _PROTOCOL_VERSION,
        "go": f"python{sys.version_info.major}.{sys.version_info.minor}",
        "host": options.host,
        "port": state.port,
        "headers": not options.no_header_support,
    }
    if state.authenticator.required:
        info["auth_required"] = True
    if options.tls is not None:
        info["tls_available" if options.allow_non_tls else "tls_required"] = True
        if options.tls.verify:
            info["tls_verify"] = True
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
