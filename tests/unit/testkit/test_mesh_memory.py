"""The in-memory network (testkit/twins/mesh_memory.py)."""

from __future__ import annotations

from tests.unit.cluster.mesh_support import trio

A, B, C = "AAAAAAAA", "BBBBBBBB", "CCCCCCCC"


def test_all_connect() -> None:
    _, _, meshes, recorders = trio()
    assert [sorted(mesh.peers) for mesh in meshes] == [[B, C], [A, C], [A, B]]
    assert recorders[0].log == [("up", B), ("up", C)]
    assert meshes[0].peers[B].name == "b"
    assert all(mesh.settled for mesh in meshes)


def test_frames_of_one_turn_are_one_read_in_order() -> None:
    time, _, (a, _, _), (_, b_log, c_log) = trio()
    b_log.log.clear()
    c_log.log.clear()
    assert a.send_raft(B, 7, b"one")
    a.notify(B, "note", b"two")
    assert a.send_raft(B, 8, b"three")
    a.notify(None, "note", b"all")
    time.advance(0)
    assert b_log.log == [
        ("raft", A, 7, b"one"),
        ("note", A, b"two"),
        ("raft", A, 8, b"three"),
        ("note", A, b"all"),
        ("end",),
    ]
    assert c_log.log == [("note", A, b"all"), ("end",)]


def test_cut_loses_what_was_under_way_and_heal_brings_the_link_back() -> None:
    time, network, (a, _, _), (a_log, b_log, _) = trio()
    b_log.log.clear()
    a.send_raft(B, 1, b"lost")
    network.cut(A, B)
    assert not a.send_raft(B, 1, b"no link")
    network.heal(A, B)
    time.advance(0)
    assert a.send_raft(B, 1, b"new")
    time.advance(0)
    assert b_log.log == [("down", A), ("up", A), ("raft", A, 1, b"new"), ("end",)]
    assert a_log.log[-2:] == [("down", B), ("up", B)]


def test_a_frame_queued_before_a_cut_is_not_delivered_after_a_quick_heal() -> None:
    """The delivery callback of the old link fires after the new link is up."""
    time, network, (a, _, _), (_, b_log, _) = trio()
    b_log.log.clear()
    network.cut(A, B)
    network.heal(A, B)
    network.timers.call_soon(a.send_raft, B, 1, b"late")
    time.advance(0)
    a.send_raft(B, 1, b"old")
    network.cut(A, B)
    network.heal(A, B)
    time.advance(0)
    assert ("raft", A, 1, b"old") not in b_log.log
    assert [entry[0] for entry in b_log.log if entry[0] in ("up", "down")] == ["down", "up", "down", "up"]


def test_isolate_stop_and_restart() -> None:
    time, network, (a, b, _), (_, b_log, _) = trio()
    network.isolate(A)
    assert a.peers == {}
    network.heal_all()
    time.advance(0)
    assert sorted(a.peers) == [B, C]
    old_boot = b.peers[A].boot_id
    a.stop_now()
    assert sorted(b.peers) == [C]
    again = network.mesh("a", A)
    again.start_now()
    time.advance(0)
    assert b.peers[A].boot_id != old_boot
    assert b_log.log[-2:] == [("down", A), ("up", A)]
