"""INFO, as far as it is the same for all clients, and the addresses that it tells."""

from __future__ import annotations

import sys
from typing import Any, Final

from jetcluster import API_LEVEL, REPORTED_VERSION
from jetcluster.server.listener import advertised
from jetcluster.server.state import ServerState

_PROTOCOL_VERSION: Final = 1


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
