"""Raft's rules are held against frames as servers write them: each rule has one frame that keeps it and one that breaks
it."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from jetcluster.raft.api import Role
from jetcluster.raft.codec import LeaseRequest, VoteReply, encode, encode_ack, encode_append
from jetcluster.raft.membership import Config
from testkit.sim.protocol import Protocol

GROUP, TERM = 7, 4
PEERS = ("a", "b", "c")


class Rig:
    """Three servers, n-a to n-c; a leads, and all logs end at 10, of TERM from 8 on."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self.groups = {peer: self._group(peer) for peer in PEERS}
        self.groups["a"].engine.role, self.groups["a"].engine.leading = Role.LEADER, True
        self.machines: dict[str, Any] = {}
        machines = self.machines
        self.known = {peer: {GROUP: self.groups[peer]} for peer in PEERS}
        """The groups of each server's Raft."""
        for peer in PEERS:
            raft = SimpleNamespace(me=peer, groups=self.known[peer])
            node = SimpleNamespace(jetstream=SimpleNamespace(_raft=raft))
            machines[peer] = SimpleNamespace(node=node, clock=SimpleNamespace(now=lambda: 50.0, true_delay=float))
        self.torn: list[Any] = []
        """Machines whose journals may have lost their ends without a trace."""
        deployment: Any = SimpleNamespace(
            machines=machines,
            vows=SimpleNamespace(may_lack_its_end=lambda machine: machine in self.torn),
            servers={peer: SimpleNamespace(cluster="sim") for peer in PEERS},
            scheduler=SimpleNamespace(now=1.0),
        )
        self.protocol = Protocol(deployment, lambda key, what: self.found.append(what))

    def _group(self, peer: str) -> Any:
        log = SimpleNamespace(
            term=TERM, last_index=10, written_index=10, damaged=False, durable=True, relaxed=False, alone=False,
            term_gseq=3, entry_gseq=5, durable_gseq=5, configs=[(0, Config(PEERS))],
            term_at=lambda index: TERM if index >= 8 else TERM - 1,
        )  # fmt: skip
        engine = SimpleNamespace(role=Role.FOLLOWER, leading=False, term=TERM, commit=7, matches={})
        config = SimpleNamespace(promote_lag=2, promote_seconds=1.0, clock_drift=0.1)
        log.config, log.configs_from = Config(PEERS), lambda index: [config for _, config in log.configs]
        return SimpleNamespace(
            me=peer, log=log, engine=engine, config=config, stopped=False, ready=True,
            lease=SimpleNamespace(until=-math.inf),
            promise=SimpleNamespace(_until=-math.inf, _term=None),
            receiver=SimpleNamespace(committed=7), told_index=7,
        )  # fmt: skip

    def hear(self, source: str, target: str, frame: bytes) -> None:
        self.protocol.heard(source, target, GROUP, memoryview(frame))

    def ack(self, source: str, index: int) -> None:
        self.hear(source, "a", encode_ack(TERM, index, 0, False))

    def append(self, commit: int) -> None:
        self.hear("a", "b", encode_append(TERM, 10, TERM, commit, 0, []))

    def elect(self) -> None:
        self.hear("b", "a", encode(VoteReply(TERM, True)))
        self.append(5)


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_what_keeps_all_rules_is_not_noticed(rig: Rig) -> None:
    rig.elect()
    rig.ack("b", 9)
    rig.append(9)
    rig.groups["a"].engine.commit = 9
    rig.groups["a"].log.configs.append((10, Config(PEERS).joint(PEERS[:2])))
    rig.append(9)
    assert not rig.found
    assert rig.protocol.frames == 5


def test_a_vote_is_on_disk(rig: Rig) -> None:
    rig.groups["b"].log.term_gseq = 6
    rig.elect()
    assert "before its disk knows" in rig.found[0]


def test_a_damaged_replica_has_no_vote(rig: Rig) -> None:
    rig.groups["b"].log.damaged = True
    rig.elect()
    assert "is damaged" in rig.found[0]


def test_a_damaged_replica_may_vote_for_one_without_whom_nothing_was_decided(rig: Rig) -> None:
    for group in rig.groups.values():
        group.log.configs = [(0, Config(PEERS[:2]))]
    rig.groups["b"].log.damaged = True
    rig.elect()
    assert not rig.found
    rig.groups["a"].log.configs = [(0, Config(PEERS[:2])), (9, Config(PEERS[:2]).joint(PEERS))]
    rig.elect()
    assert "is damaged" in rig.found[0]


@pytest.mark.parametrize(("before", "kept"), [("a", True), ("ab", False)])
def test_a_joint_configuration_is_decided_by_a_majority_of_each(rig: Rig, before: str, kept: bool) -> None:
    for group in rig.groups.values():
        group.log.configs = [(0, Config(tuple(before)).joint(PEERS))]
    rig.hear("c", "a", encode(VoteReply(TERM, True)))
    rig.append(5)
    rig.ack("c", 9)
    rig.append(9)
    wrong = [] if kept else ["the votes of 2", "which 2 voters have"]
    assert len(rig.found) == len(wrong)
    assert all(what in found for what, found in zip(wrong, rig.found, strict=True))


def test_a_leader_has_the_votes_of_a_majority(rig: Rig) -> None:
    rig.append(5)
    assert "the votes of 1" in rig.found[0]


def test_an_ack_of_the_whole_log_is_on_disk(rig: Rig) -> None:
    rig.groups["b"].log.entry_gseq = 6
    rig.ack("b", 9)
    assert not rig.found
    rig.ack("b", 10)
    assert "before all of it is on its disk" in rig.found[0]


def test_what_was_acknowledged_stays(rig: Rig) -> None:
    rig.ack("b", 10)
    rig.groups["b"].log.last_index = 9
    rig.torn.append(rig.machines["b"])
    rig.ack("b", 8)
    assert not rig.found
    rig.torn.clear()
    rig.ack("b", 8)
    assert "acknowledged 10" in rig.found[0]


def test_a_majority_has_what_is_committed(rig: Rig) -> None:
    rig.elect()
    rig.append(9)
    assert "which 1 voters have" in rig.found[0]


def test_a_leader_counts_what_was_acknowledged_in_its_term(rig: Rig) -> None:
    rig.elect()
    rig.ack("b", 9)
    rig.groups["a"].engine.matches["b"] = 9
    rig.append(9)
    assert not rig.found
    rig.groups["a"].engine.matches["c"] = 9
    rig.append(9)
    assert "counts 9 for c in term 4, which acknowledged 0" in rig.found[0]


def test_what_was_acknowledged_counts_where_the_group_has_gone_meanwhile(rig: Rig) -> None:
    """A stream is deleted on one server while the frame waits for its link."""
    rig.elect()
    rig.known["b"].clear()
    rig.ack("b", 9)
    rig.append(9)
    assert not rig.found


def test_an_entry_of_an_older_term_is_not_committed_by_itself(rig: Rig) -> None:
    rig.elect()
    rig.ack("b", 7)
    rig.append(7)
    assert "of term 3, by itself" in rig.found[0]


@pytest.mark.parametrize(
    ("configs", "commit", "what"),
    [
        ([(9, Config(PEERS).joint(PEERS[:2])), (10, Config(PEERS[:2]))], 8, "changes members at 9 and 10"),
        ([(10, Config(PEERS).joint(PEERS[:2]))], 7, "before anything of its term"),
        ([(10, Config(PEERS).joint((*PEERS, "d")))], 9, "makes d a voter"),
        ([(10, Config(PEERS[:2]))], 9, "changes members at 10 from"),
        ([(9, Config(PEERS).joint(PEERS[:2])), (10, Config(PEERS[:1]))], 9, "changes members at 10 from"),
    ],
)
def test_members_change_one_at_a_time_and_late(
    rig: Rig, configs: list[tuple[int, Config]], commit: int, what: str
) -> None:
    rig.elect()
    rig.groups["a"].engine.commit = commit
    rig.groups["a"].log.configs += configs
    rig.append(5)
    assert what in rig.found[0]


@pytest.mark.parametrize(
    ("promised", "what"),
    [
        ({"b": 50.3}, ""),
        ({"b": 50.1, "c": 50.3}, ""),
        ({"b": 50.1}, "reads by a lease of 0.200 s in term 4, and ['a'] owe it"),
    ],
    ids=["a majority", "another majority", "not for so long"],
)
def test_a_majority_owes_a_leader_the_lease_by_which_it_reads(rig: Rig, promised: dict[str, float], what: str) -> None:
    for peer, until in promised.items():
        vars(rig.groups[peer].promise).update(_until=until)
    rig.groups["a"].lease.until = 50.2
    rig.hear("a", "b", encode(LeaseRequest(TERM, 1, 300_000)))
    assert [what in text for text in rig.found] == ([True] if what else [])


def test_who_does_not_run_waits_before_it_votes(rig: Rig) -> None:
    rig.groups["a"].lease.until = 50.2
    rig.known["b"].clear()
    rig.hear("a", "b", encode(LeaseRequest(TERM, 1, 300_000)))
    assert not rig.found


def test_who_has_promised_votes_for_nobody_else(rig: Rig) -> None:
    promise = rig.groups["b"].promise
    vars(promise).update(_until=50.2, _term=TERM)
    rig.hear("b", "a", encode(VoteReply(TERM, True)))
    assert not rig.found, "the vote came before the promise"
    vars(promise).update(_term=TERM - 1)
    rig.hear("b", "a", encode(VoteReply(TERM, True)))
    assert "has promised to elect nobody else" in rig.found[0]


def test_a_new_leader_reads_what_it_has_heard_to_be_committed(rig: Rig) -> None:
    rig.groups["a"].receiver.committed = 11  # of which its log ends at 10
    rig.groups["a"].told_index = 10
    rig.elect()
    assert not rig.found
    rig.groups["a"].told_index = 9
    rig.groups["a"].engine.term = rig.groups["a"].log.term = TERM + 1
    rig.hear("b", "a", encode(VoteReply(TERM + 1, True)))
    rig.hear("a", "b", encode_append(TERM + 1, 10, TERM, 5, 0, []))
    assert any("takes 9 for told, having heard that 10" in text for text in rig.found)
