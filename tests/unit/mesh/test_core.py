"""Behaviour of the mesh whatever its bytes travel on (mesh/core.py), in memory and with manual time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from jetcluster.mesh.core import MeshCore
from jetcluster.mesh.frames import (
    MAX_DELIVER_BYTES,
    FrameError,
    Kind,
    encode_deliver,
    frame,
)
from jetcluster.mesh.interest import MeshInterest
from jetcluster.protocol.interest import AWAY, ELSEWHERE, NEAR, RemotePeer
from testkit.raft_frames import encode_raft
from testkit.sim.shared import MeshNetwork, VirtualLoop
from tests.unit.cluster.mesh_support import FakeSwitchboard, Heard, receive, trio

A, B, C = "AAAAAAAA", "BBBBBBBB", "CCCCCCCC"


def test_a_listener_that_comes_late_is_called_for_links_already_up() -> None:
    _, _, (a, _, _), _ = trio()
    seen: list[str] = []
    a.on_peers(lambda info: seen.append(info.peer_id), lambda info: None)
    assert seen == [B, C]


def test_an_exception_of_a_callback_is_counted_and_the_rest_of_the_read_is_delivered() -> None:
    time, _, (a, b, _), (_, b_log, _) = trio()
    raft = b.raft.on_frame

    def fragile(peer: str, gid: int, frame: bytes) -> None:
        if gid == 13:
            raise RuntimeError("bug elsewhere")
        raft(peer, gid, frame)

    receive(b, fragile)
    b_log.log.clear()
    a.send_raft(B, 13, b"bad")
    a.send_raft(B, 14, b"good")
    time.advance(0.05)
    assert b_log.log == [("raft", A, 14, b"good"), ("end",)]
    assert b.counters.callback_errors == 1
    assert A in b.peers


def test_a_link_that_goes_down_in_the_middle_of_a_read_delivers_no_more_of_it() -> None:
    time, network, (a, b, _), (_, b_log, _) = trio()
    raft = b.raft.on_frame

    def cutting(peer: str, gid: int, frame: bytes) -> None:
        raft(peer, gid, frame)
        network.cut(A, B)

    receive(b, cutting)
    b_log.log.clear()
    a.send_raft(B, 1, b"first")
    a.send_raft(B, 1, b"second")
    time.advance(0.05)
    assert b_log.log == [("raft", A, 1, b"first"), ("down", A), ("end",)]


def test_a_delivery_that_no_node_would_send_ends_the_link_and_others_arrive() -> None:
    _, _, (_, b, _), _ = trio()
    link, board = b.links[A], FakeSwitchboard()
    b._switchboard = board
    many = [(b"x", b"", b"", b"")] * 100_000
    raw = encode_deliver("ACC", b"inbox", [], many)
    with pytest.raises(FrameError):
        b._process(link, raw, [(Kind.DELIVER, 5, len(raw))])
    assert not board.deliveries
    for single in ([(b"x", b"", b"", b"." * (2 * MAX_DELIVER_BYTES))], many[:100]):
        raw = encode_deliver("ACC", b"inbox", [], single)
        b._process(link, raw, [(Kind.DELIVER, 5, len(raw))])
    assert [len(delivery[4]) for delivery in board.deliveries] == [1, 100]


def test_a_raft_frame_without_a_group_ends_the_link() -> None:
    time, _, (a, b, _), _ = trio()
    seen: list[tuple[int, bytes]] = []
    receive(b, lambda peer, gid, frame: seen.append((gid, frame)))
    for raw in (encode_raft(7, b""), frame(Kind.RAFT, b"abc")):
        assert A in b.links
        a.links[B].send(raw)
        time.advance(0.05)
    assert seen == [(7, b"")] and A not in b.links and b.counters.malformed == 1


def test_messages_of_a_turn_arrive_in_order_and_outlive_one_that_a_taker_raises_for() -> None:
    time, _, (a, b, _), _ = trio()
    board = FakeSwitchboard()
    b.attach(board, lambda link: None)
    taken = board.deliver_from_peer

    def deliver(peer: RemotePeer, account: str, subject: bytes, *rest: Any) -> None:
        if subject == b"1":
            raise RuntimeError("a bug")
        taken(peer, account, subject, *rest)

    board.deliver_from_peer = deliver  # type: ignore[method-assign]
    for number in range(4):
        a.links[B].send_msg("ACC", b"%d" % number, b"r", [], b"", b"x")
    time.advance(0.05)
    assert board.messages == [(A, "ACC", b"%d" % number, b"r", [], b"", b"x") for number in (0, 2, 3)]
    assert (b.links[A].stats.in_msgs, b.traffic["ACC"].in_msgs, b.traffic["ACC"].in_bytes) == (4, 4, 4)
    assert b.counters.callback_errors == 1 and b.links[A].up


def test_nodes_of_one_zone_are_near_and_a_silent_one_is_away() -> None:
    time, _, (a, b, c), _ = trio()

    def distances() -> tuple[int, int]:
        time.advance(0.05)
        return a.links[B].distance, a.links[C].distance

    def tag(mesh: MeshCore, *tags: str) -> None:
        mesh.update_me(replace(mesh.me, tags=tags))

    assert distances() == (NEAR, NEAR)
    a.set_zone_tag("zone:")
    tag(b, "zone:eu")
    assert distances() == (NEAR, NEAR), "this node has no zone"
    tag(a, "ssd", "zone:eu")
    assert distances() == (NEAR, ELSEWHERE), "a node that tells no zone is elsewhere"
    tag(c, "zone:us", "ssd")
    assert distances() == (NEAR, ELSEWHERE)
    tag(c, "zone:us", "zone:eu")
    assert distances() == (NEAR, NEAR)
    a.set_silent(a.links[B], True)
    assert distances() == (AWAY, NEAR)
    a.set_silent(a.links[B], False)
    tag(b, "zone:us")
    assert distances() == (ELSEWHERE, NEAR)
    a.set_zone_tag("")
    assert distances() == (NEAR, NEAR)
    a.links[B].congested = True
    assert distances() == (AWAY, NEAR)


def test_client_urls_follow_the_connected_peers() -> None:
    time = VirtualLoop()
    network = MeshNetwork(time)
    a, b = network.mesh("a", A, client_url="h:1"), network.mesh("b", B, client_url="h:2")
    seen: list[tuple[str, ...]] = []
    leaves: list[tuple[str, ...]] = []
    a.listener = Heard(client=seen.append, leaf=leaves.append)
    a.start_now()
    b.start_now()
    time.advance(0.05)
    b.update_me(type(b.me)(B, "b", b.me.boot_id, "", "h:3", leaf_url="h:9"))
    time.advance(0.05)
    network.cut(A, B)
    assert seen == [("h:2",), ("h:3",), ()]
    assert leaves == [("h:9",), ()]


def test_too_large_or_unknown_things_are_refused_without_harm() -> None:
    time = VirtualLoop()
    network = MeshNetwork(time, max_frame=1000)
    a, b = network.mesh("a", A), network.mesh("b", B)
    board = FakeSwitchboard()
    MeshInterest(b, board, time, time)
    a.start_now()
    b.start_now()
    time.advance(0.05)
    assert not a.send_raft(B, 1, b"x" * 1000)
    assert not a.send_raft("nobody00", 1, b"x")
    link = a.links[B]
    link.send_msg("$G", b"big", b"", [], b"", b"x" * 1000)
    link.send_msg("$G", b"s" * 70_000, b"", [], b"", b"")
    link.send_msg("$G", b"fits", b"", [], b"", b"x" * 900)
    time.advance(0.05)
    assert [message[2] for message in board.messages] == [b"fits"]
    assert a.counters.dropped_msgs == 2
    a.notify("nobody00", "note", b"")
    a.notify(B, "unknown kind", b"")
    time.advance(0.05)
    assert B in a.peers
