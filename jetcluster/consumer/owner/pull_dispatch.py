"""`PullDispatch`: assigns messages to waiting requests, and takes messages from selection to client.

    selected -> shipment -> committed as DELIVER or REDELIVER -> sent; without acks sent at once

Requests whose messages are lost on the way get them back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING, Final

from jetcluster.consumer.owner import statuses
from jetcluster.consumer.owner.ack_subject import sized
from jetcluster.consumer.owner.context import DeliveryContext
from jetcluster.consumer.owner.delivery import LATE_NS, PRIORITY, REPLAY, UNREAD, Advance, Replay
from jetcluster.consumer.owner.pull_queue import ENOUGH, GONE, HELD, READY, Handed, PullQueue
from jetcluster.consumer.owner.pull_request import PASS, WRONG_PIN, Gauge, Priority, PullRequest
from jetcluster.consumer.owner.selection import head
from jetcluster.consumer.owner.shipment import Part, Shipment
from jetcluster.consumer.state.rules import NONE
from jetcluster.consumer.state.turn import DELIVER, PIN, REDELIVER, SentMessages
from jetcluster.protocol.bus import Outgoing
from jetcluster.store.api import Columns

if TYPE_CHECKING:
    from jetcluster.consumer.owner.key_order import KeyOrder
    from jetcluster.consumer.owner.member_dispatch import MemberDispatch

MAX_TURN_MESSAGES: Final = 4096
MAX_TURN_BYTES: Final = 4 << 20
"""Maximum selected in one turn; then other owners run."""
MAX_TURN_LOOKS: Final = 20_000
"""Approximate number of requests examined one by one in a turn."""
SLEEP_LOOKS: Final = 8
"""Cost, in looks, of letting a request sleep, which keeps requests in order."""
MAX_TURN_LOOKED_AT_BYTES: Final = 2 << 20
"""Maximum read in one turn of new messages with order per key, of which most may have to wait."""
KEYS_PER_STEP: Final = 4096
"""Messages that are put into other queues in one turn when members begin or cease to have keys of their own."""
MAX_FLIGHT_BYTES: Final = 32 << 20
"""Maximum selected and not yet committed (one shipment may exceed it)."""
MAX_BACKLOG_BYTES: Final = 8 << 20
"""Bytes that a client may have unread before its requests are put aside."""
READERS_EXAMINED: Final = 16
RETRY_NS: Final = 1_000_000_000
"""Time until it is looked again whether all servers understand the order per key."""
HOLD_NS: Final = 5_000_000
"""Time until requests put aside begin to return."""
REQUESTS_PER_RETURN: Final = 256
"""Requests that return at a time, every HOLD_NS: two seconds for a hundred thousand."""

MORE: Final = 0
NO_MORE: Final = 1
NEXT_TURN: Final = 2
CALLED: Final = 3
"""Ways a turn goes on: the next batch; nothing, as nothing is left for those who ask; the next turn; a turn that is
caused when something is acked, committed or due."""


class PullDispatch:
    """The messages of one pull consumer on their way to clients."""

    def __init__(self, owner: DeliveryContext) -> None:
        self._owner = owner
        self.queue = PullQueue(owner.waiting)
        self.priority = Priority(owner.state, owner.rng)
        self.sharing: MemberDispatch | None = None
        """None until a client asks that may have keys of its own."""
        self.advance = Advance(owner.state, owner.submit)
        self._shipments: deque[Shipment] = deque()
        self._flight_bytes = 0
        self._flight_messages = 0
        self._run = 0
        self._looks = 0
        self._shipped_messages = self._shipped_bytes = 0
        """In this turn."""
        self._passed = self._looked_at_bytes = 0
        """Number of messages passed in this turn, and bytes read to find those whose keys are free."""
        self._is_cut_short = False
        """True when a turn ended before the line; the next turn continues with the requests not examined."""
        self._held_until = 0
        """Time of the next attempt to send held messages; 0: none are held."""
        self._back_at = 0
        """Time when requests put aside return; 0: there are none."""
        self._replay = Replay() if owner.state.rules.replay_original else None

    def reset(self) -> None:
        """Drop the shipments in flight; the selection is at the replicated state."""
        owner = self._owner
        shipments, self._shipments = self._shipments, deque()
        self._flight_bytes = self._flight_messages = 0
        self.advance.reset()
        owner.selection.cursor = max(owner.selection.cursor, self.advance.sseq)
        self._restore(shipments)
        self.priority.reset(owner.clock.time_ns())
        for request in self.queue:
            if request.assigned_pin and self.priority.pins.get(request.group) != request.pin:
                request.pin, request.assigned_pin = b"", False
        self.queue.rouse()

    # -- delivery ---------------------------------------------------------------------------------------------------

    def deliver(self, now: int) -> None:
        """Assign messages to requests as far as there are both. Raises DamagedError."""
        owner, queue, keys = self._owner, self.queue, self._owner.selection.keys
        self._run += 1
        self._is_cut_short = False
        self._looks = self._shipped_messages = self._shipped_bytes = self._passed = self._looked_at_bytes = 0
        shared = None if keys is None else self._several(keys, now)
        then = MORE
        while queue.size and then == MORE:
            assert queue.wanted > 0, "would never end"
            keys = owner.selection.keys
            if (
                self._shipped_messages + self._passed >= MAX_TURN_MESSAGES
                or self._looks >= MAX_TURN_LOOKS
                or self._shipped_bytes >= MAX_TURN_BYTES
                or self._looked_at_bytes >= MAX_TURN_LOOKED_AT_BYTES
            ):
                then = NEXT_TURN
            elif (
                self._flight_bytes >= MAX_FLIGHT_BYTES
                or not (owner.state.rules.acks or self.advance.may_send(now))
                or (keys is not None and not self._keys_known(keys, now))
            ):
                then = CALLED
            else:
                keys = owner.selection.keys  # `_keys_known` drops those of a consumer without order per key
                then = self._deliver_some(now) if not shared or keys is None else self._share(keys, shared, now)
        if then == NEXT_TURN:
            owner.run_soon()
        elif then != CALLED and queue.spent:
            self.no_more()

    def _deliver_some(self, now: int) -> int:
        """Ship what is next for the requests whose turn it is; return how it goes on."""
        selection = self._owner.selection
        kind, columns, left = self._next(self.queue.wanted)
        if not columns.seqs:
            return self._found_none(selection.keys) if kind == DELIVER else MORE
        permitted = columns if self._replay is None else self._permitted(kind, columns, now)
        used, parts, sizes = self._hand_out(permitted, left, now)
        if used < len(columns.seqs):
            self._give_back(kind, columns, used)
        if used:
            shipped = columns if used == len(columns.seqs) else head(columns, used)
            shipment = Shipment(shipped, left[:used], parts, sizes)
            if kind == REDELIVER and selection.keys is not None:
                self._note_holders(selection.keys, shipment)
            self._ship(kind, shipment, now)
        if kind == DELIVER and self._replay is not None and self._paced(columns, used, now):
            return CALLED
        if used:
            return MORE
        self._pass()
        return NEXT_TURN if self._is_cut_short else NO_MORE

    def _found_none(self, keys: KeyOrder | None) -> int:
        """Return how it goes on, as no new message was found."""
        if keys is not None:
            self._pass()
            if keys.full:
                return NO_MORE
        if self._owner.selection.idle:
            return NO_MORE
        return MORE if self._owner.selection.room else CALLED  # no_wait requests do not end: acks will make room

    def _permitted(self, kind: int, columns: Columns, now: int) -> Columns:
        """Return the messages that may be sent now (replay_policy original)."""
        if kind == DELIVER and self._replay is not None:
            return head(columns, self._replay.due(columns.times, now))
        return columns

    def _paced(self, columns: Columns, used: int, now: int) -> bool:
        """Note that the first `used` were sent; return True when the next one must wait for its time."""
        assert self._replay is not None
        due = self._replay.sent(columns.times, used, now)
        if self._owner.selection.at_end:
            self._replay = None  # new messages are sent as they arrive
        if due <= now:
            return False
        self._hold_until(due)
        return True

    def _next(self, want: int) -> tuple[int, Columns, list[int] | range]:
        selection = self._owner.selection
        if selection.redelivery.order:
            columns = selection.take_due(want)
            left = selection.left
            return REDELIVER, columns, [left] * len(columns.seqs)
        want = min(want, selection.room)
        if want <= 0:
            return DELIVER, Columns([], [], [], [], []), range(0)
        if selection.keys is not None:
            kind, columns, range_left = selection.take_by_key(selection.keys, want)
            if kind == DELIVER:
                self._passed += selection.keys.passed
                self._looked_at_bytes += selection.keys.looked_bytes
            return kind, columns, range_left
        return DELIVER, *selection.take(want)

    def asks(self, request: PullRequest, now: int) -> None:
        """Let a request be one of its member, where members have keys of their own."""
        rules = self._owner.state.rules
        if rules.keys is None or rules.priority_policy != NONE:
            return
        if self.sharing is None:
            from jetcluster.consumer.owner.member_dispatch import MemberDispatch  # late: few consumers have one

            self.sharing = MemberDispatch(self._owner, self.queue, self._ready, self._size, self.end)
        self.sharing.asks(request, now)

    @property
    def members(self) -> tuple[int, int]:
        """Number of members that share the keys, as of the last turn, and of messages that went to others of them."""
        return (0, 0) if self.sharing is None else (len(self.sharing.members), self.sharing.spilled)

    @property
    def several(self) -> bool:
        """True while several members have keys of their own."""
        return self.sharing is not None and self.sharing.members.several

    def _several(self, keys: KeyOrder, now: int) -> MemberDispatch | None:
        """Return the dispatch among members if there are several, each with keys of its own."""
        sharing = self.sharing
        if sharing is None or not keys.loaded:
            return None
        if keys.wish is None or self._owner.state.rules.priority_policy != NONE:
            sharing.pause(keys)
            return None
        return sharing if sharing.begin(keys, now) else None

    def _share(self, keys: KeyOrder, sharing: MemberDispatch, now: int) -> int:
        """Ship what is next for the members that ask; return how it goes on."""
        queue, selection = self.queue, self._owner.selection
        if not selection.room and not selection.redelivery.queued:
            return CALLED  # no_wait requests do not end: acks will make room
        batch = sharing.due(keys, queue.wanted, now)
        want = min(queue.wanted, selection.room)
        if batch is None and want > 0:
            batch = sharing.released(keys, want)
            if batch is None and queue.awake:
                batch = sharing.new(keys, want)
                self._passed += keys.passed
                self._looked_at_bytes += keys.looked_bytes
        if batch is None:
            self._pass()
        else:
            parts: list[Part] = [(request, indices, b"") for request, indices in batch.handed.items()]
            sizes = batch.sizes if any(batch.sizes) else ()
            self._ship(batch.kind, Shipment(batch.columns, batch.left_after, parts, sizes), now)
        if sharing.is_tired:
            return NEXT_TURN
        if batch is None and (selection.at_end or keys.full or not selection.room or not queue.awake):
            return NO_MORE
        return MORE

    def _keys_known(self, keys: KeyOrder, now: int) -> bool:
        """Read some keys of what is out; return False while more are to be read, or a server is too old for the ops.
        It is asked before each op, as one may join at any time."""
        owner, selection = self._owner, self._owner.selection
        if selection.redelivery.order and not self._must_route(keys):
            return True
        if keys.is_spent:
            selection.keys = None
            return True
        if not owner.may_order_by_key():
            self._hold_until(now + RETRY_NS)
            self.no_more()
            return False
        if keys.loaded:
            if keys.queues.arrange(KEYS_PER_STEP):
                return True
            owner.run_soon()
            return False
        if selection.load_keys(keys):  # else the ops in flight cause a run
            owner.run_soon()
        return False

    def _must_route(self, keys: KeyOrder) -> bool:
        """Return True when due messages wait until the keys are read, as they are for one of several members."""
        several = self.sharing is not None and len(self.sharing.members) > 1
        return several and not keys.loaded and keys.wish is not None and self._owner.may_order_by_key()

    def _note_holders(self, keys: KeyOrder, shipment: Shipment) -> None:
        """Note who gets messages once more that go to whoever asks."""
        for request, indices, _ in shipment.parts:
            member = None if request.member is None else request.member.number
            for at in indices:
                keys.hold(shipment.columns.seqs[at], member)

    def _pass(self) -> None:
        """Log that messages were passed, which wait for others of their keys."""
        keys = self._owner.selection.keys
        if keys is not None and keys.passed:
            self._owner.submit(*keys.op([]))

    def _give_back(self, kind: int, columns: Columns, used: int) -> None:
        selection = self._owner.selection
        if kind == REDELIVER:
            selection.give_back_due(columns, used)
        elif selection.keys is not None:
            selection.keys.give_back(columns.seqs[used:], new=kind == DELIVER)
        else:
            selection.give_back(columns, used)

    def no_more(self) -> None:
        """End no_wait requests, as no messages are left."""
        for request in [request for request in self.queue.spent if not request.held]:
            self.end(request, statuses.NO_MESSAGES)

    def _hand_out(self, columns: Columns, left: list[int] | range, now: int) -> tuple[int, list[Part], list[int]]:
        """Return (number of messages assigned, parts, sizes of the messages if they matter)."""
        if not self.queue.special and self._owner.state.rules.priority_policy == NONE:
            used, handed = self.queue.deal(len(columns.seqs), self._ready_in_turn)
            return used, [(request, indices, b"") for request, indices in handed.items()], []
        return self._choose(columns, left, now)

    def _choose(self, columns: Columns, left: list[int] | range, now: int) -> tuple[int, list[Part], list[int]]:
        """Assign messages one by one, where the request depends on the message."""
        owner, queue = self._owner, self.queue
        unacked = len(owner.state.unacked) + owner.selection.in_flight
        handed: Handed = {}
        sizes: list[int] = []
        for i in range(len(columns.seqs)):
            size = self._size(columns, i, left[i])
            request = self._taker(size, left[i] + 1, unacked, now)
            if request is None:
                break
            self._looks += 1
            if request.max_bytes:
                request.left_bytes -= size
                if not request.left_bytes:
                    request.cut = request.left - 1
                    queue.shorten(request, 1)
            sizes.append(size if request.max_bytes else 0)
            queue.take(request, 1)
            handed.setdefault(request, []).append(i)
            unacked += 1
        return len(sizes), [(request, indices, request.pin) for request, indices in handed.items()], sizes

    def _size(self, columns: Columns, i: int, left: int) -> int:
        """Return the bytes that a message takes of a request's max_bytes, with an estimate of its ack subject."""
        owner = self._owner
        block, payload = columns.headers[i], columns.payloads[i]
        content = len(sized(block, payload)) if owner.renderer.headers_only else len(block) + len(payload)
        cseq = self.advance.cseq if not owner.state.rules.acks else owner.state.delivered_cseq + self._flight_messages
        entry = owner.state.pending.get(columns.seqs[i])
        count = entry.deliveries + 1 if entry is not None else 1
        tail = b"%d.%d.%d.%d.%d" % (count, columns.seqs[i], cseq + i + 1, columns.times[i], left)
        return len(columns.subjects[i]) + len(owner.renderer.prefix) + len(tail) + content

    def _taker(self, size: int, left: int, unacked: int, now: int) -> PullRequest | None:
        queue, priority = self.queue, self.priority

        def reading(gauge: Gauge) -> int:
            return priority.reading(gauge, left, unacked)

        for request in queue.each_head(reading):
            if self._looks >= MAX_TURN_LOOKS:
                self._is_cut_short = True
                return None
            self._looks += 1 + queue.gauges  # the search has read each gauge
            ready = self._ready(request)
            if ready == GONE:
                queue.remove(request)
                continue
            if ready == HELD:
                queue.put_aside(request)
                continue
            verdict = priority.verdict(request, left, unacked)
            if verdict == WRONG_PIN:
                self.end(request, statuses.WRONG_PIN)
            elif verdict == PASS:
                self._looks += SLEEP_LOOKS
                queue.sleep(request, priority.waits_for(request))
            elif request.max_bytes and size > request.left_bytes:
                self.end(request, statuses.TOO_LARGE)
            else:
                if self.priority.needs_pin(request):
                    self._pin(request, now)
                return request
        return None

    def _ready_in_turn(self, request: PullRequest) -> int:
        """Return `_ready`'s answer, or ENOUGH once the turn has met too many requests whose clients do not read."""
        if request.checked == self._run and not request.held:
            return READY
        if self._looks >= MAX_TURN_LOOKS:
            self._is_cut_short = True
            return ENOUGH
        ready = self._ready(request)
        self._looks += ready != READY
        return ready

    def _ready(self, request: PullRequest) -> int:
        """Return READY, HELD when the client does not read, or GONE when it does not listen; checked once per run."""
        if request.checked != self._run:
            unread = self._owner.bus.backlog(request.reply)
            if unread < 0:
                return GONE
            request.checked = self._run
            request.held = unread > MAX_BACKLOG_BYTES
            if request.held and not self._back_at:
                self._put_back_at(self._owner.clock.time_ns() + HOLD_NS)
        return HELD if request.held else READY

    def _ship(self, kind: int, shipment: Shipment, now: int) -> None:
        owner = self._owner
        seqs = shipment.columns.seqs
        self._shipped_messages += len(seqs)
        self._shipped_bytes += shipment.size
        if not owner.state.rules.acks:
            messages = shipment.first(owner.renderer, self.advance.cseq + 1)
            self.advance.sent(seqs[-1], len(seqs))
            self._send(shipment, list(messages), now)
            self.advance.flush(now)
            return
        self._shipments.append(shipment)
        self._flight_bytes += shipment.size
        self._flight_messages += len(seqs)
        keys = owner.selection.keys
        op = (kind, seqs) if kind != DELIVER or keys is None else keys.op(seqs)
        owner.submit(*op, shipment)

    def _send(self, shipment: Shipment, messages: list[Outgoing | None], now: int) -> None:
        """Send the messages, then the statuses of complete requests."""
        bus = self._owner.bus
        for reply, found in shipment.by_reply(messages):
            out = [message for message in found if message is not None]
            if out:
                bus.deliver_many(reply, out)
        for request, indices, _ in shipment.parts:
            self._sent(request, len(indices), now)

    def _sent(self, request: PullRequest, count: int, now: int) -> None:
        """Count `count` messages of a request as sent."""
        request.flight -= count
        request.assigned_pin = False
        if request.heartbeat:
            request.beat_at = self.queue.next_beat(request, now)
        if request.flight or request.open:
            return
        if request.status:
            self.tell(request.reply, request.status, request.left, request.left_bytes)
        elif request.left <= 0 < request.left_bytes:
            self.tell(request.reply, statuses.BATCH_COMPLETED, request.left, request.left_bytes)

    # -- outcomes ---------------------------------------------------------------------------------------------------

    def landed(self, shipment: Shipment, outcome: object) -> None:
        """Send a shipment whose op was applied."""
        owner = self._owner
        assert self._shipments.popleft() is shipment
        self._flight_bytes -= shipment.size
        self._flight_messages -= len(shipment.columns.seqs)
        if not isinstance(outcome, SentMessages):  # void: the consumer has another owner
            self._restore([shipment])
            return
        now = owner.clock.time_ns()
        messages: list[Outgoing | None]
        if outcome.deliveries is None:
            messages = list(shipment.first(owner.renderer, outcome.cseq))
        else:
            messages = shipment.again(owner.renderer, outcome)
            if len(outcome.seqs) < len(messages):
                self._refund(shipment, [i for i, message in enumerate(messages) if message is None])
        self._send(shipment, messages, now)
        if self.queue.size:
            owner.run_soon()

    def _refund(self, shipment: Shipment, unsent: list[int]) -> None:
        """Give requests back the places of messages that are not sent; complete ones wait again, before all others."""
        lost = set(unsent)
        for request, indices, _ in reversed(shipment.parts):
            missing = [i for i in indices if i in lost]
            if not missing:
                continue
            was_open = request.open
            if was_open:
                self.queue.remove(request)
            if request.member is not None and request.member.gone:
                self.asks(request, self._owner.clock.time_ns())
            request.left += len(missing) + request.cut
            request.cut = 0
            request.left_bytes += shipment.size_of(missing)
            request.delivered -= len(missing)
            if was_open or not request.status:
                self.queue.add(request, front=True)

    def _restore(self, shipments: Iterable[Shipment]) -> None:
        """Drop the shipments and refund their requests."""
        for shipment in reversed(list(shipments)):
            self._refund(shipment, list(range(len(shipment.columns.seqs))))
            for request, indices, _ in shipment.parts:
                request.flight -= len(indices)
                if request.status and not request.flight:
                    self.tell(request.reply, request.status, request.left, request.left_bytes)

    def _pin(self, request: PullRequest, now: int) -> None:
        pin = self.priority.assign(request, now)
        self._owner.submit(PIN, (request.group, pin))
        self._owner.wake_at(self.priority.next_deadline)

    def withheld(self, now: int) -> str:
        """See `Delivery.withheld`; of very many requests the first are examined."""
        if self._held_until > now - LATE_NS:
            return REPLAY
        queue, backlog = self.queue, self._owner.bus.backlog
        if any(backlog(request.reply) > MAX_BACKLOG_BYTES for request in islice(queue, READERS_EXAMINED)):
            return UNREAD
        return PRIORITY if queue.size and not queue.awake else ""

    # -- statuses and time ------------------------------------------------------------------------------------------

    def tell(self, reply: bytes, text: bytes, messages: int = 0, size: int = 0) -> None:
        self._owner.bus.publish(reply, headers=statuses.render(text, messages, size))

    def end(self, request: PullRequest, text: bytes) -> None:
        """End a request; the status `text` (b"": none) follows its messages in flight."""
        self.queue.remove(request)
        if request.member is not None:
            request.member.seen = self._owner.clock.time_ns()
        if not text:
            return
        if request.flight:
            request.status = text
        else:
            self.tell(request.reply, text, request.left, request.left_bytes)

    def dismiss(self, request: PullRequest, text: bytes) -> None:
        """End a request of a stopped owner, without messages in flight."""
        self.queue.remove(request)
        self.tell(request.reply, text, request.left, request.left_bytes)

    def tick(self, now: int) -> None:
        if self._held_until and now >= self._held_until:
            self._held_until = 0
            self._owner.run_soon()
        if self._back_at and now >= self._back_at:
            self._back_at = 0
            self.queue.bring_back(REQUESTS_PER_RETURN)
            if self.queue.aside:
                self._put_back_at(now + HOLD_NS)
            self._owner.run_soon()
        if self.sharing is not None:
            self.sharing.tick(now)
        for at in (self._held_until, self._back_at, self.priority.next_deadline):
            if at:
                self._owner.wake_at(at)

    def _put_back_at(self, at: int) -> None:
        self._back_at = at
        self._owner.wake_at(at)

    def _hold_until(self, at: int) -> None:
        if not self._held_until or at < self._held_until:
            self._held_until = at
            self._owner.wake_at(at)
