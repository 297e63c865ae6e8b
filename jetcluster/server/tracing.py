"""The protocol trace (`-V`): clients' protocol lines in nats-server's format, without the secrets of CONNECT.

`ServerState.tracer` is None while tracing is off. Routes and leaf links are not traced; routes have another protocol.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from jetcluster.logs import TRACE
from jetcluster.protocol.parser import CONNECT, PING, PONG, PUB, SUB, UNSUB, Command
from jetcluster.server.listener import host_port

if TYPE_CHECKING:
    from jetcluster.config.options import Options

log = logging.getLogger("jetcluster.server")

_SECRETS = ("pass", "token", "jwt", "sig", "secret", "seed", "credential")
"""Parts of the names of hidden fields. Clients also send fields that the server does not read, such as "password"."""
_BARE = {PING: "PING", PONG: "PONG"}
_ESCAPES = {7: "\\a", 8: "\\b", 9: "\\t", 10: "\\n", 11: "\\v", 12: "\\f", 13: "\\r", 34: '\\"', 92: "\\\\"}


class Tracer:
    """Writes trace lines. `head` begins each line: see `head_of`."""

    def __init__(self, options: Options) -> None:
        self._headers_only = options.trace_headers
        self._most = options.max_traced_msg_len

    def received(self, head: str, commands: Sequence[Command]) -> None:
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

    def sent(self, head: str, data: bytes) -> None:
        """Writes the frames of `data`, without INFO, as nats-server does. Nothing for a connection without a head."""
        if not head:
            return
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
        """Writes one line. Missing words (queue, reply) leave no gap: tools search for lines such as `[SUB foo 1]`."""
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
    """Returns a CONNECT's JSON for the log, or "..." if it cannot be parsed, as it may hold secrets anywhere."""
    try:
        fields = json.loads(connect)
    except (ValueError, RecursionError):
        return "..."
    if not isinstance(fields, dict):
        return "..."
    for key, value in fields.items():
        if value and any(part in key.lower() for part in _SECRETS):
            fields[key] = "[REDACTED]"
    return json.dumps(fields, separators=(",", ":"))


def head_of(ip: str, port: int, number: str, client: tuple[str, str, str], user: tuple[str, str] | None) -> str:
    """Returns the head of log lines about a client. `number`: such as `cid:7`; `client`: (version, language, name) of
    its CONNECT; `user`: (account, user), None before a login."""
    head = f"{host_port(ip, port)} - {number}"
    version, lang, name = map(_text, client)
    if lang or version or name:
        head += f' - "v{version}:{lang}:{name}"'
    if user is not None:
        account, name = map(_text, user)
        head += f' - "{account}/user:{name}"'
    return head


def _text(text: str) -> str:
    """Escapes unprintable characters: a client's name must not forge a log line."""
    return text if text.isprintable() else ascii(text)[1:-1]


def _printable(word: bytes) -> str:
    return _text(word.decode(errors="replace"))


def _quoted(data: bytes) -> str:
    """Quotes bytes as Go's %q does."""
    text = data.decode(errors="surrogateescape")
    return "".join([c if c.isprintable() and c not in '"\\' else _escaped(ord(c)) for c in text])


def _escaped(code: int) -> str:
    if code in _ESCAPES:
        return _ESCAPES[code]
    if 0xDC80 <= code <= 0xDCFF:  # a byte that is not UTF-8
        return f"\\x{code - 0xDC00:02x}"
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
