"""Which groups a node looks at, and when."""

from __future__ import annotations

from jetcluster.raft.turns import Turns
from testkit.twins.time import ManualTime


class Node:
    def __init__(self) -> None:
        self.time = ManualTime()
        self.turns = Turns(self.time, self.time, self._turn, self._wake)
        self.looked_at: list[list[int]] = []
        self.woken: list[tuple[float, list[int]]] = []

    def _turn(self) -> None:
        self.looked_at.append(list(self.turns.marked))
        self.turns.marked = {}

    def _wake(self) -> None:
        now = self.time.monotonic()
        self.woken.append((now, self.turns.due(now)))
        self.turns.rearm()


def test_groups_that_are_marked_share_one_turn_in_the_order_of_their_first_mark() -> None:
    node = Node()
    for gid in (3, 1, 3, 2):
        node.turns.mark(gid)
    assert node.looked_at == []
    node.time.advance(0.0)
    assert node.looked_at == [[3, 1, 2]]
    node.time.advance(1.0)
    assert len(node.looked_at) == 1, "no turn without a mark"


def test_nothing_is_scheduled_while_a_turn_comes_anyway() -> None:
    node = Node()
    node.turns.busy = True
    node.turns.mark(1)
    node.time.advance(1.0)
    assert node.looked_at == []
    node.turns.schedule()
    node.turns.schedule()
    node.time.advance(0.0)
    assert node.looked_at == [[1]]


def test_held_groups_come_back_when_commands_may_be_applied_again() -> None:
    node = Node()
    assert not node.turns.asks
    node.turns.ask_first()
    assert node.turns.asks
    node.turns.hold(5)
    node.turns.hold(4)
    node.time.advance(1.0)
    assert node.looked_at == []
    node.turns.apply_again()
    node.turns.apply_again()
    node.time.advance(0.0)
    assert node.looked_at == [[5, 4]] and not node.turns.asks


def test_each_asked_time_wakes_its_groups_once() -> None:
    node = Node()
    start = node.time.monotonic()
    node.turns.wake_at(1, start + 3.0)
    node.turns.wake_at(2, start + 1.0)
    node.turns.wake_at(2, start + 1.0)
    node.time.advance(5.0)
    assert node.woken == [(start + 1.0, [2]), (start + 3.0, [1])]


def test_a_group_that_is_gone_is_looked_at_nowhere() -> None:
    node = Node()
    for gid in (1, 2):
        node.turns.mark(gid)
        node.turns.stir(gid)
        node.turns.hold(gid)
    node.turns.drop(1)
    node.turns.apply_again()
    node.time.advance(0.0)
    assert node.looked_at == [[2]]
    assert list(node.turns.take_stirred()) == [2]
    assert node.turns.stirred == {}


def test_nobody_is_woken_after_the_end() -> None:
    node = Node()
    node.turns.wake_at(1, node.time.monotonic() + 1.0)
    node.turns.close()
    node.time.advance(5.0)
    assert node.woken == []
