from __future__ import annotations

import pytest

from jetcluster.raft.api import BackpressureError, LeavingError, NotLeaderError, Role, StorageFullError
from jetcluster.raft.config import RaftConfig
from tests.unit.raft.loopback import Loopback, asked, led, running


def test_proposals_are_bounded_by_uncommitted_bytes() -> None:
    net, leader = led(config=RaftConfig(max_uncommitted=1_000), after=0.1)
    net.isolate("A")
    net.crowd(leader, 22)
    for _ in range(2):
        with pytest.raises(BackpressureError):
            leader.propose(b"." * 100)
    assert (leader.status().overrun, leader.status().overrun_count) == (True, 1)
    net.connect_all()
    net.run(0.2)
    assert not leader.status().overrun
    leader.propose(b"." * 100)
    assert (leader.status().overrun, leader.status().overrun_count) == (False, 1)


def test_a_full_disk_refuses_proposals_and_serves_reads() -> None:
    net = Loopback("A")  # with others there somebody else would lead
    leader = net.start()
    net.run(0.1)
    net["A"].disk.reported_free = 10
    net["A"].journal.housekeep()
    net.run(0.01)
    with pytest.raises(StorageFullError):
        leader.propose(b"x")
    answers = asked(leader)
    net.run(0.05)
    assert answers == [True]
    net["A"].disk.reported_free = None
    net.run(1.5)
    net.propose(leader, b"x", after=0.1)
    assert net["A"].machine().commands() == [b"x"]


def test_a_long_backlog_is_applied_in_slices() -> None:
    net, leader = led("A", config=RaftConfig(apply_slice=-1.0), commands=20)
    work = leader.work
    leader.work = lambda: None  # type: ignore[method-assign]
    net.run(0.01)
    assert leader.log.durable_index == leader.last_index
    applied = []
    for _ in range(20):
        work()
        applied.append(len(net["A"].machine().applied))
    assert applied == list(range(1, 21))


@pytest.mark.parametrize("durable", [True, False])
def test_nothing_is_applied_before_propose_has_returned(durable: bool) -> None:
    """Also in a group of one whose entries count before the disk has them: who proposes knows the index by then."""
    net = Loopback("A")
    net["A"].create(1, ("A",), durable=durable)
    net.run(2.0)
    group, machine = net["A"].group(), net["A"].machine()
    group.propose(b"x")
    assert machine.commands() == []
    net.run(0.1)
    assert machine.commands() == [b"x"]


def test_only_what_is_on_the_own_disk_is_applied() -> None:
    net, leader = led(after=0.1)
    net["B"].writer.hold()
    index = net.propose(leader, b"x", after=0.1)
    follower = net["B"].group()
    assert follower.commit_index == index
    assert follower.applied_index < index


def test_status_tells_what_monitoring_needs() -> None:
    net, leader = led(commands=5, after=0.2)
    status = leader.status()
    assert (status.role, status.leader, status.ready, status.stopped) == (Role.LEADER, "A", True, "")
    assert status.last_index == status.commit_index == status.applied_index == status.durable_index == 6
    assert [(p.peer, p.match_index, p.connected, p.voter) for p in status.peers] == [
        ("B", 6, True, True),
        ("C", 6, True, True),
    ]
    assert all(net.time.monotonic() - p.last_seen < 0.2 for p in status.peers)


def test_a_peer_has_what_it_acknowledged_before_its_link_broke() -> None:
    net, leader = led(commands=5, after=0.2)
    net.isolate("C")
    net.propose(leader, b"x", after=0.2)
    peers = {p.peer: p for p in leader.status().peers}
    assert (peers["B"].match_index, peers["B"].acked_index) == (7, 7)
    assert (peers["C"].match_index, peers["C"].acked_index) == (0, 6)


def test_commits_applies_and_syncs_are_timed() -> None:
    net, leader = led(after=0.1)
    node = net["A"].node
    before = sum(node.commit_latency.counts), sum(node.apply_latency.counts), sum(node.journal.sync_latency.counts)
    for _ in range(10):
        leader.propose(b"x")  # of one turn: one is timed
    net.run(0.1)
    assert sum(node.commit_latency.counts) == before[0] + 1
    assert 0 < node.commit_latency.seconds < 0.1
    assert sum(node.apply_latency.counts) > before[1]
    assert sum(node.journal.sync_latency.counts) > before[2]
    assert sum(net["B"].node.commit_latency.counts) == 0
    net.isolate("A")
    net.propose(leader, b"lost", after=3.0)
    net.connect_all()
    net.run(3.0)
    again = next(name for name in "ABC" if net[name].group().role is Role.LEADER)
    count = sum(net[again].node.commit_latency.counts)
    net[again].group().propose(b"y")
    net.run(0.1)
    assert sum(net[again].node.commit_latency.counts) == count + 1


def test_a_removed_group_refuses_and_is_forgotten() -> None:
    net, leader = led(after=0.1)
    node = net["A"].node
    node.remove_group(1)
    with pytest.raises(NotLeaderError):
        leader.propose(b"x")
    assert not leader.transfer()
    assert not node.knows(1)
    net.run(0.1)
    net.crash("A")
    assert not net.restart("A").node.knows(1)


def test_groups_in_the_journal_that_nobody_claims_are_listed() -> None:
    net = running()
    net.start(7)
    net.run(0.1)
    net.crash("A")
    node = net.restart("A").node
    assert node.orphans() == [1, 7]
    net["A"].create(1, ("A", "B", "C"))
    assert node.orphans() == [7]
    assert node.knows(7)
    node.remove_group(7)
    assert node.orphans() == []


def test_memory_groups_answer_before_the_disk() -> None:
    net, leader = led(durable=False, after=0.1)
    net.propose(leader, b"x", after=0.01)
    assert net["A"].machine().commands() == [b"x"]
    assert net["A"].disk.unsynced


def test_a_memory_group_that_lost_committed_entries_to_a_power_failure_is_rebuilt() -> None:
    net, leader = led(durable=False, after=0.1)
    net.crowd(leader, 5, after=0.05)
    applied = len(net["A"].machine().commands())
    assert applied == 5
    net.isolate("A")
    for name in "BC":
        net[name].disk.lose_unsynced()
        net.crash(name)
        net.restart(name).create(1, ("A", "B", "C"), durable=False)
    net.connect("B", "C")
    net.until(lambda: any(net[n].group().ready for n in "BC"))
    second = next(net[n].group() for n in "BC" if net[n].group().ready)
    net.crowd(second, 10, after=0.1)
    net.connect_all()
    net.until(lambda: bool(net["A"].machine().snapshots), seconds=6.0)
    assert net["A"].group().stopped == ""


def test_leadership_lost_with_everything_applied_drops_nothing() -> None:
    net, leader = led(commands=3, after=0.1)
    assert leader.transfer("B")
    with pytest.raises(LeavingError):
        leader.propose(b"x")  # nobody else leads yet, so it is certain that nobody takes it
    net.run(0.3)
    assert leader.role is Role.FOLLOWER
    with pytest.raises(NotLeaderError) as refused:
        leader.propose(b"x")
    assert not isinstance(refused.value, LeavingError)
    assert net["A"].machine().dropped == []
