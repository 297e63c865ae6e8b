r"""Status messages of deliveries: header blocks `NATS/1.0 <code> <description>\r\n...` without payload, with the texts
of nats-server. A text here is code and description."""

from __future__ import annotations

from jetcluster.model import durations

TIMEOUT = b"408 Request Timeout"
TOO_LARGE = b"409 Message Size Exceeds MaxBytes"
BATCH_COMPLETED = b"409 Batch Completed"
SERVER_SHUTDOWN = b"409 Server Shutdown"
WRONG_PIN = b"423 Nats-Wrong-Pin-Id"

NO_MESSAGES = b"404 No Messages"
REQUESTS_PENDING = b"408 Requests Pending"
PUSH_BASED = b"409 Consumer is push based"
MAX_WAITING = b"409 Exceeded MaxWaiting"
CONSUMER_DELETED = b"409 Consumer Deleted"
LEADERSHIP_CHANGE = b"409 Leadership Change"
API_LEVEL = b"412 Required Api Level"
PIN_MISMATCH = b"423 Nats-Pin-Id mismatch"

_TELL_REST = frozenset((TIMEOUT, TOO_LARGE, BATCH_COMPLETED, SERVER_SHUTDOWN, WRONG_PIN))


def render(text: bytes, messages: int = 0, size: int = 0) -> bytes:
    """Return the header block; texts that end a request include its remaining messages and bytes of max_bytes."""
    if text in _TELL_REST:
        return b"NATS/1.0 %b\r\nNats-Pending-Messages: %d\r\nNats-Pending-Bytes: %d\r\n\r\n" % (text, messages, size)
    return b"NATS/1.0 %b\r\n\r\n" % text


def heartbeat(cseq: int, sseq: int, extra: bytes = b"") -> bytes:
    """Return a heartbeat with the sequences of the last delivery; `extra` are whole header lines."""
    last = b"Nats-Last-Consumer: %d\r\nNats-Last-Stream: %d\r\n" % (cseq, sseq)
    return b"NATS/1.0 100 Idle Heartbeat\r\n%b%b\r\n" % (last, extra)


def bad_request(text: str) -> bytes:
    return b"400 Bad Request - " + text.encode("utf-8", "replace").replace(b"\r", b" ").replace(b"\n", b" ")


def exceeded_batch(limit: int) -> bytes:
    return b"409 Exceeded MaxRequestBatch of %d" % limit


def exceeded_expires(limit: int) -> bytes:
    return b"409 Exceeded MaxRequestExpires of " + durations.render(limit).encode()


def exceeded_bytes(limit: int) -> bytes:
    return b"409 Exceeded MaxRequestMaxBytes of %d" % limit
