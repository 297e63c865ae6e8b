"""One connection of an HTTP/1.1 client to the monitoring port.

Own code, since importing aiohttp costs 0.3 s of processor time, as much as all else that a server does at its start,
and a page came as much later. Requests are answered one after another; their bodies are skipped.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import TYPE_CHECKING, NamedTuple, cast
from urllib.parse import parse_qsl, unquote

from jetcluster.logs import get_logger
from jetcluster.monitor.http import TEXT, Answer
from jetcluster.monitor.source import Query

if TYPE_CHECKING:
    from jetcluster.clock import TimerHandle

log = get_logger("monitor")

REQUEST_SECONDS = 5.0
"""For a whole request to come, also the next one of a connection that is kept: nats-server's."""
READER_SECONDS = 30.0
"""For an answer to be taken."""
MAX_HEAD = 16 * 1024
MAX_BODY = 64 * 1024
"""More is not skipped: the connection ends after the answer."""
MAX_FIELDS = 64
"""Parameters of a query."""
END = b"\r\n\r\n"


class BadRequest(ValueError):
    """No request this server understands."""

    def __init__(self, text: str, status: int = 400) -> None:
        super().__init__(text)
        self.status = status


class Request(NamedTuple):
    method: str
    path: str
    query: Query
    """The first value of each parameter."""
    body_size: int
    keep: bool
    """The connection stays open for a further request."""


class HttpConnection(asyncio.Protocol):
    """`answer` never raises. `others` holds the open connections, the oldest first, this one among them; `has_room`
    says whether there may be one more."""

    def __init__(
        self,
        answer: Callable[[str, Query], Awaitable[Answer]],
        others: dict[HttpConnection, None],
        has_room: Callable[[asyncio.BaseTransport], bool],
    ) -> None:
        self._answer = answer
        self._others = others
        self._has_room = has_room
        self._loop = asyncio.get_running_loop()
        self._received = bytearray()
        self._transport: asyncio.Transport
        self._deadline: TimerHandle | None = None
        self.work: asyncio.Task[None] | None = None
        """The request that is being answered."""
        self._blocked = False
        """The other end is slow to read."""
        self._is_last = False
        """No further request can come."""
        self._ends = False

    # ---- the transport's calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one, but by its methods only
        if not self._has_room(transport):
            self._ends = True
            self._loop.call_soon(self._transport.abort)  # not in here: uvloop has yet to begin reading
            return
        self._others[self] = None
        self._within(REQUEST_SECONDS)

    def connection_lost(self, error: Exception | None) -> None:
        self._others.pop(self, None)
        self._ends = True
        self._within(0)
        if self.work is not None:
            self.work.cancel()

    def data_received(self, data: bytes) -> None:
        if self._ends:
            return
        self._received += data
        if self.work is None and not self._blocked:
            self._next()
        elif len(self._received) > MAX_HEAD:
            self._transport.pause_reading()

    def eof_received(self) -> bool:
        """Who has said all may still wait for the answer; with TLS there is no such thing."""
        self._is_last = True
        waits = self.work is not None or self._blocked
        return waits and self._transport.get_extra_info("ssl_object") is None

    def pause_writing(self) -> None:
        self._blocked = True

    def resume_writing(self) -> None:
        self._blocked = False
        if self.work is None and not self._ends:
            self._go_on()

    # ---- requests

    def _next(self) -> None:
        """Answers the request that is there, if it is there as a whole."""
        if self._ends:
            return
        size = self._received.find(END)
        if size < 0 and len(self._received) <= MAX_HEAD:
            return
        try:
            request = parse(bytes(self._received[:size] if size >= 0 else self._received))
        except BadRequest as error:
            if log.is_debug:
                log.debug("monitoring: not a request", address=str(self._transport.get_extra_info("peername")))
            self._send(Answer(error.status, TEXT, f"{error.status}: {error}\n".encode()), keep=False)
            return
        whole = size + len(END) + request.body_size
        if request.body_size <= MAX_BODY and len(self._received) < whole:
            return
        del self._received[:whole]
        self._within(0)
        self.work = self._loop.create_task(self._serve(request))

    async def _serve(self, request: Request) -> None:
        answer = await self._answer(request.path, request.query)
        self.work = None
        self._send(answer, keep=request.keep and not self._is_last, head_only=request.method == "HEAD")
        if not self._ends and not self._blocked:
            self._go_on()

    def _go_on(self) -> None:
        """With the next request."""
        if self._is_last:
            self.finish()
            return
        self._within(REQUEST_SECONDS)
        self._transport.resume_reading()
        self._next()

    def _send(self, answer: Answer, *, keep: bool, head_only: bool = False) -> None:
        stamp = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime())
        lines = [
            f"HTTP/1.1 {answer.status} {HTTPStatus(answer.status).phrase}",
            f"Content-Type: {answer.content_type}",
            f"Content-Length: {len(answer.body)}",
            "Access-Control-Allow-Origin: *",
            f"Date: {stamp}",
        ]
        if not keep:
            lines.append("Connection: close")
        self._within(READER_SECONDS)
        self._transport.write("\r\n".join([*lines, "", ""]).encode() + (b"" if head_only else answer.body))
        if not keep:
            self.finish()

    # ---- the end

    def finish(self) -> None:
        """Ends once the other end has read what was sent."""
        self._ends = True
        self._transport.close()

    def cut(self) -> None:
        self._ends = True
        self._transport.abort()

    def _within(self, seconds: float) -> None:
        """The connection is cut unless something happens within so long; 0: no longer."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self._loop.call_later(seconds, self.cut) if seconds else None


def parse(head: bytes) -> Request:
    """`head`: everything before the empty line. Raises BadRequest."""
    if len(head) > MAX_HEAD:
        raise BadRequest("the head is too large", 431)
    lines = head.decode("latin-1").split("\r\n")
    words = lines[0].split(" ")
    if len(words) != 3 or words[2] not in ("HTTP/1.1", "HTTP/1.0") or not words[0].isalpha():
        raise BadRequest("not an HTTP/1 request")
    headers: dict[str, str] = {}
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip() or not line.isprintable():
            raise BadRequest("malformed header")
        headers[name.lower()] = value.strip()
    modern = words[2] == "HTTP/1.1"
    if modern and "host" not in headers:
        raise BadRequest("missing required Host header")
    size = headers.get("content-length", "0")
    if not (size.isascii() and size.isdigit()) or len(size) > 18:
        raise BadRequest("malformed Content-Length")
    connection = headers.get("connection", "").lower()
    skipped = int(size) <= MAX_BODY and "transfer-encoding" not in headers
    path, _, text = words[1].partition("?")
    try:
        fields = parse_qsl(text, keep_blank_values=True, max_num_fields=MAX_FIELDS)
    except ValueError:
        raise BadRequest("too many parameters") from None
    query: dict[str, str] = {}
    for name, value in fields:
        query.setdefault(name, value)
    keep = skipped and ("close" not in connection if modern else "keep-alive" in connection)
    return Request(words[0], unquote(path), query, int(size), keep)
