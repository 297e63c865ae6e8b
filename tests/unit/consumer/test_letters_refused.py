"""Dead letters that are not published: they went round too often, or there is no subject for them."""

from __future__ import annotations

import pytest

from jetcluster.consumer.owner import letters
from jetcluster.consumer.owner.letters import MAX_HOPS, MAX_IN_FLIGHT
from jetcluster.protocol import headers as header_block
from jetcluster.store.batch import Batch
from jetcluster.stream.log import commands
from tests.unit.consumer.test_owner_letters import Target, rig, updated


@pytest.mark.parametrize(
    ("told", "hops"), [(b"1", b"2"), (b"7", b"8"), (b"x", b"1"), (b"-5", b"1"), (b"9" * 5000, b"1")]
)
def test_a_letter_tells_how_many_there_were_before(told: bytes, hops: bytes) -> None:
    r = rig()
    target = Target(r)
    block = header_block.build([(b"Nats-Dead-Letter-Hops", told)])
    r.node.apply(commands.encode_publish(r.node.now, Batch.encode([b"s.a"], [block], [b""])))
    r.next()
    r.advance(6)
    ((_, _, headers, _),) = target.stored
    assert header_block.get_all(headers, b"Nats-Dead-Letter-Hops") == [hops]


def test_letters_that_go_round_end_and_hold_no_other_up() -> None:
    r = rig(max_ack_pending=100)
    target, told = Target(r), r.event("DEAD_LETTERS_FAIL")
    count = 2 * MAX_IN_FLIGHT
    block = header_block.build([(b"Nats-Dead-Letter-Hops", b"%d" % MAX_HOPS)])
    batch = Batch.encode([b"s.a"] * count, [block] * count, [b""] * count)
    r.node.apply(commands.encode_publish(r.node.now, batch))
    r.publish(b"s.b")
    r.next(batch=count + 1)
    r.advance(6)
    assert target.seqs == [count + 1] and len(r.state.letters) == count and len(told) == 1
    assert r.owner.letters.last_error == f"a message was a dead letter {MAX_HOPS} times"
    before = r.ticks
    r.advance(100)
    assert target.tries == 1 and r.ticks - before < 10, "nothing would change"


def test_a_subject_that_nobody_may_publish_to_is_told() -> None:
    r = rig(dead_letter={"subject": "dead.{subject}"})
    target = Target(r)
    r.node.apply(commands.encode_publish(r.node.now, Batch.encode([b"s.\x01"], [b""], [b""])))
    r.next()
    r.advance(6)
    assert not target.tries and len(r.state.letters) == 1
    assert r.owner.letters.last_error == "nothing may be published to 'dead.s.\\x01'"


def test_a_refused_letter_goes_out_without_its_message_once_that_is_removed() -> None:
    r = rig(max_ack_pending=10, dead_letter={"subject": "dead.C.{subject}"})
    target = Target(r)
    round_ = header_block.build([(b"Nats-Dead-Letter-Hops", b"%d" % MAX_HOPS)])
    batch = Batch.encode([b"s.a", b"s.\x01", b"s.b"], [round_, b"", round_], [b""] * 3)
    r.node.apply(commands.encode_publish(r.node.now, batch))
    r.next(batch=3)
    r.advance(6)
    assert not target.tries and len(r.state.letters) == 3
    r.node.apply(commands.encode_delete_msg(r.node.now, 1))
    r.node.apply(commands.encode_delete_msg(r.node.now, 2))
    r.advance(31)
    assert sorted(target.seqs) == [1, 2] and list(r.state.letters.by_seq) == [3]
    assert all(header_block.get(block, b"Nats-Dead-Letter-Removed") == b"true" for _, _, block, _ in target.stored)
    assert r.owner.letters.last_error == f"a message was a dead letter {MAX_HOPS} times"
    r.node.apply(commands.encode_delete_msg(r.node.now, 3))
    r.advance(31)
    assert sorted(target.seqs) == [1, 2, 3] and not r.state.letters and r.owner.letters.trouble == ""
    before = r.ticks
    r.advance(100)
    assert r.ticks - before < 3, "nothing is looked at any more"


def test_more_refused_letters_than_are_looked_at_at_once_have_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(letters, "REFUSED_AT_ONCE", 2)
    r = rig(max_ack_pending=10)
    target = Target(r)
    block = header_block.build([(b"Nats-Dead-Letter-Hops", b"%d" % MAX_HOPS)])
    r.node.apply(commands.encode_publish(r.node.now, Batch.encode([b"s.a"] * 5, [block] * 5, [b""] * 5)))
    r.next(batch=5)
    r.advance(6)
    r.node.apply(commands.encode_delete_msg(r.node.now, 5))
    r.advance(100)
    assert target.seqs == [5] and list(r.state.letters.by_seq) == [1, 2, 3, 4]


def test_lost_ops_cause_no_search_for_what_is_refused() -> None:
    r = rig()
    target = Target(r)
    block = header_block.build([(b"Nats-Dead-Letter-Hops", b"%d" % MAX_HOPS)])
    r.node.apply(commands.encode_publish(r.node.now, Batch.encode([b"s.a"], [block], [b""])))
    r.next()
    r.advance(6)
    r.owner.reset()
    r.advance(6)
    assert r.owner.letters.last_error == f"a message was a dead letter {MAX_HOPS} times" and not target.asked


def test_another_subject_is_tried_for_what_was_refused() -> None:
    r = rig(dead_letter={"subject": "dead.C.{subject}"})
    target = Target(r)
    r.node.apply(commands.encode_publish(r.node.now, Batch.encode([b"s.\x01"], [b""], [b""])))
    r.next()
    r.advance(6)
    assert not target.tries
    updated(r, dead_letter={"subject": "dead.C.all"})
    r.advance(6)
    assert target.seqs == [1] and not r.state.letters
