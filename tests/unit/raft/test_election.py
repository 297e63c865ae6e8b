"""A leader that hands over answers first what it accepted, but does not wait for a disk that may be why it goes."""

from __future__ import annotations

import pytest

from jetcluster.raft import codec
from jetcluster.raft.api import LeavingError, Role
from jetcluster.raft.config import RaftConfig
from tests.unit.raft.loopback import Loopback, led, running


def test_a_new_group_elects_the_chosen_one_at_once(net: Loopback) -> None:
    for name in "ABC":
        net[name].create(1, ("A", "B", "C"), campaign=name == "B")
    net.run(0.01)
    assert net["B"].group().ready


def test_without_a_hint_somebody_wins_soon() -> None:
    net = running(leader=None)
    assert net.time.monotonic() - 1_000 < 1.5


def test_frames_of_a_group_that_is_not_there_yet_are_kept(net: Loopback) -> None:
    net["A"].create(1, ("A", "B", "C"), campaign=True)
    net.run(0.05)
    assert net["A"].group().role is Role.CANDIDATE
    net["B"].create(1, ("A", "B", "C"))
    net.run(0.01)
    assert net["A"].group().ready


def test_kept_frames_are_bounded_and_do_not_outlive_their_connection(net: Loopback) -> None:
    node = net["B"].node
    for i in range(3_000):
        node.on_frame("A", 10 + i % 1_500, codec.encode(codec.Vote(1, 0, 0)))
    early = node._early
    assert len(early.kept) == node.config.early_groups
    for _ in range(1_000):
        node.on_frame("A", 10, codec.encode(codec.Vote(1, 0, 0)))
    assert len(early.kept[10]) == node.config.early_frames
    net.cut("A", "B")
    assert (early.kept, early.bytes) == ({}, 0)
    net.connect("A", "B")
    node.on_frame("A", 11, bytes(node.config.early_bytes))
    node.on_frame("A", 11, b"x")
    assert (len(early.kept[11]), early.bytes) == (1, node.config.early_bytes)
    node.on_frame("C", 12, b"x")
    assert 12 not in early.kept, "the bound is that of all of them"
    net.run(7.0)
    assert (early.kept, early.bytes) == ({}, 0)


def test_pre_vote_is_refused_while_a_leader_is_heard() -> None:
    net, leader = led(after=0.2)
    terms = [net[n].group().term for n in "ABC"]
    net["C"].group().election.pre_vote()
    net.run(0.5)
    assert [net[n].group().term for n in "ABC"] == terms
    assert leader.role is Role.LEADER


def test_pre_vote_is_refused_to_a_shorter_log() -> None:
    net, leader = led(after=0.1)
    net.isolate("C")
    net.propose(leader, b"x", after=0.1)
    net.crash("A")
    net.connect("B", "C")
    net.until(lambda: net.leader() is not None)
    assert net["B"].group().ready


def test_a_replica_that_lost_its_leader_hears_of_an_idle_one_again() -> None:
    net = running(after=0.2)
    net.cut("A", "C")
    net.run(0.3)
    assert net["C"].group().leader is None
    net.connect("A", "C")
    net.run(0.3)
    assert net["C"].group().leader == "A"


def test_a_resigning_leader_is_replaced_although_its_node_lives() -> None:
    net = running(after=0.2)
    net["A"].node.remove_group(1)
    began = net.time.monotonic()
    net.until(lambda: net.leader() is not None)
    assert net.time.monotonic() - began < 0.5


def test_the_digest_corrects_a_wrong_belief() -> None:
    net = running(after=0.2)
    group = net["A"].group()
    group.stopped = "silently"  # a leader that forgot to say so
    net.until(lambda: any(net[n].group().ready for n in "BC"), seconds=4.0)


def test_transfer_moves_the_leadership_without_a_gap() -> None:
    net, leader = led()
    net.crowd(leader, 50, form=b"%d")
    assert leader.transfer("C")
    began = net.time.monotonic()
    net.until(lambda: net["C"].group().ready)
    assert net.time.monotonic() - began < 0.1
    net.run(0.1)
    assert len(net["C"].machine().commands()) == 50


def test_transfer_refuses_strangers_and_gives_up_on_the_dead() -> None:
    net, leader = led(after=0.1)
    assert not leader.transfer("Z")
    assert not net["B"].group().transfer()
    net.filter = lambda source, target, gid, frame: not (gid and target == "C")
    net.propose(leader, b"x", after=0.01)
    assert leader.transfer("C")
    net.run(1.3)
    assert leader.role is Role.LEADER
    leader.propose(b"y")


def test_a_group_of_one_leads_again_after_a_restart() -> None:
    net, leader = led("A")
    net.propose(leader, b"x", after=0.1)
    net.crash("A")
    net.restart("A").create(1, ("A",))
    net.run(0.05)
    assert net["A"].group().ready
    assert net["A"].machine().commands() == [b"x"]


def test_four_followers_of_a_dead_leader_agree_on_one() -> None:
    net = running("ABCDE")
    for _ in range(3):
        leader = net.led_by()
        net.crash(leader.me)
        net.until(lambda: net.leader() is not None, seconds=3.0)
        net.restart(leader.me).create(1, tuple("ABCDE"))
        net.connect_all()
        net.run(0.2)


PATIENCE = RaftConfig().transfer_patience


def handing_over(net: Loopback) -> int:
    """A hands over to B, and its disk is at work on what it accepted. The index of that."""
    leader = net.start()
    net.run(0.1)
    net["A"].writer.hold()
    index = leader.propose(b"accepted")
    assert leader.transfer("B")
    net.run(PATIENCE / 2)
    assert net["B"].group().log.last_index == index
    return index


def test_what_was_accepted_is_applied_before_the_target_campaigns(net: Loopback) -> None:
    """The answers of one batch were lost with the leadership, in one of four hand-overs on a busy machine."""
    handing_over(net)
    assert net["A"].group().role is Role.LEADER
    with pytest.raises(LeavingError):
        net["A"].group().propose(b"more")
    net["A"].writer.release()
    net.until(lambda: net["B"].group().ready, seconds=0.1)
    assert net["A"].machine().dropped == []
    assert net["A"].machine().commands() == net["B"].machine().commands() == [b"accepted"]


def test_a_disk_that_does_not_return_delays_nothing_for_long(net: Loopback) -> None:
    index = handing_over(net)
    net.until(lambda: net["B"].group().ready, seconds=PATIENCE / 2 + 0.1)
    assert net["A"].machine().dropped == [index]
    assert net["B"].machine().commands() == [b"accepted"]
