"""Push deliveries as a client at a real router sees them; their rate, saved up for a tenth of a second at most."""

from __future__ import annotations

from typing import Any

import pytest

from jetcluster.consumer.owner import delivery, push
from jetcluster.consumer.owner.ack_subject import of_flow_control, prefix_v2
from jetcluster.consumer.owner.push import RateLimit
from jetcluster.stream.log import commands
from testkit.server_rig import FakePeer, Peer
from tests.unit.consumer.push_rig import SECOND, Frame, Rig

HEARTBEAT = b"NATS/1.0 100 Idle Heartbeat\r\n"
FLOW = b"NATS/1.0 100 FlowControl Request\r\n\r\n"


def numbers(frames: list[Frame]) -> list[tuple[int, int, int, int]]:
    return [frame.numbers for frame in frames if frame.reply.startswith(b"$JS.ACK.")]


def pushing(**config: Any) -> tuple[Rig, Peer]:
    rig = Rig(**config)
    return rig, listener(rig)


def listener(rig: Rig, *lines: bytes) -> Peer:
    client = rig.server_rig.client()
    client.send(*(lines or (b"SUB inbox 1",)))
    return client


# -- without acks ---------------------------------------------------------------------------------------------------


def test_messages_show_their_own_subject_and_tell_where_they_stand() -> None:
    rig, client = pushing()
    rig.publish((b"orders.1", b"one"), (b"orders.2", b"two"))
    first, second = rig.got(client)
    ts = rig.node.store.get(1).ts  # type: ignore[union-attr]
    assert first == (b"orders.1", b"$JS.ACK.S.C.1.1.1.%d.1" % ts, b"", b"one")
    assert second == (b"orders.2", b"$JS.ACK.S.C.1.2.2.%d.0" % (ts + 1), b"", b"two")
    assert rig.node.floors() == (2, 2, 2, 2), "the log knows"


def test_a_consumer_made_before_its_subscription_waits_for_it() -> None:
    rig = Rig()
    rig.publish(b"a", b"b")
    rig.advance(1)
    assert not rig.owner.push_bound
    assert rig.node.floors() == (0, 0, 0, 0)
    client = listener(rig, b"SUB inbo* 1")
    assert not rig.owner.push_bound, "inbo* is no wildcard"
    assert rig.got(client) == []


@pytest.mark.parametrize("pattern", [b"_INBOX.x.1", b"_INBOX.x.*", b"_INBOX.>"])
def test_deliveries_begin_within_milliseconds_of_the_subscription(pattern: bytes) -> None:
    rig = Rig(deliver_subject="_INBOX.x.1")
    rig.publish(b"a", b"b")
    rig.advance(1)
    client = rig.server_rig.client()
    client.send(b"SUB %b 1" % pattern)
    assert [frame.subject for frame in rig.got(client, 0.003)] == [b"a", b"b"]


def test_nothing_comes_before_who_asked_for_the_consumer_is_answered() -> None:
    rig, client = pushing(idle_heartbeat=SECOND)
    rig.publish(b"a", b"b")
    rig.owner.hold(rig.time.time_ns() + SECOND // 4)
    assert rig.got(client, 0.2) == [] and rig.owner.push_bound
    rig.owner.release()
    assert [frame.subject for frame in rig.got(client)] == [b"a", b"b"]
    rig.owner.hold(rig.time.time_ns() + SECOND // 4)
    rig.publish(b"c")
    assert rig.got(client, 0.2) == []
    assert [frame.subject for frame in rig.got(client, 0.1)] == [b"c"], "the word may never come"


def test_a_release_does_not_undo_what_else_holds_deliveries() -> None:
    rig, client = pushing(rate_limit_bps=8 * 1000)
    rig.publish(*((b"a", bytes(1000)) for _ in range(4)))
    before = len(rig.got(client, 0.1))
    rig.owner.release()
    assert before < 4 and rig.got(client, 0.1) == []


def test_interest_of_another_node_counts() -> None:
    rig = Rig()
    rig.publish(b"a")
    peer = FakePeer("far")
    rig.server_rig.router.peers.set_interest(peer, b"inbox", None, 1)
    rig.advance()
    ((account, target, queues, messages),) = peer.sent_many
    assert (account, target, queues, [message[0] for message in messages]) == ("$G", b"inbox", [], [b"a"])
    rig.server_rig.router.peers.drop_peer(peer)
    rig.publish(b"b")
    rig.advance()
    assert len(peer.sent_many) == 1
    assert rig.node.floors()[0] == 1


def test_lost_interest_stops_and_goes_on_where_it_stopped() -> None:
    rig, client = pushing()
    rig.publish(b"a")
    assert len(rig.got(client)) == 1
    client.send(b"UNSUB 1")
    rig.publish(b"b", b"c")
    assert rig.got(client, 1) == []
    client.send(b"SUB inbox 2")
    assert numbers(rig.got(client)) == [(1, 2, 2, 1), (1, 3, 3, 0)]


def test_what_was_sent_without_acks_is_not_sent_again_when_the_log_lost_it() -> None:
    rig, client = pushing(lag=None)
    rig.publish(b"a", b"b")
    assert len(rig.got(client)) == 2
    rig.lose()
    rig.publish(b"c")
    assert numbers(rig.got(client)) == [(1, 3, 3, 0)]
    rig.commit()
    assert rig.node.floors() == (3, 3, 3, 3)


def test_without_a_log_only_so_much_is_sent_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "MAX_UNCONFIRMED_MESSAGES", 100)
    rig, client = pushing(lag=None)
    rig.publish(*[b"a"] * 3000)
    sent = len(rig.got(client, 1))
    assert 100 <= sent < 100 + push.SLICE_MESSAGES
    rig.commit()
    rig.commit()
    assert len(rig.got(client, 1)) > 0


def test_a_large_stream_goes_out_whole_and_in_order() -> None:
    rig = Rig()
    for _ in range(20):
        rig.publish(*[(b"a", b"x" * 200)] * 500)
    client = listener(rig)
    found = rig.got(client, 0.2)
    assert numbers(found) == [(1, n, n, 10_000 - n) for n in range(1, 10_001)]
    assert rig.node.floors()[0] == 10_000


def test_headers_only() -> None:
    rig, client = pushing(headers_only=True)
    rig.publish((b"a", b"12345"))
    (frame,) = rig.got(client)
    assert (frame.headers, frame.payload) == (b"NATS/1.0\r\nNats-Msg-Size: 5\r\n\r\n", b"")


# -- with acks ------------------------------------------------------------------------------------------------------


def acked(**config: object) -> dict[str, object]:
    return {"ack_policy": "explicit", "max_ack_pending": 1000, **config}


def test_with_acks_nothing_is_sent_before_the_log_knows() -> None:
    rig, client = pushing(lag=None, **acked())
    rig.publish(b"a", b"b")
    assert rig.got(client) == []
    rig.commit()
    assert numbers(rig.got(client)) == [(1, 1, 1, 1), (1, 2, 2, 0)]
    assert list(rig.node.state().pending) == [1, 2]


def test_max_ack_pending_and_redelivery() -> None:
    rig, client = pushing(**acked(max_ack_pending=2, ack_wait=SECOND))
    rig.publish(b"a", b"b", b"c")
    first = rig.got(client)
    assert numbers(first) == [(1, 1, 1, 2), (1, 2, 2, 1)]
    client.send(b"PUB %b 0" % first[1].reply, b"")
    assert numbers(rig.got(client)) == [(1, 3, 3, 0)]
    assert numbers(rig.got(client, 1.1)) == [(2, 1, 4, 0), (2, 3, 5, 0)]


def test_redeliveries_wait_for_interest() -> None:
    rig, client = pushing(**acked(ack_wait=SECOND))
    rig.publish(b"a", b"b")
    assert len(rig.got(client)) == 2
    client.send(b"UNSUB 1")
    assert rig.got(client, 3) == []
    assert list(rig.node.state().pending) == [1, 2]
    client.send(b"SUB inbox 2")
    assert numbers(rig.got(client)) == [(2, 1, 3, 0), (2, 2, 4, 0)]


def test_what_was_acknowledged_on_the_way_is_not_sent_again() -> None:
    rig, client = pushing(lag=None, **acked(ack_wait=SECOND))
    rig.publish(b"a", b"b", b"c")
    rig.advance()
    rig.commit()
    sent = rig.got(client)
    rig.advance(1.1)  # the redelivery is in flight
    rig.node.ack(2)
    rig.commit()
    assert numbers(rig.got(client)) == [(2, 1, 4, 0), (2, 3, 5, 0)]
    assert len(sent) == 3


def test_lost_turns_are_decided_again() -> None:
    rig, client = pushing(lag=None, **acked())
    rig.publish(b"a", b"b")
    rig.advance()
    rig.lose()
    rig.advance()
    rig.commit()
    assert numbers(rig.got(client)) == [(1, 1, 1, 1), (1, 2, 2, 0)]


def test_a_stream_with_one_replica_sends_at_once_and_takes_acks_that_are_early() -> None:
    """Deliveries as a subscriber sees them right after the PubAck (nats.c's tests of drain and of sequence
    mismatches)."""
    rig, client = pushing(lag=None, replicated=False, **acked())
    client.send(b"SUB answer 9")
    rig.publish(b"a", b"b")
    first = rig.got(client)
    assert numbers(first) == [(1, 1, 1, 1), (1, 2, 2, 0)]
    client.send(b"PUB %b answer 4" % first[0].reply, b"+ACK")
    client.send(b"PUB %b 4" % first[1].reply, b"-NAK")
    client.send(b"PUB %b 4" % first[1].reply.replace(b".2.2.", b".7.7."), b"+ACK")  # was never sent
    rig.publish(b"c")
    assert numbers(rig.got(client)) == [(1, 3, 3, 0)]
    rig.commit()
    assert list(rig.node.state().pending) == [1, 2, 3]
    assert rig.got(client) == [], "the ack is not in the log yet"
    rig.commit()
    assert list(rig.node.state().pending) == [2, 3]
    assert [frame.subject for frame in rig.got(client)] == [b"answer"]
    rig.commit()
    assert numbers(rig.got(client)) == [(2, 2, 4, 0)]


def test_where_deliveries_are_counted_the_log_comes_first() -> None:
    rig, client = pushing(lag=None, replicated=False, **acked(max_deliver=3))
    rig.publish(b"a")
    assert rig.got(client) == []
    rig.commit()
    assert numbers(rig.got(client)) == [(1, 1, 1, 0)]


def test_what_was_sent_at_once_and_lost_is_sent_again() -> None:
    rig, client = pushing(lag=None, replicated=False, **acked())
    rig.publish(b"a", b"b")
    sent = rig.got(client)
    client.send(b"PUB %b 4" % sent[0].reply, b"+ACK")
    rig.lose()
    again = rig.got(client)
    assert numbers(again) == numbers(sent) == [(1, 1, 1, 1), (1, 2, 2, 0)]
    rig.commit()
    rig.advance()
    assert list(rig.node.state().pending) == [1, 2]


def test_new_messages_stay_behind_a_redelivery_that_is_on_its_way() -> None:
    rig, client = pushing(lag=None, replicated=False, **acked(ack_wait=SECOND))
    rig.publish(b"a")
    rig.advance()
    rig.commit()
    assert len(rig.got(client, 1.1)) == 1  # its redelivery is in flight
    rig.publish(b"b")
    assert rig.got(client) == []
    rig.commit()
    assert numbers(rig.got(client)) == [(2, 1, 2, 0), (1, 2, 3, 0)]
    rig.publish(b"c")
    assert numbers(rig.got(client)) == [(1, 3, 4, 0)]


# -- deliver groups -------------------------------------------------------------------------------------------------


def test_a_deliver_group_needs_a_member_of_the_group() -> None:
    rig = Rig(**acked(deliver_group="q"))
    rig.publish(*[b"a"] * 100)
    plain = listener(rig)
    rig.advance(0.1)
    assert not rig.owner.push_bound
    members = [listener(rig, b"SUB inbox q 1"), listener(rig, b"SUB inbox q 1")]
    found = [rig.got(member, 0.05) for member in members]
    assert sorted(n[1] for frames in found for n in numbers(frames)) == list(range(1, 101))
    assert min(map(len, found)) > 20
    assert len(rig.got(plain)) == 100, "whoever listens besides hears all of it, as with any queue group"


# -- heartbeats and flow control --------------------------------------------------------------------------------------


def test_heartbeats_come_when_nothing_else_does() -> None:
    rig, client = pushing(idle_heartbeat=SECOND // 2)
    rig.publish(b"a", b"b")
    rig.advance(0.4)
    assert len(rig.got(client, 0)) == 2
    assert rig.got(client, 0.08) == []
    (beat,) = rig.got(client, 0.05)
    assert beat == (
        b"inbox", b"", HEARTBEAT + b"Nats-Last-Consumer: 2\r\nNats-Last-Stream: 2\r\n\r\n", b"",
    )  # fmt: skip
    assert len(rig.got(client, 1)) == 2
    client.send(b"UNSUB 1")
    assert rig.got(client, 2) == []
    client.send(b"SUB inbox 1")
    assert len(rig.got(client, 1.1)) == 2


def test_heartbeats_go_on_while_paused_and_deliveries_after_it() -> None:
    rig, client = pushing(idle_heartbeat=SECOND // 2)
    rig.pause(2)
    rig.publish(b"a")
    beats = rig.got(client, 1.9)
    assert len(beats) == 3
    assert all(beat.headers.startswith(HEARTBEAT) for beat in beats)
    assert numbers(rig.got(client, 0.2)) == [(1, 1, 1, 0)]


def test_flow_control_asks_stops_and_tells_that_it_is_stalled() -> None:
    rig, client = pushing(idle_heartbeat=SECOND, flow_control=True)
    for _ in range(60):
        rig.publish(*[(b"a", b"x" * 10_000)] * 10)
    sent = rig.got(client, 0.5)
    asked = [frame for frame in sent if frame.headers == FLOW]
    assert len(asked) == 1
    reply = asked[0].reply
    assert reply.startswith(b"$JS.FC.S.C.")
    assert asked[0].subject == b"inbox"
    size = sum(len(frame.payload) for frame in sent)
    assert (2 << 20) - 50_000 <= size < (2 << 20) + push.SLICE_BYTES
    (beat,) = rig.got(client, 1)
    assert beat.headers.endswith(b"Nats-Consumer-Stalled: %b\r\n\r\n" % reply)
    client.send(b"PUB $JS.FC.S.C.none 0", b"")
    assert rig.got(client, 0.1) == []
    client.send(b"PUB %b 0" % reply, b"")
    more = rig.got(client, 0.5)
    assert sum(len(frame.payload) for frame in more) + size > 5_000_000
    again = [frame for frame in more if frame.headers == FLOW]
    assert len(again) == 1
    assert again[0].reply != reply


def test_flow_control_asks_in_the_form_of_the_deliveries() -> None:
    rig, client = pushing(idle_heartbeat=SECOND, flow_control=True, ack_v2=True)
    rig.publish(*[(b"a", b"x" * 250_000)] * 30)
    v2 = prefix_v2(b"", rig.server_rig.router.account, b"S", b"C")
    sent = rig.got(client, 0.5)
    (reply,) = (frame.reply for frame in sent if frame.headers == FLOW)
    assert reply.startswith(of_flow_control(v2)) and sent[0].reply.startswith(v2)
    client.send(b"PUB %b 0" % reply, b"")
    assert rig.got(client, 0.5), "the answer confirms"


def test_large_messages_stay_within_the_window_too() -> None:
    rig, client = pushing(idle_heartbeat=SECOND, flow_control=True)
    for _ in range(32):
        rig.publish((b"a", b"x" * 250_000))
    found = rig.got(client, 0.5)
    assert [len(frame.payload) for frame in found].count(250_000) == 9, "the last one sticks out"
    assert found[5].headers == FLOW, "when more than half is under way"


def test_who_listens_anew_owes_no_answer_for_those_before() -> None:
    rig, client = pushing(idle_heartbeat=5 * SECOND, flow_control=True)
    for _ in range(32):
        rig.publish((b"a", b"x" * 250_000))
    stalled = rig.got(client, 0.5)
    client.connection.connection_lost(None)
    rig.advance(0.5)
    found = rig.got(listener(rig), 0.2)
    first, last = numbers(found)[0], numbers(stalled)[-1]
    assert first[1] == last[1] + 1
    assert len(numbers(found)) == 9


def test_the_subscription_for_flow_control_ends_with_the_owner() -> None:
    rig = Rig(idle_heartbeat=SECOND, flow_control=True)
    assert rig.server_rig.router.has_interest(b"$JS.FC.S.C.abcd")
    rig.owner.stop("moved")
    assert not rig.server_rig.router.has_interest(b"$JS.FC.S.C.abcd")
    assert not rig.server_rig.router.local.watched


def test_with_ack_policy_flow_control_the_answers_are_the_acks() -> None:
    rig, client = pushing(
        ack_policy="flow_control", flow_control=True, idle_heartbeat=SECOND, max_ack_pending=10, ack_wait=0
    )
    rig.publish(*[b"a"] * 12)
    sent = rig.got(client, 0.1)
    assert len(numbers(sent)) == 10
    assert sent[10].headers == FLOW, "as max_ack_pending is reached"
    assert not rig.server_rig.router.has_interest(sent[0].reply), "nobody listens to ordinary acks"

    def answer(reply: bytes, seq: int) -> None:
        block = b"NATS/1.0\r\nNats-Last-Consumer: %d\r\nNats-Last-Stream: %d\r\n\r\n" % (seq, seq)
        client.send(b"HPUB %b %d %d\r\n%b\r\n" % (reply, len(block), len(block), block))

    answer(sent[10].reply, 4)
    assert numbers(rig.got(client, 0.1)) == [(1, 11, 11, 1), (1, 12, 12, 0)]
    assert rig.node.floors() == (12, 12, 4, 4)
    beat, question = rig.got(client, 1)
    assert beat.headers.startswith(HEARTBEAT)
    assert question.headers == FLOW
    client.send(b"PUB %b 0" % question.reply, b"")
    rig.advance(0.1)
    assert rig.node.floors() == (12, 12, 4, 4), "an answer without a header acknowledges nothing"
    _, question = rig.got(client, 1)
    answer(question.reply, 99)
    rig.advance(0.1)
    assert rig.node.floors() == (12, 12, 12, 12)
    assert not rig.node.state().pending
    rig.got(client, 1)
    assert [frame.headers == FLOW for frame in rig.got(client, 1.01)] == [False], "nothing is left to ask for"


# -- back-pressure --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["none", "explicit"])
def test_a_client_that_does_not_read_is_waited_for(policy: str) -> None:
    rig, client = pushing(ack_policy=policy, max_ack_pending=100_000 if policy == "explicit" else 0)
    client.transport.jammed = True
    for _ in range(100):
        rig.publish(*[(b"a", b"x" * 10_000)] * 10)
    rig.advance(1)
    assert client.closed == ""
    assert client.connection.pending < push.MAX_BACKLOG_BYTES + push.SLICE_BYTES + 100_000
    assert len(client.transport.written) < 9_000_000
    found = rig.got(client, 0)
    for _ in range(200):
        client.transport.drain()
        client.transport.jammed = True
        found += rig.got(client, 0.1)
    assert [n[1] for n in numbers(found)] == list(range(1, 1001))


def test_rate_limit() -> None:
    rig = Rig(rate_limit_bps=80_000)
    rig.publish(*[(b"a", b"x" * 1000)] * 50)
    client = listener(rig)
    found = [len(rig.got(client, 0.5)) for _ in range(4)]
    assert 5 <= found[0] <= 7
    assert all(4 <= count <= 6 for count in found[1:])


def test_replay_original_keeps_the_gaps_until_the_end() -> None:
    rig = Rig(replay_policy="original")
    rig.publish(b"a")
    rig.advance(0.3)
    rig.publish(b"b", b"c")
    rig.advance(0.5)
    rig.publish(b"d")
    rig.advance(60)
    client = listener(rig)
    assert len(rig.got(client, 0.01)) == 1
    assert rig.got(client, 0.28) == []
    assert len(rig.got(client, 0.02)) == 2
    assert rig.got(client, 0.48) == []
    assert len(rig.got(client, 0.03)) == 1
    rig.publish(b"e")
    rig.advance(0.01)
    assert [frame.subject for frame in rig.got(client, 0)] == [b"e"], "from now on as they come"


# -- changes --------------------------------------------------------------------------------------------------------


def test_another_deliver_subject() -> None:
    rig = Rig()
    client, other = listener(rig), listener(rig, b"SUB other 1")
    rig.publish(b"a")
    assert len(rig.got(client)) == 1
    rig.update(deliver_subject="other")
    rig.publish(b"b")
    assert [frame.subject for frame in rig.got(other)] == [b"b"]
    assert rig.got(client) == []
    client.send(b"UNSUB 1")
    assert rig.owner.push_bound


@pytest.mark.parametrize("policy", ["none", "explicit"])
def test_a_reset_begins_anew_where_it_says(policy: str) -> None:
    rig, client = pushing(lag=None, ack_policy=policy, max_ack_pending=100 if policy == "explicit" else 0)
    rig.publish(b"a", b"b", b"c", b"d")
    rig.advance()
    rig.commit()
    assert [n[1:3] for n in numbers(rig.got(client))] == [(1, 1), (2, 2), (3, 3), (4, 4)]
    rig.sync()
    assert rig.node.extended(commands.CONSUMER_RESET, {"name": "C", "seq": 3}) == 3
    rig.ops.clear()
    rig.owner.reset()
    rig.advance()
    rig.commit()
    assert [n[1:3] for n in numbers(rig.got(client))] == [(3, 1), (4, 2)]
    assert rig.node.floors()[:2] == (2, 4)


@pytest.mark.parametrize("policy", ["none", "explicit"])
def test_another_owner_goes_on_where_the_log_stands(policy: str) -> None:
    rig, client = pushing(lag=None, ack_policy=policy, max_ack_pending=100 if policy == "explicit" else 0)
    rig.publish(b"a", b"b")
    rig.advance()
    rig.commit()
    rig.publish(b"c")
    sent = numbers(rig.got(client))
    assert sent[:2] == [(1, 1, 1, 1), (1, 2, 2, 0)]
    rig.ops.clear()
    rig.owner.stop("moved")
    rig.own()
    rig.advance()
    if policy == "explicit":
        rig.commit()
    assert numbers(rig.got(client)) == [(1, 3, 3, 0)], "what the log does not know is delivered again"


def test_an_unused_consumer_is_reported_once_its_threshold_has_passed() -> None:
    rig, client = pushing(inactive_threshold=SECOND)
    rig.advance(5)
    assert rig.unused == 0
    client.send(b"UNSUB 1")
    rig.advance(0.95)
    assert rig.unused == 0
    rig.advance(0.1)
    assert rig.unused == 1


def test_what_waits_for_acks_does_not_keep_an_unused_push_consumer() -> None:
    """A pull consumer is kept by it, a push consumer is not, as in nats-server (compared)."""
    rig, client = pushing(**acked(inactive_threshold=SECOND, ack_wait=60 * SECOND))
    rig.publish(b"a")
    assert len(rig.got(client)) == 1
    client.send(b"UNSUB 1")
    rig.advance(1.1)
    assert list(rig.node.state().pending) == [1]
    assert rig.unused == 1


T0 = 1_790_000_000 * SECOND


def test_the_rate_holds_over_time() -> None:
    limit = RateLimit(8_000)  # 1,000 bytes per second
    now, sent = T0, 0
    while now < T0 + 10 * SECOND:
        count = limit.fitting([100] * 50, now)
        sent += count * 100
        assert count < 50
        assert limit.wait_until > now
        now = limit.wait_until
    assert 10_000 <= sent <= 10_300


def test_a_message_larger_than_what_is_saved_goes_and_is_waited_for() -> None:
    limit = RateLimit(8_000)
    assert limit.fitting([5_000, 1], T0) == 1
    assert limit.wait_until == T0 + 5 * SECOND - SECOND // 10
    assert limit.fitting([1], limit.wait_until - 1) == 0
    assert limit.fitting([1], limit.wait_until) == 1


def test_an_idle_consumer_saves_no_more_than_a_burst() -> None:
    limit = RateLimit(8_000)
    assert limit.fitting([10] * 100, T0) == 11
    assert limit.fitting([10] * 100, T0 + 3600 * SECOND) == 11
