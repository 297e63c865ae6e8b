"""Answers to publishers whose messages could not be stored."""

from __future__ import annotations

import json

import pytest

from jetcluster.errors import by_code
from jetcluster.raft.api import (
    BackpressureError,
    EntryTooLargeError,
    LeavingError,
    NotLeaderError,
    RaftError,
    StorageFullError,
)
from jetcluster.stream.lead.answers import (
    FIRST_WINDOW_BYTES,
    MAX_WINDOW_BYTES,
    MESSAGE_WEIGHT,
    MIN_WINDOW_BYTES,
    NO_RESPONDERS,
    TARGET_SECONDS,
    TOO_MANY_REQUESTS,
    Answers,
    Backlog,
    PubAcks,
    RefusedError,
)
from tests.unit.consumer.rig import Frame, InboxBus

FULL = by_code(10077, err="maximum messages exceeded")


def answers(*, no_ack: bool = False) -> tuple[Answers, list[Frame]]:
    bus = InboxBus()
    return Answers(bus, PubAcks("S", ""), no_ack=no_ack), bus.listen(b">")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (BackpressureError("x"), 10167),
        (EntryTooLargeError("x"), 10054),
        (StorageFullError("x"), 10077),
        (RefusedError(FULL), 10077),
        (RaftError("x"), 10008),
    ],
)
def test_each_reason_has_its_code(error: RaftError, code: int) -> None:
    told, frames = answers()
    told.not_proposed([b"r1", b"", b"r2"], error)
    assert [frame.subject for frame in frames] == [b"r1", b"r2"]
    assert {json.loads(frame.payload)["error"]["err_code"] for frame in frames} == {code}
    assert {frame.headers for frame in frames} == {TOO_MANY_REQUESTS if code == 10167 else b""}
    assert told.refused == 3
    found = told.error_of(error)
    assert found is not None and found.err_code == code


def test_who_leaves_says_that_nobody_is_here_and_who_does_not_lead_says_nothing() -> None:
    told, frames = answers()
    told.not_proposed([b"r"], LeavingError("x"))
    assert frames == [Frame(b"r", b"", NO_RESPONDERS, b"")]
    told.not_proposed([b"r"], NotLeaderError("x"))
    assert len(frames) == 1 and told.refused == 2
    assert told.error_of(LeavingError("x")) is told.error_of(NotLeaderError("x")) is None


def test_an_empty_answer_never_acknowledges_a_delivery() -> None:
    told, frames = answers()
    for reply in (b"$JS.ACK.S.C.1", b"", b"r"):
        told.note(reply)
        told.not_proposed([reply], LeavingError("x"))
    assert {frame.subject for frame in frames} == {b"r"} and len(frames) == 2
    told.refuse([b"$JS.ACK.S.C.1"], FULL)
    assert frames[2].payload, "an error is no acknowledgement"


def test_a_stream_without_acks_tells_nothing() -> None:
    told, frames = answers(no_ack=True)
    told.note(b"r")
    told.refuse([b"r"], FULL)
    told.too_many([b"r"])
    assert frames == [] and told.refused == 2


# The backlog that a stream's leader permits (stream/lead/ingest.py).


def test_the_valve_closes_at_the_window_and_opens_at_half_of_it() -> None:
    told: list[bool] = []
    backlog = Backlog(valve_changed=told.append)
    half = FIRST_WINDOW_BYTES // 2 - 10 * MESSAGE_WEIGHT
    backlog.add(10, half)
    assert not backlog.valve.closed
    backlog.add(10, half)
    assert backlog.valve.closed
    backlog.remove(5, half // 2)
    assert backlog.valve.closed
    backlog.remove(5, half - half // 2)
    assert not backlog.valve.closed
    assert told == [True, False]


def test_what_weighs_much_is_counted_beside_bytes() -> None:
    backlog = Backlog()
    backlog.add(FIRST_WINDOW_BYTES // MESSAGE_WEIGHT, 0)
    assert backlog.valve.closed


def run(backlog: Backlog, rate: float, seconds: float, base: float = 0.0, command: int = 64 << 10) -> float:
    """A flood at a leader that applies `rate` bytes (weight) per second; returns the last wait."""
    now, ready, wait = 0.0, 0.0, 0.0
    flying: list[tuple[float, float, int]] = []
    while now < seconds:
        while not backlog.valve.closed:
            ready = max(ready, now) + command / rate
            flying.append((now, ready + base, backlog.add(0, command)))
        since, due, weight = flying.pop(0)
        now = max(now, due)
        wait = now - since
        backlog.applied(0, command, weight, wait)
    return wait


def test_the_window_follows_what_the_leader_manages_in_the_time() -> None:
    for rate in (6e6, 20e6, 35e6):
        backlog = Backlog()
        assert run(backlog, rate, 30.0) <= 1.5 * TARGET_SECONDS
        assert rate * TARGET_SECONDS / 3 <= backlog.window <= 1.5 * rate * TARGET_SECONDS


def test_a_slow_leader_keeps_the_least_and_a_fast_one_the_most() -> None:
    slow, fast = Backlog(), Backlog()
    run(slow, 1e6, 30.0)
    run(fast, 1e9, 5.0)
    assert MIN_WINDOW_BYTES <= slow.window <= 2 * MIN_WINDOW_BYTES
    assert fast.window == MAX_WINDOW_BYTES


def test_what_a_proposal_takes_alone_is_not_held_against_those_in_front_of_it() -> None:
    """A disk or a majority that takes 0.2 s for anything must not cost throughput."""
    backlog = Backlog()
    for _ in range(400):
        weight = backlog.add(1, 100)
        backlog.applied(1, 100, weight, 0.2)
    run(backlog, 20e6, 30.0, base=0.2)
    assert backlog.window >= 20e6 * 0.15


def test_hard_limits_stay() -> None:
    backlog = Backlog(max_messages=10, max_bytes=1000)
    assert not backlog.full
    backlog.add(10, 0)
    assert backlog.full
    backlog.remove(10, 0)
    backlog.add(0, 1000)
    assert backlog.full
