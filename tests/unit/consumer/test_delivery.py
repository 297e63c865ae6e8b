"""Replay in the original rhythm."""

from __future__ import annotations

from jetcluster.consumer.owner.delivery import (
    MAX_UNCONFIRMED_MESSAGES,
    MAX_UNCONFIRMED_NS,
    MESSAGES_PER_STEP,
    Advance,
    Replay,
)
from jetcluster.consumer.state.rules import ConsumerRules
from jetcluster.consumer.state.state import ConsumerState
from jetcluster.consumer.state.turn import Value


def made() -> tuple[ConsumerState, Advance, list[Value]]:
    state = ConsumerState(1, ConsumerRules("C", {"ack_policy": "none"}), 0, "o", 0)
    submitted: list[Value] = []
    return state, Advance(state, lambda kind, value: submitted.append(value)), submitted


def test_one_op_in_flight_and_the_next_holds_the_rest() -> None:
    _, advance, submitted = made()
    for seq in (2, 3, 7):
        advance.sent(seq, 1)
        advance.flush(0)
    assert submitted == [(2, 1)]
    advance.applied(0)
    assert submitted == [(2, 1), (7, 2)]
    advance.applied(0)
    assert len(submitted) == 2


def test_much_at_once_goes_in_steps() -> None:
    """Each replica applies an op in one go, and may remove all messages that it passes."""
    state, advance, submitted = made()
    half = MESSAGES_PER_STEP // 2
    for number in range(1, 6):
        advance.sent(10 * half * number, half)
        advance.flush(0)
    assert submitted == [(10 * half, half)]
    advance.applied(0)
    assert submitted[1:] == [(20 * half, half), (40 * half, 2 * half), (50 * half, half)]
    state.delivered_cseq, state.delivered_sseq = 3 * half, 30 * half  # a part of that was lost
    advance.reset()
    advance.flush(0)
    assert submitted[4:] == [(40 * half, half), (50 * half, half)]
    for _ in range(2):
        advance.applied(0)
    assert len(submitted) == 6 and advance.may_send(0)


def test_at_once() -> None:
    _, advance, submitted = made()
    advance.sent(2, 2)
    advance.flush(0)
    advance.sent(4, 2)
    advance.flush(0, at_once=True)
    advance.flush(0, at_once=True)
    assert submitted == [(2, 2), (4, 2)]
    advance.applied(0)
    advance.sent(5, 1)
    advance.flush(0)
    assert len(submitted) == 2  # one is still in flight
    advance.applied(0)
    assert submitted[2:] == [(5, 1)]


def test_too_much_or_too_long_unconfirmed() -> None:
    _, advance, _ = made()
    advance.sent(5, 5)
    advance.flush(100)
    assert advance.may_send(100 + MAX_UNCONFIRMED_NS) and not advance.may_send(101 + MAX_UNCONFIRMED_NS)
    advance.applied(200 + MAX_UNCONFIRMED_NS)
    assert advance.may_send(200 + 2 * MAX_UNCONFIRMED_NS)
    advance.sent(10, MAX_UNCONFIRMED_MESSAGES)
    assert not advance.may_send(200 + 2 * MAX_UNCONFIRMED_NS)


def test_what_was_lost_is_recorded_again() -> None:
    state, advance, submitted = made()
    advance.sent(5, 5)
    advance.flush(0)
    state.delivered_cseq, state.delivered_sseq = 2, 2  # some of an earlier op arrived
    advance.reset()
    advance.flush(0)
    assert submitted[-1] == (5, 3) and advance.cseq == 5


def test_a_consumer_that_began_anew() -> None:
    state, advance, submitted = made()
    advance.sent(5, 5)
    state.restart(3)
    advance.reset()
    assert (advance.cseq, advance.sseq) == (0, 2)
    advance.flush(0)
    assert not submitted


def test_more_than_the_log_could_take_is_not_recorded_again() -> None:
    """The state was moved on without this owner: what it sent beside that is no count of what lies between."""
    state, advance, submitted = made()
    advance.sent(3, 3)
    state.delivered_cseq, state.delivered_sseq = 1, 2
    advance.reset()
    advance.flush(0)
    assert submitted == [] and (advance.cseq, advance.sseq) == (1, 2)


MS = 1_000_000
T0 = 1_790_000_000_000 * MS


def test_gaps_are_those_of_the_stream() -> None:
    replay = Replay()
    times = [5 * MS, 5 * MS + 1, 25 * MS, 75 * MS]
    assert replay.due(times, T0) == 1
    assert replay.sent(times, 1, T0) == T0 + 1
    assert replay.due(times[1:], T0 + 1) == 1
    # 3 ms late: the next gap begins where the message was due, not where it went out
    assert replay.due(times[1:], T0 + 23 * MS) == 2
    assert replay.sent(times[1:], 2, T0 + 23 * MS) == T0 + 70 * MS
    assert replay.due(times[3:], T0 + 70 * MS - 1) == 0
    assert replay.sent(times[3:], 0, T0 + 70 * MS - 1) == T0 + 70 * MS
    assert replay.due(times[3:], T0 + 70 * MS) == 1
    assert replay.sent(times[3:], 1, T0 + 70 * MS) == 0


def test_who_was_held_up_for_long_does_not_catch_up_at_once() -> None:
    replay = Replay()
    times = [0, 10 * MS, 5_000 * MS]
    replay.sent(times, replay.due(times, T0), T0)
    late = T0 + 60_000 * MS
    assert replay.due(times[1:], late) == 1
    assert replay.sent(times[1:], 1, late) == late - 100 * MS + 4_990 * MS
