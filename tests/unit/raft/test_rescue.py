"""Groups whose majority is lost, and groups of one, as far as their damaged logs tell."""

from __future__ import annotations

import pytest

from jetcluster.raft import codec, rescue
from jetcluster.raft.api import Role
from jetcluster.raft.core.group import Group
from jetcluster.raft.journal import records
from jetcluster.raft.journal.recovery import scan
from jetcluster.raft.membership import Config
from jetcluster.raft.rescue import TERM_STEP, ReplicaReport, RescueError, is_lone
from tests.unit.raft.journal_rig import batches, spoil
from tests.unit.raft.loopback import Loopback, Recorder, led


def filled(names: str) -> Loopback:
    """Ten committed entries."""
    net, leader = led(names)
    net.crowd(leader, 10, form=b"%d", each=0.002, after=1.5)
    return net


def lost(names: str, gone: str) -> Loopback:
    """`gone` have died, and nobody leads."""
    net = filled(names)
    for name in gone:
        net.crash(name)
    net.until(lambda: all(net[name].group().leader is None for name in names if name not in gone))
    return net


def term_above(net: Loopback, names: str) -> int:
    return max(net[name].group().term for name in names) + TERM_STEP


def give_promises(net: Loopback, names: str, winner: str) -> int:
    term = term_above(net, names)
    for name in names:
        rescue.promise(net[name].group(), term, winner)
    net.until(lambda: all(rescue.promised(net[name].group(), term, winner) for name in names))
    return term


def rescued(net: Loopback, names: str, winner: str, learners: str = "") -> int:
    """Index of the command that follows the forced configuration."""
    term = give_promises(net, names, winner)
    group = net[winner].group()
    voters = tuple(name for name in names if name not in learners)
    place = (group.log.last_term, group.log.last_index)
    return rescue.force(group, term, voters, tuple(learners), place, b"rescued")


def leads(net: Loopback, *names: str) -> bool:
    leader = net.leader()
    return leader is not None and leader.me in names


def test_the_survivors_go_on_with_all_that_was_committed() -> None:
    net = lost("ABCDE", "CDE")
    net.run(5.0)
    assert net.leader() is None
    index = rescued(net, "AB", "A")
    net.until(lambda: leads(net, "A", "B"))
    leader = net.leader()
    assert leader is not None and leader.commit_index >= index
    net.propose(leader, b"after", after=0.2)
    for name in "AB":
        group = net[name].group()
        assert net[name].machine().commands()[-2:] == [b"rescued", b"after"]
        assert net[name].machine().commands()[:10] == [b"%d" % i for i in range(10)]
        assert group.log.config == Config(("A", "B"), (), 1, ("C", "D", "E"))
    net.crash("B", lose=False)
    net.run(2.0)
    assert net.leader() is None, "one of two is no majority"


def test_those_that_were_left_out_come_back_as_a_majority_and_change_nothing() -> None:
    net = lost("ABCDE", "CDE")
    rescued(net, "AB", "A")
    net.until(lambda: leads(net, "A", "B"))
    net.leader().propose(b"after")  # type: ignore[union-attr]
    net.run(0.2)
    for name in "CDE":
        net.restart(name).create(1, tuple("ABCDE"))
    net.connect_all()
    net.until(lambda: any(net[name].group().ready for name in "CDE"))  # by what they know that is their right
    net.run(3.0)
    theirs = next(net[name].group() for name in "CDE" if net[name].group().ready)
    net.propose(theirs, b"theirs", after=3.0)
    for name in "AB":
        assert b"theirs" not in net[name].machine().commands()
        assert not net[name].group().stopped
    ours = [net[name].group() for name in "AB" if net[name].group().ready]
    assert len(ours) == 1
    index = ours[0].propose(b"still here")
    net.run(0.2)
    assert ours[0].commit_index >= index


def test_one_that_fetched_its_state_after_a_rescue_knows_of_it_and_keeps_the_lost_ones_out() -> None:
    """It never saw the forced configuration, which came with the state. It outlives a restart, too."""
    net = lost("ABCDEFG", "CDEG")
    for name in "AB":
        net.cut("F", name)
    term = term_above(net, "ABF")
    for name in "ABF":
        rescue.promise(net[name].group(), term, "A")
    net.until(lambda: all(rescue.promised(net[name].group(), term, "A") for name in "ABF"))
    leader = net["A"].group()
    place = (leader.log.last_term, leader.log.last_index)
    rescue.force(leader, term, ("A", "B", "F"), (), place, b"rescued")
    net.until(lambda: leads(net, "A", "B"))
    leader = net[net.leader().me].group()  # type: ignore[union-attr]
    at = leader.applied_index
    config = leader.members_at(at)
    assert config == Config(("A", "B", "F"), (), 1, ("C", "D", "E", "G"))
    group = net["F"].group()
    group.suspend()
    group.install(at, leader.log.term_at(at), config)
    assert (group.log.rescues, group.fenced) == (1, frozenset("CDEG"))
    net.run(0.2)
    net.crash("F", lose=False)
    node = net.restart("F")
    assert node.node.rescues(1) == 1 and node.node.journal.groups[1].config.fenced == ("C", "D", "E", "G")


def test_a_fenced_peer_is_heard_again_once_it_is_a_member() -> None:
    net = lost("ABC", "BC")
    rescued(net, "A", "A")
    net.until(lambda: leads(net, "A"))
    group = net["A"].group()
    assert group.fenced == {"B", "C"}
    term = group.term
    group.receiver.on_message("B", codec.Vote(term + 7, 1000, term + 6))
    assert group.term == term
    group.fence(("B", "X"))
    assert group.fenced == {"B", "C", "X"}
    net.members["B"].disk.__init__()  # type: ignore[misc] - B lost its store
    net.restart("B").create(1, ("A",))
    net.connect("A", "B")
    group.add_peer("B")
    assert group.fenced == {"C", "X"}
    net.until(lambda: net["A"].group().log.config.voters == ("A", "B"))
    assert net["B"].machine().commands() == net["A"].machine().commands()


def test_the_forced_configuration_outlives_a_crash_of_the_one_that_has_it() -> None:
    net = lost("ABCDE", "CDE")
    net.cut("A", "B")
    rescued_alone = net["A"].group()
    term = give_promises(net, "AB", "A")
    place = (rescued_alone.log.last_term, rescued_alone.log.last_index)
    index = rescue.force(rescued_alone, term, ("A", "B"), (), place, b"rescued")
    net.until(lambda: rescued_alone.log.durable_index >= index)
    net.run(1.0)
    assert net.leader() is None, "B has not heard of it"
    net.crash("A")
    net.restart("A").create(1, tuple("ABCDE"))
    net.connect("A", "B")
    net.until(lambda: leads(net, "A", "B"))
    net.run(0.2)
    assert net["B"].group().log.config.fenced == ("C", "D", "E")


def test_a_promise_is_kept_over_a_crash_and_hurts_nobody_if_the_others_are_back() -> None:
    net = lost("ABCDE", "CDE")
    term = give_promises(net, "AB", "A")
    net.crash("B")
    net.restart("B").create(1, tuple("ABCDE"))
    log = net["B"].group().log
    assert (log.term, log.voted_for) == (term, "A")
    for name in "CDE":
        net.restart(name).create(1, tuple("ABCDE"))
    net.connect_all()
    net.until(lambda: net.leader() is not None)
    net.run(0.5)
    leader = net.leader()
    assert leader is not None and leader.term > term and leader.log.config == Config(tuple("ABCDE"))


def test_an_election_of_the_old_majority_after_the_promises_is_not_undone() -> None:
    """Seven voters, three are left, and two of the missing are back the moment after one has forced the new
    configuration: the other four elect by the old one, and what they commit stays."""
    net = lost("ABCDEFG", "DEFG")
    term = give_promises(net, "ABC", "A")
    net.isolate("A")
    group = net["A"].group()
    rescue.force(group, term, tuple("ABC"), (), (group.log.last_term, group.log.last_index), b"rescued")
    for name in "DE":
        net.restart(name).create(1, tuple("ABCDEFG"))
    for a, b in ("BC", "BD", "BE", "CD", "CE", "DE"):
        net.connect(a, b)
    net.until(lambda: leads(net, "B", "C", "D", "E"))
    old = net.led_by()
    index = net.propose(old, b"by the old majority", after=0.3)
    assert old.commit_index >= index
    net.connect_all()
    net.run(5.0)
    assert not net["A"].group().ready
    for name in "BCDE":
        assert b"by the old majority" in net[name].machine().commands()
        assert b"rescued" not in net[name].machine().commands()
    assert b"rescued" not in net["A"].machine().commands()


def all_down(net: Loopback, names: str, damaged: str) -> None:
    """All of `names` start again; journals of `damaged` have lost something in their middle."""
    for name in net.members:
        net.crash(name, lose=False)
    for name in damaged:
        spoil(net[name].disk, -12, b"\xff\xff\xff", records.BATCH_HEAD_BYTES + 10)
    for name in names:
        net.restart(name).create(1, tuple(net.members))
    net.connect_all()
    net.run(3.0)
    assert net.leader() is None
    assert {name for name in names if net[name].group().log.damaged} == set(damaged)


def test_all_are_damaged_and_one_is_chosen() -> None:
    net = filled("ABC")
    all_down(net, "ABC", "ABC")
    best = max("ABC", key=lambda name: rescue.standing(net[name].group()).place)
    assert not rescue.standing(net[best].group()).sound
    rescued(net, "ABC", best, learners="ABC".replace(best, ""))
    net.until(lambda: set(net[best].group().log.config.voters) == set("ABC"))
    net.run(0.5)
    for name in "ABC":
        assert not net[name].group().log.damaged
        assert net[name].machine().commands() == net[best].machine().commands()
        assert net[name].machine().commands()[-1] == b"rescued"


def test_a_damaged_survivor_learns_and_votes_again() -> None:
    net = filled("ABCDE")
    all_down(net, "ABC", "BC")
    rescued(net, "ABC", "A", learners="BC")
    net.until(lambda: set(net["A"].group().log.config.voters) == set("ABC"))
    assert not any(net[name].group().log.damaged for name in "ABC")


def test_what_two_sides_have_written_can_be_distinguished() -> None:
    """The majority was not lost, but cut off, and had elected a leader: an entry of one side is never taken for one of
    the other, so that whoever meets the other one stops, and nothing is mixed."""
    net = filled("ABCDE")
    leader = net.led_by()
    minority = leader.me + next(name for name in "ABCDE" if name != leader.me)
    majority = [name for name in "ABCDE" if name not in minority]
    for one in minority:
        for other in majority:
            net.cut(one, other)
    net.until(lambda: leads(net, *majority) and all(net[name].group().leader is None for name in minority))
    theirs = net.led_by()
    net.propose(theirs, b"theirs", after=0.5)
    rescued(net, minority, minority[0])
    net.until(lambda: leads(net, *minority))
    ours = net.led_by()
    at = ours.commit_index - 1
    assert {ours.log.term_at(i) for i in range(at, at + 2)}.isdisjoint(
        {theirs.log.term_at(i) for i in range(1, theirs.log.last_index + 1)}
    )


def test_refusals() -> None:
    net, leader = led(after=0.5)
    follower = net["B"].group()
    for group in (leader, follower):
        with pytest.raises(RescueError, match="leader is known"):
            rescue.promise(group, group.term + TERM_STEP, "A")
    net = lost("ABCDE", "CDE")
    a, b = net["A"].group(), net["B"].group()
    with pytest.raises(RescueError, match="has been reached"):
        rescue.promise(a, a.term, "A")
    with pytest.raises(RescueError, match="no term"):
        rescue.promise(a, codec.MAX_TERM + 1, "A")
    end = (a.log.last_term, a.log.last_index)
    with pytest.raises(RescueError, match="was not promised"):
        rescue.force(a, a.term + TERM_STEP, ("A", "B"), (), end, b"")
    term = give_promises(net, "AB", "A")
    with pytest.raises(RescueError, match="was not promised"):
        rescue.force(b, term, ("A", "B"), (), end, b"")
    with pytest.raises(RescueError, match="moved on"):
        rescue.force(a, term, ("A", "B"), (), (end[0], end[1] - 1), b"")
    b.stop("for a test")
    with pytest.raises(RescueError, match="has stopped"):
        rescue.promise(b, term + TERM_STEP, "A")


def test_a_standing_travels() -> None:
    net = lost("ABC", "BC")
    found = rescue.standing(net["A"].group())
    assert ReplicaReport.from_dict(found.to_dict()) == found
    assert (found.peer, found.voters, found.leader, found.rescue, found.sound) == ("A", ("A", "B", "C"), None, 0, True)
    assert found.place == (net["A"].group().log.last_term, net["A"].group().log.last_index)
    with pytest.raises(KeyError):
        ReplicaReport.from_dict({})


def test_a_second_rescue_counts_on() -> None:
    net = lost("ABCDE", "CDE")
    rescued(net, "AB", "A")
    net.until(lambda: leads(net, "A", "B"))
    net.run(0.5)
    net.crash("B")
    net.until(lambda: net["A"].group().leader is None)
    rescued(net, "A", "A")
    net.until(lambda: leads(net, "A"))
    config = net["A"].group().log.config
    assert config == Config(("A",), (), 2, ("C", "D", "E", "B"))
    group: Group = net["A"].group()
    assert group.role is Role.LEADER


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
            disk.corrupt(
                number, start + records.BATCH_HEAD_BYTES + 4, b"\xff" * (end - start - records.BATCH_HEAD_BYTES - 8)
            )


def grown() -> tuple[Loopback, list[int]]:
    """A was alone; then B and C became voters. The indexes of what made them so."""
    net = Loopback("ABC")
    net["A"].create(1, ("A",), campaign=True)
    net.until(lambda: net["A"].group().ready)
    leader = net["A"].group()
    net.crowd(leader, 20, form=b"alone %d", each=0.002)
    for peer in "BC":
        net[peer].create(1, ("A",))
        leader.add_peer(peer)
        net.until(lambda peer=peer: peer in leader.peers and leader.commit_index == leader.last_index)  # type: ignore[misc]
    net.crowd(leader, 20, form=b"of three %d", each=0.002, after=1.5)
    return net, [index for index, _ in leader.log.configs if index]


def test_a_log_without_the_entries_that_made_others_voters_does_not_lead() -> None:
    net, configs = grown()
    net.crash("A")
    rot(net, "A", configs)
    net.until(lambda: net.leader() is not None)
    leader = net.leader()
    assert leader is not None and leader.peers == ("A", "B", "C")
    net.propose(leader, b"without A", after=0.1)
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


def test_one_that_has_lost_the_entries_by_which_others_left_goes_on_by_their_word() -> None:
    net, grew = grown()
    leader = net["A"].group()
    for peer in "BC":
        leader.remove_peer(peer)
        net.until(lambda peer=peer: peer not in leader.peers and leader.commit_index == leader.last_index)  # type: ignore[misc]
        net[peer].node.remove_group(1)
    rotten = [index for index, _ in leader.log.configs if index > grew[-1]]
    net.run(1.0)
    net.crash("A")
    rot(net, "A", rotten)
    member = net.restart("A")
    group = member.create(1, ("A",))
    assert set(group.peers) == set("ABC") and not member.node.in_doubt(1)
    member.node.go_on_alone(1)
    net.run(3.0)
    assert not group.ready and group.status().damaged, "others may have it, unless it is to be here alone"
    assert member.node.in_doubt(1, alone=True)
    member.node.go_on_alone(1, alone=True)
    net.until(lambda: group.ready)
    assert group.peers == ("A",) and "are lost" in member.node.losses[0]
    follows(net, group)


@pytest.mark.parametrize("applied", [0, 9, 11])
def test_by_the_word_of_all_others_it_goes_on_with_what_it_has(applied: int) -> None:
    net, leader = led("A")
    net.crowd(leader, 10, form=b"%d", each=0.002)
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
    """Entries that come now are there after the next start."""
    net.propose(group, b"new", after=0.1)
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
        net["A"].disk.corrupt(
            number, start + records.BATCH_HEAD_BYTES, b"\xff" * (end - start - records.BATCH_HEAD_BYTES)
        )
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
    """A replica with nothing, or a part, is not taken: an empty stream would hide the loss."""
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
    net["A"].disk.corrupt(number, start + records.BATCH_HEAD_BYTES, b"\xff" * (end - start - records.BATCH_HEAD_BYTES))
    member = net.restart("A")
    group = member.create(1, ("A", "B"), applied_index=2, applied_term=1)
    assert member.node.in_doubt(1)
    member.node.go_on_alone(1)
    net.until(lambda: group.ready)
    assert group.peers == ("A",)
