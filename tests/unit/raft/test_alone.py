"""Groups of one, as far as their damaged logs tell (raft/alone.py)."""

from __future__ import annotations

import pytest

from jetcluster.raft import records
from jetcluster.raft.alone import is_lone
from jetcluster.raft.group import Group
from jetcluster.raft.membership import Config
from jetcluster.raft.recovery import scan
from tests.unit.raft.loopback import Loopback, Recorder
from tests.unit.raft.test_recovery import batches


def test_who_is_lone() -> None:
    for voters, learners, lone in (
        ((), (), True),
        (("A",), ("B",), True),
        (("A", "B"), (), False),
        (("B",), (), False),
    ):
        assert is_lone("A", Config(voters, learners), damaged=True, joining=False) == lone
        assert not is_lone("A", Config(voters, learners), damaged=False, joining=False)
        assert not is_lone("A", Config(voters, learners), damaged=True, joining=True)


def rot(net: Loopback, name: str, indexes: list[int], gid: int = 1) -> None:
    """The batches with these entries."""
    disk = net[name].disk
    places = [scan(disk).groups[gid].entries[index] for index in indexes]
    for number, start, end in batches(disk):
        if any(place.segment == number and start <= place.offset < end for place in places):
            disk.corrupt(number, start + records.BATCH_HEAD + 4, b"\xff" * (end - start - records.BATCH_HEAD - 8))


def grown() -> tuple[Loopback, list[int]]:
    """A was alone; then B and C became voters. The indexes of what made them so."""
    net = Loopback("ABC")
    net["A"].create(1, ("A",), campaign=True)
    net.until(lambda: net["A"].group().ready)
    leader = net["A"].group()
    for n in range(20):
        leader.propose(b"alone %d" % n)
        net.run(0.002)
    for peer in "BC":
        net[peer].create(1, ("A",))
        leader.add_peer(peer)
        net.until(lambda peer=peer: peer in leader.peers and leader.commit_index == leader.last_index)  # type: ignore[misc]
    for n in range(20):
        leader.propose(b"of three %d" % n)
        net.run(0.002)
    net.run(1.5)
    return net, [index for index, _ in leader.log.configs if index]


def test_a_log_without_the_entries_that_made_others_voters_does_not_lead() -> None:
    net, configs = grown()
    net.crash("A")
    rot(net, "A", configs)
    net.until(lambda: net.leader() is not None)
    leader = net.leader()
    assert leader is not None and leader.peers == ("A", "B", "C")
    leader.propose(b"without A")
    net.run(0.1)
    member = net.restart("A")
    group = member.create(1, ("A",))
    assert group.peers == ("A",) and member.node.in_doubt(1)
    net.run(5.0)
    assert group.leader is None and not group.may_campaign(), "nobody can be asked: it waits"
    net.connect_all()
    net.until(lambda: not group.log.damaged and group.applied_index == leader.applied_index)
    assert group.peers == ("A", "B", "C") and not member.node.in_doubt(1)
    member.node.go_on_alone(1)
    assert group.peers == ("A", "B", "C") and member.node.losses == [], "it is in no doubt any more"


@pytest.mark.parametrize("applied", [0, 9, 11])
def test_by_the_word_of_all_others_it_goes_on_with_what_it_has(applied: int) -> None:
    net = Loopback("A")
    leader = net.start()
    for n in range(10):
        leader.propose(b"%d" % n)
        net.run(0.002)
    state = [entry for entry in net["A"].machine().applied if entry[0] <= applied]
    net.crash("A")
    rot(net, "A", [7])
    member = net.restart("A")
    member.machines[1] = Recorder(state)
    group = member.create(1, ("A",), applied_index=applied, applied_term=1 if applied else 0)
    net.run(5.0)
    assert not group.ready and group.status().damaged
    member.node.go_on_alone(1)
    net.until(lambda: group.ready)
    kept = 5 if not applied else 10
    assert member.machine().commands() == [b"%d" % n for n in range(kept)]
    assert ("nothing is lost" if applied else "are lost") in member.node.losses[0]
    follows(net, group)


def follows(net: Loopback, group: Group) -> None:
    """What comes now is there after the next start."""
    group.propose(b"new")
    net.run(0.1)
    assert net["A"].machine().commands()[-1] == b"new"
    place = group.log.base_index, group.log.base_term
    net.crash("A")
    again = net.restart("A").create(1, ("A",), *place)
    net.until(lambda: again.ready)
    assert net["A"].machine().commands()[-1] == b"new"
    assert not again.log.damaged and net["A"].node.losses == []


def test_a_state_without_any_log_goes_on_in_a_term_above_its_own() -> None:
    net = Loopback("A")
    net["A"].create(1, ("A",), campaign=True)
    net.until(lambda: net["A"].group().ready)
    net["A"].group().propose(b"x")
    net.run(0.1)
    net.crash("A")
    for number, start, end in batches(net["A"].disk):
        net["A"].disk.corrupt(number, start + records.BATCH_HEAD, b"\xff" * (end - start - records.BATCH_HEAD))
    member = net.restart("A")
    member.machines[1] = Recorder([(2, b"x")])
    group = member.create(1, ("A",), applied_index=2, applied_term=9)
    net.run(1.0)
    assert not group.ready and member.node.in_doubt(1)
    member.node.go_on_alone(1)
    net.until(lambda: group.ready)
    assert group.term > 9 and group.last_index > 2
    follows(net, group)


def test_a_replica_that_is_being_added_never_goes_on_alone() -> None:
    """What it has is nothing, or a part: an empty stream would hide that the rest is lost."""
    net = Loopback("AB")
    member = net["B"]
    group = member.create(1, ())
    assert not member.node.in_doubt(1)
    member.node.go_on_alone(1)
    net.run(2.0)
    assert group.leader is None and group.peers == ()


def test_a_group_whose_beginning_is_lost_is_made_its_own_by_the_word_of_others() -> None:
    net = Loopback("AB")
    member = net["A"]
    member.create(1, ("A",), campaign=True)
    net.until(lambda: member.group().ready)
    member.group().propose(b"x")
    net.run(0.1)
    net.crash("A")
    number, start, end = batches(net["A"].disk)[0]
    net["A"].disk.corrupt(number, start + records.BATCH_HEAD, b"\xff" * (end - start - records.BATCH_HEAD))
    member = net.restart("A")
    group = member.create(1, ("A", "B"), applied_index=2, applied_term=1)
    assert member.node.in_doubt(1)
    member.node.go_on_alone(1)
    net.until(lambda: group.ready)
    assert group.peers == ("A",)
