"""Why a consumer sends nothing though messages and readers are there, and that its owner says so."""

from __future__ import annotations

import pytest

from jetcluster.consumer.owner.delivery import LATE_NS
from jetcluster.consumer.owner.pull_dispatch import MAX_BACKLOG_BYTES
from tests.unit.consumer import push_rig
from tests.unit.consumer.rig import SECOND, Rig, subjects
from tests.unit.consumer.test_push import listener


def why(rig: Rig | push_rig.Rig) -> str:
    return rig.owner.withheld()


def test_a_pull_consumer_that_gets_on_withholds_nothing_and_leaves_nobody_unserved() -> None:
    rig = Rig()
    rig.next(batch=10, expires=60 * SECOND)
    rig.publish(*subjects(5))
    rig.publish(*subjects(10))
    assert why(rig) == ""
    assert rig.unserved == [], "readers wait, then messages, never both"


def test_a_full_window_is_left_with_acks() -> None:
    rig = Rig(max_ack_pending=2)
    rig.publish(*subjects(5))
    inbox = rig.next(batch=5, expires=60 * SECOND)
    assert (inbox.seqs, why(rig), rig.unserved) == ([1, 2], "acks", [True])
    for frame in list(inbox)[:2]:
        rig.ack(frame)
    for frame in list(inbox)[2:]:
        rig.ack(frame)
    rig.ack(list(inbox)[4])
    assert inbox.seqs == [1, 2, 3, 4, 5]
    assert (why(rig), rig.unserved) == ("", [True, False])


def test_replay_original_waits_for_the_time_of_the_next_message() -> None:
    rig = Rig(replay_policy="original")
    rig.publish(b"s")
    rig.advance(20)
    rig.publish(b"s")
    inbox = rig.next(batch=10)
    rig.advance(19)
    assert (inbox.seqs, why(rig)) == ([1], "replay")
    rig.advance(2)
    assert (inbox.seqs, why(rig)) == ([1, 2], "")


def test_a_time_that_was_missed_is_no_reason() -> None:
    rig = Rig(replay_policy="original")
    rig.publish(b"s")
    rig.advance(60)
    rig.publish(b"s")
    rig.next(batch=10)
    assert why(rig) == "replay"
    rig.time.advance(61 + LATE_NS / SECOND)  # without its tick
    assert why(rig) == ""
    assert rig.unserved == [True], "so it is looked at"


def test_clients_that_do_not_read_are_the_reason() -> None:
    rig = Rig()
    rig.bus.unread[b"slow"] = MAX_BACKLOG_BYTES + 1
    inbox = rig.next(b"slow", batch=5, expires=60 * SECOND)
    rig.publish(*subjects(5))
    assert (inbox.seqs, why(rig), rig.unserved) == ([], "unread", [True])
    rig.bus.unread.clear()
    rig.advance(1)
    assert (inbox.seqs, why(rig), rig.unserved) == ([1, 2, 3, 4, 5], "", [True, False])


def test_requests_that_wait_for_more_messages_are_excluded_by_their_group() -> None:
    rig = Rig(priority_policy="overflow", priority_groups=["g"])
    inbox = rig.next(batch=5, expires=60 * SECOND, group="g", min_pending=10)
    rig.publish(*subjects(5))
    assert (inbox.seqs, why(rig)) == ([], "priority")
    rig.publish(*subjects(5))
    assert len(inbox.seqs) > 0


def test_an_owner_that_is_stopped_while_unserved_is_told_by_its_host_alone() -> None:
    rig = Rig(max_ack_pending=1)
    rig.publish(*subjects(5))
    rig.next(batch=5, expires=60 * SECOND)
    rig.stop()
    assert rig.unserved == [True]


def test_the_rate_of_a_push_consumer() -> None:
    rig = push_rig.Rig(rate_limit_bps=8_000)
    rig.publish(*[(b"a", b"x" * 1000)] * 50)
    client = listener(rig)
    rig.got(client, 3.4)
    assert why(rig) == "rate"


def test_the_gaps_of_a_push_consumer() -> None:
    rig = push_rig.Rig(replay_policy="original")
    rig.publish(b"a")
    rig.advance(10)
    rig.publish(b"b")
    client = listener(rig)
    rig.got(client, 9)
    assert why(rig) == "replay"
    rig.got(client, 2)
    assert why(rig) == ""


def test_a_subscriber_that_answers_no_flow_control() -> None:
    rig = push_rig.Rig(idle_heartbeat=SECOND, flow_control=True)
    client = listener(rig)
    for _ in range(60):
        rig.publish(*[(b"a", b"x" * 10_000)] * 10)
    rig.got(client, 0.5)
    assert why(rig) == "unconfirmed"


@pytest.mark.parametrize("policy", ["none", "explicit"])
def test_a_subscriber_that_does_not_read(policy: str) -> None:
    rig = push_rig.Rig(ack_policy=policy, max_ack_pending=100_000 if policy == "explicit" else 0)
    client = listener(rig)
    client.transport.jammed = True
    for _ in range(100):
        rig.publish(*[(b"a", b"x" * 10_000)] * 10)
    rig.advance(1)
    assert why(rig) == "unread"
