"""TLS on leaf links: the contexts, and the handshake on an open connection."""

from __future__ import annotations

import asyncio
import ssl

from jetcluster.config.options import LeafOptions, LeafRemoteOptions
from jetcluster.config.tls import client_context, handshake_failure, server_context
from jetcluster.config.tls_options import TlsOptions
from jetcluster.net.tls_listener import SHUTDOWN_SECONDS


class LeafTls:
    """The TLS contexts of leaf links, made only if a link has TLS. Raises ConfigError for an unusable file."""

    def __init__(self, options: LeafOptions) -> None:
        self.accepting = server_context(options.tls) if options.tls is not None else None
        self.options = options
        self._connecting: dict[int, ssl.SSLContext] = {}
        for remote in options.remotes:
            if remote.tls is not None:
                self.connecting(remote)

    def connecting(self, remote: LeafRemoteOptions) -> ssl.SSLContext:
        context = self._connecting.get(id(remote))
        if context is None:
            context = self._connecting[id(remote)] = client_context(remote.tls or TlsOptions())
        return context

    def follow(self, options: LeafOptions) -> None:
        """Applies a reload, and drops the contexts of removed remotes: a new remote may get the same `id()`."""
        self.options = options
        there = {id(remote) for remote in options.remotes}
        self._connecting = {key: context for key, context in self._connecting.items() if key in there}

    def renew(self) -> None:
        """Reads the files of certificates and authorities again, for new links. Raises ConfigError, and changes nothing
        then."""
        made = LeafTls(self.options)
        self.accepting, self._connecting = made.accepting, made._connecting


async def handshake(
    transport: asyncio.Transport, protocol: asyncio.Protocol, context: ssl.SSLContext, name: str | None, seconds: float
) -> asyncio.Transport | str:
    """Runs a TLS handshake; returns the new transport or the text of an error. `name`: the host name that the accepting
    end's certificate must have, None at that end."""
    try:
        made = await asyncio.get_running_loop().start_tls(
            transport, protocol, context,
            server_side=name is None, server_hostname=name,
            ssl_handshake_timeout=seconds, ssl_shutdown_timeout=SHUTDOWN_SECONDS,
        )  # fmt: skip
    except (TimeoutError, OSError) as error:  # ssl.SSLError is an OSError
        return handshake_failure(error)
    return made if made is not None else "the other end closed the connection"
