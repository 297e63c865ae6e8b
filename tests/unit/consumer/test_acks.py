from __future__ import annotations

import json

import pytest

from jetcluster.consumer.owner import acks
from jetcluster.consumer.owner.ack_subject import prefix, prefix_v2
from jetcluster.consumer.owner.acks import MAX_ACKS_PER_OP, nak_delay
from jetcluster.consumer.state.turn import ACK, NAK, TERM
from tests.unit.consumer.rig import MS, SECOND, Frame, Inbox, Rig


def rig_with(count: int, **config: object) -> tuple[Rig, Inbox]:
    rig = Rig(**config)  # type: ignore[arg-type]
    rig.publish(*[b"s.%d" % i for i in range(count)])
    return rig, rig.next(b"first", batch=count)


@pytest.mark.parametrize("word", [b"", b"+ACK", b"+OK"])
def test_acks_in_all_spellings(word: bytes) -> None:
    rig, inbox = rig_with(3)
    rig.ack(inbox[0], word)
    assert list(rig.state.pending) == [2, 3]
    assert rig.state.floor_sseq == 1


def test_acks_of_a_turn_are_one_op() -> None:
    rig, inbox = rig_with(200)
    for frame in inbox:
        rig.bus.publish(frame.reply, b"+ACK")
    rig.settle()
    assert [len(value) for kind, value in rig.log if kind == ACK] == [200]
    assert not rig.state.pending


def test_a_double_ack_is_answered_when_it_is_committed() -> None:
    rig, inbox = rig_with(1)
    answers = rig.bus.listen(b"answer")
    rig.hold = True
    rig.ack(inbox[0], b"+ACK", b"answer")
    rig.ack(inbox[0], b"+ACK", b"answer")
    assert not answers
    rig.release()
    assert answers == [Frame(b"answer", b"", b"", b"")] * 2
    rig.ack(inbox[0], b"", b"answer")  # once more: nothing changes, but there is an answer
    assert len(answers) == 3
    assert rig.kinds().count(ACK) == 2


def test_an_ack_of_what_was_never_delivered_is_not_answered() -> None:
    rig, inbox = rig_with(1)
    answers = rig.bus.listen(b"answer")
    rig.publish(b"s.more")
    reply = inbox[0].reply.split(b".")
    reply[5] = b"2"
    for word in (b"+ACK", b"-NAK", b"+TERM", b"junk"):
        rig.bus.publish(b".".join(reply), word, b"answer")
    rig.bus.publish(b"$JS.ACK.S.C.1.x.1.1.1", b"+ACK", b"answer")
    rig.settle()
    assert not answers and list(rig.state.pending) == [1]


def test_junk_is_answered_and_changes_nothing() -> None:
    rig, inbox = rig_with(1)
    answers = rig.bus.listen(b"answer")
    before = len(rig.log)
    rig.ack(inbox[0], b"what?", b"answer")
    assert len(answers) == 1 and len(rig.log) == before


def test_ack_all() -> None:
    rig, inbox = rig_with(5, ack_policy="all")
    answers = rig.bus.listen(b"answer")
    for frame in (inbox[0], inbox[3], inbox[1]):
        rig.bus.publish(frame.reply, b"+ACK", b"answer")
    rig.settle()
    assert list(rig.state.pending) == [5]
    assert [value for kind, value in rig.log if kind == ACK] == [[4]]
    assert len(answers) == 3
    rig.ack(inbox[0], b"+ACK", b"answer")
    assert len(answers) == 4 and list(rig.state.pending) == [5]


def test_a_nak_brings_it_back_at_once() -> None:
    rig, inbox = rig_with(2)
    rig.ack(inbox[0], b"-NAK")
    (frame,) = rig.next(b"second", batch=1)
    assert frame.numbers == (2, 1, 3, 0)


def test_a_nak_in_flight_comes_before_what_is_new() -> None:
    """Clients NAK and ask for the next message at once; they get the same one, whatever the log takes."""
    rig, inbox = rig_with(1)
    rig.publish(b"s.new")
    rig.hold = True
    rig.ack(inbox[0], b"-NAK")
    second = rig.next(b"second", batch=1)
    assert not second
    rig.release()
    (frame,) = second
    assert frame.numbers[:2] == (2, 1)


@pytest.mark.parametrize("word", [b'-NAK {"delay": 200000000}', b"-NAK 200ms", b'-NAK{"Delay":200000000}'])
def test_a_nak_with_a_delay(word: bytes) -> None:
    rig, inbox = rig_with(1)
    rig.ack(inbox[0], word)
    second = rig.next(b"second", batch=1)
    rig.advance(0.19)
    assert not second
    rig.advance(0.02)
    assert second.seqs == [1]


def test_a_nak_with_a_delay_takes_it_out_of_the_queue() -> None:
    rig, inbox = rig_with(1)
    rig.ack(inbox[0], b"-NAK")
    rig.ack(inbox[0], b"-NAK 1s")
    assert not rig.next(b"second", batch=1)
    rig.advance(1.1)
    assert rig.bus.inboxes[b"second"].seqs == [1]


@pytest.mark.parametrize(
    ("text", "delay"),
    [
        (b"", 0),
        (b" ", 0),
        (b"5s", 5 * SECOND),
        (b' {"delay": 7}', 7),
        (b'{"delay":-7}', 0),
        (b'{"delay":"7"}', 0),
        (b'{"delay":1.5}', 0),
        (b'{"x":1,"DELAY":9}', 9),
        (b"{", 0),
        (b"-5s", 0),
        (b"soon", 0),
        (b'{"delay":99999999999999999999}', 0),
    ],
)
def test_delays(text: bytes, delay: int) -> None:
    assert nak_delay(text) == delay


def test_naked_messages_join_the_end_of_the_queue() -> None:
    rig, inbox = rig_with(4)
    for i in (2, 0, 3):
        rig.ack(inbox[i], b"-NAK")
    rig.publish(b"s.new")
    assert rig.next(b"second", batch=10).seqs == [3, 1, 4, 5]


@pytest.mark.parametrize("word", [b"+WPI", b"-WPI"])
def test_progress_puts_the_redelivery_off(word: bytes) -> None:
    rig, inbox = rig_with(2, ack_wait=SECOND)
    rig.advance(0.7)
    rig.ack(inbox[0], word)
    second = rig.next(b"second", batch=5)
    rig.advance(0.4)
    assert second.seqs == [2]
    rig.advance(0.7)
    assert second.seqs == [2, 1]


@pytest.mark.parametrize("word", [b"+TERM", b"-TERM", b"+TERM  no good \r\n"])
def test_terminated_messages_never_come_back(word: bytes) -> None:
    rig, inbox = rig_with(1, ack_wait=SECOND)
    events = rig.event("MSG_TERMINATED")
    answers = rig.bus.listen(b"answer")
    rig.ack(inbox[0], word, b"answer")
    assert len(answers) == 1
    second = rig.next(b"second", batch=1)
    rig.advance(2)
    assert not second
    event = json.loads(events[0].payload)
    assert event.get("reason") == ("no good" if b"good" in word else None)
    del event["id"], event["timestamp"]
    event.pop("reason", None)
    assert event == {
        "type": "io.nats.jetstream.advisory.v1.terminated",
        "stream": "S",
        "consumer": "C",
        "consumer_seq": 1,
        "stream_seq": 1,
        "deliveries": 1,
    }


@pytest.mark.parametrize("word", [b"+NXT", b"-NXT", b"+NXT 1", b'+NXT {"batch":1}'])
def test_next_acks_and_asks_for_more(word: bytes) -> None:
    rig, inbox = rig_with(1)
    rig.publish(b"s.b", b"s.c")
    more = rig.bus.listen(b"more")
    rig.ack(inbox[0], word, b"more")
    assert more.seqs == [2] and len(more) == 1
    assert list(rig.state.pending) == [2]


def test_next_makes_its_own_room() -> None:
    rig = Rig(max_ack_pending=1)
    rig.publish(b"s.a", b"s.b")
    more = rig.bus.listen(b"more")
    rig.ack(rig.next(b"first", batch=1)[0], b"+NXT", b"more")
    assert more.seqs == [2]


def test_naks_are_published() -> None:
    rig, inbox = rig_with(2)
    rig.ack(inbox[1], b"-NAK")  # nobody listens
    events = rig.event("MSG_NAKED")
    rig.ack(rig.next(b"second", batch=1)[0], b"-NAK 1s")
    (event,) = [json.loads(frame.payload) for frame in events]
    assert event["type"] == "io.nats.jetstream.advisory.v1.nak"
    assert (event["consumer_seq"], event["stream_seq"], event["deliveries"]) == (3, 2, 2)


def test_ack_metrics_are_sampled() -> None:
    rig, inbox = rig_with(100, sample_freq="30%")
    metrics = rig.bus.listen(b"$JS.EVENT.METRIC.CONSUMER.ACK.S.C")
    rig.advance(0.25)
    for frame in inbox:
        rig.ack(frame)
    assert 10 < len(metrics) < 50
    metric = json.loads(metrics[0].payload)
    assert metric["type"] == "io.nats.jetstream.metric.v1.consumer_ack"
    assert abs(metric["ack_time"] - 250 * MS) < MS
    assert metric["deliveries"] == 1 and metric["stream_seq"] == metric["consumer_seq"]


def test_an_ack_none_consumer_takes_no_acks() -> None:
    rig, inbox = rig_with(1, ack_policy="none")
    assert rig.bus.publish(inbox[0].reply, b"+ACK", b"answer") == 0


@pytest.mark.parametrize("ack_v2", [False, True])
def test_both_forms_of_ack_subjects_are_taken_whichever_is_sent(ack_v2: bool) -> None:
    rig = Rig()
    rig.crash(ack_v2=ack_v2)
    rig.publish(*[b"s.a"] * 7)
    inbox = rig.next(b"first", batch=7)
    forms = prefix(b"S", b"C"), prefix_v2(b"", rig.bus.account, b"S", b"C")
    assert inbox[0].reply.startswith(forms[ack_v2])
    tails = [message.reply.removeprefix(forms[ack_v2]) for message in inbox]
    assert rig.bus.publish(forms[0] + tails[0], b"+ACK")
    assert rig.bus.publish(forms[1] + tails[1], b"")
    assert rig.bus.publish(forms[1] + tails[2] + b".x7", b"+TERM")
    assert rig.bus.publish(forms[1] + tails[3] + b".x7.y", b"+ACK", b"answer")
    assert rig.bus.publish(forms[1] + tails[4], b'-NAK {"delay": 2000000000}')
    assert not rig.bus.publish(forms[1] + tails[5].rpartition(b".")[0], b"+ACK"), "a number is missing"
    assert not rig.bus.publish(forms[0] + tails[5] + b".x7", b"+ACK"), "version 1 has no more tokens"
    answers = rig.bus.listen(b"answer")
    rig.settle()
    assert list(rig.state.pending) == [5, 6, 7] and len(answers) == 1
    assert not [seq for seq in inbox.seqs[7:] if seq != 5]


def test_acks_that_were_lost_go_into_the_log_again() -> None:
    rig, inbox = rig_with(3)
    answers = rig.bus.listen(b"answer")
    rig.hold = True
    rig.ack(inbox[0], b"+ACK", b"answer")
    rig.ack(inbox[1], b"-NAK", b"answer")
    rig.lose()
    assert not answers
    rig.release()
    assert len(answers) == 2
    assert sorted(rig.state.pending) == [2, 3]
    assert rig.next(b"second", batch=5).seqs == [2]


def test_an_answer_does_not_overtake_what_is_in_flight() -> None:
    rig, inbox = rig_with(2)
    rig.ack(inbox[0])
    answers = rig.bus.listen(b"answer")
    rig.hold = True
    rig.ack(inbox[1], b"+ACK", b"answer.1")
    rig.ack(inbox[0], b"-NAK", b"answer")
    assert not answers
    rig.release()
    assert len(answers) == 1


def test_progress_and_nak_in_one_turn() -> None:
    rig, inbox = rig_with(1)
    rig.bus.publish(inbox[0].reply, b"+WPI")
    rig.bus.publish(inbox[0].reply, b"-NAK")
    rig.settle()
    assert rig.next(b"second", batch=1).seqs == [1]
    assert NAK in rig.kinds()


def test_acks_of_before_a_reset_of_the_consumer_do_not_count() -> None:
    rig, inbox = rig_with(3)
    answers = rig.bus.listen(b"answer")
    rig.hold = True
    rig.ack(inbox[0], b"+ACK", b"answer")
    rig.node.extended(22, {"name": "C", "seq": 1})
    rig.lose()
    rig.release()
    assert len(answers) == 1
    assert rig.next(b"second", batch=5).seqs == [1, 2, 3]
    assert sorted(rig.state.pending) == [1, 2, 3]


def test_a_flood_of_acks_goes_out_in_several_ops() -> None:
    rig, inbox = rig_with(1)
    for _ in range(70_000):
        rig.bus.subscriptions[1].callback(inbox[0].reply, b"", b"", b"+ACK", None)  # type: ignore[arg-type]
    assert {len(value) for _, value, _ in rig.ops} == {MAX_ACKS_PER_OP} and len(rig.ops) == 70_000 // MAX_ACKS_PER_OP  # type: ignore[arg-type]
    rig.settle()
    assert not rig.state.pending


def test_one_ack_of_very_many_goes_in_steps_and_is_answered_with_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each replica applies a step in one go, and may remove all of its messages from the stream."""
    monkeypatch.setattr(acks, "MAX_ACKS_PER_OP", 3)
    rig, inbox = rig_with(9, ack_policy="all")
    answers = rig.bus.listen(b"answer")
    rig.hold = True
    rig.ack(inbox[6], b"+ACK", b"answer")
    assert [value for _, value, _ in rig.ops] == [[3], [6], [7]]
    rig.ack(inbox[8], b"+ACK")
    assert [value for _, value, _ in rig.ops[3:]] == [[9]], "what is on its way already takes no step"
    first, rig.ops[:] = rig.ops[:], rig.ops[:2]
    rig.commit()
    assert list(rig.state.pending) == [7, 8, 9] and not answers
    rig.ops[:] = first[2:]
    rig.commit()
    assert not rig.state.pending and len(answers) == 1


def test_steps_that_were_lost_go_into_the_log_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acks, "MAX_ACKS_PER_OP", 2)
    rig, inbox = rig_with(5, ack_policy="all")
    answers = rig.bus.listen(b"answer")
    rig.hold = True
    rig.ack(inbox[3], b"+ACK", b"answer")
    rig.lose()
    assert [value for _, value, _ in rig.ops] == [[2], [4]] and not answers
    rig.release()
    assert list(rig.state.pending) == [5] and len(answers) == 1


def test_a_term_of_a_policy_all_settles_what_lies_below_in_steps_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acks, "MAX_ACKS_PER_OP", 2)
    rig, inbox = rig_with(6, ack_policy="all")
    rig.hold = True
    rig.ack(inbox[4], b"+TERM")
    assert [(kind, value) for kind, value, _ in rig.ops] == [(ACK, [2]), (ACK, [4]), (TERM, [5])]
    rig.release()
    assert list(rig.state.pending) == [6]


def test_terms_of_a_policy_all_that_are_far_apart_go_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acks, "MAX_ACKS_PER_OP", 2)
    rig, inbox = rig_with(8, ack_policy="all")
    answers = [rig.bus.listen(subject) for subject in (b"highest", b"lowest")]
    rig.hold = True
    for at, answer in ((6, b"highest"), (0, b"lowest")):
        rig.bus.publish(inbox[at].reply, b"+TERM", answer)
    rig.settle()
    ops = [(kind, value) for kind, value, _ in rig.ops]
    assert ops == [(TERM, [1]), (ACK, [2]), (ACK, [4]), (ACK, [6]), (TERM, [7])]
    assert not any(answers)
    rig.release()
    assert list(rig.state.pending) == [8] and [len(one) for one in answers] == [1, 1]


def test_an_op_says_how_many_messages_it_may_settle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small acks of many consumers with much to be acknowledged go into the log together."""
    monkeypatch.setattr(acks, "MAX_ACKS_PER_OP", 5)
    rig, inbox = rig_with(12, ack_policy="all")
    rig.hold = True
    for at in (1, 2, 11):
        rig.ack(inbox[at])
    assert [(value, token.settles) for _, value, token in rig.ops] == [  # type: ignore[attr-defined]
        ([2], 2), ([3], 3), ([8], 5), ([12], 4),
    ]  # fmt: skip
    rig.ack(inbox[11])
    assert rig.ops[4:][0][2].settles == 1, "what is on its way is not walked over again"  # type: ignore[attr-defined]
