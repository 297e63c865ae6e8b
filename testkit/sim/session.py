"""A client of the simulated cluster: the NATS wire protocol over a simulated connection, as a stock client speaks it.

It knows nothing of the server's code. A `Session` dials again when its connection is lost, the next server each time,
and subscribes anew; what was under way fails with `Disconnected`.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, NamedTuple

from testkit.sim.answers import contradictions, is_defect
from testkit.sim.layout import WEB_PORT, Security
from testkit.sim.network import Address
from testkit.sim.plain_tls import InClear, of_client
from testkit.sim.websocket import WebSocket

HANDSHAKE = 1.5
"""Seconds for a TLS handshake, of the two until there is a connection."""
PING = 3.0
"""Seconds between two PINGs, and until one that is not answered ends the connection."""


class Disconnected(Exception):
    """The connection was lost, or there was none: what was sent may have arrived or not."""


class NoResponders(Exception):
    pass


class ApiError(Exception):
    """An answer with `error`."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(f"{error.get('code')} {error.get('err_code')} {error.get('description')}")
        self.code = int(error.get("code", 0))
        self.err_code = int(error.get("err_code", 0))


class Contradiction(AssertionError):
    """An answer that cannot be true."""


class NotSecure(AssertionError):
    """A server with TLS says something in clear, or what is no TLS."""


class Msg(NamedTuple):
    subject: str
    reply: str
    headers: dict[str, str]
    status: str
    """Status of the header line, "" when there is none: `503`, `404`, `408 Request Timeout`."""
    payload: bytes


def encode_headers(headers: dict[str, str], status: str = "") -> bytes:
    return (
        f"NATS/1.0 {status}".rstrip().encode()
        + b"\r\n"
        + "".join(f"{key}: {value}\r\n" for key, value in headers.items()).encode()
        + b"\r\n"
    )


def decode_headers(raw: bytes) -> tuple[str, dict[str, str]]:
    first, *lines = raw.decode().split("\r\n")
    headers: dict[str, str] = {}
    for line in lines:
        key, colon, value = line.partition(":")
        if colon:
            headers[key] = value.strip()
    return first.removeprefix("NATS/1.0").strip(), headers


class _Connection(asyncio.Protocol):
    def __init__(self, session: Session, kind: str) -> None:
        """`kind`: of TLS (`Security.kind`)."""
        self.session = session
        self.kind = kind
        self.transport: Any = None
        self.info: dict[str, Any] = {}
        self.lost = False
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        self.session.connection_lost(self)
        if isinstance(exc, ssl.SSLError) and not (isinstance(exc, InClear) and self.turns_away(exc.said)):
            raise NotSecure(f"{self.session.name}: {exc!r}")

    def turns_away(self, said: bytes) -> bool:
        """The server says in clear that it is full, as it does to whomever; what follows INFO may be lost. Or it has
        not waited for a hello that was slow to come."""
        said = self._buffer + said
        if Security.mode == "auto" and self.kind == "first" and said.startswith(b"INFO "):
            return True
        rest = said.partition(b"\r\n")[2] if said.startswith(b"INFO ") else said
        return b"-ERR ".startswith(rest[:5]) or b"INFO ".startswith(said)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while self._command():
            pass

    def _command(self) -> bool:
        line, end, rest = self._buffer.partition(b"\r\n")
        if not end:
            return False
        verb = line[:4].upper()
        if verb in (b"MSG ", b"HMSG"):
            parts = line.decode().split(" ")
            size = int(parts[-1])
            if len(rest) < size + 2:
                return False
            body, self._buffer = rest[:size], rest[size + 2 :]
            self._message(parts, body, headed=verb == b"HMSG")
            return True
        self._buffer = rest
        if self.kind and verb not in (b"INFO", b"-ERR") and self.transport.get_extra_info("ssl_object") is None:
            raise NotSecure(f"{self.session.name}: said in clear: {line!r}")
        if verb == b"INFO":
            self.info = json.loads(line[5:])
            self.session.greeted(self)
        elif verb == b"PING":
            self.transport.write(b"PONG\r\n")
        elif verb == b"PONG":
            self.session.ponged(self)
        elif verb == b"-ERR":
            self.session.refused(line.decode())
        return True

    def _message(self, parts: list[str], body: bytes, *, headed: bool) -> None:
        sizes = 2 if headed else 1
        subject, sid = parts[1], int(parts[2])
        reply = parts[3] if len(parts) == 4 + sizes else ""
        status, payload = "", body
        headers: dict[str, str] = {}
        if headed:
            head = int(parts[-2])
            status, headers = decode_headers(body[:head])
            payload = body[head:]
        self.session.received(sid, Msg(subject, reply, headers, status, payload))


def _ended(task: asyncio.Task[None]) -> None:
    """Nobody awaits it: what it raises is to be seen (`Deployment.failures`), or its session never connects again."""
    if not task.cancelled():
        task.result()


class Session:
    """`await connect()` first. `servers` are tried in turn, from the first on."""

    tokens: ClassVar[dict[str, str]] = {}
    """Bearer tokens by user, for servers that know their accounts from JWTs: their INFO has a nonce."""

    def __init__(self, name: str, servers: Sequence[Address], *, reconnect: float = 0.2, user: str = "") -> None:
        """`user`: also the password; "" for nobody."""
        self.name = name
        self.servers = list(servers)
        self.errors: list[str] = []
        """Lines of -ERR."""
        self.connects = 0
        self.info: dict[str, Any] = {}
        self._reconnect = reconnect
        self._user = user
        self._loop = asyncio.get_running_loop()
        self._connection: _Connection | None = None
        self._up = asyncio.Event()
        self._down = asyncio.Event()
        self._next_sid = 1
        self._subscriptions: dict[int, tuple[str, Callable[[Msg], None]]] = {}
        self._calls: dict[int, asyncio.Future[Msg]] = {}
        self._next_call = 0
        self._pongs: list[asyncio.Future[None]] = []
        self._greeting: asyncio.Future[None] | None = None
        self._closed = False
        self._task: asyncio.Task[None] | None = None
        self._inbox = f"_INBOX.{name}"
        self.subscribe(f"{self._inbox}.*", self._answered)

    # ---- connection

    @property
    def connected(self) -> bool:
        return self._up.is_set()

    async def connect(self, seconds: float = 30.0) -> None:
        """Returns once connected; goes on dialling in the background. Raises TimeoutError."""
        self.dial()
        async with asyncio.timeout(seconds):
            await self._up.wait()

    def dial(self) -> None:
        """Connects in the background, for ever."""
        self._task = self._loop.create_task(self._stay_connected())
        self._task.add_done_callback(_ended)

    async def _stay_connected(self) -> None:
        at = 0
        while not self._closed:
            host, port = self.servers[at % len(self.servers)]
            at += 1
            try:
                async with asyncio.timeout(2.0):
                    await self._open(host, port)
            except (OSError, TimeoutError, Disconnected):  # Disconnected: it was lost behind the greeting
                await asyncio.sleep(self._reconnect)
                continue
            await self._watch()
            await asyncio.sleep(self._reconnect)

    async def _watch(self) -> None:
        """Returns when the connection is lost, or its other end says nothing any more."""
        while not self._down.is_set():
            try:
                async with asyncio.timeout(PING):
                    await self._down.wait()
            except TimeoutError:
                try:
                    await self.flush(PING)
                except TimeoutError:
                    if self._connection is not None:
                        self._connection.transport.abort()
                except Disconnected:
                    continue

    def _credentials(self, connection: _Connection) -> dict[str, str]:
        if token := self.tokens.get(self._user, "") if "nonce" in connection.info else "":
            return {"jwt": token}
        return {"user": self._user, "pass": self._user} if self._user else {}

    async def _secured(self, connection: _Connection, transport: Any, host: str, port: int) -> Any:
        """The transport after INFO, with the handshake if there was none before. Raises OSError and NotSecure."""
        # Nobody is in clear who comes by WebSocket: INFO says both there.
        told = (True, True) if port == WEB_PORT else (Security.mode != "either", Security.mode == "either")
        found = tuple(connection.info.get(key, False) for key in ("tls_required", "tls_available"))
        if found != told:
            raise NotSecure(f"{self.name}: {host} says that TLS is (required, available) {found}, not {told}")
        if connection.kind and transport.get_extra_info("ssl_object") is None:
            transport = await self._loop.start_tls(
                transport,
                connection,
                of_client(),
                server_hostname=host,
                ssl_handshake_timeout=HANDSHAKE,
            )
            connection.transport = transport
        return transport

    async def _open(self, host: str, port: int) -> None:
        self._greeting = self._loop.create_future()
        # Another kind with each connection, and the same until there is one.
        connection = _Connection(self, Security.kind(zlib.crc32(self.name.encode()) + self.connects))
        transport: Any = None
        try:
            protocol = WebSocket(connection, self.name, self.connects) if port == WEB_PORT else connection
            context = of_client() if port == WEB_PORT or connection.kind == "first" else None
            name = host if context is not None else None
            transport, _ = await self._loop.create_connection(
                lambda: protocol, host, port, ssl=context, server_hostname=name, ssl_handshake_timeout=HANDSHAKE
            )
            await self._greeting
            if Security.mode:
                transport = await self._secured(connection, transport, host, port)
            options = {"verbose": False, "pedantic": False, "headers": True, "no_responders": True, "name": self.name,
                       "lang": "sim", "version": "1", "protocol": 1, "echo": True}  # fmt: skip
            options |= self._credentials(connection)
            lines = [f"CONNECT {json.dumps(options)}\r\n"]
            lines += [f"SUB {subject} {sid}\r\n" for sid, (subject, _) in self._subscriptions.items()]
            ponged = self._loop.create_future()
            self._pongs.append(ponged)
            connection.transport.write(("".join(lines) + "PING\r\n").encode())
            await ponged
        except InClear as error:
            if not connection.turns_away(error.said):
                raise NotSecure(f"{self.name}: {host}:{port} says in clear: {error.said!r}") from error
            raise Disconnected from error
        except ssl.SSLError as error:
            raise NotSecure(f"{self.name}: {host}:{port}: {error!r}") from error
        except BaseException:
            if transport is not None:
                transport.abort()
            raise
        self._connection = connection
        self.info = connection.info
        self.connects += 1
        self._up.set()
        self._down.clear()

    async def close(self) -> None:
        self._closed = True
        if self._connection is not None:
            self._connection.transport.close()
        if self._task is not None:
            self._task.cancel()

    def connection_lost(self, connection: _Connection) -> None:
        lost: list[asyncio.Future[Any]] = list(self._pongs)
        if self._greeting is not None:
            lost.append(self._greeting)
        self._pongs = []
        if connection is self._connection:
            self._connection = None
            self._up.clear()
            self._down.set()
            lost += self._calls.values()
            self._calls = {}
        for future in lost:
            if not future.done():
                future.set_exception(ConnectionResetError("lost") if future is self._greeting else Disconnected())
                future.exception()

    def greeted(self, connection: _Connection) -> None:
        if self._greeting is not None and not self._greeting.done():
            self._greeting.set_result(None)
        elif connection is self._connection:
            self.info = connection.info

    def ponged(self, connection: _Connection) -> None:
        if self._pongs:
            future = self._pongs.pop(0)
            if not future.done():
                future.set_result(None)

    def refused(self, line: str) -> None:
        self.errors.append(line)

    def received(self, sid: int, msg: Msg) -> None:
        found = self._subscriptions.get(sid)
        if found is not None:
            found[1](msg)

    def _write(self, data: bytes) -> None:
        if self._connection is None:
            raise Disconnected
        self._connection.transport.write(data)

    # ---- protocol

    def subscribe(self, subject: str, callback: Callable[[Msg], None]) -> int:
        """Stays through reconnects; returns its sid."""
        sid = self._next_sid
        self._next_sid += 1
        self._subscriptions[sid] = subject, callback
        if self._connection is not None:
            self._write(f"SUB {subject} {sid}\r\n".encode())
        return sid

    def unsubscribe(self, sid: int) -> None:
        self._subscriptions.pop(sid, None)
        if self._connection is not None:
            self._write(f"UNSUB {sid}\r\n".encode())

    def publish(
        self,
        subject: str,
        payload: bytes = b"",
        reply: str = "",
        headers: dict[str, str] | None = None,
        times: int = 1,
        status: str = "",
    ) -> None:
        """The same message `times` times, in one piece. `status`: as servers have in the first line of headers. Raises
        Disconnected."""
        to = f"{subject} {reply}" if reply else subject
        if headers or status:
            head = encode_headers(headers or {}, status)
            frame = f"HPUB {to} {len(head)} {len(head) + len(payload)}\r\n".encode() + head + payload + b"\r\n"
        else:
            frame = f"PUB {to} {len(payload)}\r\n".encode() + payload + b"\r\n"
        self._write(frame * times)

    def stop_reading(self) -> None:
        """Take nothing more off the connection, until `read_on`, or until there is another one."""
        if self._connection is not None:
            self._connection.transport.pause_reading()

    def read_on(self) -> None:
        if self._connection is not None:
            self._connection.transport.resume_reading()

    async def flush(self, seconds: float = 5.0) -> None:
        """The server has read all that was sent. Raises Disconnected and TimeoutError."""
        ponged = self._loop.create_future()
        self._pongs.append(ponged)
        self._write(b"PING\r\n")
        async with asyncio.timeout(seconds):
            await ponged

    def new_inbox(self) -> str:
        """A subject for answers that are many; to be subscribed to."""
        self._next_call += 1
        return f"_INBOX2.{self.name}.{self._next_call}"

    @contextmanager
    def inbox(self, name: str = "") -> Iterator[tuple[str, asyncio.Queue[Msg]]]:
        """A new inbox, or the one with this name, and what comes there."""
        got: asyncio.Queue[Msg] = asyncio.Queue()
        inbox = name or self.new_inbox()
        sid = self.subscribe(inbox, got.put_nowait)
        try:
            yield inbox, got
        finally:
            self.unsubscribe(sid)

    def _answered(self, msg: Msg) -> None:
        token = msg.subject.rpartition(".")[2]
        future = self._calls.pop(int(token), None)
        if future is not None and not future.done():
            future.set_result(msg)

    async def request(
        self, subject: str, payload: bytes = b"", seconds: float = 5.0, headers: dict[str, str] | None = None
    ) -> Msg:
        """The first answer. Raises Disconnected, NoResponders and TimeoutError."""
        self._next_call += 1
        call = self._next_call
        future: asyncio.Future[Msg] = self._loop.create_future()
        self._calls[call] = future
        try:
            self.publish(subject, payload, f"{self._inbox}.{call}", headers)
            async with asyncio.timeout(seconds):
                msg = await future
        finally:
            self._calls.pop(call, None)
        if msg.status.startswith("503") and not msg.payload:
            raise NoResponders(subject)
        return msg

    # ---- JetStream

    async def api(self, subject: str, body: object = None, seconds: float = 5.0) -> dict[str, Any]:
        """A request to `$JS.API.`. Raises ApiError, Contradiction, and what `request` raises."""
        payload = json.dumps(body).encode() if body is not None else b""
        msg = await self.request(f"$JS.API.{subject}", payload, seconds)
        answer: dict[str, Any] = json.loads(msg.payload)
        if "error" in answer:
            if is_defect(answer["error"]):
                raise Contradiction(f"{self.name}: {subject}: {answer['error']}")
            raise ApiError(answer["error"])
        if wrong := next(contradictions(answer), ""):
            raise Contradiction(f"{self.name}: {subject}: {wrong}")
        return answer

    async def js_publish(
        self, subject: str, payload: bytes, headers: dict[str, str] | None = None, seconds: float = 5.0
    ) -> dict[str, Any]:
        """The PubAck. Raises ApiError and what `request` raises."""
        answer: dict[str, Any] = json.loads((await self.request(subject, payload, seconds, headers)).payload)
        if "error" in answer:
            raise ApiError(answer["error"])
        return answer
