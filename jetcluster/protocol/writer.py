"""The bytes that the server writes to a client. Constant parts are rendered at import.

Deliveries are appended to a connection's list of pieces rather than rendered one by one: `MSG_`, subject, the
subscription's b" sid ", a size line, payload, `CRLF`; the list is joined once per loop turn.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

CRLF = b"\r\n"
OK = b"+OK\r\n"
PING = b"PING\r\n"
PONG = b"PONG\r\n"
MSG_ = b"MSG "
HMSG_ = b"HMSG "

SIZE_LINES = [b"%d\r\n" % n for n in range(4096)]
"""The end of a MSG line for the usual sizes, indexed by size."""
SIZE_LINES_LEN = len(SIZE_LINES)


def size_line(size: int) -> bytes:
    return SIZE_LINES[size] if size < SIZE_LINES_LEN else b"%d\r\n" % size


def info(fields: Mapping[str, Any]) -> bytes:
    """`INFO {json} \\r\\n`: as in nats-server, a blank precedes the line's end."""
    return b"INFO " + json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode() + b" \r\n"


def err(text: str) -> bytes:
    return b"-ERR '" + text.encode("utf-8", "surrogateescape") + b"'\r\n"


def no_responders(reply: bytes, sid: bytes, subject: bytes) -> bytes:
    """Returns the frame for a requester when `subject` has no subscriber: status 503, empty body."""
    size = 32 + len(subject)
    return b"HMSG %b %b %d %d\r\nNATS/1.0 503\r\nNats-Subject: %b\r\n\r\n\r\n" % (
        reply,
        sid,
        size,
        size,
        subject,
    )
