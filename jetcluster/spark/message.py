"""`Message`: one message to publish, and `PubAck`, what a stream answers to it."""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple

from jetcluster.client.reply import Reply, api_error
from jetcluster.errors import JetclusterError

MAX_BATCH_MESSAGES: Final = 1000
"""The most messages that a server accepts in one atomic batch (ADR-50)."""


class PublishError(JetclusterError):
    """The stream refused a message, or did not answer for too long."""


class Message(NamedTuple):
    """A message to publish."""

    subject: bytes
    headers: bytes
    """The header block, b"" for none."""
    payload: bytes


class PubAck(NamedTuple):
    """A parsed reply to a publish, errors included."""

    seq: int
    duplicate: bool
    error: str
    """Empty when the message is stored."""
    err_code: int
    try_again: bool
    stream: str = ""
    messages: int = 1
    """Messages of the atomic batch that it ends."""


def read_ack(reply: Reply) -> PubAck:
    """Returns the ack in a reply to a publish. A status or an empty reply is an error that may be retried."""
    if reply.status or not reply.data:
        return PubAck(0, False, f"{reply.status} {reply.description}".strip() or "no PubAck", 0, True)
    try:
        found: dict[str, Any] = json.loads(reply.data)
    except ValueError:
        return PubAck(0, False, f"no PubAck: {reply.data[:80]!r}", 0, False)
    if found.get("error"):
        error = api_error(found["error"])
        return PubAck(0, False, str(error), error.err_code, error.retriable)
    messages = int(found.get("count") or 1)
    return PubAck(int(found["seq"]), bool(found.get("duplicate")), "", 0, False, str(found["stream"]), messages)


def check_size(message: Message, headers: bytes, limit: int) -> None:
    """Raises PublishError when the message with this header block exceeds the server's max_payload (`limit`, bytes)."""
    if len(headers) + len(message.payload) > limit:
        added = f" ({len(headers) - len(message.headers)} of them the sink's own)" if headers != message.headers else ""
        raise PublishError(
            f"{message.subject.decode(errors='replace')}: a payload of {len(message.payload)} bytes with "
            f"{len(headers)} of headers{added}; the server takes {limit} together (max_payload)"
        )
