"""`Wire`, one connection of a load: a blocking socket, since the load must cost less than what it measures."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import struct
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from testkit.client import ClientError

STALL = 30.0
"""Seconds without one answer after which a load gives up."""
READ_SIZE = 1 << 18
_HELLO = {"verbose": False, "pedantic": False, "headers": True, "no_responders": True, "lang": "python"}


class Wire:
    """A logged-in connection that listens to `inbox` and all below it as subscription 1. Use as a context manager."""

    def __init__(self, url: str) -> None:
        """Connects to `nats://[user:password@]host:port`. Raises ClientError, OSError."""
        self.stall = STALL
        parts = urlsplit(url)
        self.inbox = b"_INBOX." + os.urandom(4).hex().encode()
        """No other connection's, also of other processes."""
        hello = _HELLO | ({"user": parts.username, "pass": parts.password or ""} if parts.username else {})
        self.socket = socket.create_connection((parts.hostname or "127.0.0.1", parts.port or 4222), 5.0)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # The kernel's own timeouts: Python's would cost a poll() before each read.
        self.socket.settimeout(None)
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            timeout = struct.pack("ll", int(self.stall), int(self.stall % 1 * 1_000_000))
            self.socket.setsockopt(socket.SOL_SOCKET, option, timeout)
        self.read_until(b"\r\n")
        self.send(b"CONNECT %b\r\nSUB %b.> 1\r\nPING\r\n" % (json.dumps(hello).encode(), self.inbox))
        self.read_until(b"PONG\r\n")

    def send(self, data: bytes) -> None:
        """Writes all. Raises ClientError when the server takes nothing for STALL seconds, or is gone."""
        try:
            self.socket.sendall(data)
        except OSError as error:
            raise self._told(error) from None

    def read(self) -> bytes:
        """Waits for the next bytes. Raises ClientError when none come for STALL seconds, or the server is gone."""
        try:
            data = self.socket.recv(READ_SIZE)
        except OSError as error:
            raise self._told(error) from None
        if not data:
            raise ClientError("connection lost")
        return data

    def read_until(self, mark: bytes) -> bytes:
        """Reads until `mark` has come, and returns it with all before and behind it. Raises ClientError."""
        found = b""
        while mark not in found:
            found += self.read()
        return found

    def flush(self) -> None:
        """Returns when the server has handled all that was sent. Raises ClientError."""
        self.send(b"PING\r\n")
        self.read_until(b"PONG\r\n")

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)  # wakes a thread that reads
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @staticmethod
    def _told(error: OSError) -> ClientError:
        if error.errno in (errno.EAGAIN, errno.EWOULDBLOCK):
            return ClientError("no answer, the load stalls")
        return ClientError(f"connection lost: {error}")
