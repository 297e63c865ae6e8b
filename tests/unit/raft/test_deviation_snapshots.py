"""Deviations of pysyncobj 0.3.17 about snapshots cannot happen here: rows D16 of docs/reference/pysyncobj.md."""

from __future__ import annotations

from jetcluster.raft import codec
from jetcluster.raft.core.group import Group
from jetcluster.raft.core.peer_progress import FlowState
from jetcluster.raft.membership import Config
from tests.unit.raft.journal_rig import forget
from tests.unit.raft.loopback import Loopback, led


def compacted(net: Loopback) -> Group:
    """C is away while the others go on and forget what it would need."""
    leader = net.start()
    net.run(0.1)
    net.isolate("C")
    net.crowd(leader, 30, after=0.1)
    for name in "AB":
        group = net[name].group()
        group.log.compactable = group.machine_index
        forget(group.log, group.machine_index)
    return leader


def test_d16_a_peer_behind_the_log_is_offered_a_snapshot_and_goes_on_after_it(net: Loopback) -> None:
    leader = compacted(net)
    net.connect_all()
    net.until(lambda: bool(net["C"].machine().snapshots))
    source, index, term = net["C"].machine().snapshots[0]
    assert (source, index) == ("A", leader.machine_index)
    assert leader.replicator.flows["C"].state is FlowState.SNAPSHOT
    net["C"].machine().applied = list(net["A"].machine().applied)
    net["C"].group().install(index, term, Config(leader.peers))
    net.propose(leader, b"after", after=0.3)
    assert net["C"].machine().commands() == net["A"].machine().commands()
    assert leader.engine.matches.get("C", 0) == leader.last_index


def test_d16_an_older_state_is_not_asked_for_and_leaves_no_gap() -> None:
    net, leader = led(commands=10, after=0.1)
    group = net["C"].group()
    group.receiver.on_message("A", codec.SnapOffer(leader.term, 5, 1, leader.log.config))
    assert net["C"].machine().snapshots == []
    everything = list(net["C"].machine().applied)
    end, commit = group.last_index, group.commit_index
    net["C"].machine().applied = [e for e in everything if e[0] <= 5]  # the owner put an older state in place
    group.install(5, 1, Config(leader.peers))
    net.run(0.05)
    assert net["C"].machine().applied == everything
    assert (group.last_index, group.commit_index) == (end, commit)


def test_d16_a_state_that_contradicts_the_log_stops_the_replica() -> None:
    net, leader = led(commands=10, after=0.1)
    net["C"].group().install(5, 9, Config(leader.peers))
    assert "contradicts" in net["C"].group().stopped


def test_d16b_a_restart_with_an_old_state_keeps_the_acked_tail() -> None:
    net, leader = led(commands=20, after=0.1)
    end = leader.last_index
    net.crash("A")
    group = net.restart("A").create(1, ("A", "B", "C"), applied_index=7, applied_term=1)
    assert group.last_index == end
    assert group.applied_index == 7


def test_d16c_an_installed_snapshot_keeps_the_log_behind_it() -> None:
    net, leader = led(commands=20, after=0.1)
    group = net["C"].group()
    end = group.last_index
    group.applied_index = group.machine_index = 5
    group.engine.restore(5, 5)
    group.install(12, leader.term, Config(leader.peers))
    assert group.applied_index == 12
    assert group.last_index == end
