"""Properties of a consumer's owner that hold whatever happens: random clients, crashes of the owner, lost turns."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

import pytest

from jetcluster.consumer.owner import owner as owner_module
from jetcluster.consumer.owner.statuses import LEADERSHIP_CHANGE
from jetcluster.consumer.state.rules import ALL, EXPLICIT
from jetcluster.consumer.state.turn import ACK, GONE, TERM
from jetcluster.stream.log import commands
from tests.unit.consumer.rig import MS, SECOND, Frame, Inbox, Rig, subjects

MAX_ACK_PENDING = 7
ACK_WAIT = SECOND


class Driver:
    """Random clients of one consumer, and what must hold after every step."""

    def __init__(self, seed: int, policy: str) -> None:
        self.random = random.Random(seed)
        self.policy = policy
        self.rig = Rig(
            seed=seed,
            ack_policy=policy,
            ack_wait=ACK_WAIT,
            max_ack_pending=MAX_ACK_PENDING,
            filter_subjects=["a", "b.*"],
        )
        self.wanted: list[int] = []
        """Sequences that match."""
        self.deleted: set[int] = set()
        self.seen: set[int] = set()
        self.open: list[Frame] = []
        """Deliveries that a client may still say something about."""
        self.settled: set[int] = set()
        """Covered by an applied ACK or TERM."""
        self.read = 0
        self.counted = 0
        self.numbers: set[int] = set()
        """Consumer sequences seen."""
        self.replies = 0
        self.crashes = 0
        self.asked: dict[bytes, tuple[int, bool, int]] = {}
        """Reply subject of one request each: its batch, whether it expires, crashes before it."""

    def step(self) -> None:
        rig, rnd = self.rig, self.random
        rig.hold = rnd.random() < 0.5
        what = rnd.choices(
            (self.publish, self.ask, self.say, self.wait, self.crash, self.lose, self.delete, self.commit),
            (20, 20, 30, 8, 2, 4, 2, 14),
        )[0]
        what()
        self.check()

    def publish(self) -> None:
        subjects = self.random.choices((b"a", b"b.1", b"c", b"b.2"), k=self.random.randint(1, 6))
        last = self.rig.node.store.last_seq
        self.rig.publish(*subjects)
        self.wanted += [last + 1 + i for i, subject in enumerate(subjects) if subject != b"c"]

    def ask(self) -> None:
        rnd = self.random
        self.replies += 1
        fields = {"batch": rnd.randint(1, 6)}
        if rnd.random() < 0.5:
            fields["expires"] = rnd.randint(1, 3000) * MS
        if rnd.random() < 0.2:
            fields["no_wait"] = True
        if rnd.random() < 0.2:
            fields["max_bytes"] = rnd.randint(60, 300)
        if rnd.random() < 0.3:
            self.rig.next(b"in.0", **fields)
        else:
            reply = b"in.%d" % self.replies
            self.asked[reply] = fields["batch"], "expires" in fields, self.crashes
            self.rig.next(reply, **fields)

    def say(self) -> None:
        if self.open:
            frame = self.open.pop(self.random.randrange(len(self.open)))
            word = self.random.choices((b"+ACK", b"-NAK", b"-NAK 300ms", b"+WPI", b"+TERM"), (70, 10, 5, 5, 5))[0]
            self.rig.ack(frame, word)

    def wait(self) -> None:
        self.rig.advance(self.random.random() * 0.7)

    def crash(self) -> None:
        self.crashes += 1
        self.rig.crash()
        self.rig.settle()

    def lose(self) -> None:
        self.rig.lose()
        self.rig.settle()

    def delete(self) -> None:
        if self.wanted:
            seq = self.random.choice(self.wanted)
            self.rig.node.apply(commands.encode_delete_msg(self.rig.node.now, seq))
            self.deleted.add(seq)

    def commit(self) -> None:
        self.rig.release()

    def check(self) -> None:
        rig = self.rig
        for frame in rig.bus.inboxes.get(b"in.*", []):
            if frame.reply:
                self.received(frame)
        rig.bus.inboxes[b"in.*"].clear()
        for kind, value in rig.log[self.read :]:
            if kind in (ACK, TERM):
                top = max(value, default=0)  # type: ignore[call-overload]
                self.settled.update(range(1, top + 1) if self.policy == ALL else value)  # type: ignore[arg-type]
        self.read = len(rig.log)
        assert len(rig.state.pending) <= MAX_ACK_PENDING

    def received(self, frame: Frame) -> None:
        """Deliveries are seen in the order of the log, ACKs of the same turn a little later: what was covered before
        the last look must not come again."""
        deliveries, seq, cseq, _ = frame.numbers
        assert seq in self.wanted
        assert seq not in self.settled, f"{seq} was acknowledged"
        assert cseq not in self.numbers
        self.numbers.add(cseq)
        if deliveries == 1:
            assert seq not in self.seen
            earlier = [s for s in self.wanted if s < seq and s not in self.seen and s not in self.deleted]
            assert not [s for s in earlier if s > self.rig.state.delivered_sseq], "skipped"
        self.seen.add(seq)
        self.open.append(frame)

    def finish(self) -> None:
        """Left alone with clients that acknowledge everything, all is delivered and acknowledged."""
        rig = self.rig
        self.commit()
        self.open.clear()  # nobody says anything any more about what he was sent before
        for _ in range(200):
            rig.next(b"in.0", batch=10, expires=100 * MS)
            self.check()
            for frame in self.open:
                rig.ack(frame)
            self.open.clear()
            rig.advance(0.2)
            self.check()
        state = rig.state
        assert not state.pending
        last = max([seq for seq in self.wanted if seq not in self.deleted], default=0)
        assert state.delivered_sseq >= last and state.floor_sseq >= last
        assert state.floor_cseq == state.delivered_cseq
        missed = set(self.wanted) - self.deleted - self.seen
        # Committed, but the owner was gone before it sent them: they came again, or were acknowledged with `all`.
        assert not {seq for seq in missed if seq not in self.settled}, missed

    def requests(self) -> None:
        """In no case has a request got more than it wanted, or anything after its end; and if its owner lived on,
        it came to an end."""
        for reply, (batch, expires, crashes) in self.asked.items():
            frames = self.rig.bus.inboxes[reply]
            while self.crashes > crashes and len(frames.statuses) > 1 and frames[-1].status == LEADERSHIP_CHANGE:
                frames.pop()  # it had ended before, and the log did not know yet
            statuses = frames.statuses
            assert len(frames.seqs) <= batch and len(statuses) <= 1
            if statuses:
                assert frames[-1].status == statuses[0]
            elif crashes == self.crashes and expires:
                assert frames.seqs, reply  # max_bytes used up exactly, or all it wanted


@pytest.mark.parametrize("policy", [EXPLICIT, ALL])
@pytest.mark.parametrize("seed", range(25))
def test_nothing_is_skipped_and_nothing_acknowledged_comes_again(seed: int, policy: str) -> None:
    driver = Driver(seed, policy)
    driver.rig.bus.listen(b"in.*")
    for _ in range(250):
        driver.step()
    driver.finish()
    driver.requests()


@pytest.mark.parametrize("seed", range(10))
def test_without_acks_all_is_delivered_in_order(seed: int) -> None:
    rnd = random.Random(seed)
    rig = Rig(ack_policy="none", filter_subject="a", seed=seed)
    inbox = rig.bus.listen(b"in.*")
    wanted: list[int] = []
    got: dict[int, int] = {}
    """Consumer -> stream sequence."""
    for i in range(200):
        rig.hold = rnd.random() < 0.5
        what = rnd.random()
        if what < 0.4:
            subjects = rnd.choices((b"a", b"b"), k=rnd.randint(1, 5))
            last = rig.node.store.last_seq
            rig.publish(*subjects)
            wanted += [last + 1 + k for k, subject in enumerate(subjects) if subject == b"a"]
        elif what < 0.8:
            rig.next(b"in.%d" % i, batch=rnd.randint(1, 9), expires=SECOND)
        elif what < 0.9:
            rig.lose()
            rig.settle()
        elif what < 0.95:
            rig.crash()
            rig.settle()
            # Sent by the former owner, unknown to the log: once more, with the same numbers.
            got = {cseq: seq for cseq, seq in got.items() if cseq <= rig.state.delivered_cseq}
        else:
            rig.advance(rnd.random() / 2)
        for frame in inbox.take():
            if frame.reply:
                assert frame.numbers[2] not in got
                got[frame.numbers[2]] = frame.seq
    rig.release()
    rig.next(b"in.last", batch=1000, expires=SECOND)
    got |= {frame.numbers[2]: frame.seq for frame in inbox if frame.reply}
    assert sorted(got.items()) == list(enumerate(wanted, 1))
    rig.advance(1)
    assert rig.state.delivered_cseq == len(wanted)


def test_the_end_of_a_pause_is_published_once_by_the_owner_that_saw_it() -> None:
    rig = Rig(pause_until_ns=0)
    told = rig.event("PAUSE")

    def pause(seconds: int) -> None:
        until = rig.now + seconds * SECOND if seconds else 0
        rig.node.extended(commands.CONSUMER_PAUSE, {"name": "C", "pause_until": until})
        rig.owner.configured()

    pause(5)
    rig.advance(4)
    assert not told
    rig.advance(2)
    assert [json.loads(event.payload)["paused"] for event in told] == [False]
    rig.advance(2)
    rig.take_over()  # it did not see the pause
    rig.advance(2)
    assert len(told) == 1
    pause(5)
    pause(9)
    rig.advance(6)
    pause(0)  # who resumes it tells that
    rig.advance(9)
    assert len(told) == 1


def test_a_pull_that_does_not_wait_is_taken_once_the_replica_has_what_its_client_knows_of(rig: Rig) -> None:
    later: list[Callable[[], None]] = []
    rig.when_known = lambda origin, go_on: later.append(go_on)
    rig.crash()
    inbox, waiting = rig.next(b"now", batch=2, no_wait=True), rig.next(b"later", batch=2)
    assert len(later) == 1 and rig.owner.delivery.num_waiting == 1
    rig.publish(b"s")
    assert waiting.seqs == [1]
    rig.publish(b"s")
    rig.publish(b"s")
    later.pop()()
    rig.settle()
    assert inbox.seqs == [3] and waiting.seqs == [1, 2]


def test_a_pull_that_was_held_goes_to_the_next_owner(rig: Rig) -> None:
    later: list[Callable[[], None]] = []
    rig.when_known = lambda origin, go_on: later.append(go_on)
    rig.crash()
    inbox = rig.next(batch=1, no_wait=True)
    rig.publish(b"s")
    rig.stop()
    rig.when_known = None
    rig.take_over()
    later.pop()()
    rig.settle()
    assert inbox.seqs == [1]


def test_where_there_is_no_other_replica_nothing_is_asked(rig: Rig) -> None:
    rig.when_known = lambda origin, go_on: pytest.fail("asked")
    rig.crash(replicated=False)
    assert rig.next(no_wait=True)[0].headers == b"NATS/1.0 404 No Messages\r\n\r\n"


def removed_by_a_limit(count: int) -> tuple[Rig, Inbox]:
    """A consumer of which messages 2 to `count` + 1 pend and are no longer stored, as a limit per subject makes them.
    New ones find no room, and the owner has put its GONE into the log, which has not come about."""
    rig = Rig(stream={"max_msgs_per_subject": 1}, max_ack_pending=count)
    inbox = rig.next(batch=3 * count, expires=60 * SECOND)
    rig.publish(b"first")  # what is removed behind it is in the middle of the stream
    rig.ack(inbox[0])
    rig.publish(*subjects(count))
    assert inbox.take() and sorted(rig.state.pending) == list(range(2, count + 2))
    removed: list[int] = []
    rig.node.store.watch_deleted(removed.extend)
    rig.publish(*subjects(count))
    assert sorted(rig.state.pending) == removed == list(range(2, count + 2)) and not inbox
    rig.hold = True
    rig.owner.vanished(removed)
    rig.settle()
    return rig, inbox


@pytest.mark.parametrize("how", [Rig.lose, Rig.crash])
def test_what_was_removed_under_an_owner_that_could_not_say_it_is_said_again(how: Callable[[Rig], None]) -> None:
    rig, inbox = removed_by_a_limit(2)
    assert [(kind, value) for kind, value, _ in rig.ops] == [(GONE, [2, 3])]
    how(rig)
    rig.release()
    if how is Rig.crash:
        inbox = rig.next(b"in.2", batch=2, expires=60 * SECOND)
    assert (GONE, [2, 3]) in rig.log
    assert inbox.seqs == sorted(rig.state.pending) == [4, 5]


def test_a_new_owner_looks_up_many_pending_messages_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner_module, "LOOKED_UP", 4)
    rig, _ = removed_by_a_limit(10)
    looked: list[int] = []
    there = rig.node.store.contains
    monkeypatch.setattr(rig.node.store, "contains", lambda seq: looked.append(seq) or there(seq))
    rig.crash()
    assert sorted(looked) == [2, 3, 4, 5]
    rig.release()
    rig.advance(0.1)
    assert sorted(looked) == list(range(2, 12)) and not rig.state.pending


def test_what_is_stored_is_never_said_to_be_gone(rig: Rig) -> None:
    rig.publish(b"s", b"s")
    rig.next(batch=2)
    rig.node.store.delete(2)
    rig.owner.vanished([1, 2])  # of a command that was taken back
    rig.settle()
    assert (GONE, [2]) in rig.log and list(rig.state.pending) == [1]


@pytest.mark.parametrize("behind", [0, 2])
def test_what_is_removed_while_its_delivery_is_on_its_way_into_the_log_is_said_to_be_gone(behind: int) -> None:
    rig = Rig()
    rig.publish(*subjects(3 + behind))
    rig.hold = True
    rig.next(b"first", batch=3)
    rig.node.store.delete(2)
    rig.owner.vanished([2])
    if behind:  # a delivery that was decided after that
        rig.next(b"second", batch=behind)
    rig.release()
    assert (GONE, [2]) in rig.log and list(rig.state.pending) == [1, *range(3, 4 + behind)]
    rig.publish(b"s")
    rig.next(b"third")
    assert [value for kind, value in rig.log if kind == GONE] == [[2]]


def test_many_removed_messages_are_said_with_several_ops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner_module, "MAX_SETTLED_PER_OP", 4)
    rig, _ = removed_by_a_limit(10)
    assert [value for _, value, _ in rig.ops] == [[2, 3, 4, 5], [6, 7, 8, 9], [10, 11]]
    rig.release()
    assert sorted(rig.state.pending) == list(range(12, 22))
