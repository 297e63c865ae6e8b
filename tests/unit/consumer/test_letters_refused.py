"""Dead letters that are not published: they went round too often, or there is no subject for them."""

from __future__ import annotations

import pytest

from jetcluster.consumer.owner.letters import MAX_HOPS, MAX_IN_FLIGHT
from jetcluster.protocol import headers as header_block
from jetcluster.store.batch import Batch
from jetcluster.stream.log import commands
from tests.unit.consumer.test_owner_letters import Target, rig


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
