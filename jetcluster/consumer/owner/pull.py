"""`PullDelivery`: delivers messages to pull requests.

With acks a message is sent when its delivery is committed, and statuses follow the deliveries in flight. Without acks
it is sent at once (`delivery.Advance`). Requests that outlive their turn go into the log (WAIT and UNWAIT per reply
subject, for the difference of a turn), so that the next owner can end them.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final

from jetcluster.consumer.owner import delivery, statuses
from jetcluster.consumer.owner.context import DeliveryContext
from jetcluster.consumer.owner.pull_dispatch import PullDispatch
from jetcluster.consumer.owner.pull_request import BadRequestError, PullRequest
from jetcluster.consumer.owner.shipment import Shipment
from jetcluster.consumer.state.turn import ADVANCE, FIRST, PIN, REDELIVER, UNWAIT, WAIT, Value
from jetcluster.model.times import SECOND
from jetcluster.ordered import OrderedSet
from jetcluster.store.api import DamagedError

if TYPE_CHECKING:
    from jetcluster.consumer.owner.member_dispatch import MemberDispatch

REAP_NS: Final = 5 * SECOND
"""Time between two checks whether clients still listen."""
REAPED_PER_STEP: Final = 2000
"""Requests examined in one step."""


class PullDelivery:
    """A pull consumer's `Delivery`."""

    push_bound = False

    def __init__(self, owner: DeliveryContext) -> None:
        self._owner = owner
        self._dispatch = PullDispatch(owner)
        self.queue = self._dispatch.queue
        self.priority = self._dispatch.priority
        self._announced: OrderedSet[bytes] = OrderedSet()
        """Reply subjects that wait by the log, including ops in flight."""
        self._reap_at = 0
        self._reaped = 0
        self._left_waiting: Iterator[bytes] = iter(())
        """Reply subjects of the previous owner's requests that are not ended yet."""
        self._reaping: list[PullRequest] = []
        """Requests that this round has yet to examine."""
        self._nameless: list[PullRequest] = []
        """Requests whose members may still be to be found."""

    # -- life -------------------------------------------------------------------------------------------------------

    @property
    def num_waiting(self) -> int:
        """Number of requests whose clients listen; with thousands of requests, listened within the last 5 seconds."""
        self._reap()
        return len(self.queue)

    @property
    def wants_messages(self) -> bool:
        return self.queue.size > 0

    @property
    def in_use(self) -> bool:
        return any(self._owner.bus.has_interest(request.reply) for request in self.queue)

    @property
    def members(self) -> tuple[int, int]:
        """See `PullDispatch.members`."""
        return self._dispatch.members

    @property
    def sharing(self) -> MemberDispatch | None:
        """The dispatch among members, if any ever asked."""
        return self._dispatch.sharing

    def withheld(self, now: int) -> str:
        return self._dispatch.withheld(now)

    def start(self) -> None:
        """Begin to end the requests that wait by the log: they waited at the previous owner."""
        now = self._owner.clock.time_ns()
        self.priority.reset(now)
        self._wake(self.priority.next_deadline)
        self._left_waiting = iter(list(self._owner.state.waiting))
        self._tell_left()

    def _tell_left(self) -> None:
        """End the previous owner's requests, some thousands at a time, so that their clients ask again."""
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
            return iter(())  # the new owner ends them
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
        if self._owner.selection.keys is not None:
            self._nameless = list(self.queue)
        self._owner.run_soon()

    def _name_some(self) -> None:
        """Find the members of requests that came before there was an order per key, some thousands at a time."""
        now = self._owner.clock.time_ns()
        for request in self._nameless[-REAPED_PER_STEP:]:
            if request.open and request.member is None:
                self._dispatch.asks(request, now)
                self.queue.enlist(request)
        del self._nameless[-REAPED_PER_STEP:]
        if self._nameless:
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
        """Take a MSG.NEXT, or the request of a +NXT."""
        if not reply:
            return
        owner = self._owner
        now = owner.used_at = owner.clock.time_ns()
        try:
            request = PullRequest.decode(reply, body)
        except BadRequestError as error:
            self._dispatch.tell(reply, statuses.bad_request(str(error)))
            return
        if owner.selection.keys is not None:
            self._dispatch.asks(request, now)
        refusal = self._refusal(request, now)
        if refusal:
            if refusal != statuses.MAX_WAITING or not request.heartbeat:  # as nats-server: it would ask again at once
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
        if alarm := self.queue.add(request):
            owner.wake_at(alarm)
        owner.run_soon()

    def _there(self) -> int:
        """Return the number of deliverable messages, never raising in a bus callback: `run` meets the damage again."""
        selection = self._owner.selection
        try:
            return selection.left + selection.redelivery.queued
        except DamagedError:
            return max(1, self.queue.wanted)

    def _refusal(self, request: PullRequest, now: int) -> bytes:
        """Return a status text, or b"" when the request may wait."""
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
            if 0 < there < self.queue.wanted and not self._dispatch.several:
                self._reap()  # requests of clients that are gone do not count
                if there < self.queue.wanted:
                    return statuses.REQUESTS_PENDING
        queue = self.queue
        if (rules.max_waiting and queue.size >= rules.max_waiting) or queue.room.count >= queue.room.most:
            if self._is_full(now) and now - self._reaped > SECOND:
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
        if self._nameless:
            self._name_some()
        if self.queue.size:
            now = self._owner.clock.time_ns()
            if 0 < self.queue.alarm <= now:
                self._expire(now)  # the tick is late: the client does not wait any more, and a message would lie there
            self._dispatch.deliver(now)
        if self.queue.touched:
            self._announce()

    def flush(self) -> None:
        self._dispatch.advance.flush(self._owner.clock.time_ns(), at_once=True)

    def run_paused(self) -> None:
        """End no_wait requests and log the others, while the consumer is paused."""
        self._dispatch.no_more()
        if self.queue.touched:
            self._announce()

    # -- the log ----------------------------------------------------------------------------------------------------

    def applied(self, kind: int, value: Value, outcome: object, token: object) -> None:
        if kind == ADVANCE:
            self._dispatch.advance.applied(self._owner.clock.time_ns())
            if self.queue:
                self._owner.run_soon()
        elif kind == PIN:
            self._pin_applied(value, outcome, token)
        elif kind == REDELIVER or (kind in FIRST and token is not None):
            assert isinstance(token, Shipment), kind
            self._dispatch.landed(token, outcome)

    def _announce(self) -> None:
        """Log the reply subjects that began or ceased to wait."""
        queue, owner = self.queue, self._owner
        if queue.size and (alarm := queue.alarm):
            owner.wake_at(alarm)  # refunded requests wait again
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
        """Unpin the client of `group`; return False when none was pinned. `reason`: admin or timeout."""
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
            ):  # the stream's replicas were scaled from or to one
                self.queue.touched.update(OrderedSet(self.queue.replies))
        for group in self.priority.overdue(now):
            self.unpin(group, "timeout")
        self._dispatch.tick(now)
        for at in (self.queue.alarm, self._reap_at):
            self._wake(at)
        if self.queue.touched:
            self._owner.run_soon()

    def _expire(self, now: int) -> None:
        """End expired requests and send heartbeats; other requests are not examined."""
        owner = self._owner
        for request in self.queue.due(now):
            if request.expires_at and now >= request.expires_at:
                self._dispatch.end(request, statuses.TIMEOUT)
                owner.used_at = now  # its client has the whole inactive_threshold to ask again
                continue
            if request.heartbeat and now >= request.beat_at:
                if request.no_wait and request.delivered and not request.held:
                    self._dispatch.end(request, statuses.NO_MESSAGES)  # max_ack_pending withholds the rest
                    continue
                request.beat_at = self.queue.next_beat(request, now)
                owner.bus.publish(request.reply, headers=statuses.heartbeat(*self._last()))
            self.queue.remind(request)

    def _last(self) -> tuple[int, int]:
        """Return the consumer and stream sequence of the last delivery."""
        state = self._owner.state
        if state.rules.acks:
            return state.delivered_cseq, state.delivered_sseq
        return self._dispatch.advance.cseq, self._dispatch.advance.sseq

    def _reap(self) -> bool:
        """Drop requests whose clients are gone, examining some thousands at a time; return True after a full round."""
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
