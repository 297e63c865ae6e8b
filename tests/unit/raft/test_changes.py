from __future__ import annotations

import dataclasses

import pytest

from jetcluster.raft import codec
from jetcluster.raft.api import LeavingError, MembershipError, NotLeaderError, Role
from jetcluster.raft.config import RaftConfig
from jetcluster.raft.core.group import Group
from jetcluster.raft.membership import Config
from tests.unit.raft.loopback import SMALL, Loopback, led


def test_a_new_peer_learns_and_is_promoted() -> None:
    net, leader = led("ABCD", peers="ABC")
    net.crowd(leader, 300, form=b"%d", after=0.1)
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
    net, leader = led("ABCD", config=RaftConfig(promote_lag=64), latency=0.04, peers="ABC", after=0.5)
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
    net, leader = led(
        "ABCD",
        config=RaftConfig(promote_lag=64, window_batches=1, frame_entries=100),
        latency=0.04,
        peers="ABC",
        after=0.5,
    )
    net.crowd(leader, 2_000, form=b"%d", after=2.0)
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
    net, leader = led("ABCD", after=0.1)
    net.crash("D")
    leader.remove_peer("D")
    net.run(0.1)
    net.crash("C")
    net.run(0.1)
    index = net.propose(leader, b"two of three", after=0.1)
    assert leader.commit_index == index


def test_refusals() -> None:
    net, leader = led("ABCD", peers="ABC", after=0.1)
    with pytest.raises(NotLeaderError):
        net["B"].group().add_peer("D")
    with pytest.raises(MembershipError, match="is a member"):
        leader.add_peer("B")
    with pytest.raises(MembershipError, match="no member"):
        leader.remove_peer("D")
    with pytest.raises(MembershipError, match="transfer"):
        leader.remove_peer("A")


def test_a_learner_that_is_not_there_does_not_block_and_can_be_removed() -> None:
    net, leader = led("ABCD", peers="ABC", after=0.1)
    net.crash("D")
    leader.add_peer("D")
    index = net.propose(leader, b"x", after=1.0)
    assert leader.commit_index == index
    leader.remove_peer("D")
    net.run(0.1)
    assert leader.log.config == Config(("A", "B", "C"))


def test_a_change_that_was_not_committed_is_rolled_back_with_its_entry() -> None:
    net, old = led("ABCD", peers="ABC", after=0.1)
    net.filter = lambda source, target, gid, frame: source != "A"
    old.remove_peer("C")
    net.isolate("A")
    net.filter = None
    assert old.log.config == Config(("A", "B"), outgoing=("A", "B", "C"))
    net.until(lambda: any(net[n].group().ready for n in "BC"))
    net.connect_all()
    net.until(lambda: old.role is Role.FOLLOWER and old.peers == ("A", "B", "C"))
    net.run(0.2)
    leader = net.led_by()
    net.crash(leader.me)
    net.until(lambda: net.leader() is not None, seconds=3.0)


def test_a_change_that_its_leader_has_left_behind_does_not_count_as_proposed_for_ever() -> None:
    net, old = led("ABCD", peers="ABC", after=0.1)
    net.filter = lambda source, target, gid, frame: target != "A"
    old.add_peer("D")
    old.propose(b"command")
    net.run(0.05)
    net.isolate("A")
    net.filter = None
    net.until(lambda: any(net[n].group().ready for n in "BC"))
    leader = next(net[n].group() for n in "BC" if net[n].group().ready)
    assert b"command" in net[leader.me].machine().commands()
    net.until(lambda: leader.applied_index == leader.last_index)
    assert leader.uncommitted == 0


def test_growing_from_one_to_three() -> None:
    net, leader = led(peers="A")
    net.propose(leader, b"first", after=0.1)
    for name in "BC":
        net[name].create(1, leader.peers)
        leader.add_peer(name)
        net.until(lambda name=name: name in leader.peers)
    net.run(0.1)
    net.crash("A")
    net.until(lambda: net.leader() is not None)
    assert net["B"].machine().commands() == net["C"].machine().commands() == [b"first"]


def learning(voters: str, learners: str) -> tuple[Loopback, Group]:
    """A leads `voters`; `learners` have caught up, and wait for the word."""
    names = "".join(sorted({*voters, *learners}))
    net = Loopback(names)
    for name in voters:
        net[name].create(1, tuple(voters), campaign=name == "A", promotes=False)
    net.until(lambda: net["A"].group().ready)
    leader = net["A"].group()
    net.crowd(leader, 20, form=b"%d")
    for name in learners:
        net[name].create(1, tuple(voters), promotes=False)
        leader.add_peer(name)
        net.until(lambda name=name: leader.changes.has_caught_up(name))  # type: ignore[misc]
    net.run(0.1)
    return net, leader


def goes_on(net: Loopback, leader: Group) -> bool:
    index = net.propose(leader, b"more", after=0.3)
    return leader.commit_index >= index


@pytest.mark.parametrize("lost", ["B", "C"])
def test_one_grows_to_three_and_either_new_server_may_be_lost_on_the_way(lost: str) -> None:
    net, leader = learning("A", "BC")
    leader.change_voters(("A", "B", "C"))
    assert leader.log.config == Config(("A", "B", "C"), outgoing=("A",))
    net.crash(lost)  # what was sent to it is lost with it
    assert goes_on(net, leader)
    net.until(lambda: leader.log.config == Config(("A", "B", "C")))
    net.run(60.0)
    assert leader.role is Role.LEADER


@pytest.mark.parametrize("lost", ["B", "C"])
def test_three_shrink_to_one_and_a_server_that_goes_may_be_lost_on_the_way(lost: str) -> None:
    net, leader = learning("ABC", "")
    leader.change_voters(("A",))
    assert leader.log.config == Config(("A",), outgoing=("A", "B", "C"))
    net.crash(lost)
    assert goes_on(net, leader)
    assert leader.log.config == Config(("A",))
    net.run(60.0)
    assert leader.role is Role.LEADER


@pytest.mark.parametrize("lost", ["", "B", "C", "D"])
def test_a_peer_takes_the_place_of_another_in_one_change(lost: str) -> None:
    net, leader = learning("ABC", "D")
    leader.change_voters(("A", "B", "D"))
    if lost:
        net.crash(lost)
    assert goes_on(net, leader)
    assert leader.log.config == Config(("A", "B", "D"))


def test_a_leader_that_is_to_go_hands_over_and_the_next_one_leads_the_change_to_its_end() -> None:
    net, leader = learning("A", "B")
    leader.change_voters(("B",))
    net.until(lambda: net["B"].group().ready and net["B"].group().log.config == Config(("B",)), seconds=3.0)
    assert goes_on(net, net["B"].group())
    assert net["B"].machine().commands()[:20] == [b"%d" % i for i in range(20)]
    net.crash("A")
    assert goes_on(net, net["B"].group())


def test_a_leader_that_is_to_go_tries_again_until_somebody_takes_over() -> None:
    net, leader = learning("A", "B")
    net.filter = lambda source, target, gid, frame: not gid or frame[1] != codec.TIMEOUT_NOW
    leader.change_voters(("B",))
    net.run(5.0)
    assert leader.log.config.outgoing
    net.filter = None
    net.until(lambda: net["B"].group().ready, seconds=5.0)


def test_the_next_leader_leaves_a_joint_configuration() -> None:
    net, leader = learning("ABC", "D")
    net.filter = lambda source, target, gid, frame: not gid or source != "A" or frame[1] != codec.APPEND
    leader.change_voters(("A", "B", "D"))
    net.filter = None
    net.run(0.0003)  # it is on its way to all
    net.crash("A")
    net.until(lambda: any(net[n].group().ready and not net[n].group().log.config.outgoing for n in "BCD"), seconds=5.0)


def test_who_leads_a_joint_configuration_needs_both_majorities() -> None:
    """B, C and D are a majority of the new voters, and have it in their logs; of the old ones only A is not lost."""
    net, leader = learning("AEF", "BCD")
    assert leader.change_voters(("B", "C", "D")) == leader.last_index
    net.run(0.0003)
    for name in "AEF":
        net.crash(name)
    net.run(5.0)
    assert all(net[n].group().log.config.outgoing for n in "BCD")
    assert not any(net[n].group().ready or net[n].group().role is Role.LEADER for n in "BCD")
    for name in "AE":
        net.restart(name).create(1, tuple("AEF"), promotes=False)
    net.connect_all()
    net.until(lambda: any(net[n].group().ready and not net[n].group().log.config.outgoing for n in "BCD"), seconds=9.0)


def test_other_voters_are_refused_unless_they_have_caught_up_and_a_majority_of_each_is_there() -> None:
    net, leader = learning("ABC", "D")
    for voters, why in ((("A", "B", "C"), "no other"), ((), "no other"), (("A", "B", "E"), "E is no learner")):
        with pytest.raises(MembershipError, match=why):
            leader.change_voters(voters)
    net.crash("C")
    with pytest.raises(MembershipError, match="C is away"):
        leader.change_voters(("A", "C"))
    leader.change_voters(("A", "B", "D"))
    with pytest.raises(MembershipError, match="under way"):
        leader.add_peer("E")
    assert goes_on(net, leader)


def test_who_votes_is_on_the_disk_also_where_messages_count_before() -> None:
    """A server that was alone loses power, and what it had not synced: it must not go on alone beside the others."""
    net = Loopback("ABC", options=dataclasses.replace(SMALL, sync_interval=10.0))
    net["A"].create(1, ("A",), campaign=True, promotes=False)
    for name in "BC":
        net[name].create(1, ("A",), promotes=False)
    leader = net["A"].group()
    net.until(lambda: leader.ready)
    net.run(12.0)
    for name in "BC":
        leader.add_peer(name)
        net.run(0.5)
    net.until(lambda: all(leader.changes.has_caught_up(name) for name in "BC"))
    leader.change_voters(("A", "B", "C"))
    net.run(4.0)
    net.crash("A")
    net.connect("B", "C")
    net.run(1.5)
    back = net.restart("A").create(1, ("A",), promotes=False)
    net.run(2.0)
    assert set(back.log.config.voters) == {"A", "B", "C"}
    assert not back.engine.leading
    assert [name for name in "BC" if net[name].group().ready]


def test_a_leader_that_nobody_takes_over_from_takes_proposals_meanwhile() -> None:
    net, leader = learning("A", "B")
    net.filter = lambda source, target, gid, frame: not gid or frame[1] != codec.TIMEOUT_NOW
    leader.change_voters(("B",))
    taken = 0
    for _ in range(600):
        net.run(0.1)
        try:
            leader.propose(b"x")
        except LeavingError:
            continue
        taken += 1
    assert leader.engine.leading
    assert taken > 500
