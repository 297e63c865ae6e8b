"""Interest and forwarded messages between routers (mesh/interest.py).

Valves of other nodes: announced, repeated, forgotten, and of no account while a node is silent (mesh/interest.py).
"""

from __future__ import annotations

import struct

import pytest

from jetcluster.mesh import interest
from jetcluster.mesh.interest import HEED_SECONDS, REPEAT_SECONDS, AnnouncedValve, MeshInterest
from jetcluster.mesh.peer_link import Traffic
from jetcluster.protocol.bus import Origin, Valve
from jetcluster.server.accounts.accounts import Accounts
from testkit.sim.nodes import ACCOUNT, Cluster
from testkit.sim.shared import MeshNetwork, SimMesh, VirtualLoop, virtual_time
from testkit.twins.time import SeededRng
from tests.unit.cluster.mesh_support import FakeSwitchboard, admit

A, B = "AAAAAAAA", "BBBBBBBB"


def pair(a_board: FakeSwitchboard, b_board: FakeSwitchboard) -> tuple[VirtualLoop, MeshNetwork, SimMesh, SimMesh]:
    time = VirtualLoop()
    network = MeshNetwork(time)
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
    b.on_notice("note", lambda peer, payload: board.log.append(("note",)))
    a.on_peers(lambda info: a.notify(info.peer_id, "note", b"at once"), lambda info: None)
    time.advance(0.05)
    assert board.remote == {A: {entry[:3]: entry[3] for entry in mine}}
    assert board.log == [("interest", A, subject, count) for _, subject, _, count in mine] + [("note",)]


def test_deltas_in_order() -> None:
    a_board, b_board = FakeSwitchboard(), FakeSwitchboard()
    time, _, _, _ = pair(a_board, b_board)
    time.advance(0.05)
    a_board.change("$G", b"s", None, 1)
    a_board.change("$G", b"s", b"q", 1)
    a_board.change("$G", b"s", b"q", 2)
    a_board.change("$G", b"s", None, 0)
    a_board.change("$G", b"t", b"", 1)
    time.advance(0.05)
    assert b_board.remote == {A: {("$G", b"s", b"q"): 2, ("$G", b"t", b""): 1}}
    assert [entry[2:] for entry in b_board.log] == [(b"s", 1), (b"s", 1), (b"s", 2), (b"s", 0), (b"t", 1)]


def test_messages_reach_the_peer_once_with_their_queues_and_are_not_forwarded() -> None:
    a_board, b_board = FakeSwitchboard(), FakeSwitchboard(("$G", b">", None, 1))
    time, _, _, _ = pair(a_board, b_board)
    time.advance(0.05)
    link = a_board.links[B]
    link.send_msg("$G", b"orders.1", b"reply", [b"q1", b"\x00q2"], b"NATS/1.0\r\n\r\n", b"payload\r\n")
    link.send_msg("ACC", b"plain", b"", [], b"", b"")
    time.advance(0.05)
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
    time.advance(0.05)
    link = a_board.links[B]
    link.send_msg("$G", b"before", b"", [], b"", b"")
    link.send_many("$G", b"inbox", [], [(b"s%d" % n, b"r", b"", b"x" * 1000) for n in range(1000)])
    link.send_msg("$G", b"after", b"", [], b"", b"")
    time.advance(0.05)
    assert order == [b"before", *(b"s%d" % n for n in range(1000)), b"after"], "one order, in several frames"


def test_many_messages_show_what_was_sent() -> None:
    a_board, b_board = FakeSwitchboard(), FakeSwitchboard(("$G", b">", None, 1))
    time, _, a, b = pair(a_board, b_board)
    time.advance(0.05)
    messages = [(b"s", b"$JS.ACK.1", b"NATS/1.0\r\n\r\n", b"one"), (b"t", b"", b"", b"")]
    link = a_board.links[B]
    link.send_many("ACC", b"inbox", [b"q"], messages)
    link.send_many("ACC", b"s" * 70_000, [], [messages[0]])
    link.send_many("ACC", b"inbox", [], [(b"s", b"", b"", b"x" * (17 << 20))])
    time.advance(0.05)
    assert b_board.deliveries == [(A, "ACC", b"inbox", [b"q"], messages)]
    assert a.counters.dropped_msgs == 2, "names or messages that no frame can hold"
    assert b.links[A].stats.in_msgs == a.links[B].stats.out_msgs == 2
    size = len(messages[0][2]) + 3
    assert a.traffic.by_account == {"ACC": Traffic(out_msgs=2, out_bytes=size)}
    assert b.traffic.by_account == {"ACC": Traffic(in_msgs=2, in_bytes=size)}
    for account, payload in (("A", b"12"), ("A", b"3"), ("B", b"4"), ("A", b"567")):
        link.send_msg(account, b"s", b"", [], b"", payload)
    time.advance(0.05)
    of_b = b.traffic.by_account
    assert (of_b["A"], of_b["B"]) == (Traffic(in_msgs=3, in_bytes=6), Traffic(in_msgs=1, in_bytes=1))


def test_a_peer_is_asked_for_its_backlog_behind_the_messages() -> None:
    a_board, b_board = FakeSwitchboard(), FakeSwitchboard(("$G", b">", None, 1))
    time, _, _, _ = pair(a_board, b_board)
    time.advance(0.05)
    b_board.waiting["$G", b"inbox"] = 0
    b_board.deliver_many_from_peer = lambda *delivery: b_board.waiting.update(  # type: ignore[method-assign]
        {("$G", b"inbox"): len(delivery[4])}
    )
    a_board.links[B].send_many("$G", b"inbox", [], [(b"s", b"", b"", b"x")] * 7)
    a_board.links[B].ask_backlog("$G", b"inbox", 1 << 40)
    time.advance(0.05)
    assert a_board.log[-1] == ("backlog", B, "$G", b"inbox", 1 << 40, 7)


def test_a_lost_peer_is_dropped_and_sent_everything_anew() -> None:
    a_board, b_board = FakeSwitchboard(("$G", b"old", None, 1)), FakeSwitchboard()
    time, network, _, _ = pair(a_board, b_board)
    time.advance(0.05)
    network.cut(A, B)
    assert b_board.remote == {}
    a_board.change("$G", b"old", None, 0)
    a_board.change("$G", b"new", None, 1)
    network.heal(A, B)
    time.advance(0.2)
    assert b_board.remote == {A: {("$G", b"new", None): 1}}
    assert b_board.log == [("interest", A, b"old", 1), ("drop", A), ("interest", A, b"new", 1)]


def test_a_router_attached_to_links_that_are_up_already() -> None:
    time = VirtualLoop()
    network = MeshNetwork(time)
    a, b = network.mesh("a", A), network.mesh("b", B)
    board = FakeSwitchboard()
    MeshInterest(b, board, time, time)
    a.start_now()
    b.start_now()
    time.advance(0.05)
    MeshInterest(a, FakeSwitchboard(("$G", b"late", None, 1)), time, time)
    time.advance(0.05)
    assert board.remote == {A: {("$G", b"late", None): 1}}


def test_names_that_no_frame_can_hold_stay_local() -> None:
    a_board, b_board = FakeSwitchboard(("$G", b"s" * 70_000, None, 1)), FakeSwitchboard()
    time, _, _, _ = pair(a_board, b_board)
    time.advance(0.05)
    a_board.change("$G", b"s", b"q" * 70_000, 1)
    a_board.change("$G", b"fine", None, 1)
    time.advance(0.05)
    assert b_board.remote == {A: {("$G", b"fine", None): 1}}


class Publisher(Origin):
    """A client that publishes to `subject` at node b, as far as valves see it."""

    kind = "client"
    account = ACCOUNT

    def __init__(self, accounts: Accounts, subject: bytes) -> None:
        self._accounts = accounts
        self._subject = subject
        self.met: Valve | None = None

    def wait_at(self, valve: Valve) -> None:
        self.met = valve

    def waits(self) -> bool:
        """Would it have to wait after a message?"""
        self.met = None
        for taker in self._accounts[ACCOUNT].lookup(self._subject).remote:
            taker.hold(self)
        return self.met is not None


class Pair:
    """Node a takes `orders.>`, clients of node b publish to it."""

    def __init__(self) -> None:
        self.time = VirtualLoop()
        self.network = MeshNetwork(self.time)
        self.a, self.b = self.network.mesh("a", A), self.network.mesh("b", B)
        self.here, self.there = Accounts(SeededRng(1)), Accounts(SeededRng(2))
        for mesh, accounts in ((self.a, self.here), (self.b, self.there)):
            MeshInterest(mesh, accounts, self.time, self.time)
            mesh.start_now()
        self.here[ACCOUNT].subscribe(b"orders.>", lambda *message: None)
        self.here[ACCOUNT].subscribe(b"old", lambda *message: None)
        self.told = AnnouncedValve(self.a, ACCOUNT, self.time)
        self.publisher = Publisher(self.there, b"orders.1")
        assert self.there[ACCOUNT] is not None, "the account is in use there"
        self.time.advance(0.05)

    def tells(self, closed: bool, subject: bytes = b"orders.>", mesh: SimMesh | None = None) -> None:
        """Sends the notice of a valve in the form that earlier versions send."""
        account = ACCOUNT.encode()
        (mesh or self.a).notify(None, "valve", struct.pack("!?H", closed, len(account)) + account + subject)
        self.time.advance(0.05)


def test_clients_of_another_node_wait_as_long_as_it_is_repeated() -> None:
    pair = Pair()
    assert not pair.publisher.waits()
    pair.told.closed_for([b"orders.>"])
    pair.time.advance(0.05)
    for _ in range(20):
        assert pair.publisher.waits()
        pair.time.advance(1.0)
    pair.told.closed_for([])
    pair.time.advance(0.05)
    assert not pair.publisher.waits()
    pair.time.advance(20 * REPEAT_SECONDS)
    assert not pair.publisher.waits(), "and nothing says otherwise later"


def test_a_subject_that_is_let_go_is_open_and_a_new_one_is_closed() -> None:
    pair = Pair()
    old = Publisher(pair.there, b"old")
    pair.told.closed_for([b"old"])
    pair.time.advance(0.05)
    assert old.waits()
    pair.told.closed_for([b"orders.>"])
    pair.time.advance(0.05)
    assert not old.waits()
    assert pair.publisher.waits()


def test_what_is_repeated_no_more_is_open_in_the_end() -> None:
    pair = Pair()
    pair.told.closed_for([b"orders.>"])
    pair.time.advance(REPEAT_SECONDS)
    assert pair.told._repeat is not None
    pair.told._repeat.cancel()
    assert pair.publisher.waits()
    held = pair.publisher.met
    pair.time.advance(HEED_SECONDS - 0.1)
    assert pair.publisher.waits()
    pair.time.advance(REPEAT_SECONDS + 0.2)
    assert not pair.publisher.waits()
    assert held is not None and not held.closed, "who waited has their turn"


def test_a_node_of_before_repeats_nothing_and_is_waited_for_a_while() -> None:
    pair = Pair()
    pair.tells(True)
    pair.time.advance(HEED_SECONDS - 0.1)
    assert pair.publisher.waits()
    pair.tells(False)
    assert not pair.publisher.waits()
    pair.tells(True)
    pair.time.advance(HEED_SECONDS + REPEAT_SECONDS)
    assert not pair.publisher.waits()


def test_a_stranger_closes_nothing() -> None:
    pair = Pair()
    for member in (False, True):
        admit(pair.b, is_member=lambda peer, member=member: member)
        pair.told.closed_for([b"orders.>"])
        pair.time.advance(0.05)
        assert pair.publisher.waits() is member
        pair.told.closed_for([])
        pair.time.advance(0.05)
    assert pair.b.counters.strangers == 2


def test_what_is_no_notice_does_no_harm() -> None:
    pair = Pair()
    pair.a.notify(None, "valve", b"")
    pair.tells(True, b"nobody.takes.this")
    assert not pair.publisher.waits()


def test_nobody_waits_for_a_silent_node_until_it_is_heard_again() -> None:
    pair = Pair()
    for told in (lambda: pair.told.closed_for([b"orders.>"]), lambda: pair.tells(True)):
        pair.told.closed_for([])
        told()
        pair.time.advance(0.05)
        link = pair.b.links[A]
        assert pair.publisher.waits()
        held = pair.publisher.met
        link.valve.close()
        pair.b.set_silent(link, True)
        assert not pair.publisher.waits()
        assert held is not None and not held.closed, "who waited has their turn"
        pair.b.set_silent(link, False)
        assert pair.publisher.waits(), "it has not said otherwise"
        pair.tells(False)
        assert not pair.publisher.waits()


def test_a_node_that_went_away_and_came_back_is_announced_anew() -> None:
    pair = Pair()
    pair.told.closed_for([b"orders.>"])
    pair.time.advance(0.05)
    pair.network.cut(A, B)
    assert not pair.publisher.waits()
    pair.network.heal(A, B)
    pair.time.advance(0.2)
    assert not pair.publisher.waits()
    pair.time.advance(REPEAT_SECONDS)
    assert pair.publisher.waits()


def test_closed_valves_of_one_node_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair()
    monkeypatch.setattr(interest, "MAX_CLOSED_VALVES", 3)
    for number in range(3):
        pair.tells(True, b"other.%d" % number)
    pair.tells(True)
    assert not pair.publisher.waits()
    pair.tells(False, b"other.0")
    pair.tells(True)
    assert pair.publisher.waits()


@virtual_time
@pytest.mark.parametrize("let_go", ["updated", "deleted", "deposed"])
async def test_publishers_of_other_nodes_do_not_wait_for_what_a_stream_has_let_go(let_go: str) -> None:
    """Beside the stream a client of its leader's node takes the same subject: the node's interest does not end."""
    async with Cluster() as cluster:
        await cluster.create("S", subjects=["s", "t"])
        leader, other = cluster.leader("S"), cluster.followers("S")[0]
        leader.bus.subscribe(b"s", lambda *message: None)
        publisher = Publisher(other.accounts, b"s")
        leader.replica("S").ingest.valve.close()
        await cluster.until(publisher.waits, what="a publisher that waits")
        held = publisher.met
        assert held is not None
        if let_go == "updated":
            await cluster.update("S", subjects=["t"])
        elif let_go == "deleted":
            await cluster.delete("S")
        else:
            leader.replica("S").group.transfer(other.me)
        await cluster.until(lambda: not held.closed, seconds=0.9, what="those that wait go on")
