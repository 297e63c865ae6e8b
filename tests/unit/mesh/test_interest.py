"""Interest and forwarded messages between routers (mesh/interest.py)."""

from __future__ import annotations

from jetcluster.mesh.interest import MeshInterest
from jetcluster.mesh.traffic import Traffic
from testkit.twins.mesh_memory import InMemoryMesh, MemoryNetwork
from testkit.twins.time import ManualTime
from tests.unit.cluster.mesh_support import FakeSwitchboard

A, B = "AAAAAAAA", "BBBBBBBB"


def pair(
    a_board: FakeSwitchboard, b_board: FakeSwitchboard
) -> tuple[ManualTime, MemoryNetwork, InMemoryMesh, InMemoryMesh]:
    time = ManualTime()
    network = MemoryNetwork(time, clock=time)
    a, b = network.mesh("a", A), network.mesh("b", B)
    MeshInterest(a, a_board, time, time)
    MeshInterest(b, b_board, time, time)
    a.start_now()
    b.start_now()
    return time, network, a, b


def test_all_interest_is_sent_on_link_up_before_anything_else() -> None:
    mine = [("$G", b"orders.>", None, 1), ("$G", b"work", b"q1", 3), ("ACC", b"x", None, 1)]
    board = FakeSwitchboard()
    time, _, a, b = pair(FakeSwitchboard(*mine), board)
    b.on_raft = lambda peer, gid, frame: board.log.append(("raft",))
    a.on_peers(lambda info: void(a.send_raft(info.peer_id, 1, b"at once")), lambda info: None)
    time.advance(0)
    assert board.remote == {A: {entry[:3]: entry[3] for entry in mine}}
    assert board.log == [("interest", A, subject, count) for _, subject, _, count in mine] + [("raft",)]


def void(_: object) -> None:
    return


def test_deltas_in_order() -> None:
    a_board, b_board = FakeSwitchboard(), FakeSwitchboard()
    time, _, _, _ = pair(a_board, b_board)
    time.advance(0)
    a_board.change("$G", b"s", None, 1)
    a_board.change("$G", b"s", b"q", 1)
    a_board.change("$G", b"s", b"q", 2)
    a_board.change("$G", b"s", None, 0)
    a_board.change("$G", b"t", b"", 1)
    time.advance(0)
    assert b_board.remote == {A: {("$G", b"s", b"q"): 2, ("$G", b"t", b""): 1}}
    assert [entry[2:] for entry in b_board.log] == [(b"s", 1), (b"s", 1), (b"s", 2), (b"s", 0), (b"t", 1)]


def test_messages_reach_the_peer_once_with_their_queues_and_are_not_forwarded() -> None:
    a_board, b_board = FakeSwitchboard(), FakeSwitchboard(("$G", b">", None, 1))
    time, _, _, _ = pair(a_board, b_board)
    time.advance(0)
    link = a_board.links[B]
    link.send_msg("$G", b"orders.1", b"reply", [b"q1", b"\x00q2"], b"NATS/1.0\r\n\r\n", b"payload\r\n")
    link.send_msg("ACC", b"plain", b"", [], b"", b"")
    time.advance(0)
    assert b_board.messages == [
        (A, "$G", b"orders.1", b"reply", [b"q1", b"\x00q2"], b"NATS/1.0\r\n\r\n", b"payload\r\n"),
        (A, "ACC", b"plain", b"", [], b"", b""),
    ]
    assert a_board.messages == []


def test_many_messages_of_one_target_keep_their_place_among_the_others() -> None:
    a_board, b_board = FakeSwitchboard(), FakeSwitchboard(("$G", b">", None, 1))
    order: list[bytes] = []
    b_board.deliver_from_peer = lambda *delivery: order.append(delivery[2])  # type: ignore[method-assign]
    b_board.deliver_many_from_peer = lambda *delivery: order.extend(  # type: ignore[method-assign]
        subject for subject, _, _, _ in delivery[4]
    )
    time, _, _, _ = pair(a_board, b_board)
    time.advance(0)
    link = a_board.links[B]
    link.send_msg("$G", b"before", b"", [], b"", b"")
    link.send_many("$G", b"inbox", [], [(b"s%d" % n, b"r", b"", b"x" * 1000) for n in range(1000)])
    link.send_msg("$G", b"after", b"", [], b"", b"")
    time.advance(0)
    assert order == [b"before", *(b"s%d" % n for n in range(1000)), b"after"], "one order, in several frames"


def test_many_messages_show_what_was_sent() -> None:
    a_board, b_board = FakeSwitchboard(), FakeSwitchboard(("$G", b">", None, 1))
    time, _, a, b = pair(a_board, b_board)
    time.advance(0)
    messages = [(b"s", b"$JS.ACK.1", b"NATS/1.0\r\n\r\n", b"one"), (b"t", b"", b"", b"")]
    link = a_board.links[B]
    link.send_many("ACC", b"inbox", [b"q"], messages)
    link.send_many("ACC", b"s" * 70_000, [], [messages[0]])
    link.send_many("ACC", b"inbox", [], [(b"s", b"", b"", b"x" * (17 << 20))])
    time.advance(0)
    assert b_board.deliveries == [(A, "ACC", b"inbox", [b"q"], messages)]
    assert a.counters.dropped_msgs == 2, "names or messages that no frame can hold"
    assert b.links[A].stats.in_msgs == a.links[B].stats.out_msgs == 2
    size = len(messages[0][2]) + 3
    assert a.traffic.by_account == {"ACC": Traffic(out_msgs=2, out_bytes=size)}
    assert b.traffic.by_account == {"ACC": Traffic(in_msgs=2, in_bytes=size)}
    for account, payload in (("A", b"12"), ("A", b"3"), ("B", b"4"), ("A", b"567")):
        link.send_msg(account, b"s", b"", [], b"", payload)
    time.advance(0)
    of_b = b.traffic.by_account
    assert (of_b["A"], of_b["B"]) == (Traffic(in_msgs=3, in_bytes=6), Traffic(in_msgs=1, in_bytes=1))


def test_a_peer_is_asked_for_its_backlog_behind_the_messages() -> None:
    a_board, b_board = FakeSwitchboard(), FakeSwitchboard(("$G", b">", None, 1))
    time, _, _, _ = pair(a_board, b_board)
    time.advance(0)
    b_board.waiting["$G", b"inbox"] = 0
    b_board.deliver_many_from_peer = lambda *delivery: b_board.waiting.update(  # type: ignore[method-assign]
        {("$G", b"inbox"): len(delivery[4])}
    )
    a_board.links[B].send_many("$G", b"inbox", [], [(b"s", b"", b"", b"x")] * 7)
    a_board.links[B].ask_backlog("$G", b"inbox", 1 << 40)
    time.advance(0)
    assert a_board.log[-1] == ("backlog", B, "$G", b"inbox", 1 << 40, 7)


def test_a_lost_peer_is_dropped_and_told_everything_anew() -> None:
    a_board, b_board = FakeSwitchboard(("$G", b"old", None, 1)), FakeSwitchboard()
    time, network, _, _ = pair(a_board, b_board)
    time.advance(0)
    network.cut(A, B)
    assert b_board.remote == {}
    a_board.change("$G", b"old", None, 0)
    a_board.change("$G", b"new", None, 1)
    network.heal(A, B)
    time.advance(0)
    assert b_board.remote == {A: {("$G", b"new", None): 1}}
    assert b_board.log == [("interest", A, b"old", 1), ("drop", A), ("interest", A, b"new", 1)]


def test_a_router_attached_to_links_that_are_up_already() -> None:
    time = ManualTime()
    network = MemoryNetwork(time, clock=time)
    a, b = network.mesh("a", A), network.mesh("b", B)
    board = FakeSwitchboard()
    MeshInterest(b, board, time, time)
    a.start_now()
    b.start_now()
    time.advance(0)
    MeshInterest(a, FakeSwitchboard(("$G", b"late", None, 1)), time, time)
    time.advance(0)
    assert board.remote == {A: {("$G", b"late", None): 1}}


def test_names_that_no_frame_can_hold_stay_local() -> None:
    a_board, b_board = FakeSwitchboard(("$G", b"s" * 70_000, None, 1)), FakeSwitchboard()
    time, _, _, _ = pair(a_board, b_board)
    time.advance(0)
    a_board.change("$G", b"s", b"q" * 70_000, 1)
    a_board.change("$G", b"fine", None, 1)
    time.advance(0)
    assert b_board.remote == {A: {("$G", b"fine", None): 1}}
