"""A lean NATS client for load: where servers and client share a machine, the client's own CPU is part of the figure.

Two ways to read. Everyday traffic (requests, subscriptions) is parsed frame by frame. A load run installs `bulk`: it
gets every read up to the last CRLF and counts answers with `bytes.count`, under 1 us per answer.
Wire protocol: https://docs.nats.io/reference/reference-protocols/nats-protocol.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import json
from collections.abc import Callable
from typing import Any, cast
from urllib.parse import urlsplit

CRLF = b"\r\n"
MAX_BUFFERED = 256 << 20
"""Bytes of one unfinished message that we hold before calling the peer broken."""


class ClientError(Exception):
    """The server refused us, answered with an error, or went away."""


class Msg:
    """One delivered message; `header` is the raw header block, b"" when there is none."""

    __slots__ = ("data", "header", "reply", "subject")

    def __init__(self, subject: bytes, reply: bytes, header: bytes, data: bytes) -> None:
        self.subject = subject
        self.reply = reply
        self.header = header
        self.data = data

    @property
    def status(self) -> int:
        """The three digits of the status line, 0 when there is none."""
        code = self.header[9:12]
        return int(code) if code.isdigit() else 0

    def get(self, key: str) -> str | None:
        """First value of a header, exact case."""
        needle = b"\r\n%b:" % key.encode()
        at = self.header.find(needle)
        if at < 0:
            return None
        at += len(needle)
        return self.header[at : self.header.index(CRLF, at)].strip().decode()

    def json(self) -> dict[str, Any]:
        return cast(dict[str, Any], json.loads(self.data))


Handler = Callable[[Msg], None]
Bulk = Callable[[bytes], None]
_names = itertools.count(1)


class Client(asyncio.Protocol):
    """One connection. The load that sets `bulk` owns every answer until it clears it."""

    def __init__(self, connect: dict[str, Any] | None = None, credentials: str = "") -> None:
        """`connect` is the CONNECT object; it is there before INFO can arrive."""
        self._connect = connect or {}
        self._credentials = credentials
        self.info: dict[str, Any] = {}
        self.bulk: Bulk | None = None
        self.error: Exception | None = None
        self.closed = asyncio.Event()
        self.last_error = b""
        self._transport: asyncio.Transport | None = None
        self._buffer = b""
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pongs: list[asyncio.Future[None]] = []
        self._handlers: dict[bytes, Handler] = {}
        self._requests: dict[bytes, asyncio.Future[Msg]] = {}
        self._sids = itertools.count(2)
        self._tokens = itertools.count(1)
        self._drained = asyncio.Event()
        self._drained.set()
        self.inbox = b"_INBOX.bench%d_%x" % (next(_names), id(self))

    # -- opening and closing

    @classmethod
    async def connect(cls, url: str, within: float = 5.0, *, credentials: str = "", **options: Any) -> Client:
        """Connects to `nats://[user:pass@]host:port`; `options` are added to CONNECT. `credentials` is a file with a
        user's JWT and seed, "" for none. Raises ClientError or OSError."""
        parts = urlsplit(url if "//" in url else f"nats://{url}")
        loop = asyncio.get_running_loop()
        connect = {"verbose": False, "pedantic": False, "headers": True, "no_responders": True, "protocol": 1,
                   "lang": "python", "version": "0.1.0", "name": "jetcluster-bench", "echo": True}  # fmt: skip
        if parts.username:
            connect |= {"user": parts.username, "pass": parts.password or ""}
        async with asyncio.timeout(within):
            make = functools.partial(cls, connect | options, credentials)
            _, client = await loop.create_connection(make, parts.hostname or "127.0.0.1", parts.port or 4222)
            try:
                await client._ready
            except BaseException:
                client.close()
                raise
        return client

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()
        await self.closed.wait()

    # -- writing

    def write(self, data: bytes) -> None:
        """Queues bytes as they are. Raises ClientError when the connection is gone."""
        if self._transport is None or self._transport.is_closing():
            raise self.error or ClientError("not connected")
        self._transport.write(data)

    def publish(
        self, subject: str, data: bytes = b"", reply: bytes = b"", headers: dict[str, str] | None = None
    ) -> None:
        self.write(render_publish(subject, data, reply, headers))

    def subscribe(self, subject: str, handler: Handler, queue: str = "") -> bytes:
        """Returns the sid."""
        sid = b"%d" % next(self._sids)
        self._handlers[sid] = handler
        self.write(f"SUB {subject} {queue} ".encode() + sid + CRLF)
        return sid

    def unsubscribe(self, sid: bytes) -> None:
        self._handlers.pop(sid, None)
        self.write(b"UNSUB %b\r\n" % sid)

    async def flush(self, within: float = 10.0) -> None:
        """Returns when the server has handled all that was written (PING/PONG)."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pongs.append(future)
        self.write(b"PING\r\n")
        async with asyncio.timeout(within):
            await future

    async def drain(self) -> None:
        """Waits until the transport's own buffer is below its low-water mark."""
        await self._drained.wait()

    # -- requests

    def request_soon(
        self, subject: str, data: bytes = b"", headers: dict[str, str] | None = None
    ) -> asyncio.Future[Msg]:
        """Sends a request; the future holds the first answer (a 503 status too)."""
        token = b"%d" % next(self._tokens)
        future: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()
        self._requests[token] = future
        try:
            self.publish(subject, data, b"%b.%b" % (self.inbox, token), headers)
        except ClientError:
            del self._requests[token]
            raise
        return future

    async def request(
        self, subject: str, data: bytes = b"", within: float = 5.0, headers: dict[str, str] | None = None
    ) -> Msg:
        """Raises TimeoutError, or ClientError when the connection goes."""
        async with asyncio.timeout(within):
            return await self.request_soon(subject, data, headers)

    async def api(self, subject: str, body: object = None, within: float = 10.0) -> dict[str, Any]:
        """`$JS.API.<subject>`: the decoded answer. Raises ClientError with the server's text for an error answer."""
        data = b"" if body is None else json.dumps(body).encode()
        msg = await self.request(f"$JS.API.{subject}", data, within)
        if msg.status:
            raise ClientError(f"{subject}: status {msg.status}")
        reply = msg.json()
        if error := reply.get("error"):
            raise ClientError(f"{subject}: {error.get('code')}/{error.get('err_code')} {error.get('description')}")
        return reply

    async def gather(self, subject: str, data: bytes, within: float = 30.0) -> list[Msg]:
        """One request, many answers up to a status message (204 EOB, 404, 408, 413, 503), which is the last element."""
        found: list[Msg] = []
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def take(msg: Msg) -> None:
            found.append(msg)
            if msg.status and not done.done():
                done.set_result(None)

        inbox = f"{self.inbox.decode()}_g{next(self._tokens)}"
        sid = self.subscribe(inbox, take)
        self.publish(subject, data, inbox.encode())
        try:
            async with asyncio.timeout(within):
                await first_of(done, self.closed)
        finally:
            if not self.closed.is_set():
                self.unsubscribe(sid)
        if not done.done():
            raise self.error or ClientError("connection lost")
        return found

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=4 << 20)

    def pause_writing(self) -> None:
        self._drained.clear()

    def resume_writing(self) -> None:
        self._drained.set()

    def connection_lost(self, exc: Exception | None) -> None:
        text = f"connection lost: {exc or self.last_error.decode(errors='replace') or 'closed'}"
        self.error = self.error or ClientError(text)
        self._drained.set()
        self.closed.set()
        waiting: list[asyncio.Future[Any]] = [self._ready, *self._pongs, *self._requests.values()]
        for future in waiting:
            if not future.done():
                future.set_exception(ClientError(text))
                future.exception()  # somebody may have stopped waiting: no "never retrieved" warning
        self._pongs.clear()
        self._requests.clear()

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer + data if self._buffer else data
        if self.bulk is not None:
            cut = buffer.rfind(CRLF) + 2
            if cut < 2:
                self._buffer = buffer
                return
            self._buffer = buffer[cut:]
            whole = buffer[:cut] if self._buffer else buffer
            if b"PING\r\n" in whole:
                self.write(b"PONG\r\n")
            self.bulk(whole)
            return
        try:
            self._buffer = buffer[self._parse(buffer) :]
            assert len(self._buffer) <= MAX_BUFFERED, "the server's message does not end"
        except (ClientError, ValueError, IndexError) as error:
            self.error = error
            self._buffer = b""
            self.close()

    def _parse(self, buffer: bytes) -> int:
        """Handles every complete frame; returns the bytes consumed."""
        at, end = 0, len(buffer)
        while at < end:
            eol = buffer.find(CRLF, at)
            if eol < 0:
                return at
            line = buffer[at:eol]
            if line.startswith((b"MSG ", b"HMSG ")):
                args = line.split()
                size = int(args[-1])
                start = eol + 2
                if start + size + 2 > end:
                    return at
                head = int(args[-2]) if line[0:1] == b"H" else 0
                reply = args[3] if len(args) == (6 if head else 5) else b""
                body = start + head
                self._deliver(args[2], Msg(args[1], reply, buffer[start:body], buffer[body : start + size]))
                at = start + size + 2
                continue
            self._control(line)
            at = eol + 2
        return at

    def _deliver(self, sid: bytes, msg: Msg) -> None:
        if sid == b"1":
            future = self._requests.pop(msg.subject.rpartition(b".")[2], None)
            if future is not None and not future.done():
                future.set_result(msg)
            return
        if (handler := self._handlers.get(sid)) is not None:
            handler(msg)

    def _login(self) -> dict[str, str]:
        """Raises ClientError."""
        if not self._credentials:
            return {}
        from jetcluster.auth.remote_login import LoginError, signed_login

        try:
            return signed_login(self._credentials, "", str(self.info.get("nonce", "")).encode())
        except LoginError as error:
            self._ready.set_exception(ClientError(str(error)))
            raise ClientError(str(error)) from None

    def _control(self, line: bytes) -> None:
        if line.startswith(b"PING"):
            self.write(b"PONG\r\n")
        elif line.startswith(b"PONG"):
            if not self._ready.done():
                self._ready.set_result(None)
            elif self._pongs:
                future = self._pongs.pop(0)
                if not future.done():
                    future.set_result(None)
        elif line.startswith(b"INFO "):
            first = not self.info
            self.info = json.loads(line[5:])
            if first:
                connect = json.dumps(self._connect | self._login()).encode()
                self.write(b"CONNECT " + connect + b"\r\nSUB %b.* 1\r\nPING\r\n" % self.inbox)
        elif line.startswith(b"-ERR"):
            self.last_error = line[4:].strip()
            if not self._ready.done():
                self._ready.set_exception(ClientError(self.last_error.decode(errors="replace")))
        elif not line.startswith(b"+OK"):
            raise ClientError(f"not a NATS server: {line[:80]!r}")


async def create_stream(
    client: Client, name: str, subjects: list[str], replicas: int, storage: str = "file", **more: object
) -> None:
    """File stream that allows Direct Get; `more` are further config fields. Raises ClientError."""
    config = {"name": name, "subjects": subjects, "num_replicas": replicas, "storage": storage, "allow_direct": True,
              "retention": "limits", "discard": "old", **more}  # fmt: skip
    await client.api(f"STREAM.CREATE.{name}", config)


async def stored_messages(client: Client, stream: str, last: int | None = None, batch: int = 1000) -> list[Msg]:
    """The stream's messages in order, by batched Direct Gets; at least those up to `last`. Raises ClientError."""
    found: list[Msg] = []
    seq = 1
    while last is None or seq <= last:
        answers = await client.gather(f"$JS.API.DIRECT.GET.{stream}", b'{"seq":%d,"batch":%d}' % (seq, batch))
        end = answers.pop()
        found += answers
        if end.status not in (204, 404):
            raise ClientError(f"direct get: {end.header!r}")
        if end.status == 404 or end.get("Nats-Num-Pending") == "0":
            break
        seq = int(end.get("Nats-Last-Sequence") or 0) + 1
    return found


async def first_of(future: asyncio.Future[None], event: asyncio.Event) -> None:
    """Returns when the future is done or the event set."""
    other = asyncio.ensure_future(event.wait())
    both: list[asyncio.Future[Any]] = [future, other]
    try:
        await asyncio.wait(both, return_when="FIRST_COMPLETED")
    finally:
        other.cancel()


def render_headers(headers: dict[str, str]) -> bytes:
    return b"NATS/1.0\r\n" + "".join(f"{k}: {v}\r\n" for k, v in headers.items()).encode() + CRLF


def render_publish(subject: str, data: bytes, reply: bytes = b"", headers: dict[str, str] | None = None) -> bytes:
    if headers:
        block = render_headers(headers)
        return b"HPUB %b %b %d %d\r\n%b%b\r\n" % (
            subject.encode(), reply, len(block), len(block) + len(data), block, data)  # fmt: skip
    return b"PUB %b %b %d\r\n%b\r\n" % (subject.encode(), reply, len(data), data)
