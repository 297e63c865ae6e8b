"""`FailingProxy`: an S3 server that is reached badly: a part of the requests fails, each in one of several ways."""

from __future__ import annotations

import http.client
import random
import socket
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

WAYS = ("refused", "cut before", "answer lost", "answer cut off")


class FailingProxy:
    """A context. `share` of the requests fail; `failed` counts them by WAYS."""

    def __init__(self, target: str, share: float, seed: int) -> None:
        self.share = share
        self.failed: Counter[str] = Counter()
        self.requests = 0
        self._rng = random.Random(seed)
        self._target = urlsplit(target).netloc
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_expect_100(self) -> bool:
                return True  # the body comes when the client has waited

            def log_message(self, *_: Any) -> None:
                pass

            def handle_one(self) -> None:
                proxy.serve(self)

            do_GET = do_PUT = do_DELETE = do_POST = do_HEAD = handle_one

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: Any) -> None:
                pass

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> FailingProxy:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def serve(self, one: BaseHTTPRequestHandler) -> None:
        self.requests += 1
        way = self._rng.choice(WAYS) if self._rng.random() < self.share else ""
        body = self._body(one)
        self.failed[way] += bool(way)
        if way == "refused":
            one.send_response(503)
            one.send_header("Content-Length", "0")
            one.end_headers()
            return
        if way == "cut before":
            self._end(one)
            return
        connection = http.client.HTTPConnection(self._target, timeout=30)
        headers = {key: value for key, value in one.headers.items() if key.lower() != "expect"}
        connection.request(one.command, one.path, body, headers)
        answer = connection.getresponse()
        data = answer.read()
        connection.close()
        if way == "answer lost":
            self._end(one)
            return
        one.send_response(answer.status)
        for key, value in answer.getheaders():
            if key.lower() not in ("connection", "transfer-encoding", "date", "server", "content-length"):
                one.send_header(key, value)
        # An answer without a body, such as to DELETE, has none to be cut off.
        one.send_header("Content-Length", answer.getheader("Content-Length") or str(len(data)))
        one.end_headers()
        if one.command == "HEAD":
            return
        cut = way == "answer cut off" and data
        one.wfile.write(data[: len(data) // 2] if cut else data)
        if cut:
            self._end(one)

    def _body(self, one: BaseHTTPRequestHandler) -> bytes:
        if one.headers.get("Expect", "").lower() == "100-continue":
            one.send_response_only(100)
            one.end_headers()
        if one.headers.get("Transfer-Encoding", "").lower() == "chunked":
            data = b""
            while size := int(one.rfile.readline().split(b";")[0], 16):
                data += one.rfile.read(size)
                one.rfile.readline()
            one.rfile.readline()
            return data
        return one.rfile.read(int(one.headers.get("Content-Length") or 0))

    def _end(self, one: BaseHTTPRequestHandler) -> None:
        one.wfile.flush()
        one.connection.shutdown(socket.SHUT_RDWR)
        one.close_connection = True
