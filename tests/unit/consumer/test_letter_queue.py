"""Dead letters that a stream refuses hold no others up, and those that fail together count once."""

from __future__ import annotations

import json
from typing import Any

from jetcluster.consumer.owner.letter_queue import FIRST_TRIES, MAX_IN_FLIGHT, MAX_PAUSE_NS, MIN_PAUSE_NS, LetterQueue
from jetcluster.consumer.owner.letters import MAX_HOPS
from jetcluster.protocol import headers as header_block
from jetcluster.protocol.bus import Origin
from jetcluster.store.batch import Batch
from jetcluster.stream.log import commands
from tests.unit.consumer.rig import SECOND
from tests.unit.consumer.test_owner_letters import Target, given_up, rig

TOO_LARGE = "message size exceeds maximum allowed"


class Narrow(Target):
    """Takes no message of more than `most` bytes."""

    most = 10

    def publish(self, subject: bytes, reply: bytes, headers: bytes, payload: bytes, origin: Origin) -> None:
        if len(payload) > self.most:
            self.tries += 1
            self.rig.bus.publish(reply, json.dumps({"error": {"description": TOO_LARGE}}).encode())
            return
        super().publish(subject, reply, headers, payload, origin)


class Mute(Target):
    """Answers questions, and no publish."""

    def publish(self, *message: Any) -> None:
        self.silent = True
        super().publish(*message)
        self.silent = False


def test_letters_that_the_stream_does_not_take_hold_no_others_up() -> None:
    r = rig(max_ack_pending=1000)
    target, told = Narrow(r), r.event("DEAD_LETTERS_FAIL")
    large, small = 300, 20
    payloads = [b"x" * 100] * large + [b"x"] * small
    r.node.apply(
        commands.encode_publish(r.node.now, Batch.encode([b"s.a"] * len(payloads), [b""] * len(payloads), payloads))
    )
    r.next(batch=len(payloads))
    r.advance(6 + len(payloads) / FIRST_TRIES + 2)
    assert sorted(target.seqs) == list(range(large + 1, large + small + 1)), "each was tried once by then"
    assert len(r.state.letters) == large and r.owner.letters.last_error == TOO_LARGE
    tries = target.tries
    r.advance(600)
    assert target.tries - tries < 30, "those that are refused are tried seldom"
    r.publish(b"s.later")
    r.next()
    r.advance(7)
    assert target.seqs[-1] == large + small + 1 and r.owner.letters.last_error == TOO_LARGE and len(told) == 1
    target.most = 1000
    r.advance(31)
    assert len(target.seqs) == large + small + 1 and not r.state.letters and r.owner.letters.last_error == ""


def test_a_stream_that_acknowledges_nothing_gets_each_letter_once_and_soon() -> None:
    """As one with `no_ack`: letters are looked for after 5 s, and those under way count as one failure."""
    r = rig(max_ack_pending=100)
    target = Mute(r)
    given_up(r, 3 * MAX_IN_FLIGHT)
    r.advance(60)
    assert sorted(target.seqs) == list(range(1, 3 * MAX_IN_FLIGHT + 1)) and not r.state.letters


def test_failures_within_a_pause_count_once() -> None:
    queue = LetterQueue(range(1, MAX_IN_FLIGHT + 1))
    for seq in range(1, MAX_IN_FLIGHT + 1):
        queue.take(seq)
    for seq in range(1, MAX_IN_FLIGHT + 1):
        queue.unanswered(seq, 0)
    waits = range(100)
    assert queue.next(MIN_PAUSE_NS - 1, 0, waits) == 0 and queue.wake_at(0) == MIN_PAUSE_NS
    assert queue.next(MIN_PAUSE_NS, 0, waits) == 1 and queue.next(MIN_PAUSE_NS, 1, waits) == 0, "one alone"
    queue.take(1)
    queue.succeeded(1)
    assert queue.next(MIN_PAUSE_NS, 5, waits) == 2 and not queue.fails


def test_pauses_of_the_refused_grow_and_their_first_success_frees_all() -> None:
    queue, waits = LetterQueue([1, 2, 3]), range(100)
    now, pauses = 0, []
    for seq in (1, 2, 3):
        assert queue.next(now, 0, waits) == seq
        queue.take(seq)
        queue.refused(seq, now)
    for _ in range(8):
        pauses.append(queue.wake_at(now) - now)
        now += pauses[-1]
        assert queue.next(now, 1, waits) == 0, "one alone"
        seq = queue.next(now, 0, waits)
        queue.take(seq)
        queue.refused(seq, now)
    assert pauses == [min(SECOND << at, MAX_PAUSE_NS) for at in range(8)]
    queue.extend([4])
    assert queue.next(now, 0, waits) == 4, "one that was not tried goes meanwhile"
    queue.take(4)
    queue.succeeded(4)
    assert queue.fails and queue.next(now, 0, waits) == 0
    now = queue.wake_at(now)
    seq = queue.next(now, 0, waits)
    queue.take(seq)
    queue.succeeded(seq)
    assert not queue.fails and len(queue) == 2 and queue.next(now, 1, waits)


def test_so_many_are_tried_for_the_first_time_in_a_second_while_others_are_refused() -> None:
    queue, waits = LetterQueue(range(1, 100)), range(100)
    tried = []
    for now in (0, SECOND // 2, SECOND + 1):
        while (seq := queue.next(now, 0, waits)) and seq not in tried:
            queue.take(seq)
            queue.refused(seq, now)
            tried.append(seq)
    assert FIRST_TRIES * 2 <= len(tried) <= FIRST_TRIES * 2 + 1


def test_what_is_gone_or_found_is_forgotten() -> None:
    queue = LetterQueue([1, 2, 3, 4])
    queue.take(1)
    queue.refused(1, 0)
    assert queue.next(0, 0, [3, 4]) == 3 and list(queue) == [3, 4]
    queue.remove({4})
    assert list(queue) == [3] and queue.first == 3
    queue.put_last([3].__contains__)
    queue.remove([3])
    assert not queue and queue.first == 0 and queue.wake_at(0) == 0


def test_a_clock_that_is_set_back_makes_no_pause_longer() -> None:
    hour = 3600 * SECOND
    for fail in (LetterQueue.refused, LetterQueue.unanswered):
        queue = LetterQueue([1])
        queue.take(1)
        fail(queue, 1, hour)
        assert queue.next(hour, 0, range(9)) == 0 and queue.next(5, 0, range(9)) == 1
        assert queue.wake_at(5) <= 5 + MAX_PAUSE_NS


def test_a_letter_that_may_not_be_sent_is_looked_at_again_after_the_clock_was_set_back() -> None:
    r = rig()
    target = Target(r)
    block = header_block.build([(b"Nats-Dead-Letter-Hops", b"%d" % MAX_HOPS)])
    r.node.apply(commands.encode_publish(r.node.now, Batch.encode([b"s.a"], [block], [b""])))
    r.next()
    r.advance(6)
    assert not target.tries and len(r.state.letters) == 1
    r.node.apply(commands.encode_delete_msg(r.node.now, 1))
    r.owner.letters.run(r.now - 20 * SECOND)
    r.advance(1)
    assert target.seqs == [1] and not r.state.letters
