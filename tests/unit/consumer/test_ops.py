"""Ops through the log. Floors named (consumer, stream); figures seen on nats-server."""

from __future__ import annotations

from typing import Any

import pytest

from jetcluster.consumer.state import turn
from jetcluster.consumer.state.pending import NEVER, Pending
from jetcluster.consumer.state.turn import SentMessages, SettledMessages
from jetcluster.stream.log import commands
from tests.unit.consumer.replica_rig import SECOND, T0, Node


def node(messages: int = 10, **config: Any) -> Node:
    made = Node()
    made.publish(*[b"a"] * messages)
    made.now = T0 + SECOND
    assert made.create(**config) == 1
    return made


def seqs(outcome: Any) -> list[int]:
    assert isinstance(outcome, SettledMessages)
    return outcome.seqs


def test_deliver() -> None:
    n = node()
    assert n.deliver(1, 2) == SentMessages(1, [1, 2], None)
    assert n.deliver(5) == SentMessages(3, [5], None)
    assert n.floors() == (3, 5, 0, 0)
    assert n.state().delivered_at == n.now
    assert n.state().pending[5] == Pending(3, n.now + 30 * SECOND, 1)


@pytest.mark.parametrize("bad", [(), (3, 2), (2, 2), (9, 10, 11), (1, 3, 2, 4)])
def test_deliver_of_what_cannot_be_is_void(bad: tuple[int, ...]) -> None:
    n = node()
    assert n.deliver(*bad) is None
    assert n.floors() == (0, 0, 0, 0) and not n.state().pending


def test_deliveries_in_flight_count_in_spite_of_a_purge() -> None:
    n = node()
    n.create("none", ack_policy="none")
    n.apply(commands.encode_purge(n.now, seq=8))
    assert n.deliver(1, 2) == SentMessages(1, [1, 2], None)
    assert n.op(turn.ADVANCE, (6, 6), "none") == 1
    assert n.deliver(8) == SentMessages(3, [8], None)
    assert n.op(turn.ADVANCE, (8, 1), "none") == 1
    assert n.floors() == (3, 8, 2, 2) and n.floors("none") == (7, 8, 7, 8)
    assert n.state().view()[:4] == (3, 8, 2, 7)


def test_redeliver_takes_numbers_for_what_is_pending() -> None:
    n = node(backoff=[SECOND, 5 * SECOND])
    n.deliver(1, 2, 3)
    assert n.state().pending[1].due == n.now + SECOND
    n.ack(2)
    n.now += 1
    assert n.op(turn.REDELIVER, [3, 2, 1, 9]) == SentMessages(4, [3, 1], [2, 2])
    assert n.state().pending == {1: Pending(1, n.now + 5 * SECOND, 2), 3: Pending(3, n.now + 5 * SECOND, 2)}
    assert n.op(turn.REDELIVER, [1]) == SentMessages(6, [1], [3])  # the last backoff repeats
    assert n.state().pending[1].due == n.now + 5 * SECOND
    assert n.op(turn.REDELIVER, [2]) == SentMessages(7, [], [])
    assert n.floors() == (6, 3, 0, 0)
    assert n.state().unacked.redelivered == 2


def test_ack_explicit() -> None:
    n = node()
    n.deliver(3, 4, 7)
    due = n.now + 30 * SECOND
    assert n.ack(7, 3, 9, 1) == SettledMessages([7, 3], [Pending(3, due, 1), Pending(1, due, 1)])
    assert n.floors() == (3, 7, 1, 3)
    assert n.state().acked_at == n.now
    n.now += 5
    assert n.ack(3) == SettledMessages([], [])
    assert n.state().acked_at == n.now - 5
    n.ack(4)
    assert n.floors() == (3, 7, 3, 7)


def test_ack_all() -> None:
    n = node(ack_policy="all")
    n.deliver(1, 2, 3, 4, 5)
    assert seqs(n.ack(3)) == [1, 2, 3]
    assert n.floors() == (5, 5, 3, 3)
    assert seqs(n.ack(1)) == [] and seqs(n.ack(6)) == []  # late; never delivered
    assert seqs(n.op(turn.TERM, [4])) == [4]
    assert n.floors() == (5, 5, 4, 4)
    n.op(turn.REDELIVER, [5])
    assert seqs(n.ack(5)) == [5]
    assert n.floors() == (6, 5, 6, 5)


def test_flow_control_acks_count_for_all_below_and_have_no_time() -> None:
    n = node(ack_policy="flow_control", ack_wait=0)
    n.deliver(1, 2, 3)
    assert n.state().pending[1].due == NEVER
    assert seqs(n.ack(2)) == [1, 2]


def test_term_moves_the_floor() -> None:
    n = node()
    n.deliver(1, 2, 3, 4)
    assert seqs(n.op(turn.TERM, [2])) == [2]
    assert seqs(n.op(turn.TERM, [1])) == [1]
    assert n.floors() == (4, 4, 2, 2)


def test_nak_and_progress_set_the_time() -> None:
    n = node()
    n.deliver(1, 2)
    n.op(turn.REDELIVER, [1])
    n.now += SECOND
    assert n.op(turn.NAK, [(1, 5), (9, 5), (2, 2**64 - 1)]) == SettledMessages(
        [1, 2], [Pending(1, n.now + 5, 2), Pending(2, NEVER, 1)]
    )
    assert n.op(turn.PROGRESS, [2, 3]) == SettledMessages([2], [Pending(2, n.now + 30 * SECOND, 1)])
    assert n.floors() == (3, 2, 0, 0)  # a NAK gives no number back
    assert n.state().acked_at == 0


def test_exhausted_holds_for_what_was_delivered_as_often_as_is_permitted() -> None:
    n = node(max_deliver=2)
    n.deliver(1, 2, 3)
    n.op(turn.REDELIVER, [1, 2])
    assert seqs(n.op(turn.EXHAUSTED, [1, 3])) == [1]
    assert n.floors() == (5, 3, 1, 1)
    assert n.create(action="update", max_deliver=3) == 1
    assert seqs(n.op(turn.EXHAUSTED, [2])) == []
    assert n.create(action="update", max_deliver=-1) == 1
    assert seqs(n.op(turn.EXHAUSTED, [2])) == []


def test_gone() -> None:
    n = node()
    n.deliver(1, 2, 3)
    assert seqs(n.op(turn.GONE, [1, 8])) == [1]
    assert n.floors() == (3, 3, 1, 1)


def test_advance() -> None:
    n = node(ack_policy="none")
    assert n.op(turn.ADVANCE, (6, 3)) == 1
    assert n.floors() == (3, 6, 3, 6)
    for bad in ((11, 1), (7, 0), (7, 2), (6, 1)):
        assert n.op(turn.ADVANCE, bad) == 0
    assert n.op(turn.ADVANCE, (9, 2)) == 1
    assert n.floors() == (5, 9, 5, 9)


def test_ops_that_do_not_fit_the_ack_policy_are_void() -> None:
    n = node(ack_policy="none")
    assert n.deliver(1) is None and n.ack(1) is None
    n.create("D")
    assert n.op(turn.ADVANCE, (1, 1), "D") is None


def test_skip() -> None:
    n = node()
    assert n.op(turn.SKIP, 4) == 1
    assert n.floors() == (0, 4, 0, 0)
    assert n.op(turn.SKIP, 4) == 0 and n.op(turn.SKIP, 11) == 0
    n.deliver(5)
    n.op(turn.SKIP, 8)
    n.ack(5)
    assert n.floors() == (1, 8, 1, 8)


def test_waiting_and_pins() -> None:
    n = node(priority_policy="pinned_client", priority_groups=["g"])
    assert n.op(turn.WAIT, b"_INBOX.x") == 1 and n.op(turn.WAIT, b"_INBOX.x") == 0
    assert n.op(turn.PIN, (b"g", b"pinned")) == 1 and n.op(turn.PIN, (b"h", b"pinned")) == 0
    assert n.state().waiting == {b"_INBOX.x": None}
    assert n.state().pins == {b"g": (b"pinned", n.now)}
    assert n.op(turn.UNWAIT, b"_INBOX.x") == 1 and n.op(turn.UNWAIT, b"_INBOX.x") == 0
