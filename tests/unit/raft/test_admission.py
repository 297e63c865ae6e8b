"""Frames of strangers: a peer that is linked, and no member. Each attack has a twin that members may do.

Frames for groups that a node does not have yet: kept within bounds, and given up in time.
"""

from __future__ import annotations

import random

import pytest

from jetcluster.raft import codec
from jetcluster.raft.api import Role
from jetcluster.raft.config import RaftConfig
from jetcluster.raft.membership import Config
from jetcluster.raft.node import EarlyFrames
from tests.unit.raft.loopback import Loopback, Member, running


def linked(net: Loopback, *, vouched: bool = False) -> Member:
    """A cluster of three whose member B is linked with X, of whom nobody has heard."""
    net.start(leader="A")
    net.crowd(net["A"].group(), 5, after=0.5)
    node = net["B"].node
    node.admission.vouched = lambda peer: vouched and peer == "X"
    node.peer_up("X")
    return net["B"]


def forged(term: int, index: int, prev_term: int) -> list[bytes]:
    """Everything that a stranger could want to say in `term`."""
    entry = (b"injected", term, codec.REGULAR)
    return [
        codec.encode(codec.Vote(term, 10**9, term)),
        codec.encode(codec.PreVote(term, 10**9, term)),
        codec.encode(codec.VoteReply(term, True)),
        codec.encode(codec.PreVoteReply(term, term, True)),
        codec.encode_append(term, index, prev_term, index + 1, 0, [entry]),
        codec.encode_ack(term, index, 0, False),
        codec.encode(codec.Reject(term, index, index, 0, False)),
        codec.encode(codec.TimeoutNow(term)),
        codec.encode(codec.Resign(term)),
        codec.encode_snap_offer(term, 10**6, term, Config(("X",))),
        codec.encode(codec.SnapRequest(term)),
        codec.encode(codec.Rejoin(term, 1)),
        codec.encode(codec.RejoinReply(term, 1, 0)),
    ]


def test_no_frame_of_a_stranger_counts_for_anything(net: Loopback) -> None:
    b = linked(net)
    group = b.group()
    state = (group.term, group.leader, group.log.voted_for, group.last_index, group.commit_index, group.told_index)
    term, index = group.term, group.last_index
    attacks = [*forged(term, index, term), *forged(term + 1, index, term), *forged(term + 1000, index, term)]
    for frame in attacks:
        assert b.node.on_frame("X", 1, frame) == ""
    b.node.end_of_batch()
    net.run(1.0)
    assert state == (
        group.term, group.leader, group.log.voted_for, group.last_index, group.commit_index, group.told_index,
    )  # fmt: skip
    assert b.node.admission.refused == len(attacks)
    assert len([text for _, text in b.reports if "frames of X are refused" in text]) == 1, "reported once"
    assert not group.stopped


@pytest.mark.parametrize("learns", [False, True], ids=["a stranger", "a learner"])
def test_who_has_no_vote_does_not_win_an_election_while_nobody_leads(net: Loopback, learns: bool) -> None:
    b = learning(net) if learns else linked(net)
    net.isolate("B")
    net.run(2.0)
    group = b.group()
    assert group.leader is None
    end, term = group.last_index, group.term
    for frame in forged(term + 1, end, group.log.last_term):
        b.node.on_frame("X", 1, frame)
    net.run(0.5)
    assert (group.leader, group.term, group.last_index) == (None, term, end)


def test_a_new_member_is_heard_by_a_replica_that_lags(net: Loopback) -> None:
    """The same frames of one for whom a voter has vouched: it joined and was elected while this replica was away."""
    b = linked(net, vouched=True)
    net.isolate("B")
    net.run(2.0)
    group = b.group()
    term, end = group.term, group.last_index
    b.node.on_frame("X", 1, codec.encode_append(term + 3, end, group.log.last_term, end, 0, []))
    net.run(0.01)
    assert (group.leader, group.term) == ("X", term + 3)
    entry = (b"new", term + 3, codec.REGULAR)
    b.node.on_frame("X", 1, codec.encode_append(term + 3, end, group.log.last_term, end + 1, 0, [entry]))
    assert group.last_index == end + 1, "whom it follows it hears from then on"


def test_who_belongs_to_the_cluster_alone_does_not_depose_a_leader(net: Loopback) -> None:
    b = linked(net, vouched=True)
    group = b.group()
    term = group.term
    for frame in forged(term + 1, group.last_index, term):
        b.node.on_frame("X", 1, frame)
    net.run(0.5)
    assert (group.leader, group.term) == ("A", term)
    assert net["A"].group().role is Role.LEADER


def learning(net: Loopback, *, vouched: bool = False) -> Member:
    """A cluster of three which X has asked to be counted in: its learner, by every log."""
    b = linked(net)
    for name in "ABC":
        net[name].node.admission.vouched = lambda peer: vouched and peer == "X"
        net[name].node.peer_up("X")
    net["A"].group().add_peer("X")
    net.run(0.5)
    assert b.group().log.config.learners == ("X",)
    return b


def test_who_has_joined_as_a_learner_neither_leads_nor_votes_nor_tells_the_time(net: Loopback) -> None:
    learning(net)
    ahead = net.time.time_ns() + 3600 * 10**9
    for member in (net[name] for name in "ABC"):
        group, node = member.group(), member.node
        state = (group.term, group.leader, group.log.voted_for, group.last_index, group.commit_index)
        refused = node.admission.refused
        for term in (group.term + 1, group.term + 1000, group.term + (1 << 28)):
            for index in (1, 3, group.last_index):
                for frame in forged(term, index, 1):
                    assert node.on_frame("X", 1, frame) == ""
        assert node.admission.refused == refused + 9 * 13, "acks of another term included"
        for frame in forged(group.term, 3, 1):
            assert node.on_frame("X", 1, frame) == ""
        node.on_frame("X", 0, codec.encode_heartbeat(1, ahead, ahead, True, 0))
        node.on_frame("X", 0, codec.encode_digest([(1, group.term, 0)]))
        node.end_of_batch()
        assert "X" not in node.health.time._peers
        assert not group.stopped
        assert state == (group.term, group.leader, group.log.voted_for, group.last_index, group.commit_index)
    net.run(1.0)
    assert net["A"].group().role is Role.LEADER


def test_a_learner_answers_its_leader(net: Loopback) -> None:
    learning(net)
    leader = net["A"].group()
    end = leader.last_index
    net["A"].node.on_frame("X", 1, codec.encode_ack(leader.term, end, 0, True))
    assert leader.replicator.flows["X"].match == end


def test_a_learner_that_was_a_voter_and_stood_for_election_is_not_left_behind(net: Loopback) -> None:
    """It was removed and added again while it heard nobody. It follows no leader of a lower term than its own."""
    learning(net, vouched=True)
    leader = net["A"].group()
    term, end = leader.term, leader.last_index
    net["A"].node.on_frame("X", 1, codec.encode(codec.Reject(term + 2, end, 1, 0, False)))
    net.until(lambda: (found := net.leader()) is not None and found.term > term + 2, seconds=3.0)


def test_a_learner_by_this_log_leads_once_a_voter_says_that_it_has_a_vote(net: Loopback) -> None:
    """It was made a voter, and was elected, while this replica was away."""
    b = learning(net, vouched=True)
    group = b.group()
    term, end = group.term, group.last_index
    append = codec.encode_append(term + 3, end, group.log.last_term, end, 0, [])
    b.node.on_frame("X", 1, append)
    assert (group.leader, group.term) == ("A", term), "it has a leader that lives"
    net.isolate("B")
    net.run(2.0)
    b.node.on_frame("X", 1, append)
    net.run(0.01)
    assert (group.leader, group.term) == ("X", term + 3)


def test_a_follower_of_the_meta_group_leads_a_streams_group_that_lags(net: Loopback) -> None:
    """The meta group votes on a few nodes only. X got a vote in the stream's group while this replica was away."""
    b = learning(net)
    net.start(gid=7, peers="ABC", leader="A")
    net.isolate("B")
    net.run(2.0)
    for gid, leads in ((7, "X"), (1, None)):
        group = b.group(gid)
        assert group.leader is None
        term, end = group.term, group.last_index
        b.node.on_frame("X", gid, codec.encode_append(term + 3, end, group.log.last_term, end, 0, []))
        net.run(0.01)
        assert group.leader == leads, f"group {gid}"


def test_a_forged_contradiction_of_a_committed_entry_stops_nobody() -> None:
    net = running()
    net.crowd(net["A"].group(), 5, after=0.5)
    b = net["B"]
    group, commit = b.group(), b.group().commit_index
    term, held = group.term, group.log.command(3)
    forged_entry = codec.encode_append(term + 50, 2, 1, 10**6, 0, [(b"injected", term + 50, codec.REGULAR)])
    text = "leader C of term 51 contradicts committed entry 3: it is not followed"
    assert term == 1
    for _ in range(100):
        assert b.node.on_frame("C", 1, forged_entry) == "", "the link that carries all groups stays"
    assert [said for _, said in b.reports if "contradicts" in said] == [text]
    assert (group.stopped, group.refused, group.leader, group.term) == ("", "", "A", term)
    assert (group.commit_index, group.told_index, group.log.command(3)) == (commit, commit, held)
    net.crowd(net["A"].group(), 5, after=0.5)
    assert group.applied_index == net["A"].group().applied_index > commit
    net.run(60.0)
    b.node.on_frame("C", 1, forged_entry)
    assert [said for _, said in b.reports if "contradicts" in said] == [text, text], "reported again"


def test_terms_do_not_leap_often() -> None:
    net = running(after=0.5)
    b = net["B"]
    group, config = b.group(), b.node.config
    first = group.term + config.max_term_leap
    assert b.node.on_frame("C", 1, codec.encode(codec.Vote(first, 1, 1))) == ""
    assert group.term == first, "one that was away for long"
    second = first + config.free_term_leap + 1
    for _ in range(1000):
        assert b.node.on_frame("C", 1, codec.encode(codec.Vote(second, 1, 1))) == "", "its link stays"
    assert group.term == first
    assert len([text for _, text in b.reports if "a leap from term" in text]) == 1
    third = first + config.free_term_leap
    b.node.on_frame("C", 1, codec.encode(codec.Vote(third, 1, 1)))
    assert group.term == third, "elections, and rescues, are free"
    net.run(config.leap_every)
    far = group.term + config.free_term_leap + 1
    b.node.on_frame("C", 1, codec.encode(codec.PreVote(far, 1, 1)))
    assert group.term < far, "it raises no term, and takes nobody's turn"
    b.node.on_frame("C", 1, codec.encode(codec.Vote(far, 1, 1)))
    assert group.term == far


def test_a_member_of_a_group_that_does_not_belong_to_the_cluster_any_more_is_a_stranger() -> None:
    """It was removed from the meta group, and streams that it cannot be taken out of still name it."""
    net = Loopback("ABCD")
    for name in "ABCD":
        net[name].node.admission.vouched = lambda peer: False
    net.start(1, peers=("A", "B", "C"), leader="A")
    net.start(2, peers=("B", "C", "D"), leader="B")
    net.run(1.0)
    group = net["C"].group(2)
    term, refused = group.term, net["C"].node.admission.refused
    net["C"].node.on_frame("D", 2, codec.encode(codec.Vote(term + 1, 10**6, term)))
    assert (group.term, net["C"].node.admission.refused) == (term, refused + 1)
    net["C"].node.on_frame("B", 2, codec.encode(codec.Vote(term + 1, 10**6, term)))
    assert group.term == term + 1


def test_strangers_tell_no_time_and_lead_nothing(net: Loopback) -> None:
    b = linked(net)
    crowds = [f"X{n}" for n in range(50)]
    for peer in crowds:
        b.node.peer_up(peer)
    ahead = net.time.time_ns() + 3600 * 10**9
    for turn in range(50):
        for peer in crowds:
            b.node.on_frame(peer, 0, codec.encode_heartbeat(turn, ahead, ahead, True, 250))
        net.run(0.1)
    assert not b.node.health.time.disputed
    assert not b.node.health.time._peers.keys() & set(crowds)
    assert b.node.levels.told(crowds[0]) is None
    assert abs(b.node.health.time.time_ns() - net.time.time_ns()) < 10**9
    b.node.on_frame("X", 0, codec.encode_digest([(1, b.group().term, 0)]))
    assert b.group().leader == "A"
    for peer in crowds:
        b.node.peer_down(peer)
        assert peer not in b.node.peers.states, "whoever comes under ever new names is not remembered"
        assert b.node.levels.told(peer) is None


def test_a_node_that_has_met_no_cluster_hears_everybody(net: Loopback) -> None:
    """Its first frames may come before it knows with whom it founds one."""
    node = net["B"].node
    node.on_frame("A", 1, codec.encode(codec.PreVote(1, 0, 0)))
    group = net["B"].create(1, ("A", "B", "C"))
    assert node.admission.refused == 0
    node.peer_up("X")
    node.on_frame("X", 7, codec.encode(codec.PreVote(1, 0, 0)))
    assert node.admission.refused == 1, "now it knows"
    assert group.term == 0


@pytest.mark.parametrize("term", [codec.MAX_TERM + 1, 1 << 61, (1 << 64) - 1])
def test_a_term_beyond_the_bound_is_no_frame(term: int) -> None:
    for frame in (
        codec.encode_append(term, 0, 0, 0, 0, []), codec.encode_ack(term, 1, 0, False),
        codec.encode_snap_offer(term, 1, 1, Config(("A",))),
        *map(codec.encode, (
            codec.Vote(term, 1, 1), codec.PreVote(term, 1, 1), codec.Reject(term, 1, 1, 0, False), codec.Resign(term),
            codec.VoteReply(term, True), codec.PreVoteReply(term, 1, True), codec.TimeoutNow(term),
            codec.SnapRequest(term), codec.Rejoin(term, 0), codec.RejoinReply(term, 0, 0),
        )),
    ):  # fmt: skip
        with pytest.raises(codec.CodecError):
            codec.decode(frame)
    with pytest.raises(codec.CodecError):
        codec.decode_control(codec.encode_digest([(1, term, 0)]))
    assert codec.decode(codec.encode(codec.Vote(codec.MAX_TERM, 1, 1))) == codec.Vote(codec.MAX_TERM, 1, 1)


def test_nobody_stands_for_election_beyond_the_bound() -> None:
    net = running(after=0.5)
    group = net["B"].group()
    assert group.may_campaign()
    group.engine.step_down(codec.MAX_TERM)
    group.sync()
    assert not group.may_campaign()


def test_frames_of_members_that_are_no_frames_are_reported() -> None:
    """The link is closed by whoever called; whatever the bytes are, nothing raises and no group stops."""
    net = running(after=0.5)
    node, group = net["B"].node, net["B"].group()
    rng = random.Random(7)
    genuine = [*forged(group.term, 3, 1), codec.encode_digest([(1, 1, 1)]), codec.encode_heartbeat(1, 1, 1, True, 1)]
    told = 0
    for turn in range(3000):
        frame = bytearray(rng.choice(genuine))
        kind = turn % 3
        if kind == 0:
            frame[rng.randrange(len(frame))] ^= 1 << rng.randrange(8)
        elif kind == 1:
            frame = frame[: rng.randrange(len(frame))]
        else:
            frame += rng.randbytes(rng.randrange(1, 40))
        told += bool(node.on_frame("C", rng.choice((0, 1)), bytes(frame)))
    assert told > 1500
    assert not group.stopped, group.stopped
    assert node.on_frame("C", 1, codec.encode(codec.PreVote(group.term + 1, 1, 1))) == ""


def frames(**bounds: float) -> EarlyFrames:
    wide = {"early_groups": 100, "early_frames": 100, "early_bytes": 1000, "early_seconds": 5.0}
    return EarlyFrames(RaftConfig(**{**wide, **bounds}))  # type: ignore[arg-type]


def test_a_new_group_gets_what_came_for_it_in_order() -> None:
    early = frames()
    for number, (gid, peer) in enumerate([(1, "A"), (2, "A"), (1, "B")]):
        assert early.keep(gid, peer, b"%d" % number, float(number))
    assert early.pop(1) == [(0.0, "A", b"0"), (2.0, "B", b"2")]
    assert early.pop(1) == [] and early.bytes == 1


def test_there_is_a_bound_of_each_kind() -> None:
    early = frames(early_groups=2, early_frames=2, early_bytes=10)
    assert early.keep(1, "A", b"xxx", 0) and early.keep(2, "A", b"xxx", 0)
    assert not early.keep(3, "A", b"", 0), "a third group"
    assert early.keep(1, "A", b"", 0) and not early.keep(1, "A", b"", 0), "a third frame"
    assert not early.keep(2, "A", b"xxxxx", 0) and early.keep(2, "A", b"xxxx", 0), "eleven bytes"
    early.pop(2)
    assert early.bytes == 3 and early.keep(3, "A", b"xxxxxxx", 0)


def test_frames_go_with_their_link() -> None:
    early = frames()
    for gid, peer in ((1, "A"), (1, "B"), (2, "A")):
        early.keep(gid, peer, b"xy", 0)
    early.drop_peer("A")
    assert early.kept == {1: [(0, "B", b"xy")]} and early.bytes == 2


def test_a_group_that_does_not_come_in_time_is_given_up() -> None:
    early = frames()
    early.keep(1, "A", b"x", 1.0)
    early.keep(1, "A", b"x", 6.0)
    early.keep(2, "A", b"x", 3.0)
    assert early.expire(6.0) == 0
    assert early.expire(6.1) == 2, "as old as the first frame"
    assert list(early.kept) == [2] and early.bytes == 1
