"""What links and heartbeats say of the other nodes."""

from __future__ import annotations

import pytest

from jetcluster.health.node_health import Aspect, NodeHealth
from jetcluster.raft.config import RaftConfig
from jetcluster.raft.peers import Peers, PeerState
from testkit.twins.time import ManualTime


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
