"""`ConsumerOwner`: one consumer at the node that owns it (docs/consumers.md).

Combines the choice of messages (`selection`), their way to clients (`delivery`: pull or push), the clients' `acks`, and
the replicated state, which it changes only through ops in the log. Its host calls `run` at the end of a loop turn,
`tick` at each requested time, `applied` for each of its ops, and `reset` when ops were lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final

from jetcluster.consumer.owner import acks, statuses
from jetcluster.consumer.owner.ack_subject import NUMBERS, NUMBERS_AND_MORE
from jetcluster.consumer.owner.context import DeliveryContext, OwnerDependencies
from jetcluster.consumer.owner.delivery import ACKS, KEYS, Delivery
from jetcluster.consumer.owner.pull import PullDelivery
from jetcluster.consumer.owner.push import PushDelivery
from jetcluster.consumer.state.letters import MAX_DELIVER
from jetcluster.consumer.state.pending import NEVER
from jetcluster.consumer.state.rules import FLOW_CONTROL
from jetcluster.consumer.state.state import ConsumerState
from jetcluster.consumer.state.turn import (
    ACK,
    BURIED,
    BURY,
    DELIVER,
    DELIVER_SOME,
    EXHAUSTED,
    FIRST,
    GONE,
    REDELIVER,
    SKIP,
    TERM,
    SentMessages,
    SettledMessages,
    Value,
    delivered_by,
)
from jetcluster.model.order_per_key import KeySharing
from jetcluster.protocol import headers as header_block
from jetcluster.protocol.bus import BulkCallback, Callback, Origin, Subscription
from jetcluster.stream.fields import REQUIRED_LEVEL, level_is_met

if TYPE_CHECKING:
    from jetcluster.consumer.owner.letters import LetterPublisher

SKIP_DELAY_NS: Final = 10_000_000_000
"""Time after which a consumer at the end logs a SKIP. Only INFO depends on it, and requests it (`flush`)."""
_SETTLING: Final = frozenset((ACK, TERM, EXHAUSTED, GONE, BURY))
"""Kinds of ops whose messages are settled."""
MAX_SETTLED_PER_OP: Final = 4096
"""Messages given up, or no longer stored, with one op."""
LOOKED_UP: Final = 512
"""Pending messages that are looked up in the store at a time: 0.2 ms."""
DEFERRED_NS: Final = 1_000_000_000
"""Time after which a message is given up that found no room among the letters."""
LOOK_UP_AGAIN_NS: Final = 2_000_000


class ConsumerOwner(DeliveryContext):
    """One consumer at its owner."""

    __slots__ = (
        "_ahead",
        "_epoch",
        "_letters",
        "_paused_until",
        "_removed_meanwhile",
        "_skip_at",
        "_subscriptions",
        "_unchecked",
        "_unserved",
        "acks",
        "deferred",
        "delivery",
    )  # fmt: skip

    def __init__(self, state: ConsumerState, around: OwnerDependencies) -> None:
        """Raises DamagedError."""
        super().__init__(state, around)
        self.acks = acks.Acks(self, self.request, self.again)
        push = state.rules.push
        self.delivery: Delivery = PushDelivery(self, self.acks.settle) if push else PullDelivery(self)
        self._letters: LetterPublisher | None = None
        self.deferred: dict[int, int] = {}
        """Messages to be given up for which no letter may be added now -> when to try again, ascending."""
        self._subscriptions: list[Subscription] = []
        self._unserved = False
        """True while the last run left messages and readers."""
        self._skip_at = 0
        self._paused_until = 0
        """End of the present pause in Unix nanoseconds; 0 without one."""
        self._epoch = state.epoch
        self._ahead = 0
        """Nanoseconds by which the local clock is ahead of the log's, including the time to commit: ack_wait counts
        from the sending of a message, whatever the clocks' difference."""
        self._unchecked: list[int] = []
        """Pending messages that may have been removed without notice to this owner, the next ones at the end."""
        self._removed_meanwhile = False
        """Messages were removed while first deliveries were on their way into the log."""

    # -- life -------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Subscribe and begin to deliver: this node owns the consumer now."""
        around = self._around
        stream, name = around.stream.encode(), self.state.name.encode()
        api = [b"$JS.API."]
        if around.domain:
            api.append(b"$JS.%b.API." % around.domain.encode())
        for prefix in api:
            self._subscribe(prefix + b"CONSUMER.MSG.NEXT.%b.%b" % (stream, name), self._on_next)
        if self.state.rules.acks and self.state.rules.ack_policy != FLOW_CONTROL:
            v1, v2 = self.ack_prefixes
            received_v2 = partial(self.acks.received, place=acks.V2)
            self._subscribe(v1 + NUMBERS, self.acks.received, self.acks.received_many)
            if around.ack_v2:
                self._subscribe(v2 + NUMBERS, received_v2, partial(self.acks.received_many, place=acks.V2))
                self._subscribe(v2 + NUMBERS + b".>", received_v2)
            else:
                self._subscribe(v2 + NUMBERS_AND_MORE, received_v2)
        self.delivery.start()
        if self.state.letters.by_seq:
            self.letters.reset()
        self._look_up_pending()
        self._rearm(self.clock.time_ns())
        self.run_soon()

    def _subscribe(self, subject: bytes, callback: Callback, bulk: BulkCallback | None = None) -> None:
        self._subscriptions.append(self.bus.subscribe(subject, callback, bulk=bulk))

    def hold(self, until: int) -> None:
        """Make a push consumer wait until `until` (Unix ns) or `release`: the response to its creation goes first."""
        if isinstance(self.delivery, PushDelivery):
            self.delivery.hold(until)

    def release(self) -> None:
        if isinstance(self.delivery, PushDelivery):
            self.delivery.release()

    def stop(self, reason: str) -> Iterator[None]:
        """See `Delivery.stop`."""
        for subscription in self._subscriptions:
            self.bus.unsubscribe(subscription)
        self._subscriptions.clear()
        if self._letters is not None:
            self._letters.stop()
        return self.delivery.stop(reason)

    def configured(self) -> None:
        """Follow new `state.rules`."""
        self.renderer.headers_only = self.state.rules.headers_only
        self.selection.configured()
        self.delivery.configured()
        if self._letters is not None:
            self._letters.configured()
        self.used_at = self.clock.time_ns()
        self._rearm(self.clock.time_ns())
        self.run_soon()

    def reset(self) -> None:
        """Continue from the replicated state: ops not applied yet are lost, or the consumer was reset."""
        again = self.state.epoch == self._epoch
        self.selection.reset(again=again)
        self.burying = 0
        self.acks.reset(again=again)
        self._epoch = self.state.epoch
        self.delivery.reset()
        self.deferred.clear()
        if self._letters is not None or self.state.letters.by_seq:
            self.letters.reset(again=again)
        self._skip_at = 0
        self._removed_meanwhile = False
        self._look_up_pending()
        self._rearm(self.clock.time_ns())
        self.run_soon()

    # -- queries ----------------------------------------------------------------------------------------------------

    @property
    def wants_messages(self) -> bool:
        """True when new messages need a run."""
        return self.delivery.wants_messages

    @property
    def letters(self) -> LetterPublisher:
        """Sender of dead letters; few consumers have any, so its code is loaded with the first one."""
        if self._letters is None:
            from jetcluster.consumer.owner.letters import LetterPublisher

            self._letters = LetterPublisher(self, self._around.stream)
        return self._letters

    @property
    def letter_trouble(self) -> str:
        """See `LetterPublisher.trouble`."""
        return "" if self._letters is None else self._letters.trouble

    @property
    def num_waiting(self) -> int:
        return self.delivery.num_waiting

    @property
    def key_sharing(self) -> KeySharing:
        """The state of the order per key, zeros without one."""
        keys = self.selection.keys
        if keys is None or not isinstance(self.delivery, PullDelivery):
            return KeySharing()
        return KeySharing(keys.queues.blocked, *self.delivery.members)

    @property
    def push_bound(self) -> bool:
        return self.delivery.push_bound

    def withheld(self) -> str:
        """Return for which reason nothing is sent now though messages and readers are there; "" if there is none."""
        selection = self.selection
        if not selection.redelivery.order:
            if not selection.room:
                return ACKS
            if selection.keys is not None and selection.keys.withholds:
                return KEYS
        return self.delivery.withheld(self.clock.time_ns())

    @property
    def _resumes_at(self) -> int:
        """The end of the pause by this owner's clock, 0 for none."""
        until = self.state.rules.pause_until
        return until + self.clock.lead if until else 0

    # -- calls of the host ------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Log acks and deliver messages at the end of a loop turn. Raises DamagedError."""
        if self.acks.acked or self.acks.batches:
            self.acks.flush()
        now = self.clock.time_ns()
        if exhausted := self.selection.redelivery.expire(now - self._ahead):
            self._give_up(exhausted)
        if self._letters is not None or self.state.letters.by_seq:
            self.letters.run(now)
        if self.acks.in_flight and self.acks.naks_in_flight:
            pass  # NAKed messages precede new ones, as in nats-server: `applied` causes another run
        elif not (until := self.state.rules.pause_until) or until + self.clock.lead <= now:
            self.delivery.run()
        elif isinstance(self.delivery, PullDelivery):
            self.delivery.run_paused()
        if self.selection.vanished:
            self._tell_vanished()
        if not self._skip_at and self._may_skip():
            self._skip_at = now + SKIP_DELAY_NS
            self.wake_at(self._skip_at)
        unserved = self.delivery.wants_messages and not self.selection.idle
        if unserved != self._unserved:
            self._unserved = unserved
            self._around.unserved(unserved)

    def flush(self) -> None:
        """Put acks, deliveries without acks and skips into the log, so that INFO is current."""
        self.acks.flush()
        self.delivery.flush()
        if self.selection.vanished:
            self._tell_vanished()
        self._skip()

    def _tell_vanished(self) -> None:
        gone, self.selection.vanished = self.selection.vanished, []
        self._submit_in_parts(GONE, gone)

    def _look_up_pending(self) -> None:
        """Look for pending messages whose removal only an earlier owner heard of, or whose GONE was lost. There may be
        a hundred thousand, so ticks go on with it."""
        self._unchecked = list(self.state.unacked.entries)
        self._unchecked.reverse()
        self._look_up_some()

    def _look_up_some(self) -> None:
        if self._unchecked:
            seqs = self._unchecked[-LOOKED_UP:][::-1]
            del self._unchecked[-LOOKED_UP:]
            self.vanished(seqs)
        if self._unchecked:
            self.wake_at(self.clock.time_ns() + LOOK_UP_AGAIN_NS)

    def tick(self, now: int) -> None:
        """Do what is due at a requested time."""
        self._look_up_some()
        if self.state.letters.by_seq:
            self.letters.run(now)
        if self.deferred:
            self._give_up_deferred(now)
        if 0 < self.selection.redelivery.next_due <= now - self._ahead:
            self._give_up(self.selection.redelivery.expire(now - self._ahead))
            if self.delivery.wants_messages:
                self.run_soon()
        if self._skip_at and now >= self._skip_at:
            self._skip()
        self.delivery.tick(now)
        self._check_use(now)
        if 0 < self._resumes_at <= now and self.delivery.wants_messages:
            self.run_soon()
        self._rearm(now)

    def _rearm(self, now: int) -> None:
        """Request the next tick for the owner itself; its delivery requests its own."""
        rules, resumes_at = self.state.rules, self._resumes_at
        if 0 < self._paused_until == rules.pause_until and resumes_at <= now:
            self.advise.pause_ended(self._paused_until)
        self._paused_until = rules.pause_until if resumes_at > now else 0
        for at in (self._skip_at, resumes_at):
            if at > now:
                self.wake_at(at)
        self._wake_due()
        if rules.inactive_threshold:
            self.wake_at(max(now + 1_000_000, self.used_at + rules.inactive_threshold))

    def applied(self, kind: int, value: Value, outcome: object, token: object) -> None:
        """Take the outcome of an op of this owner that was applied here."""
        if kind in _SETTLING and isinstance(outcome, SettledMessages):
            if self.selection.keys is not None:
                self.selection.keys.settle(outcome.seqs)
            if self.deferred:
                for seq in outcome.seqs:
                    self.deferred.pop(seq, None)
        if kind == BURY:
            self.burying -= len(value)  # type: ignore[arg-type]
            if isinstance(outcome, SettledMessages):
                self.letters.added(outcome.seqs)
        if kind in acks.KINDS and token is not None:
            self.acks.applied(kind, value, outcome, token)
            if self.delivery.wants_messages:
                self.run_soon()
            self._wake_due()
        elif kind in FIRST:
            self.selection.ops_in_flight -= 1
            self.selection.in_flight -= len(value if kind == DELIVER else delivered_by(kind, value))  # type: ignore[arg-type]
            if self.selection.keys is not None:
                self._settle_missing(kind, value)
            if isinstance(outcome, SentMessages) and outcome.seqs:
                self._compare_clocks(outcome.seqs)
                self.selection.redelivery.delivered(outcome.seqs)
                if self._removed_meanwhile:
                    self.vanished(outcome.seqs)
            self._removed_meanwhile &= self.selection.ops_in_flight > 0
            self.delivery.applied(kind, value, outcome, token)
            if self.acks.early:
                self.acks.delivered()
            self._wake_due()
        elif kind == REDELIVER:
            if isinstance(outcome, SentMessages):
                self._compare_clocks(outcome.seqs)
                self.selection.redelivery.changed(outcome.seqs)
            self.delivery.applied(kind, value, outcome, token)
            self._wake_due()
        elif kind in (EXHAUSTED, GONE, BURY):
            if kind != GONE:
                self._gave_up(value, outcome)
            if self.delivery.wants_messages:
                self.run_soon()  # a key is free, or max_ack_pending has room
        elif kind == BURIED:
            if self._letters is not None:
                self._letters.logged(value)  # type: ignore[arg-type]
            self._wake_due()
        elif kind != SKIP:
            self.delivery.applied(kind, value, outcome, token)

    def _settle_missing(self, kind: int, value: Value) -> None:
        """Let the keys know of messages that were removed before their delivery was applied."""
        entries = self.state.unacked.entries
        lists: Any = value if kind == DELIVER_SOME else (value,)
        if missing := [seq for seqs in lists for seq in seqs if seq not in entries]:
            self.selection.settle_keys(missing)
        if self.delivery.wants_messages:
            self.run_soon()

    def vanished(self, seqs: Sequence[int]) -> None:
        """Note that limits or a rollup may have removed messages that wait for their acks: nobody has to ack them, and
        they take no room of max_ack_pending. The log learns of it by GONE. Those whose delivery is not applied yet, as
        this replica was behind the log when it chose them, are looked up then."""
        self._removed_meanwhile |= self.selection.ops_in_flight > 0
        entries, stored = self.state.unacked.entries, self._around.messages.contains
        if gone := [seq for seq in seqs if seq in entries and not stored(seq)]:
            self.selection.vanished += gone
            self.run_soon()

    def freed(self, seqs: Sequence[int]) -> None:
        """Note that pending messages are no longer stored."""
        if self.selection.keys is not None:
            self.selection.settle_keys(seqs)

    def _wake_due(self) -> None:
        due = self.selection.redelivery.next_due
        if due:
            self.wake_at(due + self._ahead)

    def _compare_clocks(self, seqs: Sequence[int]) -> None:
        """Compare clocks by just delivered messages: their due times give the log's time, the stream leader's."""
        entry = self.state.unacked.entries.get(seqs[0]) if seqs else None
        if entry is not None and entry.due < NEVER:
            self._ahead = self.clock.time_ns() - (entry.due - self.state.rules.wait_after(entry.deliveries))

    # -- for acks and deliveries ------------------------------------------------------------------------------------

    def again(self, seqs: Sequence[int]) -> None:
        """Redeliver `seqs` at once."""
        self._give_up(self.selection.redelivery.enqueue(seqs))

    def request(self, reply: bytes, body: bytes) -> None:
        """Take a request for messages."""
        if isinstance(self.delivery, PullDelivery):
            self.delivery.request(reply, body)
        elif reply:
            self.bus.publish(reply, headers=statuses.render(statuses.PUSH_BASED))

    def unpin(self, group: bytes) -> bool:
        """Unpin the client of `group` for an administrator; return False when none was pinned."""
        return isinstance(self.delivery, PullDelivery) and self.delivery.unpin(group, "admin")

    # -- subscriptions ----------------------------------------------------------------------------------------------

    def _on_next(self, subject: bytes, reply: bytes, block: bytes, payload: bytes, origin: Origin) -> None:
        if block and reply and not level_is_met(header_block.get(block, REQUIRED_LEVEL)):
            self.bus.publish(reply, headers=statuses.render(statuses.API_LEVEL))
        elif self.replicated and self._around.when_known is not None and b"no_wait" in payload:
            # "No messages" is right only once this replica has all that was acked to the client.
            self._around.when_known(origin, partial(self._next, subject, reply, block, payload))
        elif isinstance(self.delivery, PullDelivery):
            self.delivery.request(reply, payload)
        else:
            self.request(reply, payload)

    def _next(self, subject: bytes, reply: bytes, block: bytes, payload: bytes) -> None:
        if self._subscriptions:
            self.request(reply, payload)
        else:  # another node owns the consumer now
            self.bus.ask(subject, payload, reply, block)

    # -- internals --------------------------------------------------------------------------------------------------

    def _give_up(self, seqs: Sequence[int]) -> None:
        """Give up messages that reached max_deliver, at their deadline (docs/consumers.md, "Delivery")."""
        wish = self.state.rules.letters
        if wish is None or not wish.on_max_deliver:
            self._submit_in_parts(EXHAUSTED, seqs)
            return
        room = self.room_to_bury
        for at in range(0, min(len(seqs), room), MAX_SETTLED_PER_OP):
            part = seqs[at : min(room, at + MAX_SETTLED_PER_OP)]
            self.submit(BURY, [(seq, MAX_DELIVER, b"") for seq in part])
        if len(seqs) > room:
            at = self.clock.time_ns() + DEFERRED_NS
            for seq in seqs[room:]:
                self.deferred.setdefault(seq, at)
            self.wake_at(at)

    def _give_up_deferred(self, now: int) -> None:
        due = list(takewhile(lambda seq: self.deferred[seq] <= now, self.deferred))
        for seq in due:
            del self.deferred[seq]
        if due:
            self._give_up(self.selection.redelivery.enqueue(due))
        if self.deferred:
            self.wake_at(next(iter(self.deferred.values())))

    def _submit_in_parts(self, kind: int, seqs: Sequence[int]) -> None:
        for at in range(0, len(seqs), MAX_SETTLED_PER_OP):
            self.submit(kind, list(seqs[at : at + MAX_SETTLED_PER_OP]))

    def _gave_up(self, value: Value, outcome: object) -> None:
        if not isinstance(outcome, SettledMessages):
            return
        for seq, entry in zip(outcome.seqs, outcome.entries, strict=True):
            self.advise.exhausted(seq, entry.deliveries)
        assert isinstance(value, list), value
        if len(outcome.seqs) < len(value):  # the others were acked, or max_deliver was raised
            self.selection.redelivery.changed([one[0] if isinstance(one, tuple) else one for one in value])
            self._wake_due()

    def _may_skip(self) -> bool:
        """Return True when the consumer wants no stored message and the log does not have that yet."""
        selection, state = self.selection, self.state
        return selection.cursor <= state.delivered_sseq < self._around.messages.last_seq and selection.at_end

    def _skip(self) -> None:
        self._skip_at = 0
        if self._may_skip():
            self.selection.cursor = self._around.messages.last_seq
            self.submit(SKIP, self.selection.cursor)

    def _check_use(self, now: int) -> None:
        """End a consumer that was unused for inactive_threshold, with no ack due. For push only interest counts."""
        threshold = self.state.rules.inactive_threshold
        if not threshold or now - self.used_at < threshold:
            return
        waits_for_acks = not self.state.rules.push and any(
            now - self._ahead < entry.due < NEVER for entry in self.state.pending.values()
        )
        if waits_for_acks or self.delivery.in_use or self.state.letters.by_seq:
            self.used_at = now
        else:
            self.used_at = now - threshold + min(threshold, 1_000_000_000)  # repeats the request
            self._around.unused()
