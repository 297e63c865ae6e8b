"""`Peer`, a scripted NATS server on a socket: a thread that hands every command to the test and sends what the test
returns."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Callable
from typing import Any

from jetcluster.protocol.parser import CONNECT, PING, PONG, PUB, SUB, UNSUB, Parser

Answer = Callable[[bytes, bytes, bytes, bytes], bytes]
"""(subject, reply, header block, payload) of a PUB -> bytes to send back."""


class Peer:
    """Serves connections one after the other until `close`."""

    def __init__(
        self, answer: Answer = lambda *_: b"", info: dict[str, Any] | None = None, greeting: bytes = b"",
        tls: ssl.SSLContext | None = None, tls_first: bool = False,
    ) -> None:  # fmt: skip
        """`tls`: of the server, which begins behind its INFO, or before it."""
        self._tls = tls
        self._tls_first = tls_first
        self.connects: list[dict[str, Any]] = []
        self.published: list[tuple[bytes, bytes, bytes, bytes]] = []
        self.pongs = 0
        self.accepted = 0
        self._answer = answer
        self._info = {"server_name": "peer", "max_payload": 1 << 20, "nonce": "abc", "headers": True} | (info or {})
        self.greeting = greeting
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"nats://127.0.0.1:{self._listener.getsockname()[1]}"
        self._open: socket.socket | None = None
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.drop()
        self._thread.join(5)
        assert not self._thread.is_alive()

    def drop(self) -> None:
        """Closes the connection that is open."""
        if self._open is not None:
            try:
                self._open.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def send(self, data: bytes) -> None:
        assert self._open is not None
        self._open.sendall(data)

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _serve(self) -> None:
        while True:
            try:
                self._open, _ = self._listener.accept()
            except OSError:
                return
            self.accepted += 1
            with self._open as one:
                try:
                    self._talk(one)
                except OSError:
                    pass

    def _talk(self, one: socket.socket) -> None:
        info = self.greeting or b"INFO " + json.dumps(self._info).encode() + b"\r\n"
        if not self._tls_first:
            one.sendall(info)
        if self._tls is None:
            self._listen(one)
            return
        with self._tls.wrap_socket(one, server_side=True) as self._open:
            if self._tls_first:
                self._open.sendall(info)
            self._listen(self._open)

    def _listen(self, one: socket.socket) -> None:
        parser = Parser()
        while data := one.recv(65536):
            for kind, a, b, c, d in parser.feed(data):
                if kind == CONNECT:
                    self.connects.append(json.loads(a))
                elif kind == PING:
                    one.sendall(b"PONG\r\n")
                elif kind == PUB:
                    self.published.append((a, b, c, d))
                    if back := self._answer(a, b, c, d):
                        one.sendall(back)
                elif kind == PONG:
                    self.pongs += 1
                else:
                    assert kind in (SUB, UNSUB), kind


def hmsg(reply: bytes, headers: bytes, payload: bytes = b"") -> bytes:
    return b"HMSG %b 1 %d %d\r\n%b%b\r\n" % (reply, len(headers), len(headers) + len(payload), headers, payload)


def msg(reply: bytes, payload: bytes) -> bytes:
    return b"MSG %b 1 %d\r\n%b\r\n" % (reply, len(payload), payload)
