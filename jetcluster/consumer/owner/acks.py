"""`Acks`: takes clients' acks of delivered messages.

The subscription's callback only collects; at the end of the turn each kind becomes one op for the whole consumer.
Double acks are answered when their op is applied. Lost acks are logged again: without an answer to wait for, the client
considers them done.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from jetcluster import native
from jetcluster.consumer.owner.context import DeliveryContext
from jetcluster.consumer.state.letters import MAX_TEXT_BYTES, TERMINATED
from jetcluster.consumer.state.pending import NEVER
from jetcluster.consumer.state.rules import CUMULATIVE
from jetcluster.consumer.state.turn import ACK, BURY, NAK, PROGRESS, TERM, SettledMessages, Value
from jetcluster.model import durations
from jetcluster.model.advisory import ACK_METRIC, MSG_NAKED, MSG_TERMINATED
from jetcluster.protocol.bus import Origin, Outgoing

KINDS: Final = frozenset((ACK, NAK, TERM, PROGRESS, BURY))

V1: Final = 5
"""Index of the stream sequence among the tokens of an ack's subject."""
V2: Final = 7

MAX_ACKS_PER_OP: Final = 4096
"""Acks per op, and messages that one settles where an ack includes all before it: see `MAX_TURN_MESSAGES`."""

MAX_EARLY_ACKS: Final = 1 << 16
"""Acks that wait for their delivery to be applied."""

_ACKS: Final = frozenset((b"", b"+ACK", b"+OK"))
_PROGRESS: Final = frozenset((b"+WPI", b"-WPI"))
_NEXT: Final = (b"+NXT", b"-NXT")
_TERM: Final = (b"+TERM", b"-TERM")
_DELAY: Final = re.compile(rb'\{\s*"delay"\s*:\s*([0-9]{1,18})\s*\}')


class AckBatch:
    """All acks of one kind in one turn, as the token of their op."""

    __slots__ = ("asking", "details", "kind", "replies", "settles", "value")

    def __init__(self, kind: int) -> None:
        self.kind = kind
        self.value: list[int] | list[tuple[int, int]] | list[tuple[int, int, bytes]] = []
        """The op's value."""
        self.settles = 0
        """Number of messages that it may settle where an ack includes all before it."""
        self.replies: list[bytes] = []
        """Reply subjects that get an empty message once the op is applied."""
        self.asking: list[int] = []
        """The sequence of each of `replies`; not of acks."""
        self.details: dict[int, tuple[bytes, bytes]] = {}
        """Sequence -> (tail of the ack subject from the delivery count on, rest of the payload)."""


class Acks:
    """The acks of one owned consumer, from the subscription to the log."""

    __slots__ = ("_again", "_owner", "_replies", "_request", "_state", "acked", "batches", "early", "in_flight")

    def __init__(
        self,
        owner: DeliveryContext,
        request: Callable[[bytes, bytes], None],
        again: Callable[[Sequence[int]], None],
    ) -> None:
        """`request` takes a request for messages that came with an ack; `again` redelivers messages at once."""
        self._owner = owner
        self._request = request
        self._again = again
        self._state = owner.state
        self.in_flight: deque[AckBatch] = deque()
        self.acked: list[int] = []
        self._replies: list[bytes] = []
        self.batches: dict[int, AckBatch] = {}
        self.early: list[tuple[int, bytes, int, bytes, bytes]] = []
        """Arguments of `_other`, for messages sent before their delivery was applied."""

    @property
    def naks_in_flight(self) -> bool:
        """True when NAKs without delay are in flight: their messages are redelivered once the log has the NAKs."""
        return any(
            batch.kind == NAK and any(not delay for _, delay in batch.value)  # type: ignore[misc]
            for batch in self.in_flight
        )

    # -- from clients -----------------------------------------------------------------------------------------------

    def received(
        self, subject: bytes, reply: bytes, headers: bytes, payload: bytes, origin: Origin, place: int = V1
    ) -> None:
        """Take a message on an ack subject, of version 2 with `place` V2. Called for every ack."""
        try:
            seq = int(subject.split(b".", place + 1)[place])
        except ValueError:
            return
        if payload in _ACKS and seq <= self._state.delivered_sseq:
            if not self.acked:
                self._owner.run_soon()
            self.acked.append(seq)
            if reply:
                self._replies.append(reply)
            if len(self.acked) >= MAX_ACKS_PER_OP:
                self.flush()
        else:
            self._other(seq, subject, place - 1, reply, payload)

    def received_many(self, messages: list[Outgoing], origin: Origin, place: int = V1) -> int:
        """Do `received` for several messages, as a `BulkCallback`."""
        read = native.read_acks
        acked, replies = ([], []) if read is None else read(messages, self._state.delivered_sseq, place)
        if not acked:
            self.received(*messages[0], origin, place)
            return 1
        if not self.acked:
            self._owner.run_soon()
        self.acked += acked
        self._replies += replies
        if len(self.acked) >= MAX_ACKS_PER_OP:
            self.flush()
        return len(acked)

    def settle(self, seq: int) -> None:
        """Ack all up to `seq` without a message on an ack subject (policy `flow_control`)."""
        self.acked.append(min(seq, self._state.delivered_sseq))
        self._owner.run_soon()

    def _other(self, seq: int, subject: bytes, at: int, reply: bytes, payload: bytes) -> None:
        """Take a message that `received` does not. `at`: index of the delivery count in the tokens of `subject`."""
        if seq > self._state.delivered_sseq:
            if seq <= self._owner.sent_sseq and len(self.early) < MAX_EARLY_ACKS:
                self.early.append((seq, subject, at, reply, payload))
            return  # not delivered yet, so it is not answered
        self._owner.run_soon()
        if payload in _ACKS:
            self.acked.append(seq)
            if reply:
                self._replies.append(reply)
        else:
            self._dispatch(subject, at, seq, reply, payload)

    def delivered(self) -> None:
        """Take the early acks again, as deliveries were applied."""
        early, self.early = self.early, []
        for said in early:
            self._other(*said)

    def _dispatch(self, subject: bytes, at: int, seq: int, reply: bytes, payload: bytes) -> None:
        numbers = subject.split(b".", at)[at]
        if payload.startswith(_NEXT):
            self.acked.append(seq)
            self._request(reply, payload[4:])
            return
        if payload in _PROGRESS:
            self._add(PROGRESS, seq, reply, b"", b"")
        elif payload.startswith(b"-NAK"):
            self._add(NAK, seq, reply, numbers, payload[4:])
        elif payload.startswith(_TERM):
            self._add(TERM, seq, reply, numbers, payload[5:].strip())
        elif reply:
            self._owner.bus.publish(reply)

    def _add(self, kind: int, seq: int, reply: bytes, numbers: bytes, more: bytes) -> None:
        batch = self.batches.get(kind)
        if batch is not None and max(len(batch.details), len(batch.replies)) >= MAX_ACKS_PER_OP:
            self.flush()
            batch = None
        if batch is None:
            batch = self.batches[kind] = AckBatch(kind)
        batch.details[seq] = numbers, more
        if reply:
            batch.replies.append(reply)
            batch.asking.append(seq)

    # -- to the log -------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Log the turn's acks. Those of one message count in this order, not in the order of arrival."""
        if self.acked:
            self._flush_acks()
        if self.batches:
            batches, self.batches = self.batches, {}
            for kind in (TERM, PROGRESS, NAK):
                if kind in batches:
                    self._flush_batch(batches[kind])

    def _flush_acks(self) -> None:
        state = self._owner.state
        pending = state.unacked.entries
        batch = AckBatch(ACK)
        if state.rules.ack_policy in CUMULATIVE:
            highest = max(self.acked)
            if highest > state.floor_sseq:
                batch.settles = self._ack_below(highest)
                batch.value = [highest]
        else:
            batch.value = [seq for seq in self.acked if seq in pending]
            if state.rules.sample and self._owner.advise.wanted(ACK_METRIC):
                self._sample(batch.value)
        batch.replies = self._replies
        self.acked, self._replies = [], []
        self._submit(batch)

    def _ack_below(self, seq: int) -> int:
        """Log the ack of what lies before `seq` in steps, where an ack of `seq` would settle very many messages.
        Returns how many are left for that ack, at most."""
        state = self._owner.state
        unacked, entry = state.unacked, state.unacked.entries.get(seq)
        most = len(unacked)
        if entry is not None:
            most = min(most, max(entry.cseq - state.floor_cseq, 1))
        if most <= MAX_ACKS_PER_OP:
            return most
        steps = (batch.value for batch in self.in_flight if batch.kind == ACK and batch.value)
        on_its_way: int = max((value[0] for value in steps), default=0)  # type: ignore[assignment]
        order = unacked.order  # with some that are settled already, which a step may name as well
        start, end = bisect_right(order, on_its_way), bisect_left(order, seq)
        for at in range(start + MAX_ACKS_PER_OP - 1, end, MAX_ACKS_PER_OP):
            step = AckBatch(ACK)
            step.value, step.settles = [order[at]], MAX_ACKS_PER_OP
            self._submit(step)
        return max(end - start, 0) % MAX_ACKS_PER_OP + 1

    def _sample(self, seqs: Sequence[int]) -> None:
        """Publish metrics of a sample of the acks (sample_freq percent)."""
        owner, rules, pending = self._owner, self._owner.state.rules, self._owner.state.pending
        now = owner.clock.time_ns()
        for seq in seqs:
            if owner.rng.randrange(100) < rules.sample:
                entry = pending[seq]
                delivered = entry.due - rules.wait_after(entry.deliveries)
                owner.advise.acked(entry.cseq, seq, entry.deliveries, max(0, now - delivered) if delivered > 0 else 0)

    def _flush_batch(self, batch: AckBatch) -> None:
        state = self._owner.state
        pending = state.pending
        if batch.kind == NAK:
            batch.value = [(seq, nak_delay(more)) for seq, (_, more) in batch.details.items() if seq in pending]
        else:
            batch.value = [seq for seq in batch.details if seq in pending]
        if batch.kind == TERM and batch.value and state.rules.ack_policy in CUMULATIVE:
            if len(batch.value) > 1 and len(state.unacked) > MAX_ACKS_PER_OP:
                self._flush_each(batch)  # each settles all before it
                return
            batch.settles = len(state.unacked)
        letters = state.rules.letters
        if batch.kind == TERM and letters is not None and letters.on_term:
            texts = ((seq, batch.details[seq][1][:MAX_TEXT_BYTES]) for seq in batch.details if seq in pending)
            batch.kind, batch.value = BURY, [(seq, TERMINATED, text) for seq, text in texts]
            self._fit(batch)
        if batch.settles and batch.value:
            first = batch.value[0]
            batch.settles = self._ack_below(first[0] if isinstance(first, tuple) else first)
        self._submit(batch)

    def _flush_each(self, batch: AckBatch) -> None:
        """Log the terminations of a batch one by one, the lowest first."""
        alone = {seq: AckBatch(batch.kind) for seq in sorted(batch.details)}
        for seq, one in alone.items():
            one.details[seq] = batch.details[seq]
        for seq, reply in zip(batch.asking[:MAX_ACKS_PER_OP], batch.replies[:MAX_ACKS_PER_OP], strict=True):
            alone[seq].asking.append(seq)
            alone[seq].replies.append(reply)
        for one in alone.values():
            self._flush_batch(one)

    def _submit(self, batch: AckBatch) -> None:
        """Log the acks, or only answer them when they change nothing and no earlier answer is in flight."""
        if batch.kind == BURY:
            self._fit(batch)
        if batch.value or (batch.replies and self.in_flight):
            self.in_flight.append(batch)
            self._owner.submit(batch.kind, batch.value, batch, batch.settles)
        else:
            self._answer(batch)

    def _fit(self, batch: AckBatch) -> None:
        """Take out what may not become a letter now, without an answer: it does not count, and the messages come
        again. Also for what was lost: an older server may have come since."""
        left_out = {one[0] for one in batch.value[self._owner.room_to_bury :]}  # type: ignore[index]
        if left_out:
            batch.value = [one for one in batch.value if one[0] not in left_out]  # type: ignore[index,assignment]
            asked = zip(batch.asking[:MAX_ACKS_PER_OP], batch.replies[:MAX_ACKS_PER_OP], strict=True)
            answers = [pair for pair in asked if pair[0] not in left_out]
            batch.asking, batch.replies = [seq for seq, _ in answers], [reply for _, reply in answers]
        if not batch.value:
            batch.kind = TERM

    def applied(self, kind: int, value: Value, outcome: object, token: object) -> None:
        """Answer the acks of an applied op of `KINDS`, and redeliver what was NAKed."""
        assert isinstance(token, AckBatch), kind
        assert self.in_flight.popleft() is token
        self._answer(token)
        if not isinstance(outcome, SettledMessages) or not outcome.seqs:
            return
        if kind == NAK:
            if (keys := self._owner.selection.keys) is not None:
                keys.returned(outcome.seqs)
            now = {seq for seq, delay in token.value if not delay}  # type: ignore[misc]
            self._again([seq for seq in outcome.seqs if seq in now])
            self._owner.selection.redelivery.changed(seq for seq in outcome.seqs if seq not in now)
        elif kind == PROGRESS:
            self._owner.selection.redelivery.changed(outcome.seqs)
        if kind in (NAK, TERM, BURY) and self._owner.advise.wanted(MSG_NAKED if kind == NAK else MSG_TERMINATED):
            self._advise(kind, outcome.seqs, token)

    def _advise(self, kind: int, seqs: Sequence[int], batch: AckBatch) -> None:
        advise = self._owner.advise
        for seq in seqs:
            if seq in batch.details:  # with policy `all` a +TERM settles others too
                numbers, more = batch.details[seq]
                deliveries, _, cseq = numbers.split(b".", 3)[:3]
                if not (deliveries.isdigit() and cseq.isdigit()):
                    continue
                if kind == NAK:
                    advise.naked(int(cseq), seq, int(deliveries))
                else:
                    advise.terminated(int(cseq), seq, int(deliveries), more)

    def _answer(self, batch: AckBatch) -> None:
        if batch.replies:
            self._owner.bus.publish_many([(reply, b"") for reply in batch.replies])

    def reset(self, *, again: bool) -> None:
        """Put lost acks into the log again. `again` is False when the consumer was reset or has another owner: the acks
        then concern void deliveries and are only answered."""
        self.early = []
        lost, self.in_flight = self.in_flight, deque()
        for batch in lost:
            if not again:
                batch.value = []
            self._submit(batch)


def nak_delay(text: bytes) -> int:
    """Parse `{"delay": ns}` or a Go duration to nanoseconds; 0 for any other text, which is a plain NAK."""
    text = text.strip()
    if not text:
        return 0
    simple = _DELAY.fullmatch(text)
    if simple is not None:
        return int(simple[1])
    delay: object = None
    if text.startswith(b"{"):
        try:
            fields = json.loads(text)
        except (ValueError, RecursionError):
            return 0
        delay = next((value for key, value in fields.items() if key.lower() == "delay"), None)
    else:
        delay = durations.parse(text)
    return delay if type(delay) is int and 0 < delay < NEVER else 0
