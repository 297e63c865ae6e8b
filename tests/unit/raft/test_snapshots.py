from __future__ import annotations

from dataclasses import replace

import pytest

from jetcluster.raft import codec
from jetcluster.raft.config import JournalOptions
from jetcluster.raft.core.peer_progress import FlowState
from jetcluster.raft.membership import Config
from tests.unit.raft.journal_rig import forget
from tests.unit.raft.loopback import SMALL, Loopback, led, running
from tests.unit.raft.test_deviation_snapshots import compacted


def test_a_replica_whose_state_is_lost_asks_by_itself_and_applies_without_a_gap(net: Loopback) -> None:
    compacted(net)
    net.connect_all()
    net.run(0.05)
    net.crash("B")
    net.restart("B")
    replica = net["B"].create(1, ("A", "B", "C"))
    assert replica.status().needs_snapshot
    net.connect_all()
    net.until(lambda: bool(net["B"].machine().snapshots))
    net.run(0.5)
    assert net["B"].machine().applied == []
    _, index, term = net["B"].machine().snapshots[0]
    net["B"].machine().applied = list(net["A"].machine().applied)
    replica.install(index, term, Config(replica.peers))
    leader = net.led_by()
    net.propose(leader, b"after", after=0.3)
    assert net["B"].machine().commands()[-1] == b"after"
    assert not replica.status().needs_snapshot


def test_an_offer_is_repeated_until_the_state_is_there(net: Loopback) -> None:
    compacted(net)
    net.connect_all()
    net.run(7.0)
    assert len(net["C"].machine().snapshots) >= 3


def test_the_log_is_pinned_while_a_peer_fetches_and_released_after(net: Loopback) -> None:
    leader = compacted(net)
    net.connect_all()
    net.until(lambda: bool(net["C"].machine().snapshots))
    offered = leader.replicator.flows["C"].offered
    net.crowd(leader, 100, after=0.1)
    leader.compact(leader.machine_index)
    leader.node.journal.retention.trim(leader.log)
    assert leader.log.pin == offered
    assert leader.log.base_index <= offered
    _, index, term = net["C"].machine().snapshots[0]
    net["C"].group().install(index, term, Config(leader.peers))
    net.run(0.2)
    leader.compact(leader.machine_index)
    assert leader.log.pin >= leader.machine_index
    assert leader.replicator.flows["C"].pinned is None
    assert leader.replicator.flows["C"].state is FlowState.REPLICATE
    assert net["C"].group().applied_index == leader.last_index


def test_the_offered_index_is_one_that_the_state_machine_knows(net: Loopback) -> None:
    """No-ops and configurations are not passed to it: an export of the present state must satisfy the offer."""
    leader = compacted(net)
    assert leader.transfer("B")
    net.until(lambda: net["B"].group().ready)
    net.run(0.1)
    net.connect_all()
    net.until(lambda: bool(net["C"].machine().snapshots))
    _, index, _ = net["C"].machine().snapshots[0]
    assert index == net["B"].machine().applied[-1][0] < net["B"].group().applied_index


def test_a_leader_without_state_hands_over() -> None:
    net, leader = led("AB", commands=30, after=0.1)
    for name in "AB":
        group = net[name].group()
        group.log.compactable = group.machine_index
        forget(group.log, group.machine_index)
    leader.applied_index = 0
    leader.snapshots.ask()
    net.until(lambda: net["B"].group().ready, seconds=3.0)


def test_a_group_of_one_that_lost_its_state_tells_its_owner() -> None:
    net, leader = led("A", commands=30, after=0.1)
    leader.log.compactable = leader.machine_index
    forget(leader.log, leader.machine_index)
    base = leader.log.base_index
    net.run(0.1)
    net.crash("A")
    net.restart("A").create(1, ("A",))
    net.until(lambda: bool(net["A"].machine().snapshots))
    assert net["A"].machine().snapshots[0] == ("A", base, 1)
    net["A"].group().install(base, 1, Config(("A",)))
    net.run(0.1)
    index = net["A"].group().propose(b"x")
    net.run(0.1)
    assert net["A"].machine().applied[-1] == (index, b"x")


RELAXED = replace(SMALL, sync_interval=3600.0)


@pytest.mark.parametrize("options", [SMALL, RELAXED], ids=["strict", "relaxed"])
def test_a_suspended_replica_applies_nothing_until_its_state_is_replaced(options: JournalOptions) -> None:
    """A confirmation made meanwhile is not taken back, however the log is synced."""
    net, leader = led(options=options, commands=10, after=0.1)
    group = net["C"].group()
    group.suspend()
    net.crowd(leader, 10, after=0.1)
    assert len(net["C"].machine().applied) == 10
    assert group.last_index == leader.last_index
    source, index, term = net["C"].machine().snapshots[0]
    assert (source, index) == ("A", 11)
    net["C"].machine().applied = [e for e in net["A"].machine().applied if e[0] <= index]
    confirmed = leader.replicator.flows["C"].match
    group.install(index, term, Config(group.peers))
    assert group.last_index >= confirmed > index
    net.run(0.1)
    assert net["C"].machine().applied == net["A"].machine().applied


def forked(more: int) -> Loopback:
    """C has `more` entries that the others, of whom one leads, have lost with their power."""
    net, leader = led(options=RELAXED, after=1.05)
    net.crowd(leader, 5, after=0.2)
    for name in "AB":
        net[name].journal.barrier(lambda: None)
    net.run(0.1)
    net.crowd(leader, more, after=0.2)
    net.isolate("C")
    for name in "AB":
        net.crash(name)
        net.restart(name)
    for name in "AB":
        net[name].create(1, ("A", "B", "C"))
    net.connect("A", "B")
    net.until(lambda: any(net[name].group().ready for name in "AB"))
    net.connect_all()
    return net


@pytest.mark.parametrize("known", [True, False])
def test_of_a_log_that_the_leader_contradicts_what_is_known_to_be_its_stays(known: bool) -> None:
    net = forked(3)
    leader = next(net[name].group() for name in "AB" if net[name].group().ready)
    group = net["C"].group()
    lost = group.last_index
    net.until(lambda: group.contradicted)
    if known:  # the leader found the place where the logs part
        group.receiver._matches(group.term, lost - 3)
    _, index, _ = net["C"].machine().snapshots[0]
    assert index < lost
    older = index - 2  # of another replica that is behind
    net["C"].machine().applied = [e for e in net[leader.me].machine().applied if e[0] <= older]
    group.install(older, leader.log.term_at(older) or 0, Config(group.peers))
    assert group.last_index == (lost - 3 if known else older), "what the leader counts on, and nothing more"
    net.until(lambda: group.applied_index == leader.applied_index)
    assert net["C"].machine().applied == net[leader.me].machine().applied
    assert not group.contradicted and not group.status().needs_snapshot


def test_a_contradiction_that_a_later_leader_does_not_share_takes_nothing() -> None:
    net = running(options=RELAXED, commands=10, after=0.2)
    group = net["C"].group()
    group.snapshots.contradict(8)  # by somebody who leads no more
    net.cut("A", "C")
    net.connect("A", "C")
    net.run(0.2)
    assert not group.contradicted
    confirmed = group.last_index
    net["C"].machine().applied = [e for e in net["A"].machine().applied if e[0] <= 7]
    group.install(7, 1, Config(group.peers))
    assert group.last_index == confirmed
    net.until(lambda: net["C"].machine().applied == net["A"].machine().applied)


def test_a_state_of_somebody_whom_the_log_has_left_behind_is_not_gone_on_from() -> None:
    net = running(options=RELAXED, commands=10, after=0.2)
    group = net["C"].group()
    confirmed, asked = group.last_index, len(net["C"].machine().snapshots)
    group.install(8, 77, Config(group.peers))
    assert group.last_index == confirmed and group.status().needs_snapshot and not group.stopped
    net.until(lambda: len(net["C"].machine().snapshots) > asked)


def test_a_suspended_leader_hands_over_first() -> None:
    net, leader = led(commands=10, after=0.1)
    leader.suspend()
    net.until(lambda: any(net[n].group().ready for n in "BC"), seconds=2.0)
    net.until(lambda: bool(net["A"].machine().snapshots), seconds=5.0)


def test_a_state_travels_with_the_members_of_its_index() -> None:
    net, leader = led("ABCDE", peers="ABC", commands=5, after=0.1)
    leader.add_peer("D")  # a learner that never answers: its node has no such group
    net.run(0.1)
    net.crowd(leader, 5, after=0.1)
    at = leader.machine_index
    net.isolate("A")
    net.filter = lambda source, target, gid, frame: gid == 0
    leader.changes._append(leader.log.config.without("B"))
    assert leader.peers == ("A", "C"), "in its log, and nobody else's"
    assert leader.members_at(at) == Config(("A", "B", "C"), ("D",))
    replica = net["E"].create(1, ("A",))
    replica.install(at, leader.term, leader.members_at(at))
    assert replica.log.config == Config(("A", "B", "C"), ("D",))
    net["E"].node.journal._kick()
    net.run(0.01)
    net.crash("E")
    assert net.restart("E").journal.groups[1].config == Config(("A", "B", "C"), ("D",))


def test_an_offer_that_was_on_its_way_while_a_state_was_installed_is_none_any_more() -> None:
    """Offers are repeated; the log goes on behind what was installed, and nothing is to be fetched again."""
    net = Loopback(latency=0.05)
    leader = compacted(net)
    net.connect_all()
    net.until(lambda: bool(net["C"].machine().snapshots))
    group = net["C"].group()
    assert group.lacks_state
    _, index, term = net["C"].machine().snapshots[0]
    net.crowd(leader, 20, after=0.2)
    net["C"].machine().applied = [e for e in net["A"].machine().applied if e[0] <= index]
    late = codec.encode_snap_offer(leader.term, leader.machine_index, leader.term, leader.log.config)
    group.install(index, term, Config(leader.peers))
    assert not group.lacks_state
    net["C"].node.on_frame("A", 1, late)
    assert group.lacks_state, "as far as it can know"
    net.run(0.3)
    assert not group.lacks_state
    assert group.applied_index == leader.last_index
    net["C"].node.on_frame("A", 1, late)
    assert not group.lacks_state, "it holds that entry"


def test_a_state_from_elsewhere_that_the_leaders_log_reaches_back_to_is_gone_on_from(net: Loopback) -> None:
    """The leader offered a newer one than what the replica was fetching from the leader before."""
    leader = compacted(net)
    net.crowd(leader, 20, after=0.1)
    net.connect_all()
    net.until(lambda: bool(net["C"].machine().snapshots))
    offered = leader.replicator.flows["C"].offered
    index = offered - 10
    assert leader.log.base_index < index
    net["C"].machine().applied = [e for e in net["A"].machine().applied if e[0] <= index]
    net["C"].group().install(index, leader.term, Config(leader.peers))
    net.run(0.1)
    assert net["C"].group().applied_index == leader.last_index
    assert len(net["C"].machine().snapshots) == 1


def test_an_offer_that_the_next_leader_makes_needless_is_no_excuse_later() -> None:
    """A log behind its state is taken for the trace of a fetch while the journal says that there is one."""
    net, leader = led(after=0.1)
    net.isolate("C")
    net.crowd(leader, 30, after=0.1)
    leader.log.compactable = leader.machine_index
    leader.log.compact(leader.machine_index)  # B's log still reaches back
    net.connect("A", "C")
    net.until(lambda: bool(net["C"].machine().snapshots))
    assert net["C"].group().log.fetching
    net.isolate("A")
    net.connect("B", "C")
    net.until(lambda: net["B"].group().ready)
    net["B"].group().propose(b"after")
    net.until(lambda: net["C"].machine().commands()[-1:] == [b"after"])
    assert not net["C"].group().log.fetching


def test_neither_is_it_for_a_leader() -> None:
    net, leader = led()
    leader.log.set_fetching(True)
    assert leader.transfer("B")
    net.until(lambda: net["B"].group().ready)
    assert net["B"].group().transfer("A")
    net.until(lambda: leader.ready)
    assert not leader.log.fetching
