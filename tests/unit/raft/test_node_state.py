"""What the groups of a node share."""

from __future__ import annotations

from tests.unit.raft.loopback import Loopback


def test_all_groups_of_a_node_share_one_state() -> None:
    net = Loopback("A")
    first, second = net.start(gid=1), net.start(gid=2)
    assert first.node is second.node is net["A"].node.state
    assert first.node.peers is net["A"].node.peers


def test_what_one_group_reports_and_counts_is_the_node_s() -> None:
    net = Loopback("A")
    net.start(gid=1)
    group = net.start(gid=2)
    group.fail("for the test")
    assert net["A"].node.counters.stopped_groups == 1
    assert net["A"].reports == [(2, "stopped: for the test")]
