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
from tests.unit.stream.fast_bench import WRONG, Bench
from tests.unit.stream.test_ingest import CLIENT


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_nothing_is_acked_before_it_is_applied(bench: Bench) -> None:
    bench.send(1)
    assert bench.told() == [("ack", 0, 2)]  # how fast it may go; nothing is stored yet
    bench.send(2)
    bench.send(3)
    bench.end_turn()
    assert bench.told() == []
    bench.apply()
    assert bench.told() == [("ack", 2, 2)]
    bench.send(4, 2)
    bench.end_turn()
    assert bench.told() == []
    bench.apply()
    assert bench.told() == [("end", "b", 4, 4)]
    assert bench.stored() == 4
    assert bench.room.fast_open == 0 and bench.ingest.open_batches == 0


def test_messages_of_a_turn_are_one_command_whoever_sent_them(bench: Bench) -> None:
    for seq in range(1, 6):
        bench.send(seq, id="b")
        bench.send(seq, id="c", gap="fail")
        bench.ingest.on_message(b"a", b"ack", b"", b"y", CLIENT)
    bench.end_turn()
    assert len(bench.proposed) == 1
    bench.apply()
    assert bench.stored() == 15
    assert [subject for subject, _, _ in bench.bus.sent].count(b"ack") == 5
    assert bench.told("b")[-1][:2] == ("ack", 4) and bench.told("c")[-1][:2] == ("ack", 5)


def test_a_batch_may_end_without_a_message(bench: Bench) -> None:
    bench.send(1)
    bench.send(2)
    bench.send(3, 3)
    assert bench.told() == [("ack", 0, 2)]
    bench.settle()
    assert bench.told() == [("end", "b", 2, 2)]
    bench.send(1)
    bench.settle()
    bench.told()
    bench.send(2, 3)  # nothing is pending: at once
    assert bench.told() == [("end", "b", 1, 3)]


def test_a_batch_of_one_message(bench: Bench) -> None:
    bench.send(1, 2)
    bench.settle()
    assert bench.told() == [("end", "b", 1, 1)]


def test_a_gap_is_told_at_once_and_the_batch_goes_on(bench: Bench) -> None:
    bench.send(1)
    bench.send(4)
    assert bench.told() == [("ack", 0, 2), ("gap", 2, 4)]
    bench.settle()
    assert bench.told() == [("ack", 4, 2)]
    bench.send(5, 2)
    bench.settle()
    assert bench.told() == [("end", "b", 5, 3)]


@pytest.mark.parametrize("lost", ["ping", "message"])
def test_the_log_knows_of_gaps_inside_one_command(lost: str, bench: Bench) -> None:
    bench.send(1)
    bench.send(2)
    if lost == "ping":
        bench.send(4, 4)
    bench.send(5)
    bench.send(6)
    bench.settle()
    assert ("gap", 3, 5) in bench.told()
    row = bench.stream.machine.fast.by_id[b"b"]
    assert (row.seq, row.stored) == (6, 4)


def test_a_gap_ends_a_batch_that_takes_none_when_what_came_before_is_applied(bench: Bench) -> None:
    bench.send(1, gap="fail")
    bench.send(2, gap="fail")
    bench.told()
    bench.send(4, gap="fail")
    bench.send(5, gap="fail")  # the publisher does not know yet: not a word
    assert bench.told() == [("gap", 3, 4)]
    bench.settle()
    assert bench.told() == [("end", "b", 2, 2)]
    assert bench.stored() == 2
    bench.send(6, gap="fail")
    assert bench.told() == [("refused", 10208)]


@pytest.mark.parametrize(("seq", "operation"), [(3, 3), (4, 1), (5, 4)], ids=["end", "gap", "ping"])
def test_who_ends_a_batch_is_told_at_its_own_reply_subject(seq: int, operation: int, bench: Bench) -> None:
    """Also when messages before it are not applied yet."""
    bench.send(1, gap="fail")
    bench.send(2, gap="fail")
    bench.send(seq, operation, gap="fail")
    bench.settle()
    subject, body, _ = bench.bus.sent[-1]
    assert subject.endswith(b".%d.%d.$FI" % (seq, operation)) and b'"batch":"b"' in body
    assert [what[0] for what in bench.told()] == ["ack", *["gap"] * (operation != 3), "end"]


def test_a_message_that_came_before_ends_either_kind(bench: Bench) -> None:
    bench.send(1)
    bench.send(2)
    bench.settle()
    bench.told()
    bench.send(2)
    assert bench.told() == [("gap", 3, 2), ("end", "b", 2, 2)]


@pytest.mark.parametrize("gap", ["ok", "fail"])
def test_a_ping_hears_the_last_ack_and_of_gaps(gap: str, bench: Bench) -> None:
    bench.send(1, gap=gap)
    bench.send(2, gap=gap)
    bench.settle()
    bench.told()
    bench.send(2, 4, gap=gap)
    assert bench.told() == [("ack", 2, 2)]
    bench.send(5, 4, gap=gap)
    end = ("ack", 4, 2) if gap == "ok" else ("end", "b", 2, 2)
    assert bench.told() == [("gap", 3, 6), end]
    bench.send(6, gap=gap)
    bench.settle()
    assert bench.told() == ([("ack", 6, 2)] if gap == "ok" else [("refused", 10208)])


def test_a_refused_message_is_an_error_and_the_batch_goes_on(bench: Bench) -> None:
    bench.send(1)
    bench.send(2, headers=WRONG)
    bench.send(3)
    bench.settle()
    assert bench.told() == [("ack", 0, 2), ("err", 2, 10071), ("ack", 2, 2)]
    bench.send(4, 2, headers=WRONG)
    bench.settle()
    assert bench.told() == [("err", 4, 10071), ("end", "b", 3, 2)]


def test_a_refused_message_ends_a_batch_that_takes_no_gaps_and_nothing_behind_it_is_stored(bench: Bench) -> None:
    bench.send(1, gap="fail")
    bench.send(2, gap="fail", headers=WRONG)
    bench.send(3, gap="fail")
    bench.end_turn()
    bench.send(4, gap="fail")
    bench.end_turn()
    assert len(bench.proposed) == 2
    bench.apply()
    assert bench.told() == [("ack", 0, 2), ("err", 2, 10071), ("end", "b", 1, 1)]
    assert bench.stored() == 1


def test_a_refused_first_message_is_answered_like_any_publish(bench: Bench) -> None:
    bench.send(1, gap="fail", headers=WRONG)
    bench.settle()
    assert bench.told() == [("ack", 0, 2), ("refused", 10071)]
    bench.send(1, 2, gap="fail", headers=WRONG)
    bench.settle()
    assert bench.told() == [("refused", 10071)]
    assert bench.stored() == 0 and bench.room.fast_open == 0


def test_duplicates_count_as_progress_and_are_not_stored(bench: Bench) -> None:
    same = block("Nats-Msg-Id: 1")
    for seq in range(1, 5):
        bench.send(seq, headers=same, gap="fail")
    bench.settle()
    assert bench.told() == [("ack", 0, 2), ("ack", 4, 2)]
    bench.send(5, 3, gap="fail")
    assert bench.told() == [("end", "b", 4, 1)]
    bench.send(1, 2, headers=same, gap="fail")
    bench.end_turn()
    bench.apply()
    assert json.loads(bench.bus.sent[-1][1]) == {
        "stream": "S", "seq": 1, "duplicate": True, "batch": "b", "count": 1
    }  # fmt: skip
    assert bench.stored() == 1


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
    bench = Bench(**config)
    bench.ingest.on_message(b"a", f"{mark}.$FI".encode(), b"", payload, CLIENT)
    assert [json.loads(body)["error"]["err_code"] for _, body, _ in bench.bus.sent] == [code]
    assert not bench.turn and not bench.room.fast_open


def test_a_required_api_level_is_looked_at_and_not_stored(bench: Bench) -> None:
    bench.send(1, headers=block("X: 1", "Nats-Required-Api-Level: 1"))
    bench.settle()
    assert bench.stream.store.rows[1].headers == block("X: 1")
    bench.told()
    bench.send(2, headers=block("Nats-Required-Api-Level: 99"))
    bench.send(3)
    assert bench.told() == [("refused", 10185), ("refused", 10208)]


def test_open_batches_have_a_limit_per_stream_and_per_server() -> None:
    bench = Bench(BatchLimits(fast_per_stream=2, fast_total=3))
    other = bench.leader()
    bench.send(1, id="b")
    bench.send(1, id="c")
    bench.send(1, id="d")
    assert bench.told("d") == [("refused", 10211)]
    other.on_message(b"a", b"i.e.2.ok.1.0.$FI", b"", b"", CLIENT)
    other.on_message(b"a", b"i.f.2.ok.1.0.$FI", b"", b"", CLIENT)
    assert bench.told("e") == [("ack", 0, 2)] and bench.told("f") == [("refused", 10211)]
    bench.settle()
    bench.send(2, 3, id="b")
    bench.send(1, id="d")
    assert bench.told("d") == [("ack", 0, 1)]
    assert bench.woken == 4  # the replica must not rest while a batch is open


def test_a_silent_batch_is_abandoned_without_a_word(bench: Bench) -> None:
    bench.send(1)
    bench.settle()
    bench.told()
    bench.time.advance(9)
    bench.ingest.tick()
    bench.send(1, 4)  # keeps it
    assert bench.told() == [("ack", 0, 2)]
    bench.time.advance(9.9)
    bench.ingest.tick()
    assert bench.ingest.open_batches == 1
    bench.time.advance(0.2)
    bench.ingest.tick()
    assert bench.ingest.open_batches == 0 and bench.told() == []
    bench.send(2)
    assert bench.told() == [("refused", 10208)]


def test_what_waits_for_a_majority_is_not_abandoned(bench: Bench) -> None:
    bench.send(1)
    bench.end_turn()
    bench.time.advance(60)
    bench.ingest.tick()
    bench.apply()
    bench.told()
    bench.time.advance(9)
    bench.send(2)
    bench.settle()
    assert bench.told() == [("ack", 2, 2)] and bench.stored() == 2


def test_the_flow_is_shared_and_goes_by_factors_of_two(bench: Bench) -> None:
    bench.send(1, flow=400)
    bench.send(1, flow=400, id="c")
    assert bench.told("b") == [("ack", 0, 400)] and bench.told("c") == [("ack", 0, 1)]
    bench.settle()
    acks = bench.told("c")
    for seq in range(2, 700):
        bench.send(seq, flow=400, id="c")
        bench.settle()
        acks += bench.told("c")
    assert acks[:8] == [("ack", n, min(n + 1, 250)) for n in (1, 3, 7, 15, 31, 63, 127, 255)]
    for seq in range(2, 402):
        bench.send(seq, flow=400)
        bench.settle()
    assert bench.told("b") == [("ack", 400, 250)]


def test_big_messages_are_acked_more_often(bench: Bench) -> None:
    bench.send(1, flow=500, payload=bytes(64 << 10))
    ((_, _, messages),) = bench.told()
    assert 1 < messages < 10


def test_switching_fast_batches_off_drops_those_that_are_open(bench: Bench) -> None:
    bench.send(1)
    bench.settle()
    bench.told()
    bench.ingest.configure(StreamRules.from_config({"name": "S", "allow_batched": True, "max_msgs": 5}))
    bench.send(2)
    assert bench.told() == []
    bench.ingest.configure(StreamRules.from_config({"name": "S"}))
    bench.send(3)
    assert bench.told() == [("refused", 10205)] and bench.room.fast_open == 0


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
        bench = Bench()
        bench.send(1, gap=gap)
        bench.send(2, gap=gap)
        bench.settle()
        bench.told()
        bench.error = error
        bench.send(3, gap=gap)
        bench.send(4, gap=gap)
        bench.end_turn()
        bench.error = None
        lost = [*([told] if told else []), ("gap", 3, 5)]
        assert bench.told() == [*lost, ("ack", 4, 2) if gap == "ok" else ("end", "b", 2, 2)]
        bench.send(5, gap=gap)
        bench.settle()
        assert bench.told() == ([] if gap == "ok" else [("refused", 10208)])
        assert bench.stored() == (3 if gap == "ok" else 2)


def test_who_leads_no_more_says_nothing(bench: Bench) -> None:
    bench.send(1)
    bench.told()
    bench.error = NotLeaderError("x")
    bench.end_turn()
    bench.ingest.on_dropped(0)
    bench.ingest.clear()
    assert bench.told() == [] and bench.room.fast_open == 0


def test_an_id_may_be_used_again_in_the_turn_in_which_its_batch_ended(bench: Bench) -> None:
    bench.send(1)
    bench.settle()
    bench.send(2, 3)
    bench.send(1)
    bench.send(2)
    bench.settle()
    row = bench.stream.machine.fast.by_id[b"b"]
    assert (row.seq, row.stored) == (2, 3)
    bench.send(3, 2)
    bench.settle()
    assert bench.told()[-1] == ("end", "b", 3, 4) and not bench.stream.machine.fast.by_id


def test_an_end_that_does_not_get_into_the_log_is_no_trouble(bench: Bench) -> None:
    bench.send(1)
    bench.settle()
    bench.send(2, 3)
    bench.error = NotLeaderError("")
    bench.end_turn()
    bench.error = None
    bench.end_turn()
    assert not bench.proposed and bench.ingest.open_batches == 0 and list(bench.stream.machine.fast.by_id) == [b"b"]


@pytest.mark.parametrize(("gap", "stored"), [("ok", 2), ("fail", 1)])
def test_a_command_that_cannot_be_carried_out_ends_the_batch_in_the_log(gap: str, stored: int, bench: Bench) -> None:
    for seq in (1, 2, 3):
        bench.send(seq, gap=gap)
        bench.end_turn()
    (_, first), (at, second), (_, third) = bench.proposed
    bench.stream.apply(first)
    bench.stream.index += 1
    bench.stream.machine.refuse(at, 1, second)
    bench.stream.restart()
    bench.stream.apply(third)
    assert bench.stored() == stored
    assert bench.stream.machine.fast.by_id[b"b"].ended == (gap == "fail")
    bench.stream.index += 1
    bench.stream.machine.refuse(bench.stream.index, 1, second[:-20])  # no command at all


@pytest.mark.parametrize("both", [False, True])
def test_a_batch_that_ends_with_a_lost_command_counts_what_came_before(both: bool, bench: Bench) -> None:
    """Whatever becomes of the commands behind that."""
    for seq in (1, 2, 3):
        bench.send(seq, gap="fail", flow=1)
        bench.end_turn()
    (first_at, first), (at, second), (third_at, third) = bench.proposed
    result = bench.stream.apply(first)
    assert isinstance(result, PublishResult)
    bench.ingest.on_applied(first_at, result)
    bench.told()
    bench.stream.index += 1
    bench.ingest.on_refused(at, bench.stream.machine.refuse(at, 1, second))
    assert bench.told() == [("err", 2, 10051)]
    if both:
        bench.stream.index += 1
        bench.ingest.on_refused(third_at, bench.stream.machine.refuse(third_at, 1, third))
    else:
        result = bench.stream.apply(third)
        assert isinstance(result, PublishResult)
        bench.ingest.on_applied(third_at, result)
    assert bench.told() == [("end", "b", 1, 1)] and bench.stored() == 1


def test_sequences_have_an_end(bench: Bench) -> None:
    bench.send(1)
    for seq in range((1 << 64) - 4, (1 << 64) + 3):
        bench.send(seq)
    bench.settle()
    told = bench.told()
    assert [each for each in told if each[0] == "refused"] == [("refused", 10206)] * 4
    assert bench.stored() == 4
    assert bench.stream.machine.fast.by_id[b"b"].seq == (1 << 64) - 2
    bench.stream.restart()


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
    bench = Bench(BatchLimits(fast_per_stream=2, fast_total=2))
    for step in steps:
        if step is None:
            bench.settle()
        elif isinstance(step, str):
            bench.ingest.on_message(b"a", f"{step}.$FI".encode(), b"", b"x", CLIENT)
        else:
            name, seq, operation, gap = step
            bench.send(seq, operation, id=name, gap=gap, headers=WRONG if seq == 5 else b"")
    bench.settle()
    assert bench.room.fast_open == len(bench.ingest.fast) <= 2
    for _, body, _ in bench.bus.sent:
        answer = json.loads(body)
        if "batch" in answer:
            assert answer["seq"] <= bench.stored()
    bench.ingest.clear()
    assert bench.room.fast_open == 0
