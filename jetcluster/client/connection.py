"""`Connection`: the blocking NATS client of Spark's drivers and executors, and of the command line.

Executors are forked, single-threaded and may be killed at any time, so there is no event loop, no thread and no orderly
shutdown: one socket, read while a call waits. A broken connection does not reconnect; its user opens another one and
resumes.

`request` and `api` return one answer, `gather` an answer of many messages (batched Direct Get), and `publish_acked`
with `acks` keeps many publishes in flight. All of them may be mixed on one connection.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from jetcluster import native
from jetcluster.client.credentials import Credentials
from jetcluster.client.reply import (
    ConnectionLostError,
    NoRespondersError,
    Reply,
    RequestTimeoutError,
    ServerError,
    api_error,
    make_reply,
)
from jetcluster.errors import JetclusterError
from jetcluster.protocol import headers as header_block

Frame = tuple[bytes, bytes]
"""(header block or b"", payload)."""
Headers = bytes | Mapping[str, str] | Iterable[tuple[bytes, bytes]]
"""A whole header block, or the fields to build one from."""

CRLF: Final = b"\r\n"
READ_BYTES: Final = 256 * 1024
WRITE_BYTES: Final = 64 * 1024
"""Published bytes are buffered up to this size, or until a call waits."""
MAX_LINE_BYTES: Final = 64 * 1024
MAX_KNOWN_LINES: Final = 4096
_Line = tuple[int, int, Callable[[bytes], object], Callable[[bytes], object], bytes]
"""(bytes of the header block, bytes of block and payload, consumer of the block, consumer of the payload, token)."""
NO_CREDENTIALS: Final = Credentials()


class Gather:
    """One request whose answer is many messages, up to a status. Iterating yields lists of frames as they arrive.
    Several may be in flight; frames that arrive for one while another is read wait in memory."""

    def __init__(self, connection: Connection, token: bytes, timeout: float) -> None:
        self._connection = connection
        self._token = token
        self._timeout = timeout
        self.heads: list[bytes] = []
        self.payloads: list[bytes] = []
        """Header blocks that have arrived and were not taken, and their payloads. The connection fills both lists."""
        self.end: Reply | None = None
        """The status message that ended the answer (204 EOB, 404, 408, 413, 503, ...)."""
        self.columns: Any = None
        """The compiled `Columns`, which take the messages instead of the two lists, where the request asked so."""
        self.subject = b""
        """For `Connection.receive`: where the messages are to be sent."""
        self.replies: list[bytes] = []
        """Reply subjects of the messages that have arrived, for those that have one. Who answers empties the list."""

    def __iter__(self) -> Iterator[list[Frame]]:
        """Raises RequestTimeoutError when nothing arrives for `timeout` seconds, ConnectionLostError, ServerError."""
        while True:
            if self.heads:
                yield self.frames()
            elif self.end is not None:
                return
            else:
                self._connection.read_more(time.monotonic() + self._timeout)

    def frames(self) -> list[Frame]:
        """Takes the frames that have arrived."""
        frames = list(zip(self.heads, self.payloads, strict=True))
        self.heads.clear()
        self.payloads.clear()
        return frames

    def wait(self) -> Reply:
        """Reads the whole answer into `heads` and `payloads`, and returns its status. Raises as iterating does."""
        while self.end is None:
            self._connection.read_more(time.monotonic() + self._timeout)
        return self.end

    def forget(self) -> None:
        """Drops the messages that are still to arrive."""
        self._connection.forget(self._token)


class Connection:
    """Connects to the first of `servers` (URLs `nats://` or `tls://`) that answers. `api_prefix` is the prefix of `api`
    calls, `$JS.<domain>.API.` for a domain. Raises ConnectionLostError, ServerError, CredentialsError."""

    def __init__(
        self,
        servers: Sequence[str],
        *,
        credentials: Credentials = NO_CREDENTIALS,
        name: str = "jetcluster",
        timeout: float = 5.0,
        api_prefix: str = "$JS.API.",
        inbox_prefix: str = "_INBOX",
    ) -> None:
        self.api_prefix = api_prefix
        self.info: dict[str, Any] = {}
        self.url = ""
        """The connected server's URL."""
        self._name = name
        self._credentials = credentials
        self._inbox, self._own_inbox = (
            b"%b.%b." % (inbox_prefix.encode(), os.urandom(11).hex().encode()) for _ in range(2)
        )
        """Beginnings of reply subjects, of one length: by a wildcard, and for subjects with a subscription of their
        own."""
        self.received_bytes = 0
        self._buffer = b""
        self._need = 0
        self._out: list[bytes] = []
        self._out_size = 0
        self._tokens = 0
        self._pongs = 0
        self._replies: dict[bytes, Reply | None] = {}
        self._gathers: dict[bytes, Gather] = {}
        """By sid."""
        self._lines: dict[bytes, _Line] = {}
        """Results of `_read_line`, by line, for gathers under way."""
        self._unacked: dict[bytes, int] = {}
        self._acks: list[tuple[int, Reply]] = []
        self._error: JetclusterError | None = None
        self._socket: socket.socket
        self._connect(servers, timeout)

    # ---- life

    @property
    def server_name(self) -> str:
        return str(self.info.get("server_name", ""))

    @property
    def max_payload(self) -> int:
        return int(self.info.get("max_payload", 1 << 20))

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.close()
        self._error = self._error or ConnectionLostError("closed")

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _connect(self, servers: Sequence[str], timeout: float) -> None:
        failures: list[str] = []
        untrusted = 0
        for url in servers:
            try:
                self._open(url, time.monotonic() + timeout)
            except (OSError, ConnectionLostError, RequestTimeoutError) as error:
                failures.append(f"{without_user(url)}: {error}")
                untrusted += isinstance(error, ssl.SSLCertVerificationError)
            else:
                return
        # A retry does not repair a certificate; but if not all were refused, a server with a good one may come back.
        kind = ServerError if failures and untrusted == len(failures) else ConnectionLostError
        raise kind("no server could be reached: " + ("; ".join(failures) or "none is named"))

    def _open(self, url: str, deadline: float) -> None:
        parts = urlsplit(url if "//" in url else f"nats://{url}")
        if parts.scheme not in ("nats", "tls"):
            raise ConnectionLostError(f"{parts.scheme}:// is not supported, only nats:// and tls://")
        host = parts.hostname or "127.0.0.1"
        self._buffer, self._out_size, self._pongs = b"", 0, 0
        self._out.clear()
        self._socket = socket.create_connection((host, parts.port or 4222), max(deadline - time.monotonic(), 0.001))
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if self._credentials.tls_first:
                self._begin_tls(host)
            self.info = self._read_info(deadline)
            wanted = self._credentials.wants_tls or parts.scheme == "tls" or self.info.get("tls_required")
            if wanted and not self._credentials.tls_first:
                self._begin_tls(host)
            self._greet(unquote(parts.username or ""), unquote(parts.password or ""), deadline)
        except BaseException:
            self._socket.close()
            raise
        self.url = without_user(url)

    def _begin_tls(self, host: str) -> None:
        self._socket = self._credentials.context().wrap_socket(self._socket, server_hostname=host)

    def _read_info(self, deadline: float) -> dict[str, Any]:
        """Reads the server's first line and nothing after it, as the TLS handshake may follow."""
        line = b""
        while not line.endswith(b"\n"):
            line += self._receive(deadline, 1 if len(line) else 5)
            if len(line) > MAX_LINE_BYTES or (len(line) >= 5 and not line.startswith(b"INFO ")):
                raise ConnectionLostError(f"not a NATS server: {line[:40]!r}")
        found: dict[str, Any] = json.loads(line[5:])
        return found

    def _greet(self, user: str, password: str, deadline: float) -> None:
        connect = {
            "verbose": False, "pedantic": False, "headers": True, "no_responders": True, "protocol": 1, "echo": False,
            "lang": "python", "version": "0.1.0", "name": self._name,
            "tls_required": isinstance(self._socket, ssl.SSLSocket),
        }  # fmt: skip
        connect |= self._credentials.fields(str(self.info.get("nonce", "")))
        if user:
            connect |= {"user": user, "pass": password} if password else {"auth_token": user}
        self._error = None
        self._write(b"CONNECT %b\r\nSUB %b* 1\r\n" % (json.dumps(connect).encode(), self._inbox))
        self.flush(deadline - time.monotonic())

    # ---- one answer

    def request(self, subject: str, payload: bytes = b"", headers: Headers = b"", timeout: float = 5.0) -> Reply:
        """Returns the first answer. Raises NoRespondersError, RequestTimeoutError, ServerError, ConnectionLostError."""
        token = self._token()
        self._replies[token] = None
        deadline = time.monotonic() + timeout
        try:
            self._put(subject.encode(), payload, self._inbox + token, block(headers))
            self._send()
            while (reply := self._replies[token]) is None:
                self._read_or_time_out(deadline, subject)
        finally:
            del self._replies[token]
        if reply.status == 503 and not reply.data:
            raise NoRespondersError(f"no responders on {subject}")
        return reply

    def api(
        self, subject: str, body: object = None, *, headers: Headers = b"", timeout: float = 10.0
    ) -> dict[str, Any]:
        """Requests `$JS.API.<subject>` with `body` as JSON (None: empty) and returns the answer. Raises
        `errors.ApiError` for an error answer, and what `request` raises."""
        payload = b"" if body is None else json.dumps(body).encode()
        found = self.request(self.api_prefix + subject, payload, headers, timeout).json()
        if error := found.get("error"):
            raise api_error(error)
        return found

    # ---- many answers to one request

    def gather(
        self,
        subject: str,
        payload: bytes = b"",
        headers: Headers = b"",
        timeout: float = 10.0,
        *,
        columns: bool = False,
    ) -> Gather:
        """Sends the request and returns at once. `timeout` is the longest wait for the next message of the answer.
        `columns`: the answer is of a batched Direct Get, and is taken into `Gather.columns` where there are compiled
        loops."""
        token = self._token()
        self._gathers[token] = gather = Gather(self, token, timeout)
        if columns and (rows := native.row_loops()) is not None:
            gather.columns = rows.Columns(b"HMSG %b%b 1 " % (self._inbox, token))
        self._put(subject.encode(), payload, self._inbox + token, block(headers))
        self._send()
        return gather

    def receive(self, timeout: float = 10.0) -> Gather:
        """Returns a gather without a request: of the messages that come to its `subject`, which has a subscription of
        its own, so that a sender learns when `forget` ends it."""
        token = self._token()
        self._gathers[token] = gather = Gather(self, token, timeout)
        gather.subject = self._own_inbox + token
        self._write(b"SUB %b %b\r\n" % (gather.subject, _own_sid(token)))
        return gather

    def expect(self, timeout: float = 10.0) -> Gather:
        """Returns a gather without a request or a subscription: of the answers to messages that the caller renders,
        with the gather's `subject` as their reply subject, and sends with `write_frames`."""
        token = self._token()
        self._gathers[token] = gather = Gather(self, token, timeout)
        gather.subject = self._inbox + token
        return gather

    def forget(self, token: bytes) -> None:
        gather = self._gathers.pop(token, None)
        if gather is not None and gather.subject.startswith(self._own_inbox) and self._error is None:
            self._write(b"UNSUB %b\r\n" % _own_sid(token))
        self._lines.clear()

    # ---- many publishes under way

    @property
    def outstanding(self) -> int:
        """The number of publishes without an ack."""
        return len(self._unacked)

    def publish(self, subject: str | bytes, payload: bytes = b"", headers: Headers = b"") -> None:
        """Publishes without asking for an answer. The message is buffered: `flush` or any wait sends it."""
        self._put(subject if isinstance(subject, bytes) else subject.encode(), payload, b"", block(headers))

    def write_frames(self, frames: bytes | memoryview) -> None:
        """Sends messages that the caller has rendered as the protocol's lines, at once. Raises ConnectionLostError."""
        self._send()
        self._send_all(frames)

    def publish_acked(self, subject: str | bytes, payload: bytes = b"", headers: Headers = b"") -> int:
        """Buffers a message and returns the number of its answer in `acks`. The caller limits `outstanding`."""
        encoded = block(headers)  # first, as it may raise: no answer must be expected for a message that is not sent
        number = self._tokens
        token = self._token()
        self._unacked[token] = number
        self._put(subject if isinstance(subject, bytes) else subject.encode(), payload, self._inbox + token, encoded)
        return number

    def acks(self, down_to: int = 0, timeout: float = 10.0) -> list[tuple[int, Reply]]:
        """Sends the buffered messages and waits until at most `down_to` acks are missing. Returns all answers since the
        last call as (number, reply), in order of arrival, 503 included. Raises RequestTimeoutError when none arrives
        for `timeout` seconds; the next call returns those that came before."""
        self._send()
        while len(self._unacked) > down_to:
            waiting = len(self._unacked)
            deadline = time.monotonic() + timeout
            while len(self._unacked) == waiting:
                self._read_or_time_out(deadline, f"{waiting} publishes")
        found, self._acks = self._acks, []
        return found

    def flush(self, timeout: float = 10.0) -> None:
        """Returns when the server has processed everything written so far."""
        self._pongs += 1
        self._write(b"PING\r\n")
        deadline = time.monotonic() + timeout
        self._send()
        while self._pongs:
            self._read_or_time_out(deadline, "PING")

    # ---- writing

    def _token(self) -> bytes:
        self._tokens += 1
        return b"%d" % self._tokens

    def _put(self, subject: bytes, payload: bytes, reply: bytes, headers: bytes) -> None:
        assert subject and b" " not in subject and CRLF not in subject, subject
        if headers:
            size = len(headers)
            head = b"HPUB %b %b %d %d\r\n%b" % (subject, reply, size, size + len(payload), headers)
        else:
            head = b"PUB %b %b %d\r\n" % (subject, reply, len(payload))
        out = self._out
        out += (head, payload, CRLF)
        self._out_size += len(head) + len(payload) + 2
        if self._out_size >= WRITE_BYTES:
            self._send()

    def _write(self, data: bytes) -> None:
        self._out.append(data)
        self._out_size += len(data)

    def _send(self) -> None:
        if self._error is not None:
            raise self._error
        if self._out:
            data = b"".join(self._out)
            self._out.clear()
            self._out_size = 0
            self._send_all(data)

    def _send_all(self, data: bytes | memoryview) -> None:
        try:
            self._socket.settimeout(30.0)
            self._socket.sendall(data)
        except OSError as error:
            raise self._lost(str(error)) from error

    # ---- reading

    def read_more(self, deadline: float) -> None:
        """Sends the buffered messages, waits for bytes and delivers the messages in them. Raises RequestTimeoutError at
        the deadline (monotonic), ConnectionLostError, ServerError."""
        self._send()
        data = self._receive(deadline, READ_BYTES)
        buffer = self._buffer
        if buffer:
            if len(buffer) + len(data) < self._need:  # a large message: joined once, when it is complete
                pieces, size = [buffer, data], len(buffer) + len(data)
                while size < self._need:
                    try:
                        pieces.append(self._receive(deadline, self._need - size))
                    except RequestTimeoutError:
                        self._buffer = b"".join(pieces)
                        raise
                    size += len(pieces[-1])
                data = b"".join(pieces)
            else:
                data = buffer + data
        self._need = 0
        used = self._parse(data)
        self._buffer = data[used:] if used else data
        if self._error is not None:
            raise self._error

    def _read_or_time_out(self, deadline: float, what: str) -> None:
        try:
            self.read_more(deadline)
        except RequestTimeoutError as error:
            raise RequestTimeoutError(f"no answer in time from {self.url}: {what}") from error

    def _receive(self, deadline: float, size: int) -> bytes:
        left = deadline - time.monotonic()
        try:
            self._socket.settimeout(max(left, 0.001))
            data = self._socket.recv(size)
        except TimeoutError as error:
            raise RequestTimeoutError(f"nothing came in time from {self.url or 'the server'}") from error
        except OSError as error:
            raise self._lost(str(error)) from error
        if not data:
            raise self._lost("closed by the server")
        self.received_bytes += len(data)
        return data

    def _lost(self, why: str) -> JetclusterError:
        if self._error is None:  # an -ERR says more
            self._error = ConnectionLostError(f"connection to {self.url or 'the server'} lost: {why}")
        return self._error

    def _parse(self, data: bytes) -> int:
        """Delivers all complete messages and returns the number of bytes consumed. An answer of many messages of about
        one size costs most, and its messages share few distinct lines: each such line is parsed once."""
        find, known = data.find, self._lines
        at, end = 0, len(data)
        while at < end:
            eol = find(CRLF, at)
            if eol < 0:
                if end - at > MAX_LINE_BYTES:
                    raise self._lost(f"not a NATS server: {data[at : at + 40]!r}")
                return at
            line = data[at:eol]
            sizes = known.get(line)
            if sizes is None:
                if (taken := self._take_columns(line, data, at)) > at:
                    at = taken
                    continue
                sizes = self._read_line(line)
                if sizes is None:
                    self._control(line)
                    at = eol + 2
                    continue
            head, size, add_head, add_payload, token = sizes
            start = eol + 2
            body = start + head
            stop = start + size
            if stop >= end - 1:
                self._need = stop + 2 - at
                return at
            at = stop + 2
            if head == size and self._is_end(token, data[start:body]):
                continue
            add_head(data[start:body])
            add_payload(data[body:stop])
        return at

    def _take_columns(self, line: bytes, data: bytes, at: int) -> int:
        """Gives messages that begin at `at` with `line` to the columns of their gather. Returns the place behind those
        that they took."""
        parts = line.split(b" ", 2)
        gather = self._gathers.get(parts[1][len(self._inbox) :]) if len(parts) > 1 else None
        if gather is None or gather.columns is None:
            return at
        taken: int = gather.columns.take(data, at)
        return taken

    def _read_line(self, line: bytes) -> _Line | None:
        """Returns the sizes and consumers for a message that begins with this line; None if it begins no message."""
        if not line.startswith((b"HMSG ", b"MSG ")):
            return None
        args = line.split()
        token = args[1][len(self._inbox) :]
        head, size = int(args[-2]) if line[0] == 72 else 0, int(args[-1])
        gather = self._gathers.get(token)
        if gather is None:
            heads: list[bytes] = []
            return head, size, heads.append, lambda payload: self._deliver(token, heads[0], payload), token
        if len(args) == 5 + (line[0] == 72):
            gather.replies.append(args[3])
        found = head, size, gather.heads.append, gather.payloads.append, token
        if gather.columns is None:  # a known line would not be offered to the columns
            if len(self._lines) >= MAX_KNOWN_LINES:
                self._lines.clear()
            self._lines[line] = found
        return found

    def _is_end(self, token: bytes, head: bytes) -> bool:
        """Ends a gather if a message without a payload is its status, not a stored one, which has a sequence."""
        gather = self._gathers.get(token)
        if gather is None or head[8:9] != b" " or b"\nNats-Sequence: " in head:
            return False
        gather.end = make_reply(head, b"")
        self.forget(token)
        return True

    def _deliver(self, token: bytes, headers: bytes, payload: bytes) -> None:
        number = self._unacked.pop(token, None)
        if number is not None:
            self._acks.append((number, make_reply(headers, payload)))
        elif token in self._replies and self._replies[token] is None:
            self._replies[token] = make_reply(headers, payload)

    def _control(self, line: bytes) -> None:
        if line == b"PING":
            self._write(b"PONG\r\n")
            self._send()
        elif line == b"PONG":
            self._pongs = max(self._pongs - 1, 0)
        elif line.startswith(b"-ERR"):
            text = line[4:].strip(b" '").decode(errors="replace")
            # Other errors (slow consumer, stale connection, server shutdown) end only this connection.
            refused = re.search("permission|authori[sz]ation|authentication|payload|subject", text, re.IGNORECASE)
            self._error = (ServerError if refused else ConnectionLostError)(text)
        elif line.startswith(b"INFO "):
            self.info = json.loads(line[5:])
        elif line != b"+OK":
            self._error = ConnectionLostError(f"not a NATS server: {line[:40]!r}")


def block(headers: Headers) -> bytes:
    """Returns the header block for any form of headers. Raises ValueError for a field that cannot be written."""
    if isinstance(headers, bytes):
        return headers
    if isinstance(headers, Mapping):
        pairs = [(key.encode(), value.encode()) for key, value in headers.items()]
    else:
        pairs = list(headers)
    for key, value in pairs:
        if any(c in key + value for c in (b"\r", b"\n")) or not key or b":" in key:
            raise ValueError(f"not a header: {key!r}: {value!r}")
    return header_block.build(pairs) if pairs else b""


def _own_sid(token: bytes) -> bytes:
    return b"r" + token


def without_user(url: str) -> str:
    """Returns the URL without user and password."""
    before, at, host = url.rpartition("@")
    return before[: before.find("//") + 2] + host if at else url
