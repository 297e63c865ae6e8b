"""Answers to publishers of fast-ingest batches, and their moments: an `Ingest` over a log whose commands are applied
when the test says so. The answers are those of nats-server 2.15.2 (`tests/interop/test_fast_batches.py` compares
them)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetcluster.raft.api import BackpressureError, LeavingError, NotLeaderError, RaftError, StorageFullError
from jetcluster.stream.lead.atomic_stage import BatchLimits
from jetcluster.stream.ports import PublishResult
from jetcluster.stream.rules import StreamRules
from tests.unit.stream.fake_store import block
from tests.unit.stream.fast_rig import WRONG, Rig
from tests.unit.stream.test_ingest import CLIENT


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_nothing_is_acked_before_it_is_applied(rig: Rig) -> None:
    rig.send(1)
    assert rig.told() == [("ack", 0, 2)]  # how fast it may go; nothing is stored yet
    rig.send(2)
    rig.send(3)
    rig.end_turn()
    assert rig.told() == []
    rig.apply()
    assert rig.told() == [("ack", 2, 2)]
    rig.send(4, 2)
    rig.end_turn()
    assert rig.told() == []
    rig.apply()
    assert rig.told() == [("end", "b", 4, 4)]
    assert rig.stored() == 4
    assert rig.room.fast_open == 0 and rig.ingest.open_batches == 0


def test_messages_of_a_turn_are_one_command_whoever_sent_them(rig: Rig) -> None:
    for seq in range(1, 6):
        rig.send(seq, id="b")
        rig.send(seq, id="c", gap="fail")
        rig.ingest.on_message(b"a", b"ack", b"", b"y", CLIENT)
    rig.end_turn()
    assert len(rig.proposed) == 1
    rig.apply()
    assert rig.stored() == 15
    assert [subject for subject, _, _ in rig.bus.sent].count(b"ack") == 5
    assert rig.told("b")[-1][:2] == ("ack", 4) and rig.told("c")[-1][:2] == ("ack", 5)


def test_a_batch_may_end_without_a_message(rig: Rig) -> None:
    rig.send(1)
    rig.send(2)
    rig.send(3, 3)
    assert rig.told() == [("ack", 0, 2)]
    rig.settle()
    assert rig.told() == [("end", "b", 2, 2)]
    rig.send(1)
    rig.settle()
    rig.told()
    rig.send(2, 3)  # nothing is pending: at once
    assert rig.told() == [("end", "b", 1, 3)]


def test_a_batch_of_one_message(rig: Rig) -> None:
    rig.send(1, 2)
    rig.settle()
    assert rig.told() == [("end", "b", 1, 1)]


def test_a_gap_is_answered_at_once_and_the_batch_goes_on(rig: Rig) -> None:
    rig.send(1)
    rig.send(4)
    assert rig.told() == [("ack", 0, 2), ("gap", 2, 4)]
    rig.settle()
    assert rig.told() == [("ack", 4, 2)]
    rig.send(5, 2)
    rig.settle()
    assert rig.told() == [("end", "b", 5, 3)]


@pytest.mark.parametrize("lost", ["ping", "message"])
def test_the_log_knows_of_gaps_inside_one_command(lost: str, rig: Rig) -> None:
    rig.send(1)
    rig.send(2)
    if lost == "ping":
        rig.send(4, 4)
    rig.send(5)
    rig.send(6)
    rig.settle()
    assert ("gap", 3, 5) in rig.told()
    row = rig.stream.machine.fast.by_id[b"b"]
    assert (row.seq, row.stored) == (6, 4)


def test_a_gap_ends_a_batch_that_takes_none_when_what_came_before_is_applied(rig: Rig) -> None:
    rig.send(1, gap="fail")
    rig.send(2, gap="fail")
    rig.told()
    rig.send(4, gap="fail")
    rig.send(5, gap="fail")  # the publisher does not know yet: not a word
    assert rig.told() == [("gap", 3, 4)]
    rig.settle()
    assert rig.told() == [("end", "b", 2, 2)]
    assert rig.stored() == 2
    rig.send(6, gap="fail")
    assert rig.told() == [("refused", 10208)]


@pytest.mark.parametrize(("seq", "operation"), [(3, 3), (4, 1), (5, 4)], ids=["end", "gap", "ping"])
def test_who_ends_a_batch_is_answered_at_its_own_reply_subject(seq: int, operation: int, rig: Rig) -> None:
    """Also when messages before it are not applied yet."""
    rig.send(1, gap="fail")
    rig.send(2, gap="fail")
    rig.send(seq, operation, gap="fail")
    rig.settle()
    subject, body, _ = rig.bus.sent[-1]
    assert subject.endswith(b".%d.%d.$FI" % (seq, operation)) and b'"batch":"b"' in body
    pinged = ["gap", "ack"] if operation == 4 else ["gap"]
    assert [what[0] for what in rig.told()] == ["ack", *(pinged if operation != 3 else []), "end"]


def test_a_message_that_came_before_ends_either_kind(rig: Rig) -> None:
    rig.send(1)
    rig.send(2)
    rig.settle()
    rig.told()
    rig.send(2)
    assert rig.told() == [("gap", 3, 2), ("end", "b", 2, 2)]


@pytest.mark.parametrize("gap", ["ok", "fail"])
def test_a_ping_hears_the_last_ack_and_of_gaps(gap: str, rig: Rig) -> None:
    rig.send(1, gap=gap)
    rig.send(2, gap=gap)
    rig.settle()
    rig.told()
    rig.send(2, 4, gap=gap)
    assert rig.told() == [("ack", 2, 2)]
    rig.send(5, 4, gap=gap)
    end = ("ack", 4, 2) if gap == "ok" else ("end", "b", 2, 2)
    assert rig.told() == [("gap", 3, 6), end]
    rig.send(6, gap=gap)
    rig.settle()
    assert rig.told() == ([("ack", 6, 2)] if gap == "ok" else [("refused", 10208)])


def test_a_refused_message_is_an_error_and_the_batch_goes_on(rig: Rig) -> None:
    rig.send(1)
    rig.send(2, headers=WRONG)
    rig.send(3)
    rig.settle()
    assert rig.told() == [("ack", 0, 2), ("err", 2, 10071), ("ack", 2, 2)]
    rig.send(4, 2, headers=WRONG)
    rig.settle()
    assert rig.told() == [("err", 4, 10071), ("end", "b", 3, 2)]


def test_a_refused_message_ends_a_batch_that_takes_no_gaps_and_nothing_behind_it_is_stored(rig: Rig) -> None:
    rig.send(1, gap="fail")
    rig.send(2, gap="fail", headers=WRONG)
    rig.send(3, gap="fail")
    rig.end_turn()
    rig.send(4, gap="fail")
    rig.end_turn()
    assert len(rig.proposed) == 2
    rig.apply()
    assert rig.told() == [("ack", 0, 2), ("err", 2, 10071), ("end", "b", 1, 1)]
    assert rig.stored() == 1


def test_a_refused_first_message_is_answered_like_any_publish(rig: Rig) -> None:
    rig.send(1, gap="fail", headers=WRONG)
    rig.settle()
    assert rig.told() == [("ack", 0, 2), ("refused", 10071)]
    rig.send(1, 2, gap="fail", headers=WRONG)
    rig.settle()
    assert rig.told() == [("refused", 10071)]
    assert rig.stored() == 0 and rig.room.fast_open == 0


def test_duplicates_count_as_progress_and_are_not_stored(rig: Rig) -> None:
    same = block("Nats-Msg-Id: 1")
    for seq in range(1, 5):
        rig.send(seq, headers=same, gap="fail")
    rig.settle()
    assert rig.told() == [("ack", 0, 2), ("ack", 4, 2)]
    rig.send(5, 3, gap="fail")
    assert rig.told() == [("end", "b", 4, 1)]
    rig.send(1, 2, headers=same, gap="fail")
    rig.end_turn()
    rig.apply()
    assert json.loads(rig.bus.sent[-1][1]) == {
        "stream": "S", "seq": 1, "duplicate": True, "batch": "b", "count": 1
    }  # fmt: skip
    assert rig.stored() == 1


@pytest.mark.parametrize(
    ("config", "mark", "payload", "code"),
    [
        ({"allow_batched": False}, "i.b.2.ok.1.0", b"", 10205),
        ({"allow_batched": False}, "x", b"", 10205),
        ({}, "i.b.2.maybe.1.0", b"", 10206),
        ({}, "i." + "x" * 65 + ".2.ok.1.0", b"", 10207),
        ({}, "i.b.2.ok.2.1", b"", 10208),
        ({}, "i.b.2.ok.1.4", b"", 10208),
        ({"max_msg_size": 3}, "i.b.2.ok.1.0", b"four", 10054),
        ({"sealed": True}, "i.b.2.ok.1.0", b"", 10109),
    ],
)
def test_what_is_refused_before_it_is_part_of_a_batch(
    config: dict[str, Any], mark: str, payload: bytes, code: int
) -> None:
    rig = Rig(**config)
    rig.ingest.on_message(b"a", f"{mark}.$FI".encode(), b"", payload, CLIENT)
    assert [json.loads(body)["error"]["err_code"] for _, body, _ in rig.bus.sent] == [code]
    assert not rig.turn and not rig.room.fast_open


def test_a_required_api_level_is_looked_at_and_not_stored(rig: Rig) -> None:
    rig.send(1, headers=block("X: 1", "Nats-Required-Api-Level: 1"))
    rig.settle()
    assert rig.stream.store.rows[1].headers == block("X: 1")
    rig.told()
    rig.send(2, headers=block("Nats-Required-Api-Level: 99"))
    rig.send(3)
    assert rig.told() == [("refused", 10185), ("refused", 10208)]


def test_open_batches_have_a_limit_per_stream_and_per_server() -> None:
    rig = Rig(BatchLimits(fast_per_stream=2, fast_total=3))
    other = rig.leader()
    rig.send(1, id="b")
    rig.send(1, id="c")
    rig.send(1, id="d")
    assert rig.told("d") == [("refused", 10211)]
    other.on_message(b"a", b"i.e.2.ok.1.0.$FI", b"", b"", CLIENT)
    other.on_message(b"a", b"i.f.2.ok.1.0.$FI", b"", b"", CLIENT)
    assert rig.told("e") == [("ack", 0, 2)] and rig.told("f") == [("refused", 10211)]
    rig.settle()
    rig.send(2, 3, id="b")
    rig.send(1, id="d")
    assert rig.told("d") == [("ack", 0, 1)]
    assert rig.woken == 4  # the replica must not rest while a batch is open


def test_a_silent_batch_is_abandoned_without_a_word(rig: Rig) -> None:
    rig.send(1)
    rig.settle()
    rig.told()
    rig.time.advance(9)
    rig.ingest.tick()
    rig.send(1, 4)  # keeps it
    assert rig.told() == [("ack", 0, 2)]
    rig.time.advance(9.9)
    rig.ingest.tick()
    assert rig.ingest.open_batches == 1
    rig.time.advance(0.2)
    rig.ingest.tick()
    assert rig.ingest.open_batches == 0 and rig.told() == []
    rig.send(2)
    assert rig.told() == [("refused", 10208)]


def test_what_waits_for_a_majority_is_not_abandoned(rig: Rig) -> None:
    rig.send(1)
    rig.end_turn()
    rig.time.advance(60)
    rig.ingest.tick()
    rig.apply()
    rig.told()
    rig.time.advance(9)
    rig.send(2)
    rig.settle()
    assert rig.told() == [("ack", 2, 2)] and rig.stored() == 2


def test_the_flow_is_shared_and_goes_by_factors_of_two(rig: Rig) -> None:
    rig.send(1, flow=400)
    rig.send(1, flow=400, id="c")
    assert rig.told("b") == [("ack", 0, 400)] and rig.told("c") == [("ack", 0, 1)]
    rig.settle()
    acks = rig.told("c")
    for seq in range(2, 700):
        rig.send(seq, flow=400, id="c")
        rig.settle()
        acks += rig.told("c")
    assert acks[:8] == [("ack", n, min(n + 1, 250)) for n in (1, 3, 7, 15, 31, 63, 127, 255)]
    for seq in range(2, 402):
        rig.send(seq, flow=400)
        rig.settle()
    assert rig.told("b") == [("ack", 400, 250)]


def test_big_messages_are_acked_more_often(rig: Rig) -> None:
    rig.send(1, flow=500, payload=bytes(64 << 10))
    ((_, _, messages),) = rig.told()
    assert 1 < messages < 10


def test_switching_fast_batches_off_drops_those_that_are_open(rig: Rig) -> None:
    rig.send(1)
    rig.settle()
    rig.told()
    rig.ingest.configure(StreamRules.from_config({"name": "S", "allow_batched": True, "max_msgs": 5}))
    rig.send(2)
    assert rig.told() == []
    rig.ingest.configure(StreamRules.from_config({"name": "S"}))
    rig.send(3)
    assert rig.told() == [("refused", 10205)] and rig.room.fast_open == 0


# -- what cannot be proposed, and changes of leaders


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (StorageFullError("x"), ("err", 3, 10077)),
        (BackpressureError("x"), ("err", 3, 10167)),
        (LeavingError("x"), None),
    ],
)
def test_messages_that_cannot_be_proposed_are_lost(error: RaftError, told: tuple[Any, ...] | None) -> None:
    for gap in ("ok", "fail"):
        rig = Rig()
        rig.send(1, gap=gap)
        rig.send(2, gap=gap)
        rig.settle()
        rig.told()
        rig.error = error
        rig.send(3, gap=gap)
        rig.send(4, gap=gap)
        rig.end_turn()
        rig.error = None
        lost = [*([told] if told else []), ("gap", 3, 5)]
        assert rig.told() == [*lost, ("ack", 4, 2) if gap == "ok" else ("end", "b", 2, 2)]
        rig.send(5, gap=gap)
        rig.settle()
        assert rig.told() == ([] if gap == "ok" else [("refused", 10208)])
        assert rig.stored() == (3 if gap == "ok" else 2)


def test_who_leads_no_more_says_nothing(rig: Rig) -> None:
    rig.send(1)
    rig.told()
    rig.error = NotLeaderError("x")
    rig.end_turn()
    rig.ingest.on_dropped(0)
    rig.ingest.clear()
    assert rig.told() == [] and rig.room.fast_open == 0


def test_an_id_may_be_used_again_in_the_turn_in_which_its_batch_ended(rig: Rig) -> None:
    rig.send(1)
    rig.settle()
    rig.send(2, 3)
    rig.send(1)
    rig.send(2)
    rig.settle()
    row = rig.stream.machine.fast.by_id[b"b"]
    assert (row.seq, row.stored) == (2, 3)
    rig.send(3, 2)
    rig.settle()
    assert rig.told()[-1] == ("end", "b", 3, 4) and not rig.stream.machine.fast.by_id


def test_an_end_that_does_not_get_into_the_log_is_no_trouble(rig: Rig) -> None:
    rig.send(1)
    rig.settle()
    rig.send(2, 3)
    rig.error = NotLeaderError("")
    rig.end_turn()
    rig.error = None
    rig.end_turn()
    assert not rig.proposed and rig.ingest.open_batches == 0 and list(rig.stream.machine.fast.by_id) == [b"b"]


@pytest.mark.parametrize(("gap", "stored"), [("ok", 2), ("fail", 1)])
def test_a_command_that_cannot_be_carried_out_ends_the_batch_in_the_log(gap: str, stored: int, rig: Rig) -> None:
    for seq in (1, 2, 3):
        rig.send(seq, gap=gap)
        rig.end_turn()
    (_, first), (at, second), (_, third) = rig.proposed
    rig.stream.apply(first)
    rig.stream.index += 1
    rig.stream.machine.refuse(at, 1, second)
    rig.stream.restart()
    rig.stream.apply(third)
    assert rig.stored() == stored
    assert rig.stream.machine.fast.by_id[b"b"].ended == (gap == "fail")
    rig.stream.index += 1
    rig.stream.machine.refuse(rig.stream.index, 1, second[:-20])  # no command at all


@pytest.mark.parametrize("both", [False, True])
def test_a_batch_that_ends_with_a_lost_command_counts_what_came_before(both: bool, rig: Rig) -> None:
    """It does not hang on the commands behind that."""
    for seq in (1, 2, 3):
        rig.send(seq, gap="fail", flow=1)
        rig.end_turn()
    (first_at, first), (at, second), (third_at, third) = rig.proposed
    result = rig.stream.apply(first)
    assert isinstance(result, PublishResult)
    rig.ingest.on_applied(first_at, result)
    rig.told()
    rig.stream.index += 1
    rig.ingest.on_refused(at, rig.stream.machine.refuse(at, 1, second))
    assert rig.told() == [("err", 2, 10051)]
    if both:
        rig.stream.index += 1
        rig.ingest.on_refused(third_at, rig.stream.machine.refuse(third_at, 1, third))
    else:
        result = rig.stream.apply(third)
        assert isinstance(result, PublishResult)
        rig.ingest.on_applied(third_at, result)
    assert rig.told() == [("end", "b", 1, 1)] and rig.stored() == 1


def test_sequences_have_an_end(rig: Rig) -> None:
    rig.send(1)
    for seq in range((1 << 64) - 4, (1 << 64) + 3):
        rig.send(seq)
    rig.settle()
    told = rig.told()
    assert [each for each in told if each[0] == "refused"] == [("refused", 10206)] * 4
    assert rig.stored() == 4
    assert rig.stream.machine.fast.by_id[b"b"].seq == (1 << 64) - 2
    rig.stream.restart()


# -- anything at all


TOKENS = st.sampled_from(
    ["b", "c", "ok", "fail", "0", "1", "2", "3", "4", "5", "18446744073709551614", "9" * 30, "-1", "", "x", "*", ">"]
)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.lists(TOKENS, max_size=8).map(".".join),
            st.tuples(st.sampled_from("bcd"), st.integers(1, 6), st.integers(0, 4), st.sampled_from(["ok", "fail"])),
            st.just(None),
        ),
        max_size=40,
    )
)
def test_whatever_comes_is_answered_and_what_is_acked_is_stored(steps: list[Any]) -> None:
    """No reply subject raises; every ack in mode `fail` is of messages that are in the stream."""
    rig = Rig(BatchLimits(fast_per_stream=2, fast_total=2))
    for step in steps:
        if step is None:
            rig.settle()
        elif isinstance(step, str):
            rig.ingest.on_message(b"a", f"{step}.$FI".encode(), b"", b"x", CLIENT)
        else:
            name, seq, operation, gap = step
            rig.send(seq, operation, id=name, gap=gap, headers=WRONG if seq == 5 else b"")
    rig.settle()
    assert rig.room.fast_open == len(rig.ingest.fast) <= 2
    for _, body, _ in rig.bus.sent:
        answer = json.loads(body)
        if "batch" in answer:
            assert answer["seq"] <= rig.stored()
    rig.ingest.clear()
    assert rig.room.fast_open == 0
