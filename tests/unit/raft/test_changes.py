from __future__ import annotations

import pytest

from jetcluster.raft.api import MembershipError, NotLeaderError, Role
from jetcluster.raft.config import RaftConfig
from jetcluster.raft.membership import Config
from tests.unit.raft.loopback import Loopback


def test_a_new_peer_learns_and_is_promoted() -> None:
    net = Loopback("ABCD")
    leader = net.start(peers="ABC")
    for i in range(300):
        leader.propose(b"%d" % i)
    net.run(0.1)
    net["D"].create(1, leader.peers)
    index = leader.add_peer("D")
    assert leader.log.config == Config(("A", "B", "C"), ("D",))
    net.until(lambda: leader.peers == ("A", "B", "C", "D"))
    assert leader.log.config_index > index
    net.run(0.1)
    assert net["D"].machine().commands() == net["A"].machine().commands()
    assert net["D"].group().peers == ("A", "B", "C", "D")
    net.crash("A")
    net.isolate("B")
    net.run(1.5)
    assert not any(net[n].group().ready for n in "CD"), "two of four are no majority"


def test_a_learner_far_away_is_promoted_while_its_leader_is_written_at_full_speed() -> None:
    """More entries are always on their way than a learner may lack; it has what there was a moment ago."""
    net = Loopback("ABCD", config=RaftConfig(promote_lag=64), latency=0.04)
    leader = net.start(peers="ABC")
    net.run(0.5)
    lags: list[int] = []

    def load() -> None:
        for _ in range(5):
            leader.propose(b"." * 20)
        flow = leader.replicator.flows.get("D")
        if flow is not None and flow.match > 0:
            lags.append(leader.last_index - flow.match)
        net.time.call_later(0.002, load)

    load()
    net.run(0.5)
    net["D"].create(1, leader.peers)
    leader.add_peer("D")
    net.until(lambda: "D" in leader.peers, seconds=3.0)
    assert min(lags) > leader.config.promote_lag


def test_a_learner_that_does_not_keep_up_is_not_promoted() -> None:
    net = Loopback("ABCD", config=RaftConfig(promote_lag=64, window_batches=1, frame_entries=100), latency=0.04)
    leader = net.start(peers="ABC")
    net.run(0.5)
    for number in range(2_000):
        leader.propose(b"%d" % number)
    net.run(2.0)
    net["D"].create(1, leader.peers)
    leader.add_peer("D")

    def load() -> None:  # 100 entries in each round trip is what D takes at most
        for _ in range(5):
            leader.propose(b"." * 20)
        net.time.call_later(0.0035, load)

    load()
    net.run(10.0)
    assert "D" not in leader.peers


def test_a_dead_peer_is_removed_and_no_longer_counts() -> None:
    net = Loopback("ABCD")
    leader = net.start()
    net.run(0.1)
    net.crash("D")
    leader.remove_peer("D")
    net.run(0.1)
    net.crash("C")
    net.run(0.1)
    index = leader.propose(b"two of three")
    net.run(0.1)
    assert leader.commit_index == index


def test_refusals() -> None:
    net = Loopback("ABCD")
    leader = net.start(peers="ABC")
    net.run(0.1)
    with pytest.raises(NotLeaderError):
        net["B"].group().add_peer("D")
    with pytest.raises(MembershipError, match="is a member"):
        leader.add_peer("B")
    with pytest.raises(MembershipError, match="no member"):
        leader.remove_peer("D")
    with pytest.raises(MembershipError, match="transfer"):
        leader.remove_peer("A")


def test_a_learner_that_is_not_there_does_not_block_and_can_be_removed() -> None:
    net = Loopback("ABCD")
    leader = net.start(peers="ABC")
    net.run(0.1)
    net.crash("D")
    leader.add_peer("D")
    index = leader.propose(b"x")
    net.run(1.0)
    assert leader.commit_index == index
    leader.remove_peer("D")
    net.run(0.1)
    assert leader.log.config == Config(("A", "B", "C"))


def test_a_change_that_was_not_committed_is_rolled_back_with_its_entry() -> None:
    net = Loopback("ABCD")
    old = net.start(peers="ABC")
    net.run(0.1)
    net.filter = lambda source, target, gid, frame: source != "A"
    old.remove_peer("C")
    net.isolate("A")
    net.filter = None
    assert old.peers == ("A", "B")
    net.until(lambda: any(net[n].group().ready for n in "BC"))
    net.connect_all()
    net.until(lambda: old.role is Role.FOLLOWER and old.peers == ("A", "B", "C"))
    net.run(0.2)
    leader = net.leader()
    assert leader is not None
    net.crash(leader.me)
    net.until(lambda: net.leader() is not None, seconds=3.0)


def test_growing_from_one_to_three() -> None:
    net = Loopback()
    leader = net.start(peers="A")
    leader.propose(b"first")
    net.run(0.1)
    for name in "BC":
        net[name].create(1, leader.peers)
        leader.add_peer(name)
        net.until(lambda name=name: name in leader.peers)
    net.run(0.1)
    net.crash("A")
    net.until(lambda: net.leader() is not None)
    assert net["B"].machine().commands() == net["C"].machine().commands() == [b"first"]
