"""Dead letters on their way from the owner to a stream that is played here."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from jetcluster.consumer.owner import owner as owner_module
from jetcluster.consumer.owner.letters import MAX_IN_FLIGHT
from jetcluster.consumer.state import ops
from jetcluster.consumer.state.letters import MAX_DELIVER
from jetcluster.consumer.state.turn import BURIED, BURY, EXHAUSTED, TERM
from jetcluster.model.times import parse_rfc3339, rfc3339
from jetcluster.protocol import headers as header_block
from jetcluster.protocol.bus import Origin
from jetcluster.protocol.subjects import matches
from jetcluster.store.batch import Batch
from jetcluster.stream.log import commands
from tests.unit.consumer.rig import SECOND, Frame, Rig

TO = {"subject": "dead.{consumer}.{subject}", "on_term": True}
API = b"$JS.API."


class Target:
    """The stream DEAD, on the bus of a rig: stores letters by id while it remembers them, and answers questions."""

    def __init__(self, rig: Rig, window: float = 120) -> None:
        self.rig = rig
        self.window = round(window * SECOND)
        self.stored: list[tuple[int, bytes, bytes, bytes]] = []
        """(time, subject, header block, payload)."""
        self.tries = 0
        self.error = ""
        self.silent = self.deaf = False
        """It stores and does not answer; it does not even store."""
        self.hidden = False
        """It is a stream of another account, which questions do not reach."""
        self.old = False
        """It is of a version without `msg_id_prefixes`."""
        self.asked: list[bytes] = []
        self.subscriptions = [
            rig.bus.subscribe(b"dead.>", self.publish),
            rig.bus.subscribe(API + b"STREAM.NAMES", self.ask),
            rig.bus.subscribe(API + b"STREAM.INFO.DEAD", self.ask),
            rig.bus.subscribe(API + b"STREAM.MSG.GET.DEAD", self.ask),
        ]

    def again(self) -> None:
        """After the bus forgot all its subscriptions."""
        self.rig.bus.subscriptions += self.subscriptions

    def gone(self) -> None:
        for one in self.subscriptions:
            self.rig.bus.unsubscribe(one)

    @property
    def ids(self) -> list[bytes | None]:
        return [header_block.get(block, b"Nats-Msg-Id") for _, _, block, _ in self.stored]

    @property
    def seqs(self) -> list[int]:
        return [int(header_block.get(block, b"Nats-Dead-Letter-Sequence") or 0) for _, _, block, _ in self.stored]

    def publish(self, subject: bytes, reply: bytes, headers: bytes, payload: bytes, origin: Origin) -> None:
        self.tries += 1
        now, letter = self.rig.now, header_block.get(headers, b"Nats-Msg-Id")
        if self.deaf:
            return
        if self.error:
            self.rig.bus.publish(reply, json.dumps({"error": {"description": self.error}}).encode())
            return
        known = any(
            at > now - self.window and header_block.get(block, b"Nats-Msg-Id") == letter
            for at, _, block, _ in self.stored
        )
        if not known:
            self.stored.append((now, subject, headers, payload))
        if not self.silent:
            answer = {"stream": "DEAD", "seq": len(self.stored)} | ({"duplicate": True} if known else {})
            self.rig.bus.publish(reply, json.dumps(answer).encode())

    def ask(self, subject: bytes, reply: bytes, headers: bytes, payload: bytes, origin: Origin) -> None:
        self.asked.append(subject)
        body = json.loads(payload or b"{}")
        answer: dict[str, Any]
        if subject.endswith(b"NAMES"):
            answer = {"streams": [], "total": 0} if self.hidden else {"streams": ["DEAD"], "total": 1}
        elif subject.endswith(b"INFO.DEAD"):
            state = {"last_seq": len(self.stored)}
            answer = {"config": {"duplicate_window": self.window}, "created": "then", "state": state}
        else:
            answer = self.message(body)
        if not self.silent:
            self.rig.bus.publish(reply, json.dumps(answer).encode())

    def message(self, body: dict[str, Any]) -> dict[str, Any]:
        assert body["next_by_subj"].startswith("dead.C.")
        for seq, (at, subject, block, _) in enumerate(self.stored, 1):
            if not matches(subject, body["next_by_subj"].encode()):
                continue
            if (seq >= body["seq"]) if "seq" in body else (rfc3339(at) >= body["start_time"]):
                if not self.old:
                    own = header_block.get(block, b"Nats-Msg-Id") or b""
                    found = [own.decode()] if own.startswith(tuple(map(str.encode, body["msg_id_prefixes"]))) else []
                    return {"msg_ids": {"searched": seq, "found": found}}
                hdrs = base64.b64encode(block).decode()
                return {"message": {"seq": seq, "subject": subject.decode(), "hdrs": hdrs}}
        if not self.old:
            return {"msg_ids": {"searched": len(self.stored), "found": []}}
        return {"error": {"code": 404, "err_code": 10037, "description": "no message found"}}


def rig(**config: Any) -> Rig:
    stream = config.pop("stream", None)
    return Rig(**{"stream": stream, "max_deliver": 1, "ack_wait": 5 * SECOND, "dead_letter": TO, **config})


def given_up(r: Rig, count: int = 1, subject: bytes = b"s.a") -> list[Frame]:
    """Messages that were delivered and are not acked in time."""
    r.publish(*[subject] * count)
    frames = r.next(batch=count).take()
    r.advance(6)
    return [frame for frame in frames if frame.reply]


def test_a_message_that_is_given_up_is_published_and_then_gone_from_the_log() -> None:
    r = rig(stream={"retention": "workqueue"})
    target, told = Target(r), r.event("MAX_DELIVERIES")
    block = (
        b"NATS/1.0\r\nA: 1\r\nNats-Msg-Id: own\r\nNats-Expected-Stream: S\r\nnats-ttl: 5s\r\nnats-rollup: sub\r\n"
        b"nats-schedule-Next: purge\r\nnats-batch-id: x\r\nNats-Dead-Letter-Reason: old\r\nA: 2\r\n\r\n"
    )
    r.node.apply(commands.encode_publish(r.node.now, Batch.encode([b"s.a"], [block], [b"work"])))
    r.next()
    r.advance(6)
    ((_, subject, headers, payload),) = target.stored
    assert (subject, payload) == (b"dead.C.s.a", b"work")
    found = header_block.parse(headers)
    at = dict(found).pop(b"Nats-Dead-Letter-Time")
    assert found == [
        (b"Nats-Msg-Id", b"dl:S:C:%d:1:%d" % (r.state.created, parse_rfc3339(at.decode()))),
        (b"Nats-Dead-Letter-Stream", b"S"), (b"Nats-Dead-Letter-Consumer", b"C"),
        (b"Nats-Dead-Letter-Sequence", b"1"), (b"Nats-Dead-Letter-Time", at),
        (b"Nats-Dead-Letter-Reason", b"max_deliver"), (b"Nats-Dead-Letter-Deliveries", b"1"),
        (b"Nats-Dead-Letter-Hops", b"1"),
        (b"Nats-Dead-Letter-Subject", b"s.a"), (b"A", b"1"), (b"Nats-Dead-Letter-Msg-Id", b"own"), (b"A", b"2"),
    ]  # fmt: skip
    assert not r.state.letters and r.node.stored() == [] and len(told) == 1
    assert [kind for kind in r.kinds() if kind in (BURY, BURIED, EXHAUSTED)] == [BURY, BURIED]


def test_a_termed_message_with_the_clients_text() -> None:
    r = rig()
    target, told = Target(r), r.event("MSG_TERMINATED")
    r.publish(b"s.a", b"s.b")
    first, second = r.next(batch=2).take()
    answers = r.bus.listen(b"answer")
    r.ack(first, b"+TERM no\r\nsuch order " + b"x" * 300, b"answer")
    assert len(answers) == 1 and len(told) == 1
    ((_, _, headers, _),) = target.stored
    assert header_block.get(headers, b"Nats-Dead-Letter-Reason") == b"terminated"
    text = header_block.get(headers, b"Nats-Dead-Letter-Term-Reason")
    assert text is not None and text.startswith(b"no such order xxx") and len(text) < 256
    r.ack(second)
    assert target.seqs == [1] and not r.state.letters


def test_only_what_is_wanted_becomes_a_letter() -> None:
    r = rig(dead_letter={"subject": "dead.C.x"})
    target = Target(r)
    r.publish(b"s.a")
    r.ack(r.next().take()[0], b"+TERM")
    assert TERM in r.kinds() and not target.stored
    r = rig(dead_letter={"subject": "dead.C.x", "on_max_deliver": False, "on_term": True})
    target = Target(r)
    given_up(r)
    assert EXHAUSTED in r.kinds() and not target.stored


def test_without_a_stream_it_is_tried_again_with_growing_pauses_and_never_dropped() -> None:
    r = rig()
    told = r.event("DEAD_LETTERS_FAIL")
    given_up(r, 3)
    assert list(r.state.letters.by_seq) == [1, 2, 3] and r.owner.letters.last_error == "no stream takes their subject"
    assert len(told) == 1 and json.loads(told[0].payload)["error"] == "no stream takes their subject"
    r.advance(600)
    assert r.ticks < 100 and len(told) == 1
    target = Target(r)
    r.advance(31)
    assert sorted(target.seqs) == [1, 2, 3] and not r.state.letters and r.owner.letters.last_error == ""


def test_a_target_that_refuses_is_asked_again() -> None:
    r = rig()
    target = Target(r)
    target.error = "maximum messages exceeded"
    given_up(r)
    r.advance(60)
    assert 3 < target.tries < 9 and r.owner.letters.last_error == "maximum messages exceeded"
    target.error = ""
    r.advance(31)
    assert target.seqs == [1] and not r.state.letters


def test_an_answer_that_is_no_puback_is_none() -> None:
    r = rig()
    for odd in (b"", b"ok", b"[]", b'{"stream":"","seq":1}', b'{"stream":"D","seq":0}', b'{"error":5}'):
        taker = r.bus.subscribe(
            b"dead.>", lambda subject, reply, headers, payload, origin, odd=odd: r.bus.publish(reply, odd) and None
        )
        given_up(r)
        assert r.state.letters and "PubAck" in r.owner.letters.last_error, odd
        r.bus.unsubscribe(taker)


def test_an_answer_that_is_lost_is_a_duplicate_the_next_time() -> None:
    r = rig()
    target = Target(r)
    target.silent = True
    given_up(r)
    target.silent = False
    assert target.seqs == [1] and r.state.letters
    r.advance(10)
    assert target.seqs == [1] and not r.state.letters


def test_at_most_so_many_are_under_way() -> None:
    r = rig(max_ack_pending=100)
    target = Target(r)
    target.deaf = True
    given_up(r, 40)
    assert target.tries == MAX_IN_FLIGHT
    target.deaf = False
    r.advance(60)
    assert sorted(target.seqs) == list(range(1, 41)) and not r.state.letters


def test_a_message_that_limits_removed_is_told_without_its_payload() -> None:
    r = rig()
    given_up(r)
    r.node.apply(commands.encode_purge(r.node.now))
    target = Target(r)
    r.advance(40)
    ((_, subject, headers, payload),) = target.stored
    assert subject == b"dead.C._" and payload == b""
    assert header_block.get(headers, b"Nats-Dead-Letter-Removed") == b"true"
    assert header_block.get(headers, b"Nats-Dead-Letter-Subject") is None


def test_without_room_messages_stay_pending(monkeypatch: pytest.MonkeyPatch) -> None:
    from jetcluster.consumer.owner import context

    monkeypatch.setattr(ops, "MAX_LETTERS", 2)
    monkeypatch.setattr(context, "MAX_LETTERS", 2)
    monkeypatch.setattr(owner_module, "MAX_SETTLED_PER_OP", 1)
    r = rig()
    given_up(r, 4)
    assert len(r.state.letters) == 2 and list(r.state.pending) == [3, 4]
    r.publish(b"s.b")
    frame = r.next().take()[0]
    answers = r.bus.listen(b"answer")
    r.ack(frame, b"+TERM", b"answer")
    assert not answers and 5 in r.state.pending, "it does not count, and nobody is told that it did"
    before = r.ticks
    r.advance(20)
    assert r.ticks - before < 100
    target = Target(r)
    r.advance(40)
    assert sorted(target.seqs) == [1, 2, 3, 4, 5] and not r.state.letters and not r.state.pending


def test_an_unused_consumer_is_not_deleted_while_letters_wait() -> None:
    r = rig(inactive_threshold=20 * SECOND)
    given_up(r)
    r.advance(100)
    assert not r.unused
    Target(r)
    r.advance(60)
    assert r.unused


def test_a_paused_consumer_sends_its_letters() -> None:
    r = rig()
    given_up(r)
    r.node.extended(commands.CONSUMER_PAUSE, {"name": "C", "pause_until": r.now + 1000 * SECOND})
    r.owner.configured()
    target = Target(r)
    r.advance(40)
    assert target.seqs == [1]


def buried_in_flight(r: Rig, count: int) -> None:
    """Letters that the target has, of which the log does not know yet."""
    r.publish(*[b"s.a"] * count)
    r.next(batch=count)
    r.hold = True
    r.advance(6)
    assert [kind for kind, _, _ in r.ops] == [BURY]
    r.commit()
    r.settle()


def test_an_older_server_that_comes_later_never_gets_the_ops() -> None:
    """Its replica would stop at them. What was confirmed is kept."""
    r = rig()
    target = Target(r)
    buried_in_flight(r, 2)
    assert [kind for kind, _, _ in r.ops] == [BURIED] * len(r.ops) and r.ops
    r.buries = False
    r.lose()
    r.release()
    before = len(r.log)
    r.advance(60)
    assert len(r.log) == before and list(r.state.letters.by_seq) == [1, 2]
    r.buries = True
    r.advance(2)
    assert not r.state.letters and target.tries == 2


def test_a_lost_term_is_not_logged_again_as_a_letter_once_an_older_server_came() -> None:
    r = rig()
    target, answers = Target(r), r.bus.listen(b"answer")
    r.publish(b"s.a")
    frame = r.next().take()[0]
    r.hold = True
    r.ack(frame, b"+TERM", b"answer")
    assert [kind for kind, _, _ in r.ops] == [BURY]
    r.buries = False
    r.lose()
    r.release()
    r.advance(20)
    assert BURY not in r.kinds() and not answers and list(r.state.pending) == [1] and not target.stored
    r.buries = True
    r.advance(20)
    assert target.seqs == [1] and not r.state.pending


def test_what_the_log_has_not_yet_counts_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer to a +TERM can be relied on."""
    from jetcluster.consumer.owner import context

    monkeypatch.setattr(ops, "MAX_LETTERS", 3)
    monkeypatch.setattr(context, "MAX_LETTERS", 3)
    r = rig(max_deliver=9)
    r.publish(*[b"s.a"] * 5)
    frames = r.next(batch=5).take()
    answers = {frame.seq: r.bus.listen(b"answer.%d" % frame.seq) for frame in frames}
    r.hold = True
    r.ack(frames[0], b"+TERM", b"answer.1")
    for frame in frames[1:]:
        r.bus.publish(frame.reply, b"+TERM", b"answer.%d" % frame.seq)
    r.release()
    assert list(r.state.letters.by_seq) == [1, 2, 3] and list(r.state.pending) == [4, 5]
    assert [seq for seq, inbox in answers.items() if inbox] == [1, 2, 3]


def test_as_many_are_given_up_as_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    from jetcluster.consumer.owner import context

    monkeypatch.setattr(ops, "MAX_LETTERS", 3)
    monkeypatch.setattr(context, "MAX_LETTERS", 3)
    r = rig()
    frames = given_up(r, 5)
    assert list(r.state.letters.by_seq) == [1, 2, 3] and list(r.state.pending) == [4, 5]
    for _ in range(20):
        r.ack(frames[3], b"-NAK")
    assert list(r.owner.deferred) == [4, 5]
    r.ack(frames[3])
    assert list(r.owner.deferred) == [5], "it is settled"
    target = Target(r)
    r.advance(60)
    assert sorted(target.seqs) == [1, 2, 3, 5] and not r.state.letters


def test_an_owner_that_only_lost_ops_knows_its_tries() -> None:
    r = rig()
    target = Target(r)
    buried_in_flight(r, 3)
    assert target.seqs == [1, 2, 3] and [kind for kind, _, _ in r.ops] == [BURIED]
    r.time.advance(1000)
    r.lose()
    r.release()
    assert not r.state.letters and target.tries == 3 and not target.asked, "confirmed is confirmed"
    target.gone()
    given_up(r, 2)
    r.lose()
    r.time.advance(1000)
    target.again()
    r.advance(40)
    assert sorted(target.seqs) == [1, 2, 3, 4, 5] and not r.state.letters and not target.asked, "nobody sent them"


def test_a_letter_of_which_its_owner_was_not_told_goes_out() -> None:
    r = rig()
    target = Target(r)
    r.publish(b"s.a")
    r.next()
    r.node.op(BURY, [(1, MAX_DELIVER, b"")])
    r.lose()
    r.advance(10)
    assert target.seqs == [1] and not r.state.letters


def test_a_message_that_is_given_up_again_after_a_reset_is_another_letter() -> None:
    """Within the target's duplicate window."""
    r = rig()
    target = Target(r)
    given_up(r)
    assert target.seqs == [1] and not r.state.letters
    r.node.extended(commands.CONSUMER_RESET, {"name": "C", "seq": 1})
    r.owner.reset()
    assert len([frame for frame in r.next().take() if frame.reply]) == 1
    r.advance(6)
    assert target.seqs == [1, 1] and not r.state.letters and len(set(target.ids)) == 2


def test_a_publisher_cannot_imitate_the_fields_of_a_letter() -> None:
    """Some clients begin a header at a bare LF, and trim the names."""
    r = rig()
    target = Target(r)
    block = (
        b"NATS/1.0\r\nA b: 1\nNats-Dead-Letter-Subject: forged\r\nB\nNats-Dead-Letter-Reason: forged\r\n"
        b"Nats-Dead-Letter-Stream : forged\r\nNats-Msg-Id: own\rNats-Dead-Letter-Stream: forged\r\n\r\n"
    )
    r.node.apply(commands.encode_publish(r.node.now, Batch.encode([b"s.a"], [block], [b"work"])))
    r.next()
    r.advance(6)
    headers = target.stored[0][2]
    assert b"\r" not in headers.replace(b"\r\n", b"") and b"\n" not in headers.replace(b"\r\n", b"")
    lines = headers.split(b"\r\n")
    names = [line.partition(b":")[0].strip() for line in lines if b":" in line]
    assert len(names) == len(set(names)) and not any(line.endswith(b": forged") for line in lines[:8])
    assert names[-2:] == [b"A b", b"Nats-Dead-Letter-Msg-Id"]


def updated(r: Rig, **config: Any) -> None:
    assert r.node.create(action="update", **{"max_deliver": 1, "ack_wait": 5 * SECOND, **config}) == 1
    r.owner.configured()
    r.settle()


def test_with_another_subject_what_is_not_confirmed_goes_there_at_once() -> None:
    r = rig()
    given_up(r, 3)
    r.advance(100)
    target = Target(r)
    updated(r, dead_letter={**TO, "subject": "dead.C.new"})
    r.advance(0.01)
    assert {subject for _, subject, _, _ in target.stored} == {b"dead.C.new"} and sorted(target.seqs) == [1, 2, 3]
    assert not r.state.letters and r.owner.letters.last_error == ""


def test_what_the_old_subject_has_confirmed_does_not_go_to_the_new_one_as_well() -> None:
    r = rig()
    target = Target(r)
    buried_in_flight(r, 2)
    assert target.tries == 2 and len(r.state.letters) == 2
    updated(r, dead_letter={**TO, "subject": "dead.C.new"})
    r.advance(30)
    assert target.tries == 2
    r.lose()
    r.release()
    r.advance(30)
    assert target.tries == 2 and not r.state.letters


def test_the_window_of_the_old_target_does_not_count_for_the_new_one() -> None:
    """Its own is so short that it has to be looked for at once."""
    r = rig()
    target = Target(r, window=10_000)
    target.silent = True
    given_up(r)
    r.crash()
    target.again()
    target.silent = False
    given_up(r)
    assert not r.state.letters and target.asked
    target.deaf = True
    given_up(r)
    target.asked.clear()
    target.deaf = False
    updated(r, dead_letter={**TO, "subject": "dead.C.new"})
    r.advance(10)
    assert target.asked and not r.state.letters


def test_taking_dead_letter_away_ends_all_tries() -> None:
    r = rig()
    target = Target(r)
    target.deaf = True
    given_up(r, 3)
    target.deaf = False
    updated(r)
    r.advance(60)
    assert not target.stored and not r.state.letters and r.owner.letters.last_error == ""
    updated(r, dead_letter=TO)
    given_up(r)
    assert target.seqs == [4], "nothing of the time before is under way"


def test_one_that_fails_now_and_then_is_not_told_each_time() -> None:
    r = rig()
    target, told = Target(r), r.event("DEAD_LETTERS_FAIL")
    for number in range(1, 31):
        target.error = "x" * 1000
        given_up(r)
        target.error = ""
        r.advance(4)
        assert len(target.seqs) == number
    assert 3 <= len(told) <= 6, "300 s"
    assert all(len(json.loads(one.payload)["error"]) == 200 for one in told)


def test_the_error_of_a_target_is_cut() -> None:
    r = rig()
    target = Target(r)
    target.error = "\ud800" + "\u00fc" * 1000
    given_up(r)
    assert r.owner.letters.last_error == "?" + "\u00fc" * 99


def test_letters_that_wait_without_a_valid_wish_say_so() -> None:
    """A later version refuses what the configuration says."""
    r = rig()
    given_up(r)
    r.state.rules.letters = None
    target = Target(r)
    r.crash()
    target.again()
    r.advance(60)
    assert "not valid in this version" in r.owner.letters.last_error and r.state.letters and not target.tries
