from __future__ import annotations

from jetcluster.raft import codec, records
from jetcluster.raft.api import Role
from jetcluster.raft.group import Group
from tests.unit.raft.loopback import Loopback, Recorder
from tests.unit.raft.test_recovery import batches


def damaged_c(net: Loopback) -> None:
    """C was down and comes back with a journal that lost something in its middle."""
    leader = net.start()
    for i in range(30):
        leader.propose(b"%d" % i)
        net.run(0.002)
    net.run(1.2)
    net.crash("C")
    number, start, _ = batches(net["C"].disk)[-12]
    net["C"].disk.corrupt(number, start + records.BATCH_HEAD + 10, b"\xff\xff\xff")
    net.restart("C").create(1, ("A", "B", "C"))


def test_a_damaged_replica_comes_back_through_the_leader() -> None:
    net = Loopback()
    damaged_c(net)
    assert net["C"].group().status().damaged
    net.connect_all()
    net.until(lambda: not net["C"].group().status().damaged)
    assert ("repaired" in net["C"].reports[-1][1]) is True
    net.run(0.2)
    net.crash("B")
    leader = net.leader()
    assert leader is not None
    index = leader.propose(b"with C again")
    net.run(0.1)
    assert leader.commit_index == index


def test_it_does_not_vote_campaign_or_count_meanwhile() -> None:
    net = Loopback()
    damaged_c(net)
    net.crash("B")
    net.connect("A", "C")
    leader = net["A"].group()
    net.run(0.2)
    if leader.role is Role.LEADER:
        index = leader.propose(b"no majority")
        net.run(0.2)
        assert leader.commit_index < index
    net.run(2.0)
    assert net["C"].group().status().damaged, "nobody else can vouch for it"
    assert not net["A"].group().ready
    group = net["C"].group()
    term = group.term
    group.receiver.on_message("A", codec.Vote(term + 5, 10_000, term + 4))
    net.run(0.1)
    assert group.log.voted_for is None
    assert group.term == term + 5
    assert not group.may_campaign()
    net.restart("B").create(1, ("A", "B", "C"))
    net.connect_all()
    net.until(lambda: not net["C"].group().status().damaged, seconds=5.0)


def alone(applied: int, cut: int = -4) -> tuple[Loopback, Group]:
    """A group of one with 11 entries in as many batches, one of which rots; its state is of index `applied`."""
    net = Loopback("A")
    leader = net.start()
    for i in range(10):
        leader.propose(b"%d" % i)
        net.run(0.002)
    state = [e for e in net["A"].machine().applied if e[0] <= applied]
    net.crash("A")
    number, start, _ = batches(net["A"].disk)[cut]
    net["A"].disk.corrupt(number, start + records.BATCH_HEAD + 10, b"\xff\xff\xff")
    member = net.restart("A")
    member.machines[1] = Recorder(state)
    group = member.create(1, ("A",), applied_index=applied, applied_term=1 if applied else 0)
    net.run(0.1)
    assert not group.status().damaged
    assert group.ready, "nobody else's promise can be broken: it goes on"
    return net, group


def test_a_group_of_one_is_cut_at_the_damage_and_goes_on() -> None:
    net, group = alone(applied=0)
    kept = net["A"].machine().commands()
    assert kept == [b"%d" % i for i in range(len(kept))]
    assert 3 < len(kept) < 9
    assert "are lost" in net["A"].reports[0][1]
    assert "are lost" in net["A"].node.losses[0]
    group.propose(b"new")
    net.run(0.1)
    net.crash("A")
    again = net.restart("A").create(1, ("A",))
    net.run(0.1)
    assert net["A"].machine().commands() == [*kept, b"new"]
    assert again.ready
    assert net["A"].node.losses == []


def test_a_group_of_one_whose_state_has_what_its_log_lost_loses_nothing() -> None:
    net, _ = alone(applied=9)
    assert net["A"].machine().commands() == [b"%d" % i for i in range(10)]
    assert "nothing is lost" in net["A"].reports[0][1]


def test_a_group_of_one_keeps_a_state_above_the_cut() -> None:
    net, group = alone(applied=11, cut=-2)
    assert group.applied_index >= 11
    group.propose(b"new")
    net.run(0.1)
    assert net["A"].machine().commands() == [*(b"%d" % i for i in range(10)), b"new"]


def test_other_groups_of_a_damaged_journal_that_are_alone_are_not_stopped() -> None:
    net = Loopback("A")
    for gid in (1, 2):
        net.start(gid)
        net["A"].group(gid).propose(b"x")
        net.run(0.01)
    for i in range(5):
        net["A"].group(2).propose(b"%d" % i)
        net.run(0.002)
    net.crash("A")
    number, start, _ = batches(net["A"].disk)[-3]
    net["A"].disk.corrupt(number, start + records.BATCH_HEAD + 10, b"\xff")
    net.restart("A")
    for gid in (1, 2):
        net["A"].create(gid, ("A",))
    net.run(0.1)
    assert net["A"].group(1).ready
    assert net["A"].machine(1).commands() == [b"x"]
    assert net["A"].group(2).ready


def test_a_store_ahead_of_its_log_means_that_the_log_lost_something() -> None:
    net = Loopback()
    leader = net.start()
    leader.propose(b"x")
    net.run(0.1)
    net.crash("C")
    group = net.restart("C").create(1, ("A", "B", "C"), applied_index=500, applied_term=1)
    assert group.status().damaged
    assert group.last_index == 500


def test_a_crash_between_a_fetched_state_and_its_install_is_no_damage() -> None:
    net = Loopback()
    leader = net.start()
    leader.propose(b"x")
    net.run(0.1)
    group = net["C"].group()
    group.receiver.on_message("A", codec.SnapOffer(leader.term, 500, 1, leader.log.config))
    assert net["C"].machine().snapshots == [("A", 500, 1)]
    net.run(0.1)
    net.crash("C")
    again = net.restart("C").create(1, ("A", "B", "C"), applied_index=500, applied_term=1)
    assert not again.status().damaged
    assert (again.last_index, again.applied_index) == (500, 500)
