"""`Delivery`: what is different between pull and push, as `owner.ConsumerOwner` sees it.

The owner keeps what both share - state, selection, acks, subscriptions, redelivery times, inactivity - and calls its
delivery, which decides who gets what:

- `owner.selection.take(n)` / `take_due(n)` give messages, `give_back(...)` returns what was not used after all;
- `owner.submit(kind, value, token)` puts ops into the log; those of kinds DELIVER, REDELIVER, ADVANCE, WAIT, UNWAIT and
  PIN come back to `applied`;
- `owner.wake_at(ns)` asks for a tick, `owner.run_soon()` for a run.

Both count what was sent ahead of the log (`Advance`), keep the gaps of the stream (`Replay`) and send by way of a
`DeliveryBus`.
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
"""Why an owner stops: the consumer is gone; another node owns it; this server goes down."""

MAX_UNCONFIRMED: Final = 65_536
MAX_WAIT_NS: Final = 2_000_000_000

_LATE_NS: Final = 100_000_000
"""Nanoseconds that may be made up for; who was held up longer goes on with the gap behind the last message."""


class DeliveryBus(Bus, Protocol):
    """`Bus` with what the delivery of consumers needs besides; `server` implements it."""

    def deliver_many(self, target: bytes, messages: Sequence[Outgoing]) -> int:
        """Routes messages to the takers of `target`, in order; the takers see the messages' own subjects. Returns how
        many takers the last one found. (A consumer's delivery: routed by reply or deliver_subject.) Permissions to
        publish do not apply. In a queue group a member that reads goes before one that is far behind."""

    def queue_interest(self, subject: bytes, queue: bytes) -> bool:
        """True when a member of queue group `queue` would get what is published to `subject`."""

    def watch_interest(self, subject: bytes, callback: Callable[[], None]) -> Callable[[], None]:
        """Calls back when somebody begins, or ceases, to take the literal `subject`, here or at another node: in the
        middle of that change, so the callback only makes a note. Returns what ends the watch."""


class Delivery(Protocol):
    @property
    def num_waiting(self) -> int:
        """Open pull requests; 0 for push."""

    @property
    def push_bound(self) -> bool:
        """Somebody takes the deliver subject; False for pull."""

    @property
    def in_use(self) -> bool:
        """Someone is there to deliver to: open requests whose client still listens, or a bound deliver subject. May
        look closely: asked when the inactivity threshold has passed."""

    @property
    def wants_messages(self) -> bool:
        """New messages in the stream are worth a `run`."""

    def start(self) -> None:
        """Subscribes to what the strategy needs."""

    def stop(self, reason: str) -> Iterator[None]:
        """Unsubscribes; tells those who wait. `reason`: DELETED, MOVED or SHUTDOWN. Some thousands are told with each
        step of what is returned."""

    def run(self) -> None:
        """End of a loop turn: delivers what can be delivered. Not called while the consumer is paused."""

    def tick(self, now: int) -> None:
        """`now`: wall clock, ns. May come for another's sake; asks again with `owner.wake_at` for what is still to
        come. Called while paused too (heartbeats and expiries go on)."""

    def flush(self) -> None:
        """Puts into the log what was sent and is not there yet: somebody wants to know."""

    def applied(self, kind: int, value: Value, outcome: object, token: object) -> None:
        """An op of this delivery was applied here. The selection has seen it before."""

    def reset(self) -> None:
        """None of the ops in flight will ever be applied; the selection stands at the replicated state again."""

    def configured(self) -> None:
        """`owner.state.rules` is another one than before (update, pause)."""


class Advance:
    """Counts how far a consumer without acks has delivered, ahead of what the log knows.

    Such a consumer sends at once and records afterwards: one ADVANCE op in flight, the next one holds everything sent
    meanwhile. A former owner must not go on for ever: when too much, or for too long, is unconfirmed it waits."""

    __slots__ = ("_confirmed", "_epoch", "_in_flight", "_state", "_submit", "_submitted", "cseq", "sseq")

    def __init__(self, state: ConsumerState, submit: Callable[[int, Value], None]) -> None:
        self._state = state
        self._submit = submit
        self._in_flight: deque[tuple[int, int]] = deque()
        """(consumer sequence up to which the op goes, when it was submitted)"""
        self.restart()

    def restart(self) -> None:
        """Goes on from the state."""
        state = self._state
        self._epoch = state.epoch
        self._in_flight.clear()
        self.cseq = self._submitted = self._confirmed = state.delivered_cseq
        """Consumer sequence of the last message sent."""
        self.sseq = state.delivered_sseq
        """Its stream sequence."""

    def sent(self, seq: int, count: int) -> None:
        """`count` messages more, the last at `seq`."""
        self.cseq += count
        self.sseq = seq

    def may_send(self, now: int) -> bool:
        if self._in_flight and now - self._in_flight[0][1] > MAX_WAIT_NS:
            return False
        return self.cseq - self._confirmed < MAX_UNCONFIRMED

    def flush(self, now: int, *, at_once: bool = False, least: int = 1) -> None:
        """Puts what is new into the log, if that is `least` messages, and unless an op is in flight (`at_once`: all
        the same)."""
        count = self.cseq - self._submitted
        if count >= least and (at_once or not self._in_flight):
            self._submitted = self.cseq
            self._in_flight.append((self.cseq, now))
            self._submit(ADVANCE, (self.sseq, count))

    def applied(self, now: int, *, least: int = 1) -> None:
        self._confirmed, _ = self._in_flight.popleft()
        self.flush(now, least=least)

    def reset(self) -> None:
        """Goes on after the loss of what was in flight. Messages once sent stay sent: they are put into the log again,
        unless the consumer begins anew, or the log knows of more or could not take so many."""
        state = self._state
        known, more = state.delivered_sseq, self.cseq - state.delivered_cseq
        if state.epoch != self._epoch or not 0 <= more <= self.sseq - known or known == self.sseq:
            self.restart()
        else:
            self._in_flight.clear()
            self._submitted = self._confirmed = state.delivered_cseq


class Replay:
    """Messages go out with the gaps with which they came in (replay_policy original)."""

    __slots__ = ("_at", "_time")

    def __init__(self) -> None:
        self._time = 0
        """Stored time of the last message that was sent."""
        self._at = 0
        """The time that it was due at, 0 before the first."""

    def due(self, times: list[int], now: int) -> int:
        """Number of messages with these ascending times that may go at `now`."""
        return bisect_right(times, now - self._shift(times, now))

    def sent(self, times: list[int], count: int, now: int) -> int:
        """The first `count` went out; returns when the next one is due, 0 when that is not among them."""
        shift = self._shift(times, now)
        if count:
            self._time = times[count - 1]
            self._at = self._time + shift
        return times[count] + self._at - self._time if count < len(times) else 0

    def _shift(self, times: list[int], now: int) -> int:
        """From stored times to those of today."""
        if not self._at:
            return now - times[0]
        shift = self._at - self._time
        return max(shift, now - _LATE_NS - times[0])
