"""Fast-ingest batches that the next leader goes on with."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetcluster.stream.lead.fast_open import MAX_FLOW_MESSAGES, SUFFIX, FastMark, parse
from tests.unit.stream.fake_store import block
from tests.unit.stream.fast_bench import WRONG, Bench
from tests.unit.stream.test_ingest import CLIENT


@pytest.mark.parametrize("gap", ["ok", "fail"])
def test_the_next_leader_goes_on_with_what_is_stored(gap: str) -> None:
    bench = Bench()
    for seq in (1, 2, 3):
        bench.send(seq, gap=gap)
    bench.settle()
    bench.send(4, gap=gap)
    bench.end_turn()
    bench.proposed.clear()  # lost with the leader
    bench.ingest.clear()
    bench.told()
    bench.ingest = bench.leader()
    bench.ingest.resume(bench.stream.machine.fast.by_id)
    assert bench.told() == [("ack", 3, 2)]
    assert bench.bus.sent == []
    bench.send(5, gap=gap)
    bench.settle()
    if gap == "ok":
        assert bench.told() == [("gap", 4, 5), ("ack", 5, 2)]
        bench.send(6, 2)
        bench.settle()
        assert bench.told() == [("end", "b", 6, 5)]
    else:
        assert bench.told() == [("gap", 4, 5), ("end", "b", 3, 3)]
        assert bench.stored() == 3


def test_the_next_leader_ends_what_had_ended_and_forgets_what_is_old() -> None:
    bench = Bench()
    bench.send(1, gap="fail")
    bench.send(2, gap="fail", headers=WRONG)
    bench.send(1, id="old")
    bench.end_turn()
    for _, command in bench.proposed:
        bench.stream.apply(command)  # the leader dies before it tells anybody
    bench.ingest.clear()
    bench.told(), bench.told("old")
    bench.ingest = bench.leader()
    bench.ingest.resume(bench.stream.machine.fast.by_id)
    assert bench.told() == [("end", "b", 1, 1)] and bench.told("old") == [("ack", 1, 2)]
    bench.ingest.clear()
    bench.time.advance(11)
    bench.ingest = bench.leader()
    bench.ingest.resume(bench.stream.machine.fast.by_id)
    assert not bench.bus.sent and not bench.ingest.open_batches


def test_the_next_leader_says_nothing_of_a_batch_whose_first_message_was_refused() -> None:
    bench = Bench()
    bench.send(1, gap="fail", headers=WRONG)
    bench.end_turn()
    bench.apply_alone()
    bench.ingest = bench.leader()
    bench.ingest.resume(bench.stream.machine.fast.by_id)
    assert bench.told() == [] and not bench.ingest.open_batches
    bench.send(2, gap="fail")
    assert bench.told() == [("refused", 10208)]


def _gap(bench: Bench, id: str) -> None:
    bench.send(4, id=id, gap="fail")


def _eob(bench: Bench, id: str) -> None:
    bench.send(2, 3, id=id)


def _again(bench: Bench, id: str) -> None:
    bench.send(1, 1, id=id)
    bench.send(1, 2, id=id)


def _error(bench: Bench, id: str) -> None:
    bench.send(2, id=id, gap="fail", headers=WRONG)


def _level(bench: Bench, id: str) -> None:
    bench.send(2, id=id, headers=block("Nats-Required-Api-Level: 99"))


@pytest.mark.parametrize("end", [_gap, _eob, _again, _error, _level])
@pytest.mark.parametrize("busy", [False, True])
def test_the_next_leader_takes_no_batch_for_open_that_ended(end: Callable[[Bench, str], None], busy: bool) -> None:
    """The log hears of the end, with what others publish or alone."""
    bench = Bench()
    for n in range(20):
        bench.send(1, id=f"b{n}", gap="fail" if end in (_gap, _error) else "ok")
    bench.send(1, id="open")
    bench.settle()
    for n in range(20):
        end(bench, f"b{n}")
    bench.settle()
    assert bench.ingest.open_batches == 1
    if busy:
        bench.ingest.on_message(b"a", b"", b"", b"y", CLIENT)
    bench.settle()
    assert not bench.proposed and not bench.turn
    assert list(bench.stream.machine.fast.by_id) == [b"open"]
    bench.stream.restart()
    bench.ingest.clear()
    bench.ingest = bench.leader()
    bench.bus.sent.clear()
    bench.ingest.resume(bench.stream.machine.fast.by_id)
    assert bench.ingest.open_batches == 1
    assert bench.told("open") == [("ack", 1, 2)] and not bench.bus.sent


def test_a_leader_twice_counts_its_batches_once() -> None:
    bench = Bench()
    bench.send(1)
    bench.settle()
    for _ in range(3):
        bench.ingest.resume(bench.stream.machine.fast.by_id)
        assert bench.room.fast_open == bench.ingest.open_batches == 1
    bench.ingest.clear()
    assert bench.room.fast_open == 0


def test_a_mark_tells_batch_flow_gap_mode_sequence_and_operation() -> None:
    assert parse(b"_INBOX.x.id.20.fail.7.1.$FI") == FastMark(b"_INBOX.x.id.20.fail", b"id", 20, False, 7, 1)
    assert parse(b"p.id.1.ok.1.0.$FI") == FastMark(b"p.id.1.ok", b"id", 1, True, 1, 0)
    assert parse(b"p.id.1.ok.1.2.$FI") == FastMark(b"p.id.1.ok", b"id", 1, True, 1, 2)


@pytest.mark.parametrize(
    ("flow", "messages"),
    [
        (b"0", 10),
        (b"x", 10),
        (b"-3", 10),
        (b"65535", MAX_FLOW_MESSAGES),
        (b"70000", MAX_FLOW_MESSAGES),
        (b"9" * 400, MAX_FLOW_MESSAGES),
    ],
)
def test_a_flow_that_is_none_means_ten_and_has_a_limit(flow: bytes, messages: int) -> None:
    mark = parse(b"p.id.%b.ok.1.0.$FI" % flow)
    assert mark is not None and mark.flow == messages


@pytest.mark.parametrize(
    "mark",
    [
        b".$FI", b"1.$FI", b"id.1.ok.1.0.$FI", b"p..1.ok.1.0.$FI", b"p.id.1.maybe.1.0.$FI", b"p.id.1.ok.0.1.$FI",
        b"p.id.1.ok.1.5.$FI", b"p.id.1.ok.1.-1.$FI", b"p.id.1.ok.1.x.$FI", b"p.id.1.ok.x.1.$FI",
        b"p.id.1.ok.2.0.$FI", b"p.id.1.ok.1.1.$FI", b"p.id.1.ok.1.3.$FI", b"p.id.1.ok.18446744073709551615.1.$FI",
        b"p.id.1.ok." + b"9" * 5000 + b".1.$FI", b"p.id.1.ok.2." + b"1" * 5000 + b".$FI",
        b"p" * 510 + b".id.1.ok.1.0.$FI",
    ],
)  # fmt: skip
def test_what_does_not_fit_the_pattern_is_none(mark: bytes) -> None:
    assert parse(mark) is None


def test_the_highest_sequence_leaves_room_for_the_next_one() -> None:
    mark = parse(b"p.id.1.ok.18446744073709551614.1.$FI")
    assert mark is not None and mark.seq == (1 << 64) - 2


@given(
    st.lists(st.one_of(st.binary(max_size=30), st.sampled_from([b"ok", b"fail", b"1", b"0", b"", b"4"])), max_size=9)
)
def test_anything_at_all_is_a_mark_or_none(tokens: list[bytes]) -> None:
    reply = b".".join(tokens) + SUFFIX
    mark = parse(reply)
    assert mark is None or (reply.startswith(mark.stem) and mark.seq >= 1 and 1 <= mark.flow <= MAX_FLOW_MESSAGES)
