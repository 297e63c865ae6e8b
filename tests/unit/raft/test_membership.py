from __future__ import annotations

import struct
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetcluster.raft.membership import (
    Config,
    MembersError,
    decisive,
    decode_config,
    encode_config,
    is_quorum,
)

ids = st.text(min_size=1, max_size=20).filter(lambda s: len(s.encode(errors="ignore")) > 0 and s.isprintable())


@given(st.lists(ids, unique=True, max_size=9), st.integers(0, 9))
def test_configurations_come_back(names: list[str], voters: int) -> None:
    config = Config(tuple(names[:voters]), tuple(names[voters:]))
    assert decode_config(encode_config(config)) == config


@given(st.lists(ids, unique=True, min_size=1, max_size=9), st.integers(0, 9), st.integers(1, 9), st.integers(0, 2))
def test_joint_configurations_come_back(names: list[str], voters: int, outgoing: int, rescue: int) -> None:
    left_out = ("gone",) if rescue else ()
    config = Config(tuple(names[:voters]), (), rescue, left_out, tuple(reversed(names))[:outgoing])
    assert decode_config(encode_config(config)) == config


@given(st.binary(max_size=40))
def test_garbage_is_refused(data: bytes) -> None:
    try:
        decode_config(data)
    except MembersError:
        pass


def test_truncation_and_tail_are_refused() -> None:
    data = encode_config(Config(("A", "B"), ("C",)))
    for cut in range(len(data)):
        with pytest.raises(MembersError):
            decode_config(data[:cut])
    with pytest.raises(MembersError):
        decode_config(data + b"x")


def test_a_peer_is_a_member_once() -> None:
    with pytest.raises(MembersError):
        Config(("A", "B"), ("A",))


def test_changes() -> None:
    config = Config(("A", "B")).with_learner("C")
    assert config.others("A") == ("B", "C")
    assert config.joint(("A", "B", "C")).left() == Config(("A", "B", "C"))
    assert config.without("C") == Config(("A", "B"))
    assert config.without("A") == Config(("B",), ("C",))


@pytest.mark.parametrize(
    ("voters", "reached", "expected"),
    [
        ("A", {"A": 5}, 5),
        ("AB", {"A": 9, "B": 4}, 4),
        ("ABC", {"A": 9, "B": 4, "C": 7}, 7),
        ("ABC", {"A": 9}, 0),
        ("ABCD", {"A": 9, "B": 8, "C": 7, "D": 6}, 7),
        ("ABCDE", {"A": 9, "B": 8, "C": 7, "D": 6, "E": 5}, 7),
        ("BC", {"A": 9, "B": 3, "C": 4}, 3),
        ("", {"A": 9}, 0),
    ],
)
def test_quorum_index(voters: str, reached: dict[str, int], expected: int) -> None:
    assert Config(tuple(voters)).quorum_index(reached) == expected


def test_is_quorum_counts_voters_only() -> None:
    assert not is_quorum(("A", "B", "C", "D"), {"A", "B"})
    assert is_quorum(("A", "B", "C", "D"), {"A", "B", "C"})
    assert not is_quorum(("A", "B", "C"), {"A", "X", "Y"})
    assert is_quorum(("A",), {"A"})


def test_a_rescue_is_part_of_the_configuration() -> None:
    before = Config(("A", "B", "C", "D", "E"), ("L",))
    after = before.rescued(("A", "B"), ("L",))
    assert after == Config(("A", "B"), ("L",), 1, ("C", "D", "E"))
    assert decode_config(encode_config(after)) == after
    again = after.rescued(("A",), ())
    assert again == Config(("A",), (), 2, ("C", "D", "E", "B", "L"))
    # What comes later keeps it, and whoever is a member again is not fenced off any more.
    assert again.with_learner("C").joint(("A", "C")).left() == Config(("A", "C"), (), 2, ("D", "E", "B", "L"))
    assert again.without("A").rescue == 2
    data = encode_config(after)
    for cut in range(len(data)):
        with pytest.raises(MembersError):
            decode_config(data[:cut])
    with pytest.raises(MembersError):
        decode_config(data + b"x")


def test_a_configuration_without_a_rescue_is_written_as_ever() -> None:
    assert encode_config(Config(("A",))) == b"\x01\x01\x00\x01A"


JOINT = Config(("A", "B", "C")).with_learner("D").joint(("A", "B", "D"))


def test_a_joint_configuration_needs_a_majority_of_both() -> None:
    assert Config(("A", "B", "D"), (), outgoing=("A", "B", "C")) == JOINT
    assert JOINT.electorate == JOINT.members == ("A", "B", "D", "C")
    assert JOINT.others("B") == ("A", "D", "C")
    assert [JOINT.is_quorum(set(agreeing)) for agreeing in ("AB", "CD", "ACD", "BD")] == [True, False, True, False]
    assert JOINT.quorum_index({"A": 9, "B": 4, "C": 7, "D": 2}) == 4
    assert JOINT.left() == Config(("A", "B", "D"))
    alone = Config(("A",)).joint(("A", "B", "C"))
    assert (alone.is_only("A"), Config(("A",)).is_only("A")) == (False, True)
    assert JOINT.rescued(("A",), ()).fenced == ("B", "D", "C")
    for cut in range(len(encode_config(JOINT))):
        with pytest.raises(MembersError):
            decode_config(encode_config(JOINT)[:cut])


@pytest.mark.parametrize(
    ("config", "peer", "agreeing", "enough"),
    [
        (Config(("A", "B")), "B", "A", True),
        (Config(("A", "B", "C")), "B", "A", False),
        (Config(("A", "B", "C")), "B", "AC", True),
        (Config(("A", "B", "C", "D")), "B", "AC", True),
        (Config(("A", "B", "C", "D")), "B", "A", False),
        (Config(("A", "B", "C", "D", "E")), "B", "AC", False),
        (Config(("A", "B", "C", "D")), "X", "AC", False),  # it has no vote: who leads is what is asked
        (Config(("A",)).joint(("A", "B", "C")), "B", "A", False),  # B and C may have left it
        (Config(("A",)).joint(("A", "B", "C")), "B", "AC", True),
        (Config(("A",)).joint(("A", "B")), "B", "A", True),
        (Config(("A", "B", "C")).joint(("B",)), "B", "A", False),
        (Config(("A", "B", "C")).joint(("B",)), "B", "AC", False),  # it may have left it alone
    ],
)
def test_who_may_vouch_for_a_damaged_voter(config: Config, peer: str, agreeing: str, enough: bool) -> None:
    assert config.vouches(set(agreeing), peer) is enough


@given(st.integers(1, 7), st.integers(1, 7), st.data())
def test_those_who_vouch_meet_every_quorum_that_the_peer_was_part_of(old: int, new: int, data: st.DataObject) -> None:
    names = "ABCDEFG"
    voters = tuple(data.draw(st.permutations(names))[:new])
    config = Config(voters, outgoing=tuple(names[:old]) if data.draw(st.booleans()) else ())
    peer = data.draw(st.sampled_from(config.electorate))
    agreeing = set(data.draw(st.sets(st.sampled_from(config.electorate)))) - {peer}
    quorum = set(data.draw(st.sets(st.sampled_from(config.electorate)))) | {peer}
    after = config.left()  # where it is joint its new voters may have left it
    involved = config.is_quorum(quorum) or (after.has_vote(peer) and after.is_quorum(quorum))
    if involved and config.vouches(agreeing, peer):
        assert quorum & agreeing


def test_one_of_two_is_part_of_every_quorum() -> None:
    two, three = Config(("A", "B")), Config(("A", "B", "C"))
    assert decisive([two], "A")
    assert not decisive([three], "A")
    assert not decisive([three, two], "A"), "the one before may be in force"
    assert not decisive([two.joint(("A", "B", "C"))], "A"), "it may have been left, by B and C"
    assert not decisive([two.joint(("B",))], "A")
    assert decisive([three.joint(("A", "B"))], "A")
    assert decisive([Config(("A",))], "A")
    assert not decisive([Config(())], "A")


def test_a_configuration_of_very_many_members_has_its_own_format() -> None:
    voters = tuple(f"v{n}" for n in range(5))
    narrow = Config(voters, tuple(f"l{n:07}" for n in range(255)), rescue=1, fenced=("x",))
    wide = Config(voters, tuple(f"l{n:07}" for n in range(600)), rescue=1, fenced=("x",))
    joint = replace(wide, outgoing=("v0", "v1", "y"))
    assert encode_config(narrow)[0] == 2
    for config in (wide, joint):
        data = encode_config(config)
        assert data[0] == 4
        assert decode_config(data) == config
        for cut in (0, 1, 5, 12, len(data) - 1):
            with pytest.raises(MembersError):
                decode_config(data[:cut])
        with pytest.raises(MembersError, match="bytes follow"):
            decode_config(data + b"x")
    small = encode_config(narrow)
    with pytest.raises(MembersError, match="an earlier version can express it"):
        decode_config(struct.pack("<BHHIHH", 4, 5, 255, 1, 1, 0) + small[8:])
