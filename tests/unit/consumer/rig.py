"""Test twins of what an owner lives in: a bus with inboxes, and one consumer whose log the test lets go on."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from jetcluster.clock import OnwardClock
from jetcluster.consumer.owner.context import OwnerDependencies
from jetcluster.consumer.owner.delivery import MOVED
from jetcluster.consumer.owner.owner import ConsumerOwner
from jetcluster.consumer.owner.pull import PullDelivery
from jetcluster.consumer.owner.pull_queue import WaitingRoom
from jetcluster.consumer.state import turn as log_turn
from jetcluster.consumer.state.turn import Op, Value
from jetcluster.model.advisory import Advisories
from jetcluster.protocol.bus import Origin, Outgoing
from jetcluster.protocol.subjects import matches
from jetcluster.store.batch import Batch
from jetcluster.stream.log import commands
from testkit.twins.bus import MemBus
from testkit.twins.time import ManualTime, SeededRng
from tests.unit.consumer.replica_rig import Node

SECOND = 1_000_000_000
MS = 1_000_000


class Frame(NamedTuple):
    subject: bytes
    reply: bytes
    headers: bytes
    payload: bytes

    @property
    def status(self) -> bytes:
        """Code and text, b"" of a message."""
        line = self.headers.split(b"\r\n", 1)[0]
        return line[len(b"NATS/1.0 ") :]

    @property
    def numbers(self) -> tuple[int, int, int, int]:
        """Deliveries, stream sequence, consumer sequence, left: as the ack subject tells."""
        deliveries, seq, cseq, _, left = self.reply.rsplit(b".", 5)[1:]
        return int(deliveries), int(seq), int(cseq), int(left)

    @property
    def seq(self) -> int:
        return self.numbers[1]


class Inbox(list[Frame]):
    """Frames that somebody who listens was sent."""

    def take(self) -> list[Frame]:
        found = list(self)
        self.clear()
        return found

    @property
    def seqs(self) -> list[int]:
        """Stream sequences of the messages among them."""
        return [frame.seq for frame in self if frame.reply]

    @property
    def statuses(self) -> list[bytes]:
        return [frame.status for frame in self if not frame.reply]


class InboxBus(MemBus):
    """`DeliveryBus`, with inboxes of those who listen."""

    def __init__(self) -> None:
        super().__init__()
        self.inboxes: dict[bytes, Inbox] = {}
        self.unread: dict[bytes, int] = {}

    def listen(self, subject: bytes) -> Inbox:
        return self.inboxes.setdefault(subject, Inbox())

    def publish(self, subject: bytes, payload: bytes = b"", reply: bytes = b"", headers: bytes = b"") -> int:
        called = super().publish(subject, payload, reply, headers)
        return called + self.deliver_many(subject, [(subject, reply, headers, payload)])

    def publish_frames(self, subject: bytes, frames: Sequence[tuple[bytes, bytes]]) -> int:
        return self.deliver_many(subject, [(subject, b"", block, payload) for block, payload in frames])

    def deliver_many(self, target: bytes, messages: Sequence[Outgoing]) -> int:
        inboxes = [inbox for subject, inbox in self.inboxes.items() if matches(target, subject)]
        for inbox in inboxes:
            inbox += [Frame(*message) for message in messages]
        return len(inboxes)

    def backlog(self, subject: bytes) -> int:
        return self.unread.get(subject, 0) if self.has_interest(subject) else -1

    def has_interest(self, subject: bytes) -> bool:
        return super().has_interest(subject) or any(matches(subject, taken) for taken in self.inboxes)

    def has_listener(self, subject: bytes) -> bool:
        return subject in self.inboxes

    def queue_interest(self, subject: bytes, queue: bytes) -> bool:
        return self.has_interest(subject)

    def watch_interest(self, subject: bytes, callback: Callable[[], None]) -> Callable[[], None]:
        return lambda: None


class OwnedConsumer:
    """A stream S with consumer C and its owner, whose ops wait for `commit`."""

    time: ManualTime
    owner: ConsumerOwner

    def __init__(self, stream: dict[str, Any] | None) -> None:
        self.node = Node(stream)
        self.ops: list[tuple[int, Value, object]] = []
        self.log: list[tuple[int, Value]] = []
        """Everything applied."""
        self.unused = 0
        self.unserved: list[bool] = []
        """Each time that the owner said whether messages and readers are left."""

    def make_owner(self, **around: Any) -> None:
        own = OwnerDependencies(
            messages=self.node.store,
            turns=self,
            clock=OnwardClock(self.time),
            unused=self._unused,
            unserved=self.unserved.append,
            stream="S",
            **around,
        )
        self.owner = ConsumerOwner(self.node.state(), own)

    def _unused(self) -> None:
        self.unused += 1

    def sync(self) -> None:
        self.node.now = max(self.node.now, self.time.time_ns())

    def submit(self, kind: int, value: Value, token: object = None, messages: int = 0) -> None:
        """As `operation_log.OwnerTurns` takes it."""
        self.ops.append((kind, value, token))

    def commit(self) -> None:
        """Applies what was submitted so far, as one turn."""
        self.sync()
        ops, self.ops = self.ops, []
        state = self.node.state()
        body = log_turn.encode(b"12345678", 1, 1, [Op(state.cid, state.epoch, kind, value) for kind, value, _ in ops])
        decoded = log_turn.decode(body).ops
        result = self.node.turn(decoded)
        assert result.accepted
        self.log += [(op.kind, op.value) for op in decoded]
        for (kind, value, token), outcome in zip(ops, result.outcomes, strict=True):
            self.owner.applied(kind, value, outcome, token)

    def lose(self) -> None:
        """Drops what is in flight: it never comes to be."""
        self.ops = []
        self.owner.reset()


class Rig(OwnedConsumer):
    """An owner with a bus of its own. `hold`: ops wait for `commit`."""

    def __init__(self, *, stream: dict[str, Any] | None = None, seed: int = 1, **config: Any) -> None:
        self.time = ManualTime()
        self.rng = SeededRng(seed)
        super().__init__(stream)
        self.bus = InboxBus()
        self.hold = False
        self.ticks = 0
        self.ahead = 0
        self.buries = True
        """All replicas understand the ops of dead letters."""
        self.room: WaitingRoom | None = None
        """The node's, of the next owner."""
        self.when_known: Callable[[Origin, Callable[[], None]], None] | None = None
        """The function that the next owner is given."""
        self.sync()
        assert isinstance(self.node.create(**config), int)
        self.take_over()

    def take_over(self, *, replicated: bool = True, domain: str = "", ack_v2: bool = False) -> ConsumerOwner:
        """A new owner, from the replicated state."""
        self.woken = False
        self.due = 0
        self.ops = []
        self.make_owner(
            bus=self.bus,
            wakes=self,
            rng=self.rng,
            render=Advisories(self.time, self.rng).render,
            domain=domain,
            ack_v2=ack_v2,
            replicated=replicated,
            waiting=self.room,
            buries=lambda: self.buries,
            when_known=self.when_known,
        )
        self.owner.start()
        return self.owner

    def crash(self, **how: Any) -> None:
        """The owner is gone with all it knew; another takes over."""
        self.bus.subscriptions.clear()
        self.take_over(**how)

    def stop(self, reason: str = MOVED) -> None:
        for _ in self.owner.stop(reason):
            pass

    def sync(self) -> None:
        """The log's time is the clock's, `ahead` of which the owner's is."""
        self.node.now = max(self.node.now, self.time.time_ns() - self.ahead)
        self.time.set_time_ns(self.node.now + self.ahead)

    @property
    def now(self) -> int:
        return self.time.time_ns()

    @property
    def state(self) -> Any:
        return self.node.state()

    @property
    def pull(self) -> PullDelivery:
        assert isinstance(self.owner.delivery, PullDelivery)
        return self.owner.delivery

    # -- scheduler.OwnerWakes

    def soon(self) -> None:
        self.woken = True

    def at(self, ns: int) -> None:
        if not self.due or ns < self.due:
            self.due = ns

    # -- the loop

    def settle(self) -> None:
        """Turns of the loop until nothing is left to do."""
        for _ in range(1000):
            if self.woken:
                self.woken = False
                self.owner.run()
            elif self.ops and not self.hold:
                self.commit()
            else:
                return
        raise AssertionError("never settles")

    def release(self) -> None:
        """Applies what was held, and goes on without holding."""
        self.hold = False
        self.settle()

    def advance(self, seconds: float) -> None:
        end = self.now + round(seconds * SECOND)
        self.settle()
        while self.due and self.due <= end:
            self.time.advance(max(0, self.due - self.now) / SECOND)
            self.due = 0
            self.ticks += 1
            assert self.ticks < 100_000, "ticks for ever"
            self.owner.tick(self.now)
            self.settle()
        self.time.advance((end - self.now) / SECOND)

    # -- clients

    def publish(self, *subjects: bytes, payload: bytes = b"x") -> None:
        self.time.set_time_ns(self.time.time_ns() + len(subjects))
        self.sync()
        batch = Batch.encode(subjects, [], [payload] * len(subjects))
        self.node.apply(commands.encode_publish(self.node.now, batch))
        if self.owner.wants_messages:
            self.woken = True
        self.settle()

    def next(self, reply: bytes = b"in", body: bytes | None = None, **fields: Any) -> Inbox:
        """Asks for messages, and gives what the one who asks is sent."""
        inbox = self.bus.listen(reply)
        payload = json.dumps(fields).encode() if body is None else body
        self.bus.publish(b"$JS.API.CONSUMER.MSG.NEXT.S.C", payload, reply)
        self.settle()
        return inbox

    def ack(self, frame: Frame, word: bytes = b"+ACK", reply: bytes = b"") -> None:
        assert self.bus.publish(frame.reply, word, reply), "nobody takes acks"
        self.settle()

    def event(self, name: str) -> Inbox:
        return self.bus.listen(f"$JS.EVENT.ADVISORY.CONSUMER.{name}.S.C".encode())

    def kinds(self) -> list[int]:
        return [kind for kind, _ in self.log]


def subjects(count: int) -> list[bytes]:
    return [b"s.%d" % i for i in range(count)]
