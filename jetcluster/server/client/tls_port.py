"""The client port of a server with TLS, in nats-server's four modes.

By default the handshake follows INFO in clear. With `handshake_first` it comes before INFO; with a fallback delay the
server waits that long for a TLS hello, then sends INFO in clear. With `allow_non_tls` the client's first byte after
INFO decides. Each connection reads the options again, so a reload applies to the next one.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable

from jetcluster.config.tls_options import TlsOptions
from jetcluster.log_limit import FROM_STRANGERS
from jetcluster.net.tls_listener import TLS_HANDSHAKE_RECORD, Address, TlsListener, first_byte
from jetcluster.protocol import writer
from jetcluster.server.client.client import Client
from jetcluster.server.client.clients import ServerParts

log = logging.getLogger("jetcluster.server")

_THROTTLED = "Connection throttling is active. Please try again later."
_FULL = "maximum connections exceeded"
_NO_TLS = TlsOptions()
_RATE_WINDOW_SECONDS = 1.0
"""Seconds over which `connection_rate_limit` counts."""


class TlsPort(TlsListener):
    """The client port of a server with TLS."""

    def __init__(self, parts: ServerParts, new_client: Callable[[], Client]) -> None:
        """`parts.state` holds the context and the options, which a reload replaces."""
        state = parts.state
        assert state.tls is not None and state.options.tls is not None
        super().__init__(state.tls, state.options.tls.timeout, new_client, self._never)
        self._state = state
        self._clients = parts.clients
        self._crowd = parts.crowd
        self._new_client = new_client
        self._window_ends = 0.0
        self._begun = 0
        self._throttled = 0

    @staticmethod
    def _never(address: Address, error: Exception) -> None:
        raise AssertionError("failures are told by _begin")

    async def _begin(self, connection: socket.socket, address: Address) -> None:
        client = self._new_client()
        client.ip, client.port = address
        self._clients.handshakes += 1
        try:
            await self._greet(connection, client)
        except (OSError, TimeoutError) as error:  # ssl.SSLError is an OSError
            connection.close()
            self._failed(client, error)
        finally:
            self._clients.handshakes -= 1

    async def _greet(self, connection: socket.socket, client: Client) -> None:
        state, options = self._state, self._state.options
        if self._clients.is_full or not self._crowd.has_room_at(connection.fileno()):
            await self._dismiss(connection, writer.info(client.first_info()), _FULL)
            return
        context, tls = state.tls, options.tls or _NO_TLS
        first = context is not None and tls.handshake_first
        if first and tls.fallback_delay:
            first = await first_byte(connection, tls.fallback_delay) is not None
        if not first:
            await asyncio.get_running_loop().sock_sendall(connection, client.greeting())
        chooses = context is not None and not first and options.allow_non_tls
        if chooses and await first_byte(connection, tls.timeout) != TLS_HANDSHAKE_RECORD:
            context = None
        if context is None:  # also after a reload that turned TLS off
            await self._stay_plain(connection, lambda: client)
            return
        if self._is_throttled(tls.connection_rate_limit):
            await self._dismiss(connection, b"", _THROTTLED)
            return
        client.tls_first = first
        self.timeout = tls.timeout
        await self._shake_hands(connection, context, lambda: client)

    async def _dismiss(self, connection: socket.socket, before: bytes, text: str) -> None:
        await asyncio.get_running_loop().sock_sendall(connection, before + writer.err(text))
        connection.shutdown(socket.SHUT_WR)
        connection.close()

    def _is_throttled(self, limit: int) -> bool:
        now = self._state.clock.monotonic()
        if now > self._window_ends:
            if self._throttled:
                log.warning("Rejected %d connections due to TLS rate limiting", self._throttled)
            self._window_ends, self._begun, self._throttled = now + _RATE_WINDOW_SECONDS, 0, 0
        self._begun += 1
        if not limit or self._begun <= limit:
            return False
        self._throttled += 1
        return True

    def _failed(self, client: Client, error: Exception) -> None:
        from jetcluster.config.tls import handshake_failure

        if not client.made:  # else the connection reports its own end
            why = handshake_failure(error)
            log.info("cid %d, %s: TLS handshake error: %s", client.cid, client.ip, why, extra=FROM_STRANGERS)
            client.end_unmade("TLS Handshake Failure")
            self._clients.count_failed_handshake(client)
