"""The protocol trace (`-V`): what clients send and get, in nats-server's lines, without the secrets of CONNECT.

Nothing here runs unless tracing is on: `Server.tracer` is None then. Routes and leaf links are not traced: the former
speak a protocol of their own.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from jetcluster.logs import TRACE
from jetcluster.protocol.parser import CONNECT, PING, PONG, PUB, SUB, UNSUB, Command
from jetcluster.server.listener import host_port

if TYPE_CHECKING:
    from jetcluster.config.options import Options
    from jetcluster.server.connection import Connection
    from jetcluster.server.login import ClientLogin

log = logging.getLogger("jetcluster.server")

_SECRETS = frozenset({"pass", "auth_token", "jwt", "sig"})
_BARE = {PING: "PING", PONG: "PONG"}
_ESCAPES = {7: "\\a", 8: "\\b", 9: "\\t", 10: "\\n", 11: "\\v", 12: "\\f", 13: "\\r", 34: '\\"', 92: "\\\\"}


class Tracer:
    def __init__(self, options: Options) -> None:
        self._headers_only = options.trace_headers
        self._most = options.max_traced_msg_len

    def received(self, client: ClientLogin, commands: Sequence[Command]) -> None:
        head = head_of(client)
        for kind, a, b, c, d in commands:
            if kind == PUB:
                sizes = b"%d %d" % (len(c), len(c) + len(d)) if c else b"%d" % len(d)
                self._line(head, "<<-", b"HPUB" if c else b"PUB", a, b, sizes)
                self._payload(head, "<<-", c, d)
            elif kind == SUB:
                self._line(head, "<<-", b"SUB", a, b, c)
            elif kind == UNSUB:
                self._line(head, "<<-", b"UNSUB", a, b)
            elif kind == CONNECT:
                log.log(TRACE, "%s - <<- [CONNECT %s]", head, without_secrets(a))
            else:
                log.log(TRACE, "%s - <<- [%s]", head, _BARE[kind])

    def sent(self, connection: Connection, data: bytes) -> None:
        """`data`: whole frames. INFO is not shown, as in nats-server."""
        if not connection.trace_kind:
            return
        head = head_of(connection)
        at = 0
        while at < len(data):
            end = data.find(b"\r\n", at)
            if end < 0:
                return
            line, at = data[at:end], end + 2
            verb, _, rest = line.partition(b" ")
            if verb in (b"MSG", b"HMSG"):
                words = rest.split()
                size = int(words[-1])
                lead = int(words[-2]) if verb == b"HMSG" else 0
                self._line(head, "->>", line)
                self._payload(head, "->>", data[at : at + lead], data[at + lead : at + size])
                at += size + 2
            elif verb == b"-ERR":
                self._line(head, "->>", verb, rest.strip(b"'"))
            elif verb != b"INFO":
                self._line(head, "->>", line.lstrip(b"+"))

    def _line(self, head: str, arrow: str, *words: bytes) -> None:
        """Writes one line of the trace. Missing words (no queue, no reply) leave no gap: tools look for `[SUB foo 1]`,
        as many clients say it."""
        log.log(TRACE, "%s - %s [%s]", head, arrow, " ".join(_printable(word) for word in words if word))

    def _payload(self, head: str, arrow: str, headers: bytes, payload: bytes) -> None:
        shown = headers.removesuffix(b"\r\n\r\n") if self._headers_only else headers + payload
        if not shown:
            return
        more = ""
        if 0 < self._most < len(shown):
            shown, more = shown[: self._most], "..."
        log.log(TRACE, '%s - %s MSG_PAYLOAD: ["%s%s"]', head, arrow, _quoted(shown), more)


def without_secrets(connect: bytes) -> str:
    """A CONNECT's JSON for the log; nothing of it when it cannot be read, for who knows what is in there."""
    try:
        fields = json.loads(connect)
    except (ValueError, RecursionError):
        return "..."
    if not isinstance(fields, dict):
        return "..."
    for key, value in fields.items():
        if key.lower() in _SECRETS and value:
            fields[key] = "[REDACTED]"
    return json.dumps(fields, separators=(",", ":"))


def head_of(connection: Connection) -> str:
    """The head of lines about a client: address, number, what it calls itself, its user. Only clients have a
    `trace_kind`."""
    client = cast("ClientLogin", connection)
    head = f"{host_port(client.ip, client.port)} - {client.trace_kind}:{client.cid}"
    if client.lang or client.version or client.name:
        head += f' - "v{_text(client.version)}:{_text(client.lang)}:{_text(client.name)}"'
    if client.user:
        head += f' - "{_text(client.account)}/user:{_text(client.user)}"'
    return head


def _text(text: str) -> str:
    """A name that a client gave itself must not forge a line."""
    return text if text.isprintable() else ascii(text)[1:-1]


def _printable(word: bytes) -> str:
    return _text(word.decode(errors="replace"))


def _quoted(data: bytes) -> str:
    """As Go's %q shows bytes."""
    text = data.decode(errors="surrogateescape")
    return "".join([c if c.isprintable() and c not in '"\\' else _escaped(ord(c)) for c in text])


def _escaped(code: int) -> str:
    if code in _ESCAPES:
        return _ESCAPES[code]
    if 0xDC80 <= code <= 0xDCFF:  # a byte that is no UTF-8
        return f"\\x{code - 0xDC00:02x}"
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
