"""Turns of a node's consumer owners against a log that loses, delays and refuses them."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from jetcluster.consumer.owner import operation_log as consumer_turns
from jetcluster.consumer.owner.operation_log import ConsumerOperationLog
from jetcluster.consumer.state import turn as log_turn
from jetcluster.consumer.state.rules import ConsumerRules
from jetcluster.consumer.state.state import ConsumerState
from jetcluster.consumer.state.turn import Outcome, TurnResult
from testkit.twins.time import ManualTime

ME = b"NODEAAAA"


class Log:
    """Takes turns and applies them when a test says so, with the fencing of `consumer.state.table`."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.up = True
        self.session = 0
        self.serial = 0
        self.applied: list[int] = []
        """Values of the ops that took effect."""
        self.void: dict[int, Outcome] = {}
        """Outcomes of ops of a kind that does not fit its consumer."""

    def take(self, session: int, body: bytes) -> bool:
        if self.up:
            self.sent.append(body)
        return self.up

    def apply(self, body: bytes) -> tuple[log_turn.Turn, TurnResult]:
        turn = log_turn.decode(body)
        accepted = turn.session > self.session if turn.first else (turn.session, turn.serial) == self._next()
        result = TurnResult(accepted=accepted)
        if accepted:
            self.session, self.serial = turn.session, turn.serial
            self.applied += [op.value for op in turn.ops]  # type: ignore[misc]
        result.outcomes = [self.void.get(op.kind, 1) if accepted else None for op in turn.ops]
        return turn, result

    def _next(self) -> tuple[int, int]:
        return self.session, self.serial + 1


class Owner:
    def __init__(self, cid: int) -> None:
        self.state = ConsumerState(cid, ConsumerRules(f"c{cid}", {}), 0, ME.decode(), 0)
        self.told: list[tuple[int, Any, object]] = []
        self.resets = 0

    def applied(self, kind: int, value: Any, outcome: object, token: object) -> None:
        self.told.append((value, outcome, token))

    def reset(self) -> None:
        self.resets += 1


class Node:
    def __init__(self) -> None:
        self.time = ManualTime()
        self.log = Log()
        self.owners = [Owner(1), Owner(2)]
        self.rooms = 0
        self.errors: list[Exception] = []
        self.turns = ConsumerOperationLog(
            ME,
            send=self.log.take,
            session_of=lambda: self.log.session,
            owners=lambda: self.owners,
            on_room=self._room,
            on_error=self.errors.append,
            clock=self.time,
            timers=self.time,
        )

    def _room(self) -> None:
        self.rooms += 1

    def skip(self, seq: int, owner: int = 0, token: object = None) -> None:
        self.turns.submit(self.owners[owner], log_turn.SKIP, seq, token)

    def turn(self) -> None:
        self.time.advance(0.0)

    def apply(self, count: int = 0) -> None:
        """The first `count` turns that were sent (0: all) are committed and applied here."""
        count = count or len(self.log.sent)
        taken, self.log.sent[:] = self.log.sent[:count], self.log.sent[count:]
        for body in taken:
            self.turns.applied(*self.log.apply(body))


@pytest.fixture(name="node")
def opened() -> Node:
    node = Node()
    node.turns.want()
    node.apply()
    assert node.turns.is_open and node.rooms == 1
    for owner in node.owners:
        assert owner.resets == 1
        owner.resets = 0
    return node


def test_nothing_is_taken_before_the_first_turn_of_the_session_is_applied() -> None:
    node = Node()
    node.turns.want()
    node.skip(5)
    node.turn()
    assert not node.turns.may_run and len(node.log.sent) == 1
    node.apply()
    assert node.log.applied == [] and node.owners[0].told == []


def test_ops_of_one_loop_turn_are_one_turn_and_come_back_in_order(node: Node) -> None:
    node.skip(5, token="a")
    node.skip(6, owner=1, token="b")
    node.skip(7, token="c")
    assert node.log.sent == []
    node.turn()
    node.skip(8, token="d")
    node.turn()
    assert [len(log_turn.decode(body).ops) for body in node.log.sent] == [3, 1]
    node.apply()
    assert node.owners[0].told == [(5, 1, "a"), (7, 1, "c"), (8, 1, "d")]
    assert node.owners[1].told == [(6, 1, "b")]
    assert node.turns.in_flight == 0


def test_a_lost_turn_resets_the_owners_once_and_nothing_after_it_takes_effect(node: Node) -> None:
    for seq in (5, 6, 7):
        node.skip(seq)
        node.turn()
    del node.log.sent[1]
    node.apply()
    assert not node.turns.is_open and node.owners[0].resets == 0, "the first turn of the new session is under way"
    node.skip(9)
    node.turn()
    node.apply()
    assert node.log.applied == [5]
    assert node.owners[0].told == [(5, 1, None)]
    assert [owner.resets for owner in node.owners] == [1, 1]
    node.skip(6)
    node.turn()
    node.apply()
    assert node.log.applied == [5, 6]


def test_turns_that_survived_a_change_of_leader_are_still_reported_before_the_reset(node: Node) -> None:
    node.skip(5)
    node.turn()
    node.skip(6)
    node.turn()
    kept, _ = node.log.sent
    node.log.sent.clear()
    node.turns.leader_changed()
    node.log.sent.insert(0, kept)
    node.apply()
    assert node.owners[0].told == [(5, 1, None)] and node.owners[0].resets == 1
    assert node.turns.is_open and node.log.applied == [5]


def test_what_survived_is_reported_only_to_who_is_still_the_owner(node: Node) -> None:
    """A node that was cut off applies its own old turn, and right after it that others have its consumer."""
    node.skip(5)
    node.skip(6, owner=1)
    node.turn()
    (kept,) = node.log.sent
    node.log.sent.clear()
    node.turns.leader_changed()
    node.log.sent.insert(0, kept)
    node.apply(1)
    assert node.log.applied == [5, 6]
    assert [owner.told for owner in node.owners] == [[], []], "nothing is known yet"
    node.turns.forget(node.owners[0])
    node.apply()
    assert [owner.told for owner in node.owners] == [[], [(6, 1, None)]]


def test_a_turn_of_the_old_session_that_comes_late_is_void_and_disturbs_nothing(node: Node) -> None:
    node.skip(5)
    node.turn()
    (late,) = node.log.sent
    node.log.sent.clear()
    node.turns.leader_changed()
    node.apply()
    node.skip(5)
    node.turn()
    node.log.sent.insert(0, late)
    node.apply()
    assert node.log.applied == [5] and node.turns.is_open and node.turns.lost == 1


def test_a_change_of_leader_with_nothing_under_way_changes_nothing(node: Node) -> None:
    node.turns.leader_changed()
    assert node.turns.is_open and node.log.sent == []


def test_without_a_leader_the_session_ends_and_begins_anew_when_there_is_one(node: Node) -> None:
    node.log.up = False
    node.skip(5)
    node.turn()
    assert not node.turns.is_open
    node.log.up = True
    node.turns.leader_changed()
    node.apply()
    assert node.turns.is_open and node.owners[0].resets == 1 and node.log.applied == []


def test_a_refused_turn_leads_to_a_new_session_a_moment_later(node: Node) -> None:
    node.skip(5)
    node.turn()
    session = log_turn.decode(node.log.sent.pop()).session
    node.turns.refused(session)
    node.turns.refused(session)
    node.time.advance(consumer_turns.REFUSED_SECONDS)
    node.apply()
    assert node.turns.lost == 1 and node.turns.is_open and node.owners[0].resets == 1
    node.turns.refused(session)  # of before: not ours any more
    node.time.advance(1.0)
    assert node.turns.is_open and node.turns.lost == 1


def test_a_turn_that_is_never_applied_counts_as_lost_after_a_bound(node: Node) -> None:
    node.skip(5)
    node.turn()
    node.log.sent.clear()
    node.time.advance(consumer_turns.APPLY_SECONDS - 0.1)
    node.turns.tick()
    assert node.turns.is_open
    node.time.advance(0.1)
    node.turns.tick()
    assert not node.turns.is_open
    node.apply()
    assert node.turns.is_open and node.owners[0].resets == 1


def test_a_first_turn_that_is_lost_is_sent_again_more_and_more_slowly() -> None:
    node = Node()
    node.turns.want()
    times = []
    for step in range(200):
        if node.log.sent:
            node.log.sent.clear()
            times.append(step)
        node.time.advance(0.1)
        node.turns.tick()
    gaps = [after - before for before, after in itertools.pairwise(times)]
    assert gaps[0] <= 6 and gaps[-1] >= 40 and gaps == sorted(gaps)
    node.turns.leader_changed()
    node.apply()
    assert node.turns.is_open


def test_two_first_turns_of_which_the_older_is_applied_late_end_in_one_session() -> None:
    node = Node()
    node.turns.want()
    node.time.advance(1.0)
    node.turns.tick()
    older, newer = node.log.sent
    node.turns.applied(*node.log.apply(newer))
    node.turns.applied(*node.log.apply(older))
    assert node.turns.is_open and node.owners[0].resets == 1
    node.log.sent.clear()
    node.skip(5)
    node.turn()
    node.apply()
    assert node.log.applied == [5]


def test_owners_are_not_run_while_too_much_is_under_way(node: Node) -> None:
    for seq in range(consumer_turns.MAX_TURNS_IN_FLIGHT + 10):
        node.skip(seq + 1)
        node.turn()
    assert not node.turns.may_run and len(node.log.sent) == consumer_turns.MAX_TURNS_IN_FLIGHT
    rooms = node.rooms
    node.apply(1)
    node.turn()
    assert node.rooms == rooms + 1
    while node.log.sent:
        node.apply()
        node.turn()
    assert node.log.applied == list(range(1, consumer_turns.MAX_TURNS_IN_FLIGHT + 11))


def test_much_in_one_loop_turn_is_several_turns_of_bounded_size(node: Node) -> None:
    many = list(range(1, 20_001))
    for _ in range(4):
        node.turns.submit(node.owners[0], log_turn.DELIVER, many, None)
    node.turn()
    assert len(node.log.sent) in (3, 4)
    assert sum(len(log_turn.decode(body).ops) for body in node.log.sent) == 4


def test_no_turn_settles_or_passes_very_many_messages(node: Node) -> None:
    """A replica applies a turn in one go, and may remove each of these messages from its stream."""
    most = consumer_turns.MAX_TURN_MESSAGES
    acks = list(range(1, most // 2 + 1))
    for kind, value, messages in (
        (log_turn.ACK, acks, 0),
        (log_turn.TERM, acks, 0),
        (log_turn.NAK, [(1, 0)], 0),
        (log_turn.DELIVER, [1, 2], 0),
        (log_turn.ADVANCE, (9000, most - 1), 0),
        (log_turn.ACK, [7], most),
        (log_turn.WAIT, b"inbox", 0),
        *[(log_turn.ACK, [number], 10) for number in range(most // 10 + 1)],
    ):
        node.turns.submit(node.owners[0], kind, value, None, messages)  # type: ignore[arg-type]
    node.turn()
    turns = [[op.kind for op in log_turn.decode(body).ops] for body in node.log.sent]
    assert turns == [
        [log_turn.ACK, log_turn.TERM],
        [log_turn.NAK, log_turn.DELIVER, log_turn.ADVANCE],
        [log_turn.ACK, log_turn.WAIT],
        [log_turn.ACK] * (most // 10),
        [log_turn.ACK],
    ]


def test_an_owner_that_was_let_go_is_not_called(node: Node) -> None:
    node.skip(5)
    node.skip(6, owner=1)
    node.turn()
    node.skip(7)
    node.turns.forget(node.owners[0])
    node.turn()
    node.apply()
    assert node.owners[0].told == [] and node.owners[1].told == [(6, 1, None)]
    assert node.log.applied == [5, 6]


def test_what_one_owner_raises_does_not_keep_the_others_from_being_called(node: Node) -> None:
    error = ValueError("a defect")

    def fails(*_: object) -> None:
        raise error

    node.owners[0].applied = fails  # type: ignore[method-assign]
    node.skip(5)
    node.skip(6, owner=1)
    node.turn()
    node.apply()
    assert node.errors == [error] and node.owners[1].told == [(6, 1, None)]


def test_after_a_restart_the_new_session_follows_the_one_in_the_table() -> None:
    node = Node()
    node.log.session, node.log.serial = 2**62, 17
    node.turns.want()
    node.apply()
    assert node.turns.is_open and node.log.session == 2**62 + 1


VOID: list[tuple[int, Any, Outcome]] = [
    (log_turn.DELIVER, [7], None),
    (log_turn.REDELIVER, [7], None),
    (log_turn.ACK, [7], None),
    (log_turn.NAK, [(7, 0)], None),
    (log_turn.TERM, [7], None),
    (log_turn.PROGRESS, [7], None),
    (log_turn.EXHAUSTED, [7], None),
    (log_turn.GONE, [7], None),
    (log_turn.SKIP, 7, 0),
    (log_turn.ADVANCE, (7, 1), 0),
]


@pytest.mark.parametrize(("kind", "value", "outcome"), VOID)
def test_after_an_op_that_came_out_void_the_owner_goes_on_from_the_state(
    kind: int, value: Any, outcome: Outcome, node: Node
) -> None:
    node.log.void[kind] = outcome
    node.turns.submit(node.owners[0], kind, value, "void")
    node.skip(8, owner=1, token="sound")
    node.turn()
    node.apply()
    assert [told[2] for told in node.owners[0].told] == ["void"]
    assert [told[2] for told in node.owners[1].told] == ["sound"]
    assert not node.turns.may_run and node.turns.lost == 1
    node.log.void.clear()
    node.apply()
    assert node.turns.is_open and [owner.resets for owner in node.owners] == [1, 1]


@pytest.mark.parametrize(
    ("kind", "value"),
    [(log_turn.WAIT, b"reply"), (log_turn.UNWAIT, b"reply"), (log_turn.PIN, (b"group", b"pin"))],
)
def test_what_is_true_already_ends_no_session(kind: int, value: Any, node: Node) -> None:
    node.log.void[kind] = 0
    node.turns.submit(node.owners[0], kind, value, None)
    node.turn()
    node.apply()
    assert node.turns.is_open and node.turns.lost == 0


def test_what_comes_out_void_for_an_owner_that_was_let_go_ends_no_session(node: Node) -> None:
    node.log.void[log_turn.DELIVER] = None
    node.turns.submit(node.owners[0], log_turn.DELIVER, [7], None)
    node.turn()
    node.turns.forget(node.owners[0])
    node.apply()
    assert node.turns.is_open and node.turns.lost == 0
