"""Fast-ingest batches that the next leader goes on with."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetcluster.stream.lead.fast_open import MAX_FLOW_MESSAGES, SUFFIX, FastMark, parse
from tests.unit.stream.fake_store import block
from tests.unit.stream.fast_rig import WRONG, Rig
from tests.unit.stream.test_ingest import CLIENT


@pytest.mark.parametrize("gap", ["ok", "fail"])
def test_the_next_leader_goes_on_with_what_is_stored(gap: str) -> None:
    rig = Rig()
    for seq in (1, 2, 3):
        rig.send(seq, gap=gap)
    rig.settle()
    rig.send(4, gap=gap)
    rig.end_turn()
    rig.proposed.clear()  # lost with the leader
    rig.ingest.clear()
    rig.told()
    rig.ingest = rig.leader()
    rig.ingest.resume(rig.stream.machine.fast.by_id)
    assert rig.told() == [("ack", 3, 2)]
    assert rig.bus.sent == []
    rig.send(5, gap=gap)
    rig.settle()
    if gap == "ok":
        assert rig.told() == [("gap", 4, 5), ("ack", 5, 2)]
        rig.send(6, 2)
        rig.settle()
        assert rig.told() == [("end", "b", 6, 5)]
    else:
        assert rig.told() == [("gap", 4, 5), ("end", "b", 3, 3)]
        assert rig.stored() == 3


def test_the_next_leader_ends_what_had_ended_and_forgets_what_is_old() -> None:
    rig = Rig()
    rig.send(1, gap="fail")
    rig.send(2, gap="fail", headers=WRONG)
    rig.send(1, id="old")
    rig.end_turn()
    for _, command in rig.proposed:
        rig.stream.apply(command)  # the leader dies before it tells anybody
    rig.ingest.clear()
    rig.told(), rig.told("old")
    rig.ingest = rig.leader()
    rig.ingest.resume(rig.stream.machine.fast.by_id)
    assert rig.told() == [("end", "b", 1, 1)] and rig.told("old") == [("ack", 1, 2)]
    rig.ingest.clear()
    rig.time.advance(11)
    rig.ingest = rig.leader()
    rig.ingest.resume(rig.stream.machine.fast.by_id)
    assert not rig.bus.sent and not rig.ingest.open_batches


def test_the_next_leader_says_nothing_of_a_batch_whose_first_message_was_refused() -> None:
    rig = Rig()
    rig.send(1, gap="fail", headers=WRONG)
    rig.end_turn()
    rig.apply_alone()
    rig.ingest = rig.leader()
    rig.ingest.resume(rig.stream.machine.fast.by_id)
    assert rig.told() == [] and not rig.ingest.open_batches
    rig.send(2, gap="fail")
    assert rig.told() == [("refused", 10208)]


def _gap(rig: Rig, id: str) -> None:
    rig.send(4, id=id, gap="fail")


def _eob(rig: Rig, id: str) -> None:
    rig.send(2, 3, id=id)


def _again(rig: Rig, id: str) -> None:
    rig.send(1, 1, id=id)
    rig.send(1, 2, id=id)


def _error(rig: Rig, id: str) -> None:
    rig.send(2, id=id, gap="fail", headers=WRONG)


def _level(rig: Rig, id: str) -> None:
    rig.send(2, id=id, headers=block("Nats-Required-Api-Level: 99"))


@pytest.mark.parametrize("end", [_gap, _eob, _again, _error, _level])
@pytest.mark.parametrize("busy", [False, True])
def test_the_next_leader_takes_no_batch_for_open_that_ended(end: Callable[[Rig, str], None], busy: bool) -> None:
    """The log hears of the end, with what others publish or alone."""
    rig = Rig()
    for n in range(20):
        rig.send(1, id=f"b{n}", gap="fail" if end in (_gap, _error) else "ok")
    rig.send(1, id="open")
    rig.settle()
    for n in range(20):
        end(rig, f"b{n}")
    rig.settle()
    assert rig.ingest.open_batches == 1
    if busy:
        rig.ingest.on_message(b"a", b"", b"", b"y", CLIENT)
    rig.settle()
    assert not rig.proposed and not rig.turn
    assert list(rig.stream.machine.fast.by_id) == [b"open"]
    rig.stream.restart()
    rig.ingest.clear()
    rig.ingest = rig.leader()
    rig.bus.sent.clear()
    rig.ingest.resume(rig.stream.machine.fast.by_id)
    assert rig.ingest.open_batches == 1
    assert rig.told("open") == [("ack", 1, 2)] and not rig.bus.sent


def test_a_leader_twice_counts_its_batches_once() -> None:
    rig = Rig()
    rig.send(1)
    rig.settle()
    for _ in range(3):
        rig.ingest.resume(rig.stream.machine.fast.by_id)
        assert rig.room.fast_open == rig.ingest.open_batches == 1
    rig.ingest.clear()
    assert rig.room.fast_open == 0


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
