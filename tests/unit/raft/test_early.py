"""Frames for groups that a node does not have yet: kept within bounds, and given up in time."""

from __future__ import annotations

from jetcluster.raft.config import RaftConfig
from jetcluster.raft.early import EarlyFrames


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
