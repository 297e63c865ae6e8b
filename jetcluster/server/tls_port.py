"""The client port of a server with TLS: INFO in clear and then the handshake, or the handshake first, or a choice.

nats-server's four ways: the handshake follows the INFO; `handshake_first` turns that round;
with a delay the server waits that long for a TLS hello before it sends INFO in clear; `allow_non_tls` leaves it to the
client, whose first byte after the INFO says what it wants. What is to be done is asked anew for each connection, so a
reload applies to the next one.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import TYPE_CHECKING

from jetcluster.config.tls_options import TlsOptions
from jetcluster.net.tls_listener import HELLO, Address, TlsListener, first_byte
from jetcluster.protocol import writer
from jetcluster.server.client import Client

if TYPE_CHECKING:
    from jetcluster.server.server import Server

log = logging.getLogger("jetcluster.server")

_THROTTLED = "Connection throttling is active. Please try again later."
_FULL = "maximum connections exceeded"
_NO_TLS = TlsOptions()
_WINDOW = 1.0
"""Seconds over which `connection_rate_limit` counts."""


class TlsPort(TlsListener):
    def __init__(self, server: Server) -> None:
        assert server.tls is not None and server.options.tls is not None
        super().__init__(server.tls, server.options.tls.timeout, server.new_client, self._never)
        self._server = server
        self._window_ends = 0.0
        self._begun = 0
        self._throttled = 0

    @staticmethod
    def _never(address: Address, error: Exception) -> None:
        raise AssertionError("failures are told by _begin")

    async def _begin(self, connection: socket.socket, address: Address) -> None:
        server = self._server
        client = server.new_client()
        client.ip, client.port = address
        server.handshakes += 1
        try:
            await self._greet(connection, client)
        except (OSError, TimeoutError) as error:  # ssl.SSLError is an OSError
            connection.close()
            self._failed(client, error)
        finally:
            server.handshakes -= 1

    async def _greet(self, connection: socket.socket, client: Client) -> None:
        server, options = self._server, self._server.options
        if server.is_full or not server.crowd.has_room_at(connection.fileno()):
            await self._dismiss(connection, writer.info(client.first_info()), _FULL)
            return
        context, tls = server.tls, options.tls or _NO_TLS
        first = context is not None and tls.handshake_first
        if first and tls.fallback_delay:
            first = await first_byte(connection, tls.fallback_delay) is not None
        if not first:
            await asyncio.get_running_loop().sock_sendall(connection, client.greeting())
        chooses = context is not None and not first and options.allow_non_tls
        if chooses and await first_byte(connection, tls.timeout) != HELLO:
            context = None
        if context is None:  # also when a reload has just turned TLS off
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
        now = self._server.clock.monotonic()
        if now > self._window_ends:
            if self._throttled:
                log.warning("Rejected %d connections due to TLS rate limiting", self._throttled)
            self._window_ends, self._begun, self._throttled = now + _WINDOW, 0, 0
        self._begun += 1
        if not limit or self._begun <= limit:
            return False
        self._throttled += 1
        return True

    def _failed(self, client: Client, error: Exception) -> None:
        from jetcluster.config.tls import handshake_failure

        if not client.made:  # otherwise it is told where it stands
            log.info("cid %d, %s: TLS handshake error: %s", client.cid, client.ip, handshake_failure(error))
            client.close_reason = "TLS Handshake Failure"
            self._server.never_came(client)
