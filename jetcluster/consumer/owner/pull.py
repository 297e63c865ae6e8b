"""`PullDelivery`: messages for those who ask.

With acks a message is sent when its delivery is committed; statuses wait behind deliveries in flight. Without acks it
is sent at once (`delivery.Advance`). Requests that outlive their turn are put into the log, so that the next owner can
tell them: WAIT and UNWAIT, per reply subject, only for the difference that a turn has made.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

from jetcluster.consumer.owner import delivery, statuses
from jetcluster.consumer.owner.context import DeliveryContext
from jetcluster.consumer.owner.pull_dispatch import PullDispatch, Shipment
from jetcluster.consumer.owner.pull_request import BadRequestError, PullRequest
from jetcluster.consumer.state.turn import ADVANCE, DELIVER, PIN, REDELIVER, UNWAIT, WAIT, Value
from jetcluster.ordered import OrderedSet
from jetcluster.store.api import DamagedError

REAP_NS: Final = 5_000_000_000
"""Time between two looks whether their clients still listen."""
REAPED_PER_STEP: Final = 2000
"""Requests that are looked at in one step."""
_SECOND: Final = 1_000_000_000


class PullDelivery:
    push_bound = False

    def __init__(self, owner: DeliveryContext) -> None:
        self._owner = owner
        self._dispatch = PullDispatch(owner)
        self.queue = self._dispatch.queue
        self.priority = self._dispatch.priority
        self._announced: OrderedSet[bytes] = OrderedSet()
        """Reply subjects that the log knows as waiting, or will once what is in flight is applied."""
        self._reap_at = 0
        self._reaped = 0
        self._left_waiting: Iterator[bytes] = iter(())
        """Reply subjects of the former owner's requests that have not been told."""
        self._reaping: list[PullRequest] = []
        """Requests that this round has still to look at."""

    # -- life -------------------------------------------------------------------------------------------------------

    @property
    def num_waiting(self) -> int:
        """Requests of clients that still listen; where there are thousands, or did until five seconds ago."""
        self._reap()
        return len(self.queue)

    @property
    def wants_messages(self) -> bool:
        return self.queue.size > 0

    @property
    def in_use(self) -> bool:
        return any(self._owner.bus.has_interest(request.reply) for request in self.queue)

    def start(self) -> None:
        """Tells those who wait by the log: they waited at the former owner."""
        now = self._owner.clock.time_ns()
        self.priority.reset(now)
        self._wake(self.priority.next_deadline)
        self._left_waiting = iter(list(self._owner.state.waiting))
        self._tell_left()

    def _tell_left(self) -> None:
        """Some thousands at a time: that they have to ask again."""
        text = statuses.render(statuses.LEADERSHIP_CHANGE)
        told = list(islice(self._left_waiting, REAPED_PER_STEP))
        for reply in told:
            if reply not in self.queue.replies:  # else it has asked again
                self._owner.bus.publish(reply, headers=text)
                self._owner.submit(UNWAIT, reply)
        if len(told) == REAPED_PER_STEP:
            self._wake(self._owner.clock.time_ns() + 1)

    def stop(self, reason: str) -> Iterator[None]:
        if reason == delivery.MOVED or (reason == delivery.SHUTDOWN and self._owner.replicated):
            return iter(())  # the new owner tells them
        text = statuses.CONSUMER_DELETED if reason == delivery.DELETED else statuses.SERVER_SHUTDOWN
        left = [reply for reply in self._owner.state.waiting if reply not in self._announced]
        return self._part(text, list(self.queue), left)

    def _part(self, text: bytes, requests: list[PullRequest], left: list[bytes]) -> Iterator[None]:
        for number, request in enumerate(requests, 1):
            self._dispatch.dismiss(request, text)
            if not number % REAPED_PER_STEP:
                yield
        for number, reply in enumerate(left, 1):
            self._owner.bus.publish(reply, headers=statuses.render(text))
            if not number % REAPED_PER_STEP:
                yield

    def configured(self) -> None:
        self.priority.reset(self._owner.clock.time_ns())
        self.queue.rouse()
        self._owner.run_soon()

    def reset(self) -> None:
        owner = self._owner
        self._dispatch.reset()
        self._announced = OrderedSet(owner.state.waiting)
        self.queue.touched.update(self._announced)
        self.queue.touched.update(OrderedSet(self.queue.replies))
        owner.run_soon()

    # -- requests ---------------------------------------------------------------------------------------------------

    def request(self, reply: bytes, body: bytes) -> None:
        """A MSG.NEXT, or what came with +NXT."""
        if not reply:
            return
        owner = self._owner
        now = owner.used_at = owner.clock.time_ns()
        try:
            request = PullRequest.decode(reply, body)
        except BadRequestError as error:
            self._dispatch.tell(reply, statuses.bad_request(str(error)))
            return
        refusal = self._refusal(request, now)
        if refusal:
            if refusal != statuses.MAX_WAITING or not request.heartbeat:
                self._dispatch.tell(reply, refusal)
            return
        if request.pin and self.priority.pins.get(request.group) == request.pin:
            self.priority.seen(request.group, now)
        if request.timeout < 0:
            self._dispatch.tell(reply, statuses.TIMEOUT, request.left, request.left_bytes)
            return
        if request.timeout:
            request.expires_at = now + request.timeout
        if request.heartbeat:
            request.beat_at = self.queue.next_beat(request, now)
        if not self._reap_at:
            self._reap_at = now + REAP_NS
            self._wake(self._reap_at)
        self.queue.add(request)
        if alarm := self.queue.alarm:
            owner.wake_at(alarm)
        owner.run_soon()

    def _there(self) -> int:
        """Messages that could be delivered. A bus callback must not raise: the run finds again what is damaged."""
        selection = self._owner.selection
        try:
            return selection.left + len(selection.redelivery.order)
        except DamagedError:
            return max(1, self.queue.wanted)

    def _refusal(self, request: PullRequest, now: int) -> bytes:
        """Status text, b"" when the request may wait."""
        rules = self._owner.state.rules
        if rules.max_batch and request.left > rules.max_batch:
            return statuses.exceeded_batch(rules.max_batch)
        if rules.max_expires and request.timeout > rules.max_expires:
            return statuses.exceeded_expires(rules.max_expires)
        if rules.max_bytes and request.max_bytes > rules.max_bytes:
            return statuses.exceeded_bytes(rules.max_bytes)
        refusal = self.priority.refuse(request)
        if refusal:
            return refusal
        if request.no_wait:
            there = self._there()
            if not there and not request.timeout:
                return statuses.NO_MESSAGES
            if 0 < there < self.queue.wanted:
                self._reap()  # those whose clients are gone do not count
                if there < self.queue.wanted:
                    return statuses.REQUESTS_PENDING
        queue = self.queue
        if (rules.max_waiting and queue.size >= rules.max_waiting) or queue.room.count >= queue.room.most:
            if self._is_full(now) and now - self._reaped > _SECOND:
                self._expire(now)
                self._reap()
            if self._is_full(now):
                return statuses.MAX_WAITING
        return b""

    def _is_full(self, now: int) -> bool:
        most = self._owner.state.rules.max_waiting
        return bool(most and self.queue.size >= most) or self.queue.room.is_full_for(self.queue, now)

    # -- deliveries -------------------------------------------------------------------------------------------------

    def run(self) -> None:
        if self.queue.size:
            self._dispatch.deliver(self._owner.clock.time_ns())
        if self.queue.touched:
            self._announce()

    def flush(self) -> None:
        self._dispatch.advance.flush(self._owner.clock.time_ns(), at_once=True)

    def run_paused(self) -> None:
        """Runs while nothing may be delivered (`pause_until`): requests wait, if they wait at all."""
        self._dispatch.no_more()
        if self.queue.touched:
            self._announce()

    # -- what the log says ------------------------------------------------------------------------------------------

    def applied(self, kind: int, value: Value, outcome: object, token: object) -> None:
        if kind == ADVANCE:
            self._dispatch.advance.applied(self._owner.clock.time_ns())
            if self.queue:
                self._owner.run_soon()
        elif kind == PIN:
            self._pin_applied(value, outcome, token)
        elif kind in (DELIVER, REDELIVER):
            assert isinstance(token, Shipment), kind
            self._dispatch.landed(token, outcome)

    def _announce(self) -> None:
        """Puts into the log who began to wait and who does not wait any more."""
        queue, owner = self.queue, self._owner
        if queue.size and (alarm := queue.alarm):
            owner.wake_at(alarm)  # some may wait again
        for reply in queue.touched:
            waits = owner.replicated and reply in queue.replies
            if waits and reply not in self._announced:
                self._announced.add(reply)
                owner.submit(WAIT, reply)
            elif not waits and reply in self._announced:
                self._announced.discard(reply)
                owner.submit(UNWAIT, reply)
        queue.touched.clear()

    # -- pinned clients ---------------------------------------------------------------------------------------------

    def unpin(self, group: bytes, reason: str) -> bool:
        """The next client in line gets the next message. `reason`: admin or timeout. False: nobody was pinned."""
        if not self.priority.unpin(group):
            return False
        self._owner.submit(PIN, (group, b""), reason)
        self._owner.run_soon()
        return True

    def _pin_applied(self, value: Value, outcome: object, token: object) -> None:
        if outcome:
            assert isinstance(value, tuple)
            group, pin = value
            assert isinstance(group, bytes), value
            assert isinstance(pin, bytes), value
            self._owner.advise.pinned(group, pin) if pin else self._owner.advise.unpinned(group, str(token))

    # -- time -------------------------------------------------------------------------------------------------------

    def tick(self, now: int) -> None:
        self._tell_left()
        if 0 < self.queue.alarm <= now:
            self._expire(now)
        if self._reap_at and now >= self._reap_at:
            over = self._reap()
            self._reap_at = (now + REAP_NS if over else now + 1) if self.queue else 0
            if over and len(self._announced) != len(
                self.queue.replies
            ):  # the stream has got replicas, or has none any more
                self.queue.touched.update(OrderedSet(self.queue.replies))
        for group in self.priority.overdue(now):
            self.unpin(group, "timeout")
        self._dispatch.tick(now)
        for at in (self.queue.alarm, self._reap_at):
            self._wake(at)
        if self.queue.touched:
            self._owner.run_soon()

    def _expire(self, now: int) -> None:
        """Ends what has expired and sends heartbeats; looks at no other request."""
        owner = self._owner
        for request in self.queue.due(now):
            if request.expires_at and now >= request.expires_at:
                self._dispatch.end(request, statuses.TIMEOUT)
                owner.used_at = now  # its client comes back now, or has the whole inactive_threshold to do so
                continue
            if request.heartbeat and now >= request.beat_at:
                if request.no_wait and request.delivered and not request.held:
                    self._dispatch.end(request, statuses.NO_MESSAGES)  # max_ack_pending keeps the rest from it
                    continue
                request.beat_at = self.queue.next_beat(request, now)
                owner.bus.publish(request.reply, headers=statuses.heartbeat(*self._last()))
            self.queue.remind(request)

    def _last(self) -> tuple[int, int]:
        """Consumer and stream sequence of the last delivery."""
        state = self._owner.state
        if state.rules.acks:
            return state.delivered_cseq, state.delivered_sseq
        return self._dispatch.advance.cseq, self._dispatch.advance.sseq

    def _reap(self) -> bool:
        """Drops requests whose clients are gone: looks at all of them, or at some thousands and at the next ones the
        next time. True when it has been through."""
        self._reaped = self._owner.clock.time_ns()
        has_interest = self._owner.bus.has_interest
        if not self._reaping or len(self.queue) <= REAPED_PER_STEP:
            self._reaping = list(self.queue)
        for request in self._reaping[-REAPED_PER_STEP:]:
            if request.open and not has_interest(request.reply):
                self._dispatch.end(request, b"")
        del self._reaping[-REAPED_PER_STEP:]
        return not self._reaping

    def _wake(self, at: int) -> None:
        if at:
            self._owner.wake_at(at)
