"""`Priority`: who among the waiting requests may get a message, when the consumer has priority groups (ADR-42).

overflow        only while much is pending or unacknowledged, as each request asks
pinned_client   one client gets everything, until it is gone for priority_timeout or is unpinned
prioritized     lowest number first (`pull_queue`)
"""

from __future__ import annotations

from typing import Final

from jetcluster.clock import Rng
from jetcluster.consumer.pull_request import Gauge, PullRequest
from jetcluster.consumer.rules import NONE, OVERFLOW, PINNED, PRIORITIZED
from jetcluster.consumer.state import ConsumerState
from jetcluster.consumer.statuses import PIN_MISMATCH, bad_request

SERVE: Final = 0
PASS: Final = 1
WRONG_PIN: Final = 2

PENDING: Final = 0
UNACKED: Final = 1
"""Gauges; a group of pinned clients is one, too."""

_LETTERS: Final = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


class Priority:
    """`pins` is the owner's view, ahead of the state's."""

    __slots__ = ("_deadlines", "_rng", "_state", "pins")

    def __init__(self, state: ConsumerState, rng: Rng) -> None:
        self._state = state
        self._rng = rng
        self.pins: dict[bytes, bytes] = {}
        """Group -> pinned id."""
        self._deadlines: dict[bytes, int] = {}
        self.reset(0)

    def reset(self, now: int) -> None:
        """Goes on from the state; who is pinned has a whole priority_timeout again."""
        self.pins = {group: pin for group, (pin, _) in self._state.pins.items()}
        self._deadlines = dict.fromkeys(self.pins, 0)
        if now:
            for group in self.pins:
                self.seen(group, now)

    # -- requests ---------------------------------------------------------------------------------------------------

    def refuse(self, request: PullRequest) -> bytes:
        """Status text for a request that does not fit the consumer's policy, b"" for one that does."""
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
        """SERVE; PASS: not now; WRONG_PIN: its id is an old one. `left`: messages there are, the one to be delivered
        counted in; `unacked`: messages waiting for their ack."""
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
        """The gauges, each with its least number, for which a request that PASSes waits: one of them is enough."""
        if self._state.rules.priority_policy == PINNED:
            return ((request.group, 1),)
        bounds = ((PENDING, request.min_pending), (UNACKED, request.min_ack_pending))
        return tuple((gauge, bound) for gauge, bound in bounds if bound > 0)

    def reading(self, gauge: Gauge, left: int, unacked: int) -> int:
        """The number that a gauge shows, `left` and `unacked` as for `verdict`. Of a group: 1 while none is pinned."""
        if isinstance(gauge, bytes):
            return 0 if self.pins.get(gauge) else 1
        return left if gauge == PENDING else unacked

    # -- pins -------------------------------------------------------------------------------------------------------

    def needs_pin(self, request: PullRequest) -> bool:
        return self._state.rules.priority_policy == PINNED and request.group not in self.pins

    def assign(self, request: PullRequest, now: int) -> bytes:
        """Pins the client of `request`: its id, to be told with every message."""
        pin = bytes(_LETTERS[byte % 62] for byte in self._rng.token(22))
        self.pins[request.group] = request.pin = pin
        request.assigned_pin = True
        self.seen(request.group, now)
        return pin

    def unpin(self, group: bytes) -> bool:
        """False when nobody was pinned."""
        self._deadlines.pop(group, None)
        return self.pins.pop(group, None) is not None

    def seen(self, group: bytes, now: int) -> None:
        """The pinned client asked for messages."""
        timeout = self._state.rules.priority_timeout
        self._deadlines[group] = now + timeout if timeout else 0

    def overdue(self, now: int) -> list[bytes]:
        """Groups whose pinned client was not heard of for too long."""
        return [group for group, deadline in self._deadlines.items() if deadline and deadline <= now]

    @property
    def next_deadline(self) -> int:
        """0 when there is none."""
        return min(filter(None, self._deadlines.values()), default=0)
