"""The TLS alert with which an accepted connection's handshake fails.

OpenSSL leaves the alert in the outgoing buffer, and asyncio and uvloop both close the connection without sending it:
the other end then sees its connection end and not "bad certificate". Where the listener has said which socket a
handshake is on, the alert is written there before they hear of the failure.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

GOODBYE = 1.0
"""Seconds for the other end to take the alert and go."""
CHUNK = 65536

_accepted: ContextVar[socket.socket | None] = ContextVar("accepted", default=None)
"""The socket of the handshake; transports run their callbacks in the context in which they were made."""


class AlertingObject(ssl.SSLObject):
    outgoing: ssl.MemoryBIO | None = None

    def do_handshake(self) -> None:
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError:
            connection = _accepted.get()
            if connection is not None and self.outgoing is not None:
                _send(connection, self.outgoing.read())
            raise


class AlertingContext(ssl.SSLContext):
    sslobject_class = AlertingObject

    def wrap_bio(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *args: Any, **options: Any) -> ssl.SSLObject:
        made = super().wrap_bio(incoming, outgoing, *args, **options)
        if isinstance(made, AlertingObject):
            made.outgoing = outgoing
        return made


@contextmanager
def alerts_on(connection: socket.socket) -> Iterator[socket.socket]:
    """For the transports that are made inside. Yields another handle of the connection, for `say_goodbye`: the
    transport closes its own."""
    spare = connection.dup()
    token = _accepted.set(spare)
    try:
        yield spare
    finally:
        _accepted.reset(token)
        spare.close()


async def say_goodbye(connection: socket.socket) -> None:
    """After an alert was sent. A socket that is closed with something unread in it resets the connection, and the other
    end may never see the alert: so what still comes is read, for a while."""
    loop = asyncio.get_running_loop()
    try:
        connection.shutdown(socket.SHUT_WR)
        async with asyncio.timeout(GOODBYE):
            while await loop.sock_recv(connection, CHUNK):
                pass
    except (OSError, TimeoutError):
        pass


def _send(connection: socket.socket, alert: bytes) -> None:
    try:
        connection.send(alert)  # a few bytes into an empty buffer: all or nothing
    except OSError:
        pass
