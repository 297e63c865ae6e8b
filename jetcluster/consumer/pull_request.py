"""`PullRequest`: one MSG.NEXT, as it was asked for and what is left of it.

The body is read as nats-server reads it: empty or anything that is neither a number nor an object asks for one message.
"""

from __future__ import annotations

import json
from typing import Any, Final, NoReturn

from jetcluster.errors import CallerError
from jetcluster.model import codec
from jetcluster.records import dataclass

_I64_MAX: Final = (1 << 63) - 1
_MAX_DIGITS: Final = 19
MIN_HEARTBEAT: Final = 100_000_000
"""Nanoseconds between two heartbeats of a request, at least, whatever it asks for."""

Gauge = bytes | int
"""Something that is read for each message and that requests may wait for (`Priority.reading`)."""


class BadRequestError(CallerError, ValueError):
    """The text goes to the client as `400 Bad Request - <text>`."""


@dataclass(slots=True, eq=False)
class PullRequest:
    reply: bytes
    left: int = 1
    """Messages of the batch that are not yet selected."""
    max_bytes: int = 0
    left_bytes: int = 0
    timeout: int = 0
    """`expires`, ns; 0: as long as the client listens. Negative: it has expired before it came."""
    expires_at: int = 0
    """Wall clock, ns."""
    heartbeat: int = 0
    beat_at: int = 0
    alarm_at: int = 0
    """The time at which its queue looks at it next: the earlier one of the two."""
    no_wait: bool = False
    group: bytes = b""
    pin: bytes = b""
    """The pinned id it came with or was given."""
    assigned_pin: bool = False
    """It was given the id, the client may not know it yet."""
    min_pending: int = 0
    min_ack_pending: int = 0
    priority: int = 0
    delivered: int = 0
    """Messages selected for it so far."""
    flight: int = 0
    """Number of those that are not yet sent."""
    cut: int = 0
    """Messages taken off the batch because max_bytes was used up."""
    status: bytes = b""
    """Status that it is told once all in flight are sent (a text of `statuses`)."""
    open: bool = False
    """It stands in the queue."""
    turn: int = 0
    """Its place in the order of the queue: lower ones come first."""
    waits_for: tuple[tuple[Gauge, int], ...] | None = None
    """Asleep: until one of these gauges reads so much. None while it stands in the line."""
    checked: int = 0
    """Number of the run in which the client was last found listening."""
    held: bool = False
    """Its client had much unread then: it gets nothing in that run."""

    @classmethod
    def decode(cls, reply: bytes, body: bytes) -> PullRequest:
        """Raises BadRequestError."""
        request = cls(reply)
        body = body.strip()
        if body.startswith(b"{"):
            request._take(_object(body))
        else:
            digits = body[1:] if body[:1] in (b"+", b"-") else body
            if digits.isdigit() and len(digits) <= _MAX_DIGITS:
                request.left = max(1, int(body))
        return request

    def _take(self, fields: dict[str, Any]) -> None:
        for key, value in fields.items():
            field = _FIELDS.get(key) or _FIELDS.get(key.lower())
            if field is not None and value is not None:
                name, kind, _ = field
                given = type(value)
                if given is not kind or (kind is int and not -_I64_MAX <= value <= _I64_MAX):
                    _refuse(key, value, field)
                setattr(self, name, value.encode("utf-8", "replace") if kind is str else value)
        self.left = max(1, self.left)
        self.max_bytes = self.left_bytes = max(0, self.max_bytes)
        self.heartbeat = max(0, self.heartbeat)
        if self.heartbeat * 2 > self.timeout and self.heartbeat:
            raise BadRequestError("heartbeat value too large")


def _object(body: bytes) -> dict[str, Any]:
    try:
        value = _decode_json(body.decode("utf-8", "replace"))
    except RecursionError:
        raise BadRequestError("exceeded max depth") from None
    except ValueError as error:
        raise BadRequestError(codec.syntax_text(error)) from None
    assert isinstance(value, dict), type(value)  # it begins with a brace
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"invalid character {name[0]!r} looking for beginning of value")


_decode_json: Final = json.JSONDecoder(parse_constant=_no_constant).decode  # json.loads would build one per call


def _refuse(key: str, value: object, field: tuple[str, type, str]) -> NoReturn:
    found = {str: "string", bool: "bool", list: "array", dict: "object"}.get(type(value), "number")
    if found == "number" and field[1] is int:
        found = f"number {value}"  # as Go, which says which one does not fit
    raise BadRequestError(
        f"json: cannot unmarshal {found} into Go struct field JSApiConsumerGetNextRequest.{key} of type {field[2]}"
    )


_FIELDS: Final[dict[str, tuple[str, type, str]]] = {
    "batch": ("left", int, "int"),
    "max_bytes": ("max_bytes", int, "int"),
    "expires": ("timeout", int, "time.Duration"),
    "idle_heartbeat": ("heartbeat", int, "time.Duration"),
    "no_wait": ("no_wait", bool, "bool"),
    "min_pending": ("min_pending", int, "int64"),
    "min_ack_pending": ("min_ack_pending", int, "int64"),
    "group": ("group", str, "string"),
    "id": ("pin", str, "string"),
    "priority": ("priority", int, "int"),
}
"""Key -> (attribute, type in JSON, type that Go's error names)."""
