from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetcluster.raft.membership import (
    Config,
    MembersError,
    decode_config,
    encode_config,
    is_quorum,
    quorum_index,
)

ids = st.text(min_size=1, max_size=20).filter(lambda s: len(s.encode(errors="ignore")) > 0 and s.isprintable())


@given(st.lists(ids, unique=True, max_size=9), st.integers(0, 9))
def test_configurations_come_back(names: list[str], voters: int) -> None:
    config = Config(tuple(names[:voters]), tuple(names[voters:]))
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
    assert config.promoted("C") == Config(("A", "B", "C"))
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
    assert quorum_index(tuple(voters), reached) == expected


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
    assert again.with_learner("C").promoted("C") == Config(("A", "C"), (), 2, ("D", "E", "B", "L"))
    assert again.without("A").rescue == 2
    data = encode_config(after)
    for cut in range(len(data)):
        with pytest.raises(MembersError):
            decode_config(data[:cut])
    with pytest.raises(MembersError):
        decode_config(data + b"x")


def test_a_configuration_without_a_rescue_is_written_as_ever() -> None:
    assert encode_config(Config(("A",))) == b"\x01\x01\x00\x01A"
