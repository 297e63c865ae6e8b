"""Pull requests and the log: what is in it, what gets lost on the way, and new owners (consumer/owner/pull.py)."""

from __future__ import annotations

from jetcluster.consumer.owner.delivery import DELETED, SHUTDOWN
from jetcluster.consumer.state.turn import ACK, ADVANCE, REDELIVER, UNWAIT, WAIT
from tests.unit.consumer.rig import MS, SECOND, Rig, subjects


def test_nothing_is_sent_before_it_is_committed(rig: Rig) -> None:
    rig.hold = True
    rig.publish(b"s.a")
    inbox = rig.next(batch=1)
    assert not inbox
    rig.commit()
    assert inbox.seqs == [1]


def test_a_status_waits_behind_what_is_in_flight(rig: Rig) -> None:
    rig.publish(b"s.a")
    rig.hold = True
    inbox = rig.next(batch=2, expires=100 * MS, max_bytes=10_000)
    rig.advance(0.2)
    assert not inbox and rig.owner.num_waiting == 0
    rig.commit()
    assert [frame.status for frame in inbox] == [b"", b"408 Request Timeout"]
    assert b"Nats-Pending-Messages: 1\r\n" in inbox[1].headers


def test_without_acks_it_sends_at_once_and_records_afterwards() -> None:
    rig = Rig(ack_policy="none")
    rig.hold = True
    rig.publish(*subjects(3))
    inbox = rig.next(batch=2)
    assert inbox.seqs == [1, 2]
    assert [frame.numbers for frame in inbox] == [(1, 1, 1, 2), (1, 2, 2, 1)]
    assert rig.next(b"b", batch=5).seqs == [3]
    assert [(kind, value) for kind, value, _ in rig.ops if kind == ADVANCE] == [(ADVANCE, (2, 2))]
    rig.commit()
    rig.release()
    assert (rig.state.delivered_cseq, rig.state.delivered_sseq) == (3, 3)


def test_without_acks_a_lost_record_is_made_again() -> None:
    rig = Rig(ack_policy="none")
    rig.hold = True
    rig.publish(*subjects(3))
    inbox = rig.next(batch=2)
    rig.lose()
    rig.hold = False
    rig.next(b"in", batch=2)
    assert inbox.seqs == [1, 2, 3]
    assert (rig.state.delivered_cseq, rig.state.delivered_sseq) == (3, 3)


def test_without_acks_it_stops_when_nothing_is_confirmed() -> None:
    rig = Rig(ack_policy="none")
    rig.hold = True
    inbox = rig.next(batch=10)
    rig.publish(b"s.a")
    rig.advance(2.1)
    rig.publish(b"s.b")
    assert inbox.seqs == [1]
    rig.commit()
    rig.settle()
    assert inbox.seqs == [1, 2]


def test_requests_that_outlive_their_turn_are_in_the_log(rig: Rig) -> None:
    rig.next(b"a", batch=2)
    assert list(rig.state.waiting) == [b"a"]
    rig.publish(b"s.a")
    assert list(rig.state.waiting) == [b"a"]
    rig.publish(b"s.b")
    assert list(rig.state.waiting) == []
    assert rig.kinds().count(WAIT) == rig.kinds().count(UNWAIT) == 1


def test_a_reply_subject_used_again_costs_nothing(rig: Rig) -> None:
    """nats.py asks again and again with one reply subject."""
    rig.next(b"a", batch=1)
    rig.hold = True
    rig.publish(b"s.a")
    rig.woken = False
    rig.commit()
    rig.bus.publish(b"$JS.API.CONSUMER.MSG.NEXT.S.C", b"", b"a")
    rig.release()
    assert list(rig.state.waiting) == [b"a"]
    rig.next(b"a", batch=1)
    rig.publish(b"s.b")
    assert list(rig.state.waiting) == [b"a"]  # one of two


def test_a_stream_without_replicas_does_not_put_them_into_the_log(rig: Rig) -> None:
    rig.crash(replicated=False)
    rig.next(b"a", batch=2)
    assert WAIT not in rig.kinds()


def test_a_new_owner_tells_those_who_wait(rig: Rig) -> None:
    a, b = rig.next(b"a", batch=2), rig.next(b"b", batch=2)
    rig.crash()
    rig.settle()
    assert [frame.headers for frame in a + b] == [b"NATS/1.0 409 Leadership Change\r\n\r\n"] * 2
    assert not rig.state.waiting
    rig.publish(b"s.a")
    assert a.seqs == b.seqs == []


def test_a_deleted_consumer_tells_those_who_wait(rig: Rig) -> None:
    inbox = rig.next(batch=2)
    rig.stop(DELETED)
    assert [frame.headers for frame in inbox] == [b"NATS/1.0 409 Consumer Deleted\r\n\r\n"]
    assert not rig.bus.subscriptions


def test_very_many_who_wait_are_answered_some_thousands_at_a_time() -> None:
    rig = Rig(max_waiting=5000)
    inbox = rig.next()
    for _ in range(4499):
        rig.bus.publish(b"$JS.API.CONSUMER.MSG.NEXT.S.C", b"", b"in")
    assert [len(inbox) for _ in rig.owner.stop(DELETED)] == [2000, 4000]
    assert len(inbox) == 4500 and not rig.owner.delivery.num_waiting


def test_a_shutdown_tells_those_who_wait_unless_another_goes_on(rig: Rig) -> None:
    inbox = rig.next(batch=2)
    rig.stop(SHUTDOWN)
    assert not inbox
    rig.crash(replicated=False)
    rig.settle()
    inbox.clear()
    rig.next(batch=2)
    rig.stop(SHUTDOWN)
    assert inbox[0].headers == (
        b"NATS/1.0 409 Server Shutdown\r\nNats-Pending-Messages: 2\r\nNats-Pending-Bytes: 0\r\n\r\n"
    )


def test_lost_ops_go_out_again_to_the_same_requests(rig: Rig) -> None:
    rig.publish(*subjects(4))
    rig.hold = True
    one, two = rig.next(b"one", batch=3), rig.next(b"two", batch=5, max_bytes=5000)
    rig.lose()
    rig.release()
    assert sorted(one.seqs + two.seqs) == [1, 2, 3, 4]
    assert [frame.numbers[2] for frame in one][:1] == [1]
    assert set(rig.state.waiting) == {b"two"} | ({b"one"} if len(one) < 3 else set())


def test_a_request_complete_but_lost_waits_again(rig: Rig) -> None:
    rig.publish(b"s.a")
    rig.hold = True
    inbox = rig.next(batch=1)
    assert rig.owner.num_waiting == 0
    rig.lose()
    assert rig.owner.num_waiting == 1
    rig.release()
    assert inbox.seqs == [1] and rig.owner.num_waiting == 0


def test_what_was_acknowledged_before_it_goes_out_again_leaves_the_request_waiting() -> None:
    rig = Rig(ack_wait=SECOND)
    rig.publish(b"s.a", b"s.b")
    first = rig.next(b"first", batch=2)
    rig.hold = True
    inbox = rig.next(batch=2)
    rig.advance(1.1)
    assert [value for kind, value, _ in rig.ops if kind == REDELIVER] == [[1, 2]]
    redelivery = next(i for i, (kind, _, _) in enumerate(rig.ops) if kind == REDELIVER)
    rig.ack(first[0])
    ack = next(i for i, (kind, _, _) in enumerate(rig.ops) if kind == ACK)
    rig.ops.insert(redelivery, rig.ops.pop(ack))
    rig.release()
    assert inbox.seqs == [2] and rig.owner.num_waiting == 1
    rig.publish(b"s.c")
    assert inbox.seqs == [2, 3] and rig.owner.num_waiting == 0
