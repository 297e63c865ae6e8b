"""`Model`: a stream and its consumers as lists and dicts, with which replicas are compared.

It recomputes everything from scratch and has no rows, pages or sessions.
"""

from __future__ import annotations

from typing import Any

from jetcluster.consumer.state import turn
from jetcluster.consumer.state.letters import TERMINATED
from jetcluster.consumer.state.pending import NEVER
from jetcluster.protocol.subjects import matches
from tests.unit.consumer.replica_rig import SECOND

SUBJECTS = [b"s.a", b"s.b", b"t"]


class Consumer:
    """One consumer of the model."""

    def __init__(self, config: dict[str, Any], start: int) -> None:
        self.config = config
        self.cseq, self.sseq = 0, start - 1
        self.floor = (0, start - 1)
        self.pending: dict[int, tuple[int, int, int]] = {}
        self.waiting: set[bytes] = set()
        self.exhausted: set[int] = set()
        self.parked: set[int] = set()
        """Passed messages that wait for others of their keys."""
        self.letters: set[int] = set()
        self.reasons: dict[int, int] = {}
        """Reasons of these, and of earlier ones."""
        """Messages given up whose dead letters wait."""
        self.by_key = False
        self.upto = 0
        self.purged = 0

    @property
    def acks(self) -> bool:
        return self.config.get("ack_policy") != "none"

    def wants(self, seq: int, subject: bytes) -> bool:
        filter = self.config.get("filter_subject")
        if filter and not matches(subject, filter.encode()):
            return False
        if seq in self.letters:
            return True
        return seq > self.sseq or seq in self.pending or seq in self.exhausted or seq in self.parked

    def matching(self, messages: dict[int, bytes]) -> list[int]:
        filter = (self.config.get("filter_subject") or ">").encode()
        return [seq for seq, subject in messages.items() if matches(subject, filter)]

    def held(self, messages: dict[int, bytes]) -> list[int]:
        """Sequences that have to be looked at when the consumer does not want them any more."""
        low = min([self.sseq + 1, *self.pending, *self.exhausted, *self.parked, *self.letters])
        return [seq for seq in self.matching(messages) if seq >= low]

    def wait(self, deliveries: int) -> int:
        backoff = self.config.get("backoff") or [30 * SECOND]
        return int(backoff[min(deliveries, len(backoff)) - 1])

    def move_floor(self) -> None:
        """Right below the lowest pending entry; at the cursor when there is none."""
        if not self.pending and not self.parked:
            self.floor = (self.cseq, max(self.sseq, self.floor[1]))
            return
        if self.by_key:
            first = min((cseq for cseq, _, _ in self.pending.values()), default=self.cseq + 1)
            lowest = min([*self.pending, *self.parked])
            self.floor = (max(first - 1, self.floor[0]), max(lowest - 1, self.floor[1]))
            return
        lowest = min(self.pending)
        if self.pending[lowest][0] - 1 > self.floor[0]:
            self.floor = (self.pending[lowest][0] - 1, max(lowest - 1, self.floor[1]))

    def drop(self, seqs: list[int]) -> list[int]:
        dropped = [seq for seq in dict.fromkeys(seqs) if self.pending.pop(seq, None) is not None or seq in self.parked]
        self.parked -= set(dropped)
        if dropped:
            self.move_floor()
        return dropped

    def op(self, kind: int, value: Any, ts: int, last: int) -> Any:
        """The outcome in plain terms: a list of the sequences it touched, a number, or None."""
        if kind == turn.DELIVER:
            if not self.acks or not value or value != sorted(set(value)) or value[-1] > last:
                return None
            if value[0] <= self.sseq:
                return None
            for seq in value:
                self.cseq += 1
                self.pending[seq] = (self.cseq, ts + self.wait(1), 1)
                self.sseq = seq
            return value
        if kind == turn.DELIVER_SOME:
            return self.deliver_some(*value, ts, last)
        if kind == turn.RELEASE:
            free = [seq for seq in dict.fromkeys(value) if seq in self.parked]
            for seq in free:
                self.cseq += 1
                self.pending[seq] = (self.cseq, ts + self.wait(1), 1)
                self.parked.discard(seq)
            return free
        if kind == turn.REDELIVER:
            again = [seq for seq in value if seq in self.pending]
            for seq in again:
                self.cseq += 1
                cseq, _, count = self.pending[seq]
                self.pending[seq] = (cseq, ts + self.wait(count + 1), count + 1)
            return again
        if kind in (turn.ACK, turn.TERM):
            return self.ack(value)
        if kind == turn.NAK:
            for seq, delay in value:
                if seq in self.pending:
                    cseq, _, count = self.pending[seq]
                    self.pending[seq] = (cseq, min(ts + delay, NEVER), count)
            return [seq for seq, _ in value if seq in self.pending]
        if kind == turn.PROGRESS:
            for seq in value:
                if seq in self.pending:
                    cseq, _, count = self.pending[seq]
                    self.pending[seq] = (cseq, ts + self.wait(count), count)
            return [seq for seq in value if seq in self.pending]
        if kind == turn.EXHAUSTED:
            most = self.config.get("max_deliver", 0)
            return self.drop([seq for seq in value if most and self.pending.get(seq, (0, 0, 0))[2] >= most])
        if kind == turn.BURY:
            return self.bury(value)
        if kind == turn.BURIED:
            gone = [seq for seq in dict.fromkeys(value) if seq in self.letters]
            self.letters -= set(gone)
            return gone
        if kind == turn.GONE:
            return self.drop(value)
        if kind == turn.ADVANCE:
            return self.advance(*value, last)
        if kind == turn.SKIP:
            if not self.sseq < value <= last:
                return 0
            self.sseq = value
            if not self.acks:
                self.floor = (self.floor[0], value)
            return 1
        if kind == turn.WAIT:
            new = value not in self.waiting
            self.waiting.add(value)
            return int(new)
        if kind == turn.UNWAIT:
            old = value in self.waiting
            self.waiting.discard(value)
            return int(old)
        return 0  # PIN: there are no groups

    def ack(self, seqs: list[int]) -> list[int] | None:
        if not self.acks:
            return None
        if self.config.get("ack_policy") != "all":
            return self.drop([seq for seq in seqs if seq in self.pending])
        highest = max((seq for seq in seqs if seq <= self.sseq), default=0)
        if highest <= self.floor[1]:
            return []
        taken = [seq for seq in sorted(self.pending) if seq <= highest]
        for seq in taken:
            del self.pending[seq]
        if taken:
            self.floor = (min((cseq for cseq, _, _ in self.pending.values()), default=self.cseq + 1) - 1, highest)
        return taken

    def bury(self, items: list[tuple[int, int, bytes]]) -> list[int] | None:
        if not self.acks:
            return None
        most = self.config.get("max_deliver", 1 << 70)
        doomed: dict[int, int] = {}
        for seq, reason, _ in items:
            if seq in self.pending and (reason == TERMINATED or self.pending[seq][2] >= most):
                doomed.setdefault(seq, reason)
        if self.config.get("dead_letter"):
            self.letters |= set(doomed)
            self.reasons.update(doomed)
        termed = [seq for seq in doomed if doomed[seq] == TERMINATED]
        acked = (self.ack(termed) or []) if termed and self.config.get("ack_policy") == "all" else []
        return acked + self.drop([seq for seq in doomed if seq in self.pending])

    def deliver_some(self, seqs: list[int], parked: list[int], ts: int, last: int) -> list[int] | None:
        both = seqs + parked
        if self.config.get("ack_policy", "explicit") != "explicit" or not both or len(set(both)) < len(both):
            return None
        if seqs != sorted(seqs) or parked != sorted(parked) or min(both) <= self.sseq or max(both) > last:
            return None
        self.by_key = True
        for seq in seqs:
            self.cseq += 1
            self.pending[seq] = (self.cseq, ts + self.wait(1), 1)
        self.parked |= set(parked)
        self.sseq = max(both)
        return seqs

    def advance(self, seq: int, count: int, last: int) -> int | None:
        if self.acks:
            return None
        if not self.sseq < seq <= last or not 0 < count <= seq - self.sseq:
            return 0
        self.cseq += count
        self.sseq = seq
        self.floor = (self.cseq, seq)
        return 1

    def shown(self) -> tuple[int, ...]:
        """Delivered, ack floor, pending and redelivered as info shows them."""
        again = sum(count > 1 for _, _, count in self.pending.values())
        sseq, floor = max(self.sseq, self.purged), max(self.floor[1], self.purged)
        return self.cseq, sseq, self.floor[0], floor, len(self.pending), again


class Model:
    def __init__(self, retention: str, max_msgs: int) -> None:
        self.retention = retention
        self.max_msgs = max_msgs
        self.messages: dict[int, bytes] = {}
        self.last = 0
        self.first_floor = 1
        self.consumers: dict[str, Consumer] = {}

    @property
    def first(self) -> int:
        return min(self.messages, default=max(self.last + 1, self.first_floor))

    def publish(self, subjects: list[bytes]) -> None:
        new = []
        for subject in subjects:
            self.last += 1
            self.messages[self.last] = subject
            new.append(self.last)
        self.sift(new)
        while len(self.messages) > self.max_msgs > 0:
            del self.messages[self.first]

    def sift(self, seqs: list[int]) -> None:
        if self.retention == "interest":
            for seq in seqs:
                if seq in self.messages and not self.wanted(seq):
                    del self.messages[seq]

    def trim(self) -> None:
        """Trims the consumers, after every command."""
        for consumer in self.consumers.values():
            consumer.drop([seq for seq in (*consumer.pending, *consumer.parked) if seq < self.first])

    def delete_msg(self, seq: int) -> bool:
        if seq not in self.messages:
            return False
        del self.messages[seq]
        for consumer in self.consumers.values():
            consumer.drop([seq])
        return True

    def wanted(self, seq: int) -> bool:
        return any(consumer.wants(seq, self.messages[seq]) for consumer in self.consumers.values())

    def create(self, name: str, config: dict[str, Any]) -> int | None:
        """None when it is refused, else whether something changed."""
        old = self.consumers.get(name)
        if old is not None:
            return self.update(old, config)
        if self.retention == "workqueue":
            if config.get("ack_policy", "explicit") != "explicit" or config.get("deliver_policy", "all") != "all":
                return None
            if self.consumers and not self.apart(config, None):
                return None
        matching = [s for s, subject in self.messages.items() if Consumer(config, 1).wants(s, subject)]
        start = self.first
        if config.get("deliver_policy") == "new":
            start = self.last + 1
        if config.get("deliver_policy") == "last_per_subject":
            newest = {self.messages[seq]: seq for seq in matching}
            start = min(newest.values(), default=max(self.last, self.first))
        consumer = self.consumers[name] = Consumer(config, start)
        consumer.upto = self.last if config.get("deliver_policy") == "last_per_subject" else 0
        return 1

    def apart(self, config: dict[str, Any], but: Consumer | None) -> bool:
        """No subject that is used here is taken by two consumers of the work queue, nor everything by one of two."""
        filters = [config.get("filter_subject")]
        filters += [c.config.get("filter_subject") for c in self.consumers.values() if c is not but]
        if len(filters) > 1 and not all(filters):
            return False
        return all(sum(matches(subject, f.encode()) for f in filters if f) <= 1 for subject in SUBJECTS)

    def update(self, old: Consumer, config: dict[str, Any]) -> int | None:
        if old.config == config:
            return 0
        if any(old.config.get(key) != config.get(key) for key in ("ack_policy", "deliver_policy")):
            return None
        if self.retention == "workqueue" and not self.apart(config, old):
            return None
        held = old.held(self.messages) if old.config.get("filter_subject") != config.get("filter_subject") else []
        old.config = config
        letters = [] if config.get("dead_letter") else sorted(old.letters)
        for seq in letters:
            old.letters.discard(seq)
            if old.reasons[seq] == TERMINATED and self.retention == "workqueue":
                self.messages.pop(seq, None)
            elif old.reasons[seq] != TERMINATED and self.retention == "interest":
                old.exhausted.add(seq)
        self.sift([*held, *letters])
        return 1

    def delete(self, name: str) -> int | None:
        if name not in self.consumers:
            return None
        held = self.consumers.pop(name).held(self.messages)
        self.sift(held if self.consumers else list(self.messages))
        return 1

    def op(self, name: str, kind: int, value: Any, ts: int) -> Any:
        consumer = self.consumers[name]
        cursor = consumer.sseq
        outcome = consumer.op(kind, value, ts, self.last)
        if kind in (turn.DELIVER, turn.DELIVER_SOME) and outcome is not None:
            consumer.drop([seq for seq in (*consumer.pending, *consumer.parked) if seq < self.first])
        if kind in (turn.ACK, turn.TERM) and outcome:
            if self.retention == "workqueue":
                for seq in outcome:
                    self.messages.pop(seq, None)
            self.sift(outcome)
        elif kind in (turn.BURY, turn.BURIED) and outcome:
            without = [seq for seq in outcome if seq not in consumer.letters]
            if kind == turn.BURY:
                exhausted = {seq for seq, reason, _ in value if reason != TERMINATED}
                if self.retention == "interest":
                    consumer.exhausted |= exhausted & set(without)
                without = [seq for seq in without if seq not in exhausted]
            if self.retention == "workqueue":
                for seq in without:
                    self.messages.pop(seq, None)
            self.sift(without)
        elif kind == turn.EXHAUSTED and self.retention == "interest":
            consumer.exhausted |= set(outcome)
        elif consumer.sseq > cursor and (kind not in turn.FIRST or cursor < consumer.upto):
            self.sift([seq for seq in consumer.matching(self.messages) if cursor < seq <= consumer.sseq])
        return outcome

    def purge(self) -> None:
        self.messages.clear()
        self.first_floor = self.last + 1
        for consumer in self.consumers.values():
            if max(consumer.floor[1], consumer.purged) < self.last:
                consumer.purged = self.last

    def reset(self, name: str, seq: int) -> int | None:
        consumer = self.consumers.get(name)
        if consumer is None or (seq and consumer.config.get("deliver_policy", "all") != "all"):
            return None
        start = seq or consumer.shown()[3] + 1
        held = consumer.held(self.messages)
        consumer.pending.clear()
        consumer.parked.clear()
        consumer.exhausted.clear()
        consumer.letters = {letter for letter in consumer.letters if letter < start}
        consumer.purged = 0
        consumer.cseq, consumer.sseq, consumer.floor = 0, start - 1, (0, start - 1)
        self.sift(held)
        return start
