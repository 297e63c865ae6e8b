from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from jetcluster.consumer.owner import pull
from jetcluster.consumer.owner.pull_queue import PullQueue, WaitingRoom
from jetcluster.consumer.owner.pull_request import PullRequest
from jetcluster.consumer.state.turn import ADVANCE, DELIVER, UNWAIT, WAIT
from jetcluster.store.api import DamagedError
from jetcluster.stream.log import commands
from tests.unit.consumer.rig import MS, SECOND, Rig, subjects


def test_an_empty_body_asks_for_one_message(rig: Rig) -> None:
    rig.publish(b"s.a", b"s.b")
    inbox = rig.next(body=b"")
    (frame,) = inbox
    assert (frame.subject, frame.payload) == (b"s.a", b"x")
    message = rig.node.store.get(1)
    assert message is not None
    assert frame.reply == b"$JS.ACK.S.C.1.1.1.%d.1" % message.ts
    assert rig.log == [(DELIVER, [1])]


def test_a_number_asks_for_that_many_and_anything_odd_for_one(rig: Rig) -> None:
    rig.publish(*subjects(5))
    assert rig.next(b"a", b"2").seqs == [1, 2]
    assert rig.next(b"b", b"0").seqs == [3]
    assert rig.next(b"c", b"what?").seqs == [4]


def test_one_op_for_a_whole_batch_and_no_trace_of_the_request(rig: Rig) -> None:
    rig.publish(*subjects(500))
    inbox = rig.next(batch=500, expires=SECOND)
    assert inbox.seqs == list(range(1, 501))
    assert [frame.numbers[3] for frame in inbox] == list(range(499, -1, -1))
    kinds = rig.kinds()
    assert DELIVER in kinds and WAIT not in kinds and UNWAIT not in kinds and len(kinds) < 4


def test_no_wait_without_messages_is_404(rig: Rig) -> None:
    (frame,) = rig.next(batch=5, no_wait=True)
    assert frame == (b"in", b"", b"NATS/1.0 404 No Messages\r\n\r\n", b"")


def test_no_wait_gets_what_is_there_and_then_404(rig: Rig) -> None:
    rig.publish(b"s.a", b"s.b")
    inbox = rig.next(batch=5, no_wait=True)
    assert inbox.seqs == [1, 2]
    assert [frame.status for frame in inbox] == [b"", b"", b"404 No Messages"]


def test_no_wait_with_expires_waits_for_the_first_messages(rig: Rig) -> None:
    inbox = rig.next(batch=5, no_wait=True, expires=SECOND)
    assert not inbox
    rig.publish(b"s.a", b"s.b")
    assert inbox.seqs == [1, 2] and inbox.statuses == [b"404 No Messages"]
    rig.next(b"other", batch=5, no_wait=True, expires=SECOND)
    rig.advance(1.1)
    assert rig.bus.listen(b"other").statuses == [b"408 Request Timeout"]


def test_no_wait_behind_others_that_take_everything_is_408() -> None:
    rig = Rig(max_ack_pending=1)
    rig.publish(b"s.a", b"s.b", b"s.c")
    rig.next(b"first", batch=10)
    assert rig.next(b"second", batch=1, no_wait=True).statuses == [b"408 Requests Pending"]


def test_no_wait_waits_for_room_when_acks_are_what_is_missing() -> None:
    rig = Rig(max_ack_pending=1)
    rig.publish(b"s.a", b"s.b")
    inbox = rig.next(batch=2, no_wait=True)
    assert inbox.seqs == [1] and inbox.statuses == []
    rig.ack(inbox[0])
    assert inbox.seqs == [1, 2]


def test_no_wait_with_a_heartbeat_waits_for_room_until_that() -> None:
    """A request that got something is over at its first heartbeat, one that got nothing waits on, as in nats-server."""
    rig = Rig(max_ack_pending=1)
    rig.publish(b"s.a", b"s.b")
    times = {"no_wait": True, "expires": SECOND, "idle_heartbeat": SECOND // 10}
    inbox = rig.next(batch=2, **times)
    other = rig.next(b"other", batch=1, **times)
    rig.advance(0.09)
    assert inbox.seqs == [1] and inbox.statuses == []
    rig.advance(0.02)
    assert inbox.statuses == [b"404 No Messages"] and rig.owner.num_waiting == len(other.statuses)
    rig.ack(inbox[0])
    assert inbox.seqs == [1]


def test_expires_tells_what_is_left(rig: Rig) -> None:
    rig.publish(b"s.a")
    inbox = rig.next(batch=3, expires=300 * MS, max_bytes=1000)
    size = len(inbox[0].subject) + len(inbox[0].reply) + len(inbox[0].payload)
    rig.advance(0.299)
    assert len(inbox) == 1
    rig.advance(0.002)
    assert inbox[1].headers == (
        b"NATS/1.0 408 Request Timeout\r\nNats-Pending-Messages: 2\r\nNats-Pending-Bytes: %d\r\n\r\n" % (1000 - size)
    )
    assert rig.owner.num_waiting == 0


def test_an_expired_request_takes_nothing_while_its_tick_is_late(rig: Rig) -> None:
    """Its client has gone on, and may only look there with its next request, which then asks for one too many."""
    inbox = rig.next(batch=1, expires=300 * MS)
    rig.time.set_time_ns(rig.now + 300 * MS)
    rig.publish(b"s.a")
    assert (inbox.seqs, [status[:3] for status in inbox.statuses]) == ([], [b"408"])
    assert rig.next(b"other", batch=1).seqs == [1]


def test_heartbeats_while_it_waits(rig: Rig) -> None:
    rig.publish(b"s.a", b"s.b")
    rig.ack(rig.next(b"x", body=b"")[0])
    rig.next(b"x", body=b"")
    inbox = rig.next(batch=2, expires=300 * MS, idle_heartbeat=100 * MS)
    rig.advance(0.31)
    beat = b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: 2\r\nNats-Last-Stream: 2\r\n\r\n"
    end = b"NATS/1.0 408 Request Timeout\r\nNats-Pending-Messages: 2\r\nNats-Pending-Bytes: 0\r\n\r\n"
    assert [frame.headers for frame in inbox] == [beat, beat, end]


def test_a_delivery_puts_the_heartbeat_off(rig: Rig) -> None:
    inbox = rig.next(batch=2, expires=SECOND, idle_heartbeat=100 * MS)
    rig.advance(0.08)
    rig.publish(b"s.a")
    rig.advance(0.08)
    assert len(inbox) == 1
    rig.advance(0.03)
    assert len(inbox) == 2


def test_a_heartbeat_above_half_of_expires_is_refused(rig: Rig) -> None:
    (frame,) = rig.next(batch=1, expires=SECOND, idle_heartbeat=SECOND // 2 + 1)
    assert frame.headers == b"NATS/1.0 400 Bad Request - heartbeat value too large\r\n\r\n"
    assert not rig.next(b"b", batch=1, expires=SECOND, idle_heartbeat=SECOND // 2)


@pytest.mark.parametrize("more", [{}, {"no_wait": True}, {"idle_heartbeat": -SECOND}])
def test_negative_expires_has_expired_already(more: dict[str, Any], rig: Rig) -> None:
    """The answers are those of nats-server 2.15.2, whether there are messages or not."""
    rig.publish(b"s.a")
    (frame,) = rig.next(batch=5, expires=-5 * SECOND, **more)
    assert frame.status == b"408 Request Timeout"
    assert b"Nats-Pending-Messages: 5\r\nNats-Pending-Bytes: 0\r\n" in frame.headers
    (frame,) = rig.next(b"other", batch=1, expires=-1, idle_heartbeat=1)
    assert frame.status == b"400 Bad Request - heartbeat value too large"
    assert rig.next(b"third").seqs == [1]


def test_a_heartbeat_looks_at_no_other_request(monkeypatch: pytest.MonkeyPatch, rig: Rig) -> None:
    inbox = rig.next(expires=10 * SECOND, idle_heartbeat=SECOND)
    for number in range(50):
        rig.next(b"quiet%d" % number, expires=20 * SECOND)
    rig.advance(0.9)  # what comes with the requests is over
    monkeypatch.setattr(PullQueue, "__iter__", _never)
    rig.advance(0.3)
    assert [frame.status for frame in inbox] == [b"100 Idle Heartbeat"]


def _never(_: PullQueue) -> Iterator[PullRequest]:
    raise AssertionError("all requests were looked at")


def test_broken_json_is_refused(rig: Rig) -> None:
    (frame,) = rig.next(body=b'{"batch":')
    assert frame.status == b"400 Bad Request - unexpected end of JSON input"
    (frame,) = rig.next(b"b", body=b'{"batch":"x"}')
    assert frame.status.startswith(b"400 Bad Request - json: cannot unmarshal string")


def test_max_bytes_ends_the_request(rig: Rig) -> None:
    rig.publish(b"s.a")
    inbox = rig.next(batch=2, max_bytes=5, expires=SECOND)
    assert [frame.headers for frame in inbox] == [
        b"NATS/1.0 409 Message Size Exceeds MaxBytes\r\nNats-Pending-Messages: 2\r\nNats-Pending-Bytes: 5\r\n\r\n"
    ]
    assert rig.next(b"b", body=b"").seqs == [1]  # it goes to the next one


def test_max_bytes_not_used_up_is_sent(rig: Rig) -> None:
    rig.publish(b"s.a", b"s.b", b"s.c")
    inbox = rig.next(batch=2, max_bytes=1000)
    used = sum(len(frame.subject) + len(frame.reply) + len(frame.payload) for frame in inbox[:2])
    assert inbox.seqs == [1, 2]
    assert inbox[2].headers == (
        b"NATS/1.0 409 Batch Completed\r\nNats-Pending-Messages: 0\r\nNats-Pending-Bytes: %d\r\n\r\n" % (1000 - used)
    )


def test_max_bytes_used_up_exactly_ends_without_a_word(rig: Rig) -> None:
    rig.publish(b"s.a", b"s.b")
    frame = rig.next(b"probe", body=b"")[0]
    rig.ack(frame, b"-NAK")
    size = len(frame.subject) + len(frame.reply) + len(frame.payload)
    inbox = rig.next(batch=5, max_bytes=size)
    assert inbox.seqs == [1] and inbox.statuses == [] and rig.owner.num_waiting == 0


def test_limits_of_the_consumer() -> None:
    rig = Rig(max_batch=5, max_expires=90 * SECOND, max_bytes=100)
    assert rig.next(batch=6).take()[0].status == b"409 Exceeded MaxRequestBatch of 5"
    assert rig.next(expires=91 * SECOND).take()[0].status == b"409 Exceeded MaxRequestExpires of 1m30s"
    assert rig.next(max_bytes=101).take()[0].status == b"409 Exceeded MaxRequestMaxBytes of 100"
    assert not rig.next(batch=5, expires=90 * SECOND, max_bytes=100)


def test_max_waiting_unless_it_wants_heartbeats() -> None:
    rig = Rig(max_waiting=2)
    rig.next(b"a", batch=1)
    rig.next(b"b", batch=1)
    assert rig.next(b"c", batch=1).statuses == [b"409 Exceeded MaxWaiting"]
    assert rig.next(b"d", batch=1, expires=SECOND, idle_heartbeat=100 * MS).statuses == []
    assert rig.owner.num_waiting == 2


def test_max_waiting_makes_room_for_the_living() -> None:
    rig = Rig(max_waiting=1)
    rig.next(b"a", batch=1)
    rig.advance(2)
    del rig.bus.inboxes[b"a"]
    assert rig.next(b"b", batch=1).statuses == []


def test_round_robin(rig: Rig) -> None:
    one, two = rig.next(b"one", batch=3), rig.next(b"two", batch=5)
    rig.publish(*subjects(8))
    assert one.seqs == [1, 3, 5]
    assert two.seqs == [2, 4, 6, 7, 8]


def test_several_pulls_of_one_client_bring_messages_in_order(rig: Rig) -> None:
    """nats.js consumes with overlapping pulls, all to one inbox."""
    inbox = rig.next(b"same", batch=3)
    rig.next(b"same", batch=4)
    rig.next(b"other", batch=2)
    rig.publish(*subjects(9))
    assert inbox.seqs == sorted(inbox.seqs)
    assert len(inbox.seqs) == 7


def test_whoever_was_served_comes_last(rig: Rig) -> None:
    one, two, three = rig.next(b"one", batch=9), rig.next(b"two", batch=9), rig.next(b"three", batch=9)
    rig.publish(b"s.a", b"s.b")
    rig.publish(b"s.c", b"s.d")
    assert (one.seqs, two.seqs, three.seqs) == ([1, 4], [2], [3])


def test_a_client_that_is_gone_gets_nothing(rig: Rig) -> None:
    rig.next(b"gone", batch=5)
    two = rig.next(b"two", batch=5)
    del rig.bus.inboxes[b"gone"]
    rig.publish(b"s.a", b"s.b")
    assert two.seqs == [1, 2]
    assert rig.owner.num_waiting == 1


def test_requests_of_clients_that_are_gone_are_reaped(rig: Rig) -> None:
    rig.next(b"gone", batch=5)
    rig.next(b"here", batch=5)
    del rig.bus.inboxes[b"gone"]
    rig.advance(6)
    assert list(rig.state.waiting) == [b"here"]
    assert rig.owner.num_waiting == 1


def test_who_asks_how_many_wait_hears_of_those_who_listen(rig: Rig) -> None:
    rig.next(b"gone", batch=5)
    rig.next(b"here", batch=5)
    del rig.bus.inboxes[b"gone"]
    assert rig.owner.num_waiting == 1


def test_max_ack_pending_holds_for_all_together() -> None:
    rig = Rig(max_ack_pending=3)
    rig.publish(*subjects(10))
    one, two = rig.next(b"one", batch=5), rig.next(b"two", batch=5)
    assert sorted(one.seqs + two.seqs) == [1, 2, 3]
    rig.ack(one[0])
    assert sorted(one.seqs + two.seqs) == [1, 2, 3, 4]


def test_max_ack_pending_counts_what_is_in_flight() -> None:
    rig = Rig(max_ack_pending=3)
    rig.publish(*subjects(10))
    rig.hold = True
    rig.next(b"one", batch=2)
    rig.next(b"two", batch=5)
    assert [value for kind, value, _ in rig.ops if kind == DELIVER] == [[1, 2], [3]]


def test_paused_requests_wait_and_expire() -> None:
    rig = Rig(pause_until_ns=0)
    rig.publish(b"s.a")
    rig.node.extended(21, {"name": "C", "pause_until": rig.now + 10 * SECOND})
    rig.owner.configured()
    inbox = rig.next(batch=1, expires=SECOND)
    no_wait = rig.next(b"nw", batch=1, no_wait=True)
    assert no_wait.statuses == [b"404 No Messages"]
    rig.advance(1.1)
    assert inbox.statuses == [b"408 Request Timeout"]
    late = rig.next(b"late", batch=1)
    rig.advance(8)
    assert not late
    rig.advance(1)
    assert late.seqs == [1]


def test_a_client_with_much_unread_gets_nothing_more_for_now(rig: Rig) -> None:
    rig.bus.unread[b"slow"] = 9 << 20
    slow, fast = rig.next(b"slow", batch=5), rig.next(b"fast", batch=5)
    rig.publish(*subjects(4))
    assert slow.seqs == [] and fast.seqs == [1, 2, 3, 4]
    rig.bus.unread.clear()
    rig.publish(*subjects(2))
    rig.advance(0.1)
    rig.advance(0.1)
    assert sorted(slow.seqs + fast.seqs) == [1, 2, 3, 4, 5, 6] and slow.seqs


def test_pulling_from_a_push_consumer() -> None:
    rig = Rig(deliver_subject="push", max_waiting=0)
    assert rig.next(batch=1).statuses == [b"409 Consumer is push based"]


def test_a_higher_api_level_than_ours(rig: Rig) -> None:
    inbox = rig.bus.listen(b"in")
    block = b"NATS/1.0\r\nNats-Required-Api-Level: 99\r\n\r\n"
    rig.bus.publish(b"$JS.API.CONSUMER.MSG.NEXT.S.C", b"", b"in", block)
    rig.settle()
    assert inbox.statuses == [b"412 Required Api Level"]


def test_the_domain_s_prefix(rig: Rig) -> None:
    rig.crash(domain="hub")
    rig.publish(b"s.a")
    inbox = rig.bus.listen(b"in")
    rig.bus.publish(b"$JS.hub.API.CONSUMER.MSG.NEXT.S.C", b"", b"in")
    rig.settle()
    assert inbox.seqs == [1]


def test_headers_only() -> None:
    rig = Rig(headers_only=True)
    rig.publish(b"s.a", payload=b"hello")
    (frame,) = rig.next(batch=1)
    assert (frame.headers, frame.payload) == (b"NATS/1.0\r\nNats-Msg-Size: 5\r\n\r\n", b"")


def test_many_requests_within_one_turn_are_one_op(rig: Rig) -> None:
    rig.publish(*subjects(50))
    for i in range(50):
        rig.bus.listen(b"in%d" % i)
        rig.bus.publish(b"$JS.API.CONSUMER.MSG.NEXT.S.C", b"", b"in%d" % i)
    rig.settle()
    assert [rig.bus.inboxes[b"in%d" % i].seqs for i in range(50)] == [[i + 1] for i in range(50)]
    assert [kind for kind in rig.kinds() if kind == DELIVER] == [DELIVER]


def test_unused_is_reported_after_the_threshold() -> None:
    rig = Rig(inactive_threshold=5 * SECOND, ack_wait=SECOND)
    rig.publish(b"s.a")
    rig.ack(rig.next(batch=2, expires=4 * SECOND)[0])
    rig.advance(3)
    assert rig.unused == 0
    rig.advance(5.5)
    assert rig.unused == 0  # the request waited until 4 s
    rig.advance(2)
    assert rig.unused >= 1


def test_pending_acks_keep_it_alive() -> None:
    rig = Rig(inactive_threshold=2 * SECOND, ack_wait=10 * SECOND)
    rig.publish(b"s.a")
    rig.next(body=b"")
    rig.advance(9)
    assert rig.unused == 0
    rig.advance(5)
    assert rig.unused >= 1


def test_a_waiting_client_keeps_it_alive_only_while_it_listens() -> None:
    rig = Rig(inactive_threshold=2 * SECOND)
    rig.next(batch=1)
    rig.advance(10)
    assert rig.unused == 0
    del rig.bus.inboxes[b"in"]
    rig.advance(6)
    assert rig.unused >= 1


def test_the_body_s_keys_in_any_case_and_others_ignored(rig: Rig) -> None:
    rig.publish(*subjects(5))
    assert rig.next(body=json.dumps({"Batch": 3, "what": [1]}).encode()).seqs == [1, 2, 3]


def test_waiting_costs_hardly_any_ticks(rig: Rig) -> None:
    rig.next(batch=2, expires=60 * SECOND)
    rig.publish(b"s")
    rig.advance(29)
    assert rig.ticks < 10


def test_what_was_sent_without_acks_is_in_the_log_when_somebody_wants_to_know() -> None:
    rig = Rig(ack_policy="none")
    rig.hold = True
    rig.publish(*subjects(3))
    rig.next(b"a", batch=1)
    rig.next(b"b", batch=2)
    rig.owner.flush()
    assert [value for kind, value, _ in rig.ops if kind == ADVANCE] == [(1, 1), (3, 2)]
    rig.commit()
    assert (rig.state.delivered_cseq, rig.state.delivered_sseq) == (3, 3)


def test_no_wait_behind_others_whose_clients_are_gone() -> None:
    rig = Rig(max_ack_pending=1)
    rig.publish(*subjects(3))
    frame = rig.next(b"first", batch=10)[0]
    del rig.bus.inboxes[b"first"]
    second = rig.next(b"second", batch=1, no_wait=True)
    assert second.statuses == []
    rig.ack(frame)
    assert second.seqs == [2]


def test_requests_come_into_the_log_when_the_stream_gets_replicas(rig: Rig) -> None:
    rig.crash(replicated=False)
    rig.next(b"a", batch=2)
    rig.owner.replicated = True
    rig.advance(6)
    assert list(rig.state.waiting) == [b"a"]


def test_replay_with_the_gaps_of_the_original() -> None:
    rig = Rig(replay_policy="original")
    for _ in range(3):
        rig.publish(b"s")
        rig.advance(0.3)
    inbox = rig.next(batch=10)
    assert inbox.seqs == [1]
    rig.advance(0.29)
    assert inbox.seqs == [1]
    rig.advance(0.02)
    assert inbox.seqs == [1, 2]
    rig.advance(0.3)
    assert inbox.seqs == [1, 2, 3]
    rig.publish(b"s", b"s")
    assert inbox.seqs == [1, 2, 3, 4, 5]  # the end was reached: as they come


def test_max_bytes_counts_what_is_sent_of_headers_only() -> None:
    rig = Rig(headers_only=True)
    rig.publish(b"s", b"s", payload=b"x" * 5000)
    inbox = rig.next(batch=2, max_bytes=500)
    used = sum(len(f.subject) + len(f.reply) + len(f.headers) for f in inbox[:2])
    assert inbox.seqs == [1, 2] and b"Nats-Pending-Bytes: %d\r\n" % (500 - used) in inbox[2].headers


def test_damage_is_raised_by_the_run_and_not_by_the_callback() -> None:
    rig = Rig(filter_subject="s.*")
    rig.publish(*subjects(3))
    inbox = rig.bus.listen(b"in")

    def damaged(*args: object) -> int:
        raise DamagedError(1, 3)

    rig.node.store.queries.count = rig.node.store.next_seqs = damaged  # type: ignore[method-assign,assignment]
    rig.bus.publish(b"$JS.API.CONSUMER.MSG.NEXT.S.C", b'{"no_wait":true}', b"in")
    assert not inbox
    with pytest.raises(DamagedError):
        rig.settle()
    assert rig.owner.num_waiting == 1


def test_a_request_that_gets_its_message_back_still_expires(rig: Rig) -> None:
    """The message in flight for it is lost; meanwhile the time of all others that waited has come."""
    rig.publish(b"s.a")
    rig.hold = True
    inbox = rig.next(b"a", batch=1, expires=3 * SECOND)
    rig.next(b"b", batch=1, expires=SECOND)
    rig.advance(2)
    assert rig.bus.listen(b"b").statuses == [b"408 Request Timeout"]
    rig.node.apply(commands.encode_purge(rig.node.now))
    rig.lose()
    rig.advance(2)
    assert inbox.statuses == [b"408 Request Timeout"]


def test_clients_that_are_gone_are_found_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step looks at some requests; the round has an end."""
    monkeypatch.setattr(pull, "REAPED_PER_STEP", 10)
    rig = Rig(max_waiting=1000)
    for number in range(40):
        rig.next(b"stays%d" % number, expires=60 * SECOND)
        rig.next(b"goes%d" % number, expires=60 * SECOND)
    for number in range(40):
        del rig.bus.inboxes[b"goes%d" % number]
    looks = 0
    has_interest = rig.bus.has_interest

    def counted(subject: bytes) -> bool:
        nonlocal looks
        looks += 1
        return has_interest(subject)

    monkeypatch.setattr(rig.bus, "has_interest", counted)
    assert rig.owner.delivery.num_waiting > 40
    assert looks == 10
    rig.advance(5.1)
    rig.advance(1)
    assert rig.owner.delivery.num_waiting == 40
    looks = 0
    rig.advance(3)
    assert looks == 0, "the next round comes five seconds later"


def test_no_more_wait_on_a_node_than_may() -> None:
    rig = Rig(max_waiting=0)
    rig.room = WaitingRoom(3, share=2)
    rig.take_over()
    for number in range(3):
        assert rig.next(b"in%d" % number, expires=SECOND).statuses == []
    assert rig.next(b"in4", expires=SECOND).statuses == [b"409 Exceeded MaxWaiting"]


def test_a_consumer_that_fills_the_node_keeps_no_other_out() -> None:
    hog, victim = Rig(max_waiting=0), Rig()
    hog.room = victim.room = room = WaitingRoom(1000)
    hog.take_over()
    victim.take_over()
    for number in range(1001):
        inbox = hog.next(b"hog%d" % number, expires=SECOND)
    assert inbox.statuses == [b"409 Exceeded MaxWaiting"] and room.count == 1000
    pulled = victim.next(b"victim", batch=1)
    victim.publish(b"s.a")
    assert pulled.seqs == [1] and pulled.statuses == []
