"""Idle groups cost their node nothing, also while other nodes are away."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from jetcluster.health.node_health import Aspect
from jetcluster.raft import codec
from jetcluster.raft.admission import Admission
from jetcluster.raft.api import Role
from jetcluster.raft.config import JournalOptions
from jetcluster.raft.core.group import Group
from jetcluster.raft.core.peer_progress import PeerProgress
from jetcluster.raft.core.replicator import Replicator
from jetcluster.raft.journal.log import GroupLog
from jetcluster.raft.node_state import WAKES_AT_ONCE
from tests.unit.raft.journal_rig import Rig, fill
from tests.unit.raft.loopback import Loopback, running

MANY = 300
ROOMY = JournalOptions(segment_bytes=32 << 20, reserve_bytes=0)


class Calls:
    """Counts calls of methods, whatever group they are of."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *methods: tuple[object, str]) -> None:
        self.of: Counter[str] = Counter()
        for owner, name in methods:
            monkeypatch.setattr(owner, name, self._counted(name, getattr(owner, name)))

    def _counted(self, name: str, method: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            self.of[name] += 1
            return method(*args, **options)

        return call


def cluster(count: int, peers: str = "ABC", names: str = "ABC") -> Loopback:
    net = Loopback(names, ROOMY)
    for gid in range(1, count + 1):
        for name in peers:
            net[name].create(gid, tuple(peers), campaign=name == "A")
        if gid % 100 == 0:
            net.run(0.05)
    net.until(lambda: sum(group.ready for group in net["A"].node.groups.values()) == count)
    net.run(3.0)
    return net


def test_a_peer_that_is_away_costs_nothing_where_a_majority_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    net = cluster(MANY)
    net.cut("A", "C")
    net.cut("B", "C")
    net.run(2.0)
    methods = (Group, "tick_engine"), (Group, "work"), (GroupLog, "is_idle"), (Replicator, "pin")
    calls = Calls(monkeypatch, *methods, (GroupLog, "first_segment"))
    net.run(10.0)
    assert calls.of == {}
    node = net["A"].node
    assert len(node.led) == MANY
    monkeypatch.setattr(node, "groups", dict.fromkeys(node.groups))
    monkeypatch.setattr(node.journal, "groups", dict.fromkeys(node.groups))
    node._suspect(net.time.monotonic())
    node._housekeep(net.time.monotonic())


def test_digests_name_as_many_groups_per_second_whatever_a_node_leads(monkeypatch: pytest.MonkeyPatch) -> None:
    named: list[int] = []
    encode = codec.encode_digest

    def spy(groups: list[tuple[int, int, int]]) -> bytes:
        named.append(len(groups))
        return encode(groups)

    net = cluster(60)
    for name in "ABC":
        net[name].node.config = replace(net[name].node.config, digest_groups=6)
    net.run(12.0)
    monkeypatch.setattr(codec, "encode_digest", spy)
    net.run(40.0)
    most = 2 * 6 * 40.0  # two peers
    assert most * 0.7 <= sum(named) <= most * 1.1
    assert set(named) == {0, 60}, "each one names all that are led, or the others would look for leaders"


def test_a_digest_without_news_is_compared_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    net = cluster(30)
    calls = Calls(monkeypatch, (Admission, "standing"), (Group, "led_by"), (codec, "decode_control"))
    net.run(10.0)
    assert calls.of.keys() == {"decode_control"}
    net["A"].group(7).propose(b"x")
    net.run(0.5)
    calls.of.clear()
    net["B"].group(7).engine.forget_leader()
    net["B"].group(7).sync()
    net.run(2.5)
    assert calls.of["led_by"] == 1 and net["B"].group(7).leader == "A"


def test_elections_of_very_many_groups_leave_most_of_the_loop_to_other_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else no answer is read in time, no group gets a leader, and the links themselves time out."""
    net = Loopback("ABC", ROOMY)
    for gid in range(1, MANY + 1):
        net["A"].create(gid, ("A", "B", "C"))
    node = net["A"].node
    net.isolate("A")
    asked: list[int] = []
    slices: list[tuple[int, float]] = []
    worked = 0.0
    rearm = node.turns.rearm

    def on_time(group: Group, now: float) -> None:
        nonlocal worked
        worked += 0.0015  # of the loop's time
        asked.append(group.gid)
        group.election.schedule(node.config.retry)

    def slice_ends(pause: float = 0.0) -> None:
        slices.append((len(asked) - sum(count for count, _ in slices), net.time.monotonic()))
        rearm(pause)

    monkeypatch.setattr(Group, "on_time", on_time)
    monkeypatch.setattr(node, "clock", SimpleNamespace(monotonic=lambda: net.time.monotonic() + worked))
    monkeypatch.setattr(node.turns, "rearm", slice_ends)
    net.run(3.0)
    assert max(count for count, _ in slices) == WAKES_AT_ONCE
    full = [at for count, at in slices if count == WAKES_AT_ONCE]
    pauses = [later - at for at, later in itertools.pairwise(full)]
    assert len(full) > 50 and min(pauses) >= node.config.wake_pause - 1e-9
    turns = Counter(asked)
    assert len(turns) == MANY and max(turns.values()) - min(turns.values()) <= 2, "each in turn"


def test_a_node_that_gives_way_asks_once_for_all_groups_of_the_same_members(monkeypatch: pytest.MonkeyPatch) -> None:
    net = cluster(40)
    node = net["A"].node
    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(node.peers, "may_lead", lambda voters: asked.append(voters) or True)
    node.health.watch(Aspect.MEMORY, lambda: "broken")
    net.run(node.config.second_opinion + 1.0)
    assert 8 <= len(asked) <= 12 and set(asked) == {("A", "B", "C")}, "with every heartbeat"


def test_groups_whose_majority_may_be_gone_are_looked_at_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    net = cluster(20)
    alone = 30
    for gid in range(21, alone):
        net["A"].create(gid, ("A",), campaign=True)
    net.run(1.0)
    ticked: set[int] = set()
    tick = Group.tick_engine

    def spy(group: Group) -> None:
        ticked.add(group.gid)
        tick(group)

    monkeypatch.setattr(Group, "tick_engine", spy)
    net.isolate("A")
    net.run(0.5)
    assert ticked == set(range(1, 21))
    net.run(1.5)
    roles = {gid: group.role for gid, group in net["A"].node.groups.items()}
    assert all((roles[gid] is Role.LEADER) == (gid > 20) for gid in roles), "quorum is lost as soon as ever"
    assert len(net["A"].node.led) == alone - 21


def test_a_group_with_a_peer_that_recovers_is_looked_at_while_somebody_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    net = cluster(5)
    replicator = net["A"].group(3).replicator
    replicator._recovering(replicator.flows["B"], recovering=True)
    ticked: set[int] = set()
    monkeypatch.setattr(Group, "tick_engine", lambda group: ticked.add(group.gid))
    net.run(1.0)
    assert ticked == set(), "everybody is there"
    net.isolate("C")
    net.run(1.0)
    assert ticked == {3}
    replicator._recovering(replicator.flows["B"], recovering=False)
    ticked.clear()
    net.run(1.0)
    assert ticked == set()


def test_another_configuration_is_judged_by_its_own_voters() -> None:
    net = cluster(3, names="ABCD")
    group = net["A"].group(2)
    net["D"].create(2, ("A", "B", "C"))
    group.add_peer("D")
    net.until(lambda: "D" in group.peers)
    group.remove_peer("C")
    net.until(lambda: "C" not in group.peers)
    net.run(0.5)
    node = net["A"].node
    net.isolate("C")
    net.isolate("B")
    assert {group.gid for group in node.led.endangered(node.peers.is_alive)} == {1, 3}
    net.connect("A", "B")
    net.connect("A", "C")
    net.isolate("D")
    assert node.led.endangered(node.peers.is_alive) == []
    net.isolate("B")
    assert [group.gid for group in node.led.endangered(node.peers.is_alive)] == [2]


def test_the_commit_index_of_what_was_active_is_recorded() -> None:
    net = cluster(30)
    net["A"].group(7).propose(b"x")
    net.run(2.5)
    for name in "ABC":
        assert net[name].group(7).log.commit_hint == net["A"].group(7).commit_index
    assert net["A"].node.turns.stirred == {}


def test_a_pin_is_looked_at_until_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    net = cluster(3)
    group = net["A"].group(2)
    net.isolate("C")
    for _ in range(200):
        group.propose(b"x")
    net.run(0.5)
    group.replicator.fetches("C", group.applied_index - 150)
    assert group.replicator.pinning
    calls = Calls(monkeypatch, (PeerProgress, "needs"))
    net.run(5.0)
    assert calls.of["needs"] >= 2 * 4
    net.run(group.config.pin_seconds + 5.0)
    assert not group.replicator.pinning
    calls.of.clear()
    net.run(5.0)
    assert calls.of == {}


def test_an_idle_log_gives_its_memory_back_also_when_the_disk_was_slow() -> None:
    rig = Rig(segment_bytes=1 << 20, idle_cache_bytes=100)
    log = rig.log()
    fill(log, 50, size=100)
    assert log._cache_bytes > 5_000
    rig.journal._kick()  # the writer has it, and has not said so
    for _ in range(3):
        rig.journal.housekeep()
    assert log._cache_bytes > 5_000
    rig.settle()
    rig.journal.housekeep()
    assert log._cache_bytes <= 100
    assert rig.journal._active == {}


@pytest.mark.parametrize("stands", [True, False])
def test_who_is_in_a_higher_term_than_the_leader_of_an_idle_group_is_not_left_behind(stands: bool) -> None:
    """The request for votes that raised it was lost, or came while the others' disks hung. `stands`: it asks again; a
    damaged one does not."""
    net = running(after=1.0)
    group = net["C"].group()
    group.engine.step_down(group.term + 3)
    if not stands:
        group.log.mark_damaged()
    group.sync()
    if not stands:
        group.election.stop()
    term = group.term
    net.until(lambda: group.leader is not None, seconds=6.0)
    leader = net[group.leader or ""].group()
    assert leader.term == group.term >= term
    net.until(lambda: group.applied_index == leader.last_index and not group.log.damaged)
