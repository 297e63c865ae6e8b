"""`Delivery`: the interface of pull and push for `owner.ConsumerOwner`.

The owner has the common parts - state, selection, acks, subscriptions, redelivery times, inactivity - and calls its
delivery, which chooses the recipients:

- `owner.selection.take(n)` / `take_due(n)` return messages, `give_back(...)` takes unused ones back;
- `owner.submit(kind, value, token)` puts ops into the log; those of kinds DELIVER, REDELIVER, ADVANCE, WAIT, UNWAIT and
  PIN come back to `applied`;
- `owner.wake_at(ns)` requests a tick, `owner.run_soon()` a run.

Both count messages sent ahead of the log (`Advance`), keep the stream's intervals (`Replay`) and use a `DeliveryBus`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol

from jetcluster.consumer.state.state import ConsumerState
from jetcluster.consumer.state.turn import ADVANCE, Value
from jetcluster.protocol.bus import Bus, Outgoing

DELETED = "deleted"
MOVED = "moved"
SHUTDOWN = "shutdown"
"""Reasons for which an owner stops: the consumer is deleted, another node owns it, or this server shuts down."""

REPLAY: Final = "replay"
RATE: Final = "rate"
PRIORITY: Final = "priority"
ACKS: Final = "acks"
KEYS: Final = "keys"
UNREAD: Final = "unread"
UNCONFIRMED: Final = "unconfirmed"
"""Reasons for which a consumer sends nothing though messages and readers are there: replay_policy original,
rate_limit_bps, priority groups, max_ack_pending, order per key; or its reader does not read, or does not answer flow
control."""
LATE_NS: Final = 1_000_000_000
"""Time after which something that was to go on by now does not wait any more, but was forgotten."""

MESSAGES_PER_STEP: Final = 4096
"""Messages of an ADVANCE, unless a single delivery has more."""
MAX_UNCONFIRMED_MESSAGES: Final = 65_536
MAX_UNCONFIRMED_NS: Final = 2_000_000_000

_MAX_LATE_NS: Final = 100_000_000
"""Delay that replay catches up on; after a longer one the original intervals continue from then."""


class DeliveryBus(Bus, Protocol):
    """`Bus` with the additional methods for deliveries; `server` implements it."""

    def deliver_many(self, target: bytes, messages: Sequence[Outgoing]) -> int:
        """Route messages in order to the takers of `target`, a reply or deliver_subject; the takers see the messages'
        own subjects. Returns the number of takers of the last one. Publish permissions do not apply. In a queue group,
        members that read are preferred to those that lag."""

    def queue_interest(self, subject: bytes, queue: bytes) -> bool:
        """Return True when a member of queue group `queue` would get a message on `subject`."""

    def watch_interest(self, subject: bytes, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back when interest in the literal `subject` begins or ends, here or at another node. The call comes in
        the middle of that change, so the callback must only note it. Returns a function that ends the watch."""


class Delivery(Protocol):
    """Delivery of one consumer's messages to clients."""

    @property
    def num_waiting(self) -> int:
        """Open pull requests; 0 for push."""

    @property
    def push_bound(self) -> bool:
        """True when the deliver subject has interest; False for pull."""

    @property
    def in_use(self) -> bool:
        """True with a recipient: an open request whose client still listens, or a bound deliver subject. May be slow:
        read when the inactivity threshold has passed."""

    @property
    def wants_messages(self) -> bool:
        """True when new messages in the stream need a `run`."""

    def withheld(self, now: int) -> str:
        """Return for which reason nothing is sent now (REPLAY to UNCONFIRMED), "" if there is none."""

    def start(self) -> None:
        """Begin to deliver."""

    def stop(self, reason: str) -> Iterator[None]:
        """Unsubscribe; the returned iterator ends waiting requests, some thousands per step. `reason`: see above."""

    def run(self) -> None:
        """Deliver all that can be delivered, at the end of a loop turn. Not called while the consumer is paused."""

    def tick(self, now: int) -> None:
        """Do what is due at `now` (wall clock, ns), if anything, and request the next tick with `owner.wake_at`. Called
        while paused too (for heartbeats and expiries)."""

    def flush(self) -> None:
        """Put into the log the messages sent ahead of it."""

    def applied(self, kind: int, value: Value, outcome: object, token: object) -> None:
        """Take the outcome of an op of this delivery, applied here; the selection already has it."""

    def reset(self) -> None:
        """Drop the ops in flight, which are lost; the selection is at the replicated state again."""

    def configured(self) -> None:
        """Follow new `owner.state.rules` (update, pause)."""


class Advance:
    """Position of a consumer without acks, ahead of the log.

    Such a consumer sends at once and logs afterwards. While ADVANCE ops are in flight no more follow; the next ones
    have all that was sent meanwhile, in steps of `MESSAGES_PER_STEP`: each replica may remove as many when it applies
    one. It stops when too many messages, or old ones, are unconfirmed: a former owner must not go on forever."""

    __slots__ = ("_confirmed", "_epoch", "_in_flight", "_marks", "_state", "_submit", "_submitted", "cseq", "sseq")

    def __init__(self, state: ConsumerState, submit: Callable[[int, Value], None]) -> None:
        self._state = state
        self._submit = submit
        self._in_flight: deque[tuple[int, int]] = deque()
        """(last consumer sequence of the op, time of its submission)"""
        self._marks: deque[tuple[int, int]] = deque()
        """The (consumer, stream) sequences up to which a step of what is to be logged may go."""
        self.restart()

    def restart(self) -> None:
        """Continue from the state."""
        state = self._state
        self._epoch = state.epoch
        self._in_flight.clear()
        self._marks.clear()
        self.cseq = self._submitted = self._confirmed = state.delivered_cseq
        """Consumer sequence of the last message sent."""
        self.sseq = state.delivered_sseq
        """Its stream sequence."""

    def sent(self, seq: int, count: int) -> None:
        """Count `count` more messages, the last at `seq`."""
        marks = self._marks
        if self.cseq + count - (marks[-1][0] if marks else self._confirmed) > MESSAGES_PER_STEP:
            marks.append((self.cseq, self.sseq))
        self.cseq += count
        self.sseq = seq

    def may_send(self, now: int) -> bool:
        if self._in_flight and now - self._in_flight[0][1] > MAX_UNCONFIRMED_NS:
            return False
        return self.cseq - self._confirmed < MAX_UNCONFIRMED_MESSAGES

    def flush(self, now: int, *, at_once: bool = False, least: int = 1) -> None:
        """Log new messages if there are at least `least`, and no op is in flight or `at_once` is True."""
        count = self.cseq - self._submitted
        if count >= least and (at_once or not self._in_flight):
            for cseq, sseq in (*self._marks, (self.cseq, self.sseq)):
                if cseq > self._submitted:
                    count, self._submitted = cseq - self._submitted, cseq
                    self._in_flight.append((cseq, now))
                    self._submit(ADVANCE, (sseq, count))

    def applied(self, now: int, *, least: int = 1) -> None:
        self._confirmed, _ = self._in_flight.popleft()
        while self._marks and self._marks[0][0] <= self._confirmed:
            self._marks.popleft()
        self.flush(now, least=least)

    def reset(self) -> None:
        """Continue after the loss of ops in flight. Messages already sent are logged again, unless the consumer was
        reset, or the log has more or could not accept that many."""
        state = self._state
        known, more = state.delivered_sseq, self.cseq - state.delivered_cseq
        if state.epoch != self._epoch or not 0 <= more <= self.sseq - known or known == self.sseq:
            self.restart()
        else:
            self._in_flight.clear()
            self._submitted = self._confirmed = state.delivered_cseq


class Replay:
    """Sends messages with the intervals of their arrival in the stream (replay_policy original)."""

    __slots__ = ("_at", "_time")

    def __init__(self) -> None:
        self._time = 0
        """Stored time of the last message that was sent."""
        self._at = 0
        """Time at which it was due, 0 before the first."""

    def due(self, times: list[int], now: int) -> int:
        """Return the number of messages with these ascending times that may be sent at `now`."""
        return bisect_right(times, now - self._shift(times, now))

    def sent(self, times: list[int], count: int, now: int) -> int:
        """Note that the first `count` were sent; return the due time of the next one, 0 when it is not in `times`."""
        shift = self._shift(times, now)
        if count:
            self._time = times[count - 1]
            self._at = self._time + shift
        return times[count] + self._at - self._time if count < len(times) else 0

    def _shift(self, times: list[int], now: int) -> int:
        """Return the difference from stored times to due times."""
        if not self._at:
            return now - times[0]
        shift = self._at - self._time
        return max(shift, now - _MAX_LATE_NS - times[0])
