"""Parts that the groups of a node share.

What links and heartbeats say of the other nodes.

Which groups a node looks at, and when.

Levels: which commands all nodes of a group understand.
"""

from __future__ import annotations

import pytest

from jetcluster.health.node_health import Aspect, NodeHealth
from jetcluster.raft.config import RaftConfig
from jetcluster.raft.membership import Config
from jetcluster.raft.node_state import Levels, Peers, PeerState, Turns
from testkit.twins.time import ManualTime
from tests.unit.raft.loopback import Loopback, running


def test_all_groups_of_a_node_share_one_state() -> None:
    net = Loopback("A")
    first, second = net.start(gid=1), net.start(gid=2)
    assert first.node is second.node is net["A"].node.state
    assert first.node.peers is net["A"].node.peers


def test_what_one_group_reports_and_counts_is_the_node_s() -> None:
    net = running("A")
    group = net.start(gid=2)
    group.fail("for the test")
    assert net["A"].node.counters.stopped_groups == 1
    assert net["A"].reports == [(2, "stopped: for the test")]


class Node:
    def __init__(self) -> None:
        self.time = ManualTime()
        self.trouble = ""
        self.health = NodeHealth(self.time)
        self.health.watch(Aspect.MEMORY, lambda: self.trouble)
        self.config = RaftConfig()
        self.peers = Peers("A", self.time, self.config, self.health)

    def hear(self, peer: str, well: bool = True) -> None:
        self.peers.states[peer] = PeerState(up=True, last_seen=self.time.monotonic(), well=well)


def test_a_peer_is_alive_until_it_is_silent_or_its_link_breaks() -> None:
    node = Node()
    node.hear("B")
    assert node.peers.is_up("B") and node.peers.is_alive("B") and node.peers.is_well("B")
    seen = node.time.monotonic()
    node.time.advance(node.config.suspect_after + 0.01)
    assert node.peers.is_up("B")
    assert not node.peers.is_alive("B")
    assert node.peers.last_seen("B") == seen
    node.hear("B")
    node.peers.states["B"].up = False
    assert not (node.peers.is_up("B") or node.peers.is_alive("B") or node.peers.is_well("B"))


def test_the_node_itself_is_well_while_nothing_troubles_it() -> None:
    node = Node()
    assert node.peers.is_well("A")
    node.trouble = "full"
    node.health.look()
    assert not node.peers.is_well("A")


def test_what_a_peer_waits_for_is_known_also_while_it_is_away() -> None:
    node = Node()
    node.peers.states["B"] = PeerState(up=False, waits=False)
    node.hear("C")
    assert (node.peers.waits_for_disk("B"), node.peers.waits_for_disk("C")) == (False, None)
    assert node.peers.waits_for_disk("X") is None


def test_nobody_knows_a_peer_that_was_never_linked() -> None:
    peers = Node().peers
    assert not (peers.is_up("X") or peers.is_alive("X") or peers.is_well("X"))
    assert peers.last_seen("X") == 0.0


@pytest.mark.parametrize(
    ("trouble", "others_well", "leads"),
    [("", True, True), ("", False, True), ("no memory", True, False), ("no memory", False, True)],
)
def test_a_node_that_is_not_well_leads_only_where_no_other_voter_is_well(
    trouble: str, others_well: bool, leads: bool
) -> None:
    node = Node()
    node.hear("B", well=others_well)
    node.trouble = trouble
    node.health.look()
    assert node.peers.may_lead(("A", "B")) is leads
    assert node.peers.may_lead(("A",)), "there is nobody else"


def test_a_group_of_one_stamps_by_its_own_clock_after_a_while() -> None:
    node = Node()
    node.health.time.others = lambda: {"B", "C"}
    since = node.time.monotonic()
    assert not node.peers.may_stamp(("A",), since)
    node.time.advance(node.config.clock_wait + 0.1)
    assert node.peers.may_stamp(("A",), since)
    assert not node.peers.may_stamp(("A", "B", "C"), since), "a majority's time is to be had there"


class TurnsNode:
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
    node = TurnsNode()
    for gid in (3, 1, 3, 2):
        node.turns.mark(gid)
    assert node.looked_at == []
    node.time.advance(0.0)
    assert node.looked_at == [[3, 1, 2]]
    node.time.advance(1.0)
    assert len(node.looked_at) == 1, "no turn without a mark"


def test_nothing_is_scheduled_while_a_turn_comes_anyway() -> None:
    node = TurnsNode()
    node.turns.busy = True
    node.turns.mark(1)
    node.time.advance(1.0)
    assert node.looked_at == []
    node.turns.schedule()
    node.turns.schedule()
    node.time.advance(0.0)
    assert node.looked_at == [[1]]


def test_held_groups_come_back_when_commands_may_be_applied_again() -> None:
    node = TurnsNode()
    assert not node.turns.asks
    node.turns.ask_first(lambda: False)
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
    node = TurnsNode()
    start = node.time.monotonic()
    node.turns.wake_at(1, start + 3.0)
    node.turns.wake_at(2, start + 1.0)
    node.turns.wake_at(2, start + 1.0)
    node.time.advance(5.0)
    assert node.woken == [(start + 1.0, [2]), (start + 3.0, [1])]


def test_a_group_that_is_gone_is_looked_at_nowhere() -> None:
    node = TurnsNode()
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
    node = TurnsNode()
    node.turns.wake_at(1, node.time.monotonic() + 1.0)
    node.turns.close()
    node.time.advance(5.0)
    assert node.woken == []


def test_a_group_has_the_level_of_its_oldest_member() -> None:
    levels = Levels("A", 7, lambda peer: 0)
    config = Config(("A", "B"), ("C",))
    assert levels.of(Config(("A",))) == 7
    levels.heard("B", 9)
    assert levels.of(config) == 0, "nothing is known of the learner"
    levels.heard("C", 5)
    assert levels.of(config) == 5
    levels.heard("C", 8)
    assert levels.of(config) == 8, "a member's own level does not bind the others, and it leads"
    assert levels.of(Config(("B", "C"))) == 8


def test_who_is_silent_is_what_is_on_record() -> None:
    levels = Levels("A", 7, {"B": 6}.__getitem__)
    assert levels.told("B") is None and levels.of(Config(("A", "B"))) == 6
    levels.heard("B", 7)
    assert levels.told("B") == 7 == levels.of(Config(("A", "B")))
    levels.forget("B")
    assert levels.told("B") is None and levels.of(Config(("A", "B"))) == 6
    assert levels.told("A") == 7


def test_a_peer_without_a_link_may_have_come_back_as_an_older_one_elsewhere() -> None:
    record = {"B": 7}
    levels = Levels("A", 7, lambda peer: record.get(peer, 0))
    config = Config(("A", "B"))
    levels.heard("B", 7)
    levels.lost("B")
    assert levels.of(config) == 7, "it usually comes back as it was"
    record["B"] = 6
    assert levels.of(config) == 6 and not levels.understands("B", 7)
    levels.heard("B", 7)
    assert levels.of(config) == 7 and levels.understands("B", 7), "it says so itself"
    record["B"] = 0
    levels.lost("B")
    assert levels.of(config) == 7, "nothing is recorded"
