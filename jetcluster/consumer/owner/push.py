"""`PushDelivery`: delivers messages to the deliver subject, within `FlowControl` and `RateLimit`.

With acks a message is sent when its delivery is committed; without, it is sent at once (`delivery.Advance`), and so is
a first delivery of a stream with one replica (`_ahead`). One slice is sent per loop turn, which leaves time for others,
and none while the slowest taker has much unread, or without interest: a slow client delays only its own consumer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final

from jetcluster.clock import Rng
from jetcluster.consumer.owner import statuses
from jetcluster.consumer.owner.ack_subject import of_flow_control
from jetcluster.consumer.owner.context import DeliveryContext
from jetcluster.consumer.owner.delivery import LATE_NS, RATE, REPLAY, UNCONFIRMED, UNREAD, Advance, Replay
from jetcluster.consumer.state.rules import FLOW_CONTROL, ConsumerRules
from jetcluster.consumer.state.turn import ADVANCE, DELIVER, REDELIVER, SentMessages, Value
from jetcluster.model.times import SECOND
from jetcluster.protocol.bus import Origin, Outgoing, Subscription
from jetcluster.records import NamedTuple
from jetcluster.store.api import Columns

MAX_WINDOW_BYTES: Final = 32 << 20
FIRST_WINDOW_BYTES: Final = MAX_WINDOW_BYTES // 16
"""Largest and first size of the window."""
FLOW_REQUEST: Final = b"NATS/1.0 100 FlowControl Request\r\n\r\n"
_LAST_STREAM: Final = re.compile(rb"\r\nNats-Last-Stream: *([0-9]{1,19})\r\n")
_ID: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"

_BURST_NS: Final = SECOND // 10
"""Unused time that the rate limit accumulates."""

SLICE_BYTES: Final = 256 << 10
SLICE_MESSAGES: Final = 1024
"""Approximate maximum sent in one loop turn."""
MESSAGES_PER_ADVANCE: Final = 8192
"""Messages per ADVANCE while more are being sent."""
MAX_BACKLOG_BYTES: Final = 2 << 20
"""Bytes selected and not yet committed, plus bytes that the slowest taker has not read (one slice may exceed it)."""
FIRST_HOLD_NS: Final = 1_000_000
MAX_HOLD_NS: Final = 50_000_000
"""Time until a backlog is checked again; it doubles while the backlog stays."""


class FlowControl:
    """Bounds the bytes that the client has not confirmed, by a window.

    When more than half of the window is unconfirmed, a status message asks the client to publish to its reply subject.
    Each answer confirms the bytes sent before the question, and doubles the window up to its limit."""

    __slots__ = ("_asked", "_prefix", "_rng", "_unconfirmed", "_window", "reply")

    def __init__(self, prefix: bytes, rng: Rng) -> None:
        """`prefix`: the beginning of the subjects at which clients answer."""
        self._prefix = prefix
        self._rng = rng
        self._window = FIRST_WINDOW_BYTES
        self._unconfirmed = 0
        self._asked = 0
        self.reply = b""
        """The reply subject of the open question; b"" without one."""

    def restart(self) -> None:
        """Forget the open question and unconfirmed bytes, as another client may listen now."""
        self._unconfirmed = self._asked = 0
        self.reply = b""

    def sent(self, size: int) -> None:
        self._unconfirmed += size

    @property
    def left(self) -> int:
        """Free bytes of the window; below 0 no message may be sent."""
        return self._window - self._unconfirmed

    def ask(self, *, anyway: bool = False) -> bytes:
        """Return the reply subject of a question to send now, or b"". `anyway`: also when the window is almost free."""
        if self.reply or (self._unconfirmed <= self._window // 2 and not anyway):
            return b""
        number = self._rng.randrange(len(_ID) ** 4)
        token = bytearray()
        for _ in range(4):
            number, digit = divmod(number, len(_ID))
            token.append(_ID[digit])
        self._asked = self._unconfirmed
        self.reply = self._prefix + token
        return self.reply

    def answered(self, subject: bytes) -> bool:
        """Take a client's message on `subject`; return False when it does not answer the open question."""
        if not self.reply or subject != self.reply:
            return False
        self._window = min(2 * self._window, MAX_WINDOW_BYTES)
        self._unconfirmed -= self._asked
        self._asked = 0
        self.reply = b""
        return True


def acknowledged(headers: bytes) -> int:
    """Return the stream sequence that an answer acks, 0 for none."""
    found = _LAST_STREAM.search(headers)
    return int(found[1]) if found is not None else 0


class RateLimit:
    """A consumer's `rate_limit_bps`, as a token bucket in nanoseconds that a message may overdraw."""

    __slots__ = ("_bits", "wait_until")

    def __init__(self, bits_per_second: int) -> None:
        self._bits = bits_per_second
        self.wait_until = 0
        """Unix nanoseconds before which no message may be sent, by the rate of all sent so far."""

    def fitting(self, sizes: list[int], now: int) -> int:
        """Return the number of messages of these sizes that may be sent at `now`; they count as sent."""
        free_at = max(self.wait_until, now - _BURST_NS)
        count = 0
        for size in sizes:
            if free_at > now:
                break
            free_at += size * 8 * SECOND // self._bits
            count += 1
        self.wait_until = free_at
        return count


class _Slice(NamedTuple):
    """The token of a DELIVER or REDELIVER in flight."""

    columns: Columns
    left: range
    """Number of messages left after each; for a REDELIVER the first one applies to all."""
    size: int
    """Bytes of headers and payloads."""


class _SentAhead(NamedTuple):
    """The token of a DELIVER in flight whose messages were already sent."""


class PushDelivery:
    """A push consumer's `Delivery`."""

    num_waiting = 0

    def __init__(self, owner: DeliveryContext, settle: Callable[[int], None]) -> None:
        """`settle` acks all messages up to a sequence, for acks by flow control."""
        self._owner = owner
        self._settle = settle
        self._advance = Advance(owner.state, owner.submit)
        self._rules: ConsumerRules = owner.state.rules
        self._flow: FlowControl | None = None
        self._rate: RateLimit | None = None
        self._replay: Replay | None = None
        self._bound = False
        self._flow_subscription: Subscription | None = None
        self._end_watch: Callable[[], None] = _nothing
        self._flight_bytes = 0
        self._slices = 0
        """Number of slices in flight, whose messages are sent once committed."""
        self._want = 64
        """Number of messages in a slice, by the size of previous ones."""
        self._held_until = 0
        """Time before which no message is selected; 0: none."""
        self._hold = FIRST_HOLD_NS
        self._beat_at = 0
        """Time of the next heartbeat if no message is sent before; 0: never."""
        self._last = owner.state.delivered_cseq, owner.state.delivered_sseq
        """Consumer and stream sequence of the last message sent."""

    # -- life -------------------------------------------------------------------------------------------------------

    @property
    def push_bound(self) -> bool:
        rules, bus = self._rules, self._owner.bus
        if rules.deliver_group:
            return bus.queue_interest(rules.deliver_subject, rules.deliver_group)
        return bus.has_interest(rules.deliver_subject)

    @property
    def in_use(self) -> bool:
        return self.push_bound

    @property
    def wants_messages(self) -> bool:
        return self._bound and not self._held_until

    def withheld(self, now: int) -> str:
        if self._flow is not None and self._flow.left < 0:
            return UNCONFIRMED
        if self._owner.bus.backlog(self._rules.deliver_subject) > MAX_BACKLOG_BYTES:
            return UNREAD
        if self._rate is not None and self._rate.wait_until > now - LATE_NS:
            return RATE
        return REPLAY if self._replay is not None and self._held_until > now - LATE_NS else ""

    def start(self) -> None:
        rules = self._rules = self._owner.state.rules
        bus = self._owner.bus
        self._end_watch = bus.watch_interest(rules.deliver_subject, self._interest_changed)
        self._rate = RateLimit(rules.rate_limit) if rules.rate_limit else None
        self._replay = Replay() if rules.replay_original else None
        if rules.flow_control and self._flow is None:
            prefix = of_flow_control(self._owner.renderer.prefix)
            self._flow = FlowControl(prefix, self._owner.rng)
            self._flow_subscription = bus.subscribe(prefix + b"*", self._flow_answered)
        self._held_until = 0
        self._bound = False
        self._interest_changed()

    def stop(self, reason: str) -> Iterator[None]:
        self._end_watch()
        if self._flow_subscription is not None:
            self._owner.bus.unsubscribe(self._flow_subscription)
        return iter(())

    def hold(self, until: int) -> None:
        """Send no message before `until` or `release` (`owner.ConsumerOwner.hold`)."""
        self._hold_until(until)

    def release(self) -> None:
        """End `hold`; the next run checks all other obstacles."""
        if self._held_until:
            self._held_until = 0
            self._owner.run_soon()

    def configured(self) -> None:
        rules, old = self._owner.state.rules, self._rules
        if (rules.deliver_subject, rules.deliver_group, rules.rate_limit) != (
            old.deliver_subject, old.deliver_group, old.rate_limit,
        ):  # fmt: skip
            self._end_watch()
            self.start()
        self._rules = rules
        self._owner.run_soon()

    def reset(self) -> None:
        owner = self._owner
        self._flight_bytes = self._slices = 0
        owner.sent_sseq = 0
        self._advance.reset()
        if not self._rules.acks:
            owner.selection.cursor = self._advance.sseq
        self._last = owner.state.delivered_cseq, max(owner.state.delivered_sseq, owner.selection.cursor)
        owner.run_soon()

    def _interest_changed(self) -> None:
        bound = self.push_bound
        if bound and not self._bound:
            if self._flow is not None:
                self._flow.restart()
            if self._rules.idle_heartbeat:
                self._beat_at = self._owner.clock.time_ns() + self._rules.idle_heartbeat
                self._owner.wake_at(self._beat_at)
            self._owner.run_soon()
        elif self._bound and not bound:
            self._owner.used_at = self._owner.clock.time_ns()  # start of the inactivity
        self._bound = bound

    # -- deliveries -------------------------------------------------------------------------------------------------

    def run_paused(self) -> None:
        """Log sent messages while the consumer is paused; unlike pull, no request waits."""
        self._record(self._owner.clock.time_ns())

    def run(self) -> None:
        now = self._owner.clock.time_ns()
        if self._deliver(now):
            self._owner.run_soon()
        else:
            self._record(now)

    def _deliver(self, now: int) -> bool:
        """Select a slice unless there is an obstacle; return True when more may be sent at once."""
        if not self._bound:
            return False
        if now < self._held_until:
            self._owner.wake_at(self._held_until)
            return False
        self._held_until = 0
        return self._may_send(now) and self._slice(now)

    def _record(self, now: int) -> None:
        """Log messages sent without acks, as no more are sent for now."""
        if not self._rules.acks:
            self._advance.flush(now)

    def _may_send(self, now: int) -> bool:
        """Return True without an obstacle; each obstacle causes a run when it is gone."""
        in_flight = self._flight_bytes
        if in_flight >= MAX_BACKLOG_BYTES or (self._flow is not None and self._flow.left < in_flight):
            return False
        if not self._rules.acks and not self._advance.may_send(now):
            return False
        if in_flight + self._owner.bus.backlog(self._rules.deliver_subject) > MAX_BACKLOG_BYTES:
            self._hold_until(now + self._hold)
            self._hold = min(2 * self._hold, MAX_HOLD_NS)
            return False
        self._hold = FIRST_HOLD_NS
        if self._rate is not None and self._rate.wait_until > now:
            self._hold_until(self._rate.wait_until)
            return False
        return True

    def _hold_until(self, at: int) -> None:
        self._held_until = at
        self._owner.wake_at(at)

    def _slice(self, now: int) -> bool:
        """Select and ship some messages; return True when there may be more."""
        selection, acks = self._owner.selection, self._rules.acks
        if selection.redelivery.order:
            kind, columns = REDELIVER, selection.take_due(self._want)
            left = range(selection.left, selection.left + 1)
            used = self._permitted(columns, None, now)
            selection.give_back_due(columns, used)
        else:
            want = min(self._want, selection.room) if acks else self._want
            if want <= 0:
                return False
            kind = DELIVER
            columns, left = selection.take(want)
            used = self._permitted(columns, self._replay, now)
            selection.give_back(columns, used)
            if selection.at_end:
                self._replay = None  # new messages are sent as they arrive
        if used < len(columns.seqs):
            columns = columns.head(used)
        if used:
            self._ship(kind, columns, left, now)
        return not self._held_until and (len(selection.redelivery.order) > 0 or not selection.at_end)

    def _permitted(self, columns: Columns, replay: Replay | None, now: int) -> int:
        """Return the number of messages that may be sent now, and set `_held_until` for the next one."""
        count = self._fitting(columns)
        if count and replay is not None:
            count = min(count, replay.due(columns.times, now))
        if count and self._rate is not None:
            sizes = [len(b) + len(p) for b, p in zip(columns.headers[:count], columns.payloads[:count], strict=True)]
            count = self._rate.fitting(sizes, now)
            if self._rate.wait_until > now:
                self._hold_until(self._rate.wait_until)
        if columns.seqs and replay is not None:
            due = replay.sent(columns.times, count, now)
            if due > self._held_until:
                self._hold_until(due)
        return count

    def _fitting(self, columns: Columns) -> int:
        """Return the number of messages that fit into a slice and the window; the last one may exceed them."""
        room = SLICE_BYTES if self._flow is None else min(SLICE_BYTES, self._flow.left - self._flight_bytes)
        if sum(map(len, columns.payloads)) + sum(map(len, columns.headers)) <= room:
            return len(columns.seqs)
        for count, (block, payload) in enumerate(zip(columns.headers, columns.payloads, strict=True)):
            if room < 0:
                return count
            room -= len(block) + len(payload)
        return len(columns.seqs)

    def _ship(self, kind: int, columns: Columns, left: range, now: int) -> None:
        owner = self._owner
        count = len(columns.seqs)
        size = sum(map(len, columns.payloads)) + sum(map(len, columns.headers))
        average = size // count + 96
        self._want = max(1, min(SLICE_MESSAGES, SLICE_BYTES // average))
        if self._rules.acks and kind == DELIVER and self._ahead:
            cseq = owner.state.delivered_cseq + owner.selection.in_flight + 1
            owner.submit(kind, columns.seqs, _SentAhead())
            owner.sent_sseq = columns.seqs[-1]
            messages = owner.renderer.first(columns, range(cseq, cseq + count), left[:count])
            self._send(messages, size, cseq + count - 1, columns.seqs[-1], now)
            return
        if self._rules.acks:
            self._flight_bytes += size
            self._slices += 1
            owner.submit(kind, columns.seqs, _Slice(columns, left, size))
            return
        first = self._advance.cseq + 1
        messages = owner.renderer.first(columns, range(first, first + count), left[:count])
        self._advance.sent(columns.seqs[-1], count)
        self._send(messages, size, self._advance.cseq, self._advance.sseq, now)
        self._advance.flush(now, least=MESSAGES_PER_ADVANCE)

    @property
    def _ahead(self) -> bool:
        """True when a first delivery need not wait for the log. With one replica no other node can own the consumer:
        a crash loses only the record of the delivery, and the message is delivered again as the first time, which
        max_deliver forbids. nats-server also sends at once in a stream with one replica, and clients rely on it: a
        published message reaches the subscriber before an unsubscribe that follows its PubAck."""
        rules = self._rules
        return not (self._owner.replicated or rules.max_deliver or self._flow_acks or self._slices)

    def flush(self) -> None:
        self._advance.flush(self._owner.clock.time_ns(), at_once=True)

    def applied(self, kind: int, value: Value, outcome: object, token: object) -> None:
        owner = self._owner
        now = owner.clock.time_ns()
        if kind == ADVANCE:
            self._advance.applied(now, least=MESSAGES_PER_ADVANCE)
        elif isinstance(token, _Slice):
            self._flight_bytes -= token.size
            self._slices -= 1
            if isinstance(outcome, SentMessages) and outcome.seqs:
                messages = self._rendered(token, outcome)
                self._send(messages, token.size, outcome.cseq + len(messages) - 1, owner.state.delivered_sseq, now)
        owner.run_soon()

    def _rendered(self, slice: _Slice, sent: SentMessages) -> list[Outgoing]:
        columns, left = slice.columns, slice.left
        cseqs = range(sent.cseq, sent.cseq + len(sent.seqs))
        if sent.deliveries is None:
            return self._owner.renderer.first(columns, cseqs, left[: len(cseqs)])
        if sent.seqs != columns.seqs:  # some were acked meanwhile
            at = {seq: i for i, seq in enumerate(columns.seqs)}
            columns = columns.pick([at[seq] for seq in sent.seqs])
        return self._owner.renderer.again(columns, cseqs, sent.deliveries, left[0])

    def _send(self, messages: list[Outgoing], size: int, cseq: int, sseq: int, now: int) -> None:
        self._owner.bus.deliver_many(self._rules.deliver_subject, messages)
        self._last = cseq, sseq
        if self._beat_at:
            self._beat_at = now + self._rules.idle_heartbeat
        if self._flow is not None:
            subject, reply, _, _ = messages[0]
            self._flow.sent(size + len(messages) * (len(subject) + len(reply)))  # subjects of the first, for all
            self._ask(self._flow, anyway=self._flow_acks and not self._owner.selection.room)

    def _ask(self, flow: FlowControl, *, anyway: bool) -> None:
        reply = flow.ask(anyway=anyway)
        if reply:
            self._owner.bus.publish(self._rules.deliver_subject, b"", reply, FLOW_REQUEST)

    @property
    def _flow_acks(self) -> bool:
        return self._rules.ack_policy == FLOW_CONTROL

    def _flow_answered(self, subject: bytes, reply: bytes, headers: bytes, payload: bytes, origin: Origin) -> None:
        assert self._flow is not None
        if self._flow.answered(subject):
            seq = acknowledged(headers) if self._flow_acks else 0
            if seq:
                self._settle(seq)
            self._owner.run_soon()

    # -- time -------------------------------------------------------------------------------------------------------

    def tick(self, now: int) -> None:
        if self._held_until:
            if now >= self._held_until:
                self._held_until = 0
                self._owner.run_soon()
            else:
                self._owner.wake_at(self._held_until)
        if self._beat_at:
            if not self._bound:
                self._beat_at = 0
                return
            if now >= self._beat_at:
                self._beat(now)
            self._owner.wake_at(self._beat_at)

    def _beat(self, now: int) -> None:
        stalled = b""
        if self._flow is not None and self._flow.reply:
            stalled = b"Nats-Consumer-Stalled: %b\r\n" % self._flow.reply
        self._owner.bus.publish(self._rules.deliver_subject, headers=statuses.heartbeat(*self._last, stalled))
        self._beat_at = now + self._rules.idle_heartbeat
        if self._flow is not None and self._flow_acks and self._owner.state.pending:
            self._ask(self._flow, anyway=True)


def _nothing() -> None:
    """End a watch that has not begun."""
