"""`PullRequest`: one MSG.NEXT with its progress; `Priority`: decides whether its group may be served.

The body is parsed like in nats-server: any text that is neither a number nor an object asks for one message.
"""

from __future__ import annotations

import json
from typing import Any, Final, NoReturn, Protocol

from jetcluster.clock import Rng
from jetcluster.consumer.owner.statuses import PIN_MISMATCH, bad_request
from jetcluster.consumer.state.rules import NONE, OVERFLOW, PINNED, PRIORITIZED
from jetcluster.consumer.state.state import ConsumerState
from jetcluster.errors import CallerError
from jetcluster.model import codec
from jetcluster.records import dataclass

_I64_MAX: Final = (1 << 63) - 1
_MAX_DIGITS: Final = 19
MIN_HEARTBEAT_NS: Final = 100_000_000
"""Minimum time between two heartbeats of a request."""

Gauge = bytes | int
"""A value, read for each message, for which requests may wait (`Priority.reading`)."""

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
"""Key -> (attribute, JSON type, type named in Go's error)."""

SERVE: Final = 0
PASS: Final = 1
WRONG_PIN: Final = 2

PENDING: Final = 0
UNACKED: Final = 1
"""Gauges, besides the groups of pinned clients."""

_LETTERS: Final = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


class BadRequestError(CallerError, ValueError):
    """Raised for a malformed request; the client gets `400 Bad Request - <text>`."""


class Asker(Protocol):
    """One that asks with requests (`members.Member`)."""

    number: int
    open: int
    seen: int
    gone: bool

    def joins(self, request: PullRequest, *, front: bool) -> None:
        """Let a request wait in its line."""

    def leaves(self, request: PullRequest) -> None:
        """Take a request out of its line."""


@dataclass(slots=True, eq=False)
class PullRequest:
    """One request for messages, and its place in the queue."""

    reply: bytes
    left: int = 1
    """Number of messages of the batch that are not yet selected."""
    max_bytes: int = 0
    left_bytes: int = 0
    timeout: int = 0
    """`expires`, ns; 0: as long as the client listens; negative: expired before it arrived."""
    expires_at: int = 0
    """Wall clock, ns."""
    heartbeat: int = 0
    beat_at: int = 0
    alarm_at: int = 0
    """The earlier of the two times, at which its queue returns it."""
    no_wait: bool = False
    group: bytes = b""
    pin: bytes = b""
    """The pinned id that it has or was assigned."""
    assigned_pin: bool = False
    """True when the id was assigned and the client may not have it yet."""
    min_pending: int = 0
    min_ack_pending: int = 0
    priority: int = 0
    delivered: int = 0
    """Number of messages selected for it."""
    flight: int = 0
    """Number of selected messages not yet sent."""
    cut: int = 0
    """Number of messages cut from the batch when max_bytes was used up."""
    status: bytes = b""
    """Status sent once all messages in flight are sent (a text of `statuses`)."""
    open: bool = False
    """True while it is in the queue."""
    turn: int = 0
    """Its place in the queue's order, lowest first."""
    waits_for: tuple[tuple[Gauge, int], ...] | None = None
    """Gauges and values for which it sleeps, one of which suffices; empty when put aside, None in the line."""
    checked: int = 0
    """Number of the run in which the client was last found listening."""
    member: Asker | None = None
    """The member that asks, where members have keys of their own."""
    held: bool = False
    """True when its client had too much unread in that run: it gets no message in it."""

    @classmethod
    def decode(cls, reply: bytes, body: bytes) -> PullRequest:
        """Parse a request. Raises BadRequestError."""
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
        found = f"number {value}"  # Go's error has the number that does not fit
    raise BadRequestError(
        f"json: cannot unmarshal {found} into Go struct field JSApiConsumerGetNextRequest.{key} of type {field[2]}"
    )


class Priority:
    """Decides which waiting requests may get a message, for a consumer with priority groups (ADR-42).

    overflow        only while many messages are pending or unacked, as each request asks
    pinned_client   one client gets all, until it is silent for priority_timeout or is unpinned
    prioritized     lowest number first (`pull_queue`)

    `pins` is the owner's view, ahead of the state."""

    __slots__ = ("_deadlines", "_rng", "_state", "pins")

    def __init__(self, state: ConsumerState, rng: Rng) -> None:
        self._state = state
        self._rng = rng
        self.pins: dict[bytes, bytes] = {}
        """Group -> pinned id."""
        self._deadlines: dict[bytes, int] = {}
        self.reset(0)

    def reset(self, now: int) -> None:
        """Continue from the state; a pinned client has a full priority_timeout again."""
        self.pins = {group: pin for group, (pin, _) in self._state.pins.items()}
        self._deadlines = dict.fromkeys(self.pins, 0)
        if now:
            for group in self.pins:
                self.seen(group, now)

    # -- requests ---------------------------------------------------------------------------------------------------

    def refuse(self, request: PullRequest) -> bytes:
        """Return the status text for a request that does not fit the consumer's policy, else b""."""
        rules = self._state.rules
        policy = rules.priority_policy
        if (request.min_pending or request.min_ack_pending) and policy != OVERFLOW:
            return bad_request("Not a Overflow Priority consumer")
        if request.pin and policy != PINNED:
            return bad_request("Not a Pinned Client Priority consumer")
        if not 0 <= request.priority <= 9:
            return bad_request("Priority must be between 0 and 9")
        if policy != PRIORITIZED:
            request.priority = 0
        if policy == NONE:
            return b""
        if not request.group:
            return bad_request("Priority Group missing")
        if request.group not in rules.priority_groups:
            return bad_request("Invalid Priority Group")
        pin = self.pins.get(request.group, b"")
        if request.pin and pin and request.pin != pin:
            return PIN_MISMATCH
        return b""

    def verdict(self, request: PullRequest, left: int, unacked: int) -> int:
        """Return SERVE, PASS (not now) or WRONG_PIN (an outdated id). `left`: undelivered messages, including the next
        one; `unacked`: messages that wait for an ack."""
        policy = self._state.rules.priority_policy
        if policy == PINNED:
            pin = self.pins.get(request.group, b"")
            if not pin:
                return WRONG_PIN if request.pin else SERVE
            if not request.pin:
                return PASS
            return SERVE if request.pin == pin else WRONG_PIN
        if policy == OVERFLOW and (request.min_pending or request.min_ack_pending):
            enough = 0 < request.min_pending <= left or 0 < request.min_ack_pending <= unacked
            return SERVE if enough else PASS
        return SERVE

    def waits_for(self, request: PullRequest) -> tuple[tuple[Gauge, int], ...]:
        """Return the (gauge, minimum) pairs for which a passed request waits; one of them suffices."""
        if self._state.rules.priority_policy == PINNED:
            return ((request.group, 1),)
        bounds = ((PENDING, request.min_pending), (UNACKED, request.min_ack_pending))
        return tuple((gauge, bound) for gauge, bound in bounds if bound > 0)

    def reading(self, gauge: Gauge, left: int, unacked: int) -> int:
        """Return a gauge's value, with `left` and `unacked` as for `verdict`. A group's is 1 while none is pinned."""
        if isinstance(gauge, bytes):
            return 0 if self.pins.get(gauge) else 1
        return left if gauge == PENDING else unacked

    # -- pins -------------------------------------------------------------------------------------------------------

    def needs_pin(self, request: PullRequest) -> bool:
        return self._state.rules.priority_policy == PINNED and request.group not in self.pins

    def assign(self, request: PullRequest, now: int) -> bytes:
        """Pin the client of `request`; return its id, which goes with every message."""
        pin = bytes(_LETTERS[byte % 62] for byte in self._rng.token(22))
        self.pins[request.group] = request.pin = pin
        request.assigned_pin = True
        self.seen(request.group, now)
        return pin

    def unpin(self, group: bytes) -> bool:
        """Unpin the client of `group`; return False when none was pinned."""
        self._deadlines.pop(group, None)
        return self.pins.pop(group, None) is not None

    def seen(self, group: bytes, now: int) -> None:
        """Note that the pinned client asked for messages."""
        timeout = self._state.rules.priority_timeout
        self._deadlines[group] = now + timeout if timeout else 0

    def overdue(self, now: int) -> list[bytes]:
        """Return the groups whose pinned client was silent for too long."""
        return [group for group, deadline in self._deadlines.items() if deadline and deadline <= now]

    @property
    def next_deadline(self) -> int:
        """The earliest deadline of a pinned client, 0 without one."""
        return min(filter(None, self._deadlines.values()), default=0)
