"""The promise of a voter to a leader that reads by a lease, before and after a restart."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from jetcluster.raft import codec
from jetcluster.raft.api import Role
from jetcluster.raft.config import RaftConfig
from jetcluster.raft.core.group import Group
from tests.unit.raft.loopback import Loopback, Untimely, frames, leased, led

CONFIG = RaftConfig()


def test_a_voter_that_promised_neither_votes_nor_adopts_the_candidates_term() -> None:
    net, _ = leased()
    group = net["B"].group()
    term = group.term
    seen = frames(net, codec.VoteReply)
    group.receiver.on_message("C", codec.PreVote(term + 1, 99, term))
    group.receiver.on_message("C", codec.Vote(term + 1, 99, term))
    group.election.pre_vote()
    assert (group.term, group.role) == (term, Role.FOLLOWER)
    assert seen == []
    net.run(CONFIG.lease + 0.01)
    group.receiver.on_message("C", codec.Vote(term + 1, 99, term))
    assert (group.term, group.log.voted_for) == (term + 1, "C")


@pytest.mark.parametrize("restarted", [True, False])
def test_a_voter_that_was_restarted_waits_for_what_it_may_have_promised(restarted: bool) -> None:
    net, _ = leased()
    term = net["B"].group().term
    net.crash("B")
    group = net.restart("B").create(1, ("A", "B", "C")) if restarted else net["C"].group()
    candidate = "C" if restarted else "B"
    group.receiver.on_message(candidate, codec.Vote(term + 1, 99, term))
    assert group.log.voted_for == "A"
    net.run(CONFIG.longest_lease - 0.01 if restarted else CONFIG.lease - 0.03)
    group.receiver.on_message(candidate, codec.Vote(term + 1, 99, term))
    assert group.log.voted_for == "A"
    net.run(0.03)
    group.receiver.on_message(candidate, codec.Vote(group.term + 1, 99, term))
    assert group.log.voted_for == candidate


def test_a_replica_that_never_had_a_term_has_promised_nothing() -> None:
    net = Loopback()
    for name in "ABC":
        net[name].create(1, ("A", "B", "C"), campaign=name == "B")
    net.run(0.01)
    assert net["B"].group().ready


def test_a_request_that_was_released_binds_nobody() -> None:
    net, leader = leased()
    group = net["B"].group()
    group.receiver.on_message("A", codec.LeaseReleased(leader.term, 5))
    assert not group.promise.binds
    group.receiver.on_message("A", codec.LeaseRequest(leader.term, 5, 300_000))
    assert not group.promise.binds
    group.receiver.on_message("A", codec.LeaseRequest(leader.term, 6, 300_000))
    assert group.promise.binds


@pytest.mark.parametrize(
    "spoil",
    [
        lambda group: group.log.mark_damaged(),
        lambda group: setattr(group.log, "election_gseq", group.log.durable_gseq + 1),
        lambda group: setattr(group.node, "health", Untimely()),
    ],
    ids=["damaged", "term not on disk", "clock in doubt"],
)
def test_who_cannot_keep_it_does_not_promise(spoil: Callable[[Group], None]) -> None:
    net, leader = led(after=1.0)
    group = net["B"].group()
    seen = frames(net, codec.LeaseGrant)
    spoil(group)
    group.receiver.on_message("A", codec.LeaseRequest(leader.term, 1, 300_000))
    assert not seen
    assert not group.promise.binds


def test_only_the_leader_is_promised_anything_and_nothing_longer_than_a_restart_waits() -> None:
    net, leader = led(after=1.0)
    group = net["B"].group()
    for peer, seconds in (("C", 0.3), ("A", CONFIG.longest_lease + 0.001)):
        group.receiver.on_message(peer, codec.LeaseRequest(leader.term, 1, int(seconds * 1e6)))
        assert not group.promise.binds
