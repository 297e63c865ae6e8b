"""Replicas whose journal lost its end in a power failure (raft/core/snapshots.py)."""

from __future__ import annotations

import dataclasses

import pytest

from jetcluster.raft import codec
from jetcluster.raft.api import Role
from tests.unit.raft.loopback import SMALL, Loopback, Recorder, led
from tests.unit.raft.test_recovery import batches


@pytest.mark.parametrize("kind", ["memory", "sync_interval"])
def test_a_power_failure_of_all_nodes_leaves_a_group_that_goes_on(kind: str) -> None:
    """The data store was flushed, the journal was not synced: that is what the operator chose, and no damage."""
    options = SMALL if kind == "memory" else dataclasses.replace(SMALL, sync_interval=120.0)
    net, leader = led(options=options, durable=kind != "memory", after=1.05)
    net.crowd(leader, 20, form=b"%d", after=0.3)
    states = {name: list(net[name].machine().applied) for name in "ABC"}
    for name in "ABC":
        net.crash(name)
        # Sectors may have reached the disk by chance; here none has.
    for name in "ABC":
        net.restart(name)
    for name in "ABC":
        net[name].machines[1] = Recorder(states[name])
        index = states[name][-1][0]
        net[name].create(1, ("A", "B", "C"), applied_index=index, applied_term=1, durable=kind != "memory")
        assert not net[name].group().log.damaged
    net.connect_all()
    found = net.elected()
    index = found.propose(b"new")
    net.until(lambda: all(net[name].group().applied_index >= index for name in "ABC"))
    assert {tuple(net[name].machine().commands()) for name in "ABC"} == {(*(b"%d" % i for i in range(20)), b"new")}


def test_what_was_relaxed_is_known_when_it_is_strict_again() -> None:
    """The operator takes `sync_interval` out after the power failure."""
    net, leader = led(options=dataclasses.replace(SMALL, sync_interval=120.0), after=1.05)
    net.propose(leader, b"x", after=0.3)
    for name in "ABC":
        net.crash(name)
    net.journal_options = SMALL
    for name in "ABC":
        net.restart(name)
    net.run(1.0)  # the journal of this life has begun, the groups have not
    for name in "ABC":
        net.crash(name)
    for name in "ABC":
        net.restart(name)
    for name in "ABC":
        net[name].create(1, ("A", "B", "C"), applied_index=2, applied_term=1)
        assert not net[name].group().log.damaged
        assert not net[name].group().log.relaxed
    net.run(0.2)
    net.crash("C")
    again = net.restart("C").create(1, ("A", "B", "C"), applied_index=500, applied_term=1)
    assert again.status().damaged, "strict: what is missing had been vouched for"


def test_a_journal_that_lost_its_end_elects_nobody() -> None:
    """C lags, B dies and the end of its journal is gone, A stands still: B and C lack what A and B acknowledged."""
    net, leader = led(after=0.2)
    net.isolate("C")
    net.crowd(leader, 72, form=b"%d", each=0.002)
    assert leader.applied_index > 70
    net.crash("B", lose=False)
    number, start, _ = batches(net["B"].disk)[-40]
    net["B"].disk.cut(number, start + 11)
    net.isolate("A")
    net.restart("B").create(1, ("A", "B", "C"))
    net.connect("B", "C")
    net.run(10.0)
    assert net["B"].group().status().damaged
    assert not net["B"].group().ready
    assert not net["C"].group().ready
    net.connect_all()
    net.until(lambda: net.leader() is not None and not net["B"].group().status().damaged)
    net.until(lambda: all(net[name].group().applied_index >= leader.applied_index for name in "BC"))
    for name in "ABC":
        assert net[name].machine().commands() == [b"%d" % number for number in range(72)]
        assert not net[name].group().stopped


@pytest.mark.parametrize("flushed", [0, 15])
def test_who_kept_more_than_the_majority_after_a_power_failure_goes_its_way(flushed: int) -> None:
    """With a sync interval the others have lost what C still knows as committed. They go on first, with other entries;
    `flushed`: how much of it C's state holds."""
    net, leader = led(options=dataclasses.replace(SMALL, sync_interval=120.0), after=1.05)
    net.crowd(leader, 20, form=b"%d", after=0.3)
    for name in "ABC":
        net.crash(name, lose=name != "C")
    for name in "AB":
        net.restart(name).create(1, ("A", "B", "C"))
    net.connect("A", "B")
    found = net.elected()
    net.crowd(found, 5, form=b"after %d", after=0.3)
    net.restart("C")
    group = net["C"].create(1, ("A", "B", "C"), applied_index=flushed, applied_term=1 if flushed else 0)
    net.connect_all()
    net.until(lambda: bool(net["C"].machine().snapshots), seconds=6.0)
    assert not group.stopped
    at, term = found.applied_index, found.log.term_at(found.applied_index)
    assert term is not None
    assert at < 20, "C had more"
    group.install(at, term, found.members_at(at))
    index = found.propose(b"new")
    net.until(lambda: group.applied_index >= index)
    assert net["C"].machine().commands()[-1] == b"new"
    assert (group.log.last_index, group.log.last_term) == (found.log.last_index, found.log.last_term)


def test_who_is_added_again_does_not_vote_for_those_who_count_on_its_earlier_life() -> None:
    """B was away while the group moved from A, B, C to A, D. C, whose replica is gone, is added once more and has heard
    no more than the leader's name when that one dies: with its vote B would lead without anything of since."""
    net = Loopback("ABCD")
    for name in "ABC":
        net[name].create(1, tuple("ABC"), campaign=name == "A")
    net.until(lambda: net.leader() is not None)
    leader = net["A"].group()
    net.run(0.5)
    net.isolate("B")
    net["D"].create(1, tuple("ABC"))
    leader.add_peer("D")
    net.until(lambda: "D" in leader.peers)
    for gone in "BC":
        net.run(0.2)
        leader.remove_peer(gone)
        net.until(lambda gone=gone: gone not in leader.peers and leader.log.config_index <= leader.commit_index)  # type: ignore[misc]
    net["C"].node.remove_group(1)
    net["C"].machines.clear()
    index = leader.propose(b"acknowledged by A and D")
    net.until(lambda: leader.applied_index >= index)
    net.run(0.2)

    def nothing_but_its_name(source: str, target: str, gid: int, frame: bytes) -> bool:
        message = codec.decode(frame) if gid and target == "C" else None
        return not (isinstance(message, codec.Append) and message.entries) and not isinstance(message, codec.SnapOffer)

    net.filter = nothing_but_its_name
    again = net["C"].create(1, ("A", "D"))
    leader.add_peer("C")
    net.until(lambda: again.leader == "A")
    net.crash("A")
    net.connect("B", "C")
    net.run(5.0)
    assert net["B"].group().role is not Role.LEADER
