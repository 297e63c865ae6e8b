"""Many messages to the takers of one subject: what clients, callbacks, queue groups and peers get of them."""

from __future__ import annotations

from collections import Counter

import pytest

from jetcluster.auth.authenticator import Authenticator
from jetcluster.config.account_options import AuthorizationOptions, PermissionOptions, SubjectLists
from jetcluster.config.options import Options
from jetcluster.protocol.bus import Origin, Outgoing
from jetcluster.protocol.interest import FORWARDED
from jetcluster.server.accounts import bulk
from testkit.server_rig import FakePeer, ServerRig

HEADERS = b"NATS/1.0\r\nA: b\r\n\r\n"
MESSAGES: list[Outgoing] = [
    (b"orders.1", b"$JS.ACK.1", b"", b"one"),
    (b"orders.2", b"$JS.ACK.2", HEADERS, b"two"),
    (b"orders.3", b"", HEADERS, b""),
    (b"orders.4", b"", b"", b"z" * 5000),
]
SHOWN = (
    b"MSG orders.1 7 $JS.ACK.1 3\r\none\r\n"
    b"HMSG orders.2 7 $JS.ACK.2 18 21\r\n" + HEADERS + b"two\r\n"
    b"HMSG orders.3 7 18 18\r\n" + HEADERS + b"\r\n"
    b"MSG orders.4 7 5000\r\n" + b"z" * 5000 + b"\r\n"
)


@pytest.fixture
def rig() -> ServerRig:
    return ServerRig()


def many(count: int, size: int = 4) -> list[Outgoing]:
    return [(b"s.%d" % n, b"r.%d" % n, b"", b"x" * size) for n in range(count)]


def test_one_client_sees_the_messages_own_subjects(rig: ServerRig) -> None:
    peer = rig.client(b"SUB _INBOX.abc.* 7")
    assert rig.router.deliver_many(b"_INBOX.abc.1", MESSAGES) == 1
    assert peer.connection.pending >= len(SHOWN) - 20
    assert peer.read() == SHOWN
    assert (peer.connection.out_msgs, peer.connection.out_bytes) == (4, 3 + 21 + 18 + 5000)
    assert rig.router.deliver_many(b"_INBOX.abc.1", []) == 0
    assert rig.router.deliver_many(b"nobody", MESSAGES) == 0
    peer.send(b"PUB orders.1 1", b"x")
    assert peer.read() == b"", "who takes the target need not take the subject shown"


def test_a_client_without_headers_gets_payloads(rig: ServerRig) -> None:
    peer = rig.client(b"SUB a 7", connect=b'CONNECT {"verbose":false,"headers":false}\r\n')
    rig.router.deliver_many(b"a", MESSAGES[1:3])
    assert peer.read() == b"MSG orders.2 7 $JS.ACK.2 3\r\ntwo\r\nMSG orders.3 7 0\r\n\r\n"


@pytest.mark.parametrize("others", [False, True])
def test_a_maximum_ends_the_subscription_in_the_middle(rig: ServerRig, others: bool) -> None:
    peer = rig.client(b"SUB a 7", b"UNSUB 7 2", *([b"SUB a 8"] if others else []))
    assert rig.router.deliver_many(b"a", many(5)) == (1 if others else 0)
    frames = peer.read()
    assert frames.count(b" 7 r.") == 2
    assert frames.count(b" 8 r.") == (5 if others else 0)
    assert rig.router.has_interest(b"a") == others


def test_several_takers_get_everything_in_order(rig: ServerRig) -> None:
    clients = [rig.client(b"SUB a 7"), rig.client(b"SUB * 7")]
    got: list[tuple[bytes, bytes, bytes, bytes]] = []

    def callback(subject: bytes, reply: bytes, headers: bytes, payload: bytes, origin: Origin) -> None:
        got.append((subject, reply, headers, payload))

    rig.router.subscribe(b"a", callback)
    far = FakePeer("far")
    rig.router.peers.set_interest(far, b"a", None, 1)
    assert rig.router.deliver_many(b"a", MESSAGES) == 4
    assert [client.read() for client in clients] == [SHOWN, SHOWN]
    assert got == MESSAGES
    assert far.sent_many == [("$G", b"a", [], MESSAGES)]
    assert far.sent == []


def wary() -> Authenticator:
    """Login of a user who may publish nothing and must not see orders.3."""
    rules = PermissionOptions(SubjectLists(allow=[]), SubjectLists(deny=["orders.3"]))
    return Authenticator(Options(authorization=AuthorizationOptions(user="u", password="p", default_permissions=rules)))


def test_publish_permissions_do_not_matter_but_denied_subjects_stay_unseen() -> None:
    rig = ServerRig(wary())
    peer = rig.client(b"SUB inbox 7", connect=b'CONNECT {"verbose":false,"headers":true,"user":"u","pass":"p"}\r\n')
    assert rig.router.deliver_many(b"inbox", MESSAGES) == 1
    frames = peer.read()
    assert [frames.count(b"MSG orders.%d" % n) for n in (1, 2, 3, 4)] == [1, 1, 0, 1]


def test_a_queue_group_shares_the_messages(rig: ServerRig) -> None:
    clients = [rig.client(b"SUB a q 7"), rig.client(b"SUB a q 7"), rig.client(b"SUB a other 7")]
    plain = rig.client(b"SUB a 7")
    assert rig.router.deliver_many(b"a", many(300)) == 3
    shares = [client.read().count(b" 7 r.") for client in clients]
    assert shares[0] + shares[1] == shares[2] == 300
    assert min(shares) > 100
    assert plain.read().count(b" 7 r.") == 300


def test_a_member_that_does_not_read_is_passed_over(rig: ServerRig) -> None:
    stuck, reader = rig.client(b"SUB a q 7"), rig.client(b"SUB a q 7")
    stuck.transport.jammed = True
    for _ in range(40):
        rig.router.deliver_many(b"a", many(20, 10_000))
        reader.read()
    assert bulk.LAGGING_BYTES < stuck.connection.pending < bulk.LAGGING_BYTES + 400_000
    assert reader.connection.out_msgs > 600
    assert rig.router.backlog(b"a") < bulk.LAGGING_BYTES, "the group can take more"
    reader.transport.jammed = True
    for _ in range(20):
        rig.router.deliver_many(b"a", many(20, 10_000))
        rig.time.advance(0)
    assert rig.router.backlog(b"a") > bulk.LAGGING_BYTES, "all are behind"


def test_queue_members_elsewhere_get_runs_of_messages(rig: ServerRig) -> None:
    here = rig.client(b"SUB a q 7")
    far, plain = FakePeer("far"), FakePeer("plain")
    rig.router.peers.set_interest(far, b"a", b"q", 1)
    rig.router.peers.set_interest(plain, b"a", None, 1)
    messages = many(200)
    assert rig.router.deliver_many(b"a", messages) == 2
    mine = here.read().count(b" 7 r.")
    theirs = [message for _, _, queues, some in far.sent_many for message in some if queues == [b"q"]]
    assert mine + len(theirs) == 200
    assert 50 < mine < 150
    assert theirs == sorted(theirs, key=messages.index)
    assert plain.sent_many == [("$G", b"a", [], messages)], "one frame for what is plain interest only"
    far.pending = bulk.LAGGING_BYTES + 1
    far.sent_many.clear()
    rig.router.deliver_many(b"a", messages)
    assert far.sent_many == [], "a link that is far behind is passed over too"


def test_deliveries_of_a_peer_stay_here(rig: ServerRig) -> None:
    client = rig.client(b"SUB a 7", b"SUB a q 8", b"SUB a q 9")
    got: list[tuple[bytes, str]] = []
    rig.router.subscribe(b"a", lambda s, r, h, p, origin: got.append((s, origin.kind)))
    rig.router.subscribe(b"a", lambda s, r, h, p, origin: got.append((b"local only", "")), local_only=True)
    sender, third = FakePeer("s"), FakePeer("t")
    for peer in (sender, third):
        rig.router.peers.set_interest(peer, b"a", None, 1)
    rig.server.accounts.deliver_many_from_peer(sender, "$G", b"a", [b"q"], many(100))
    frames = client.read()
    assert frames.count(b" 7 r.") == 100
    assert frames.count(b" 8 r.") + frames.count(b" 9 r.") == 100
    assert Counter(got) == Counter({(b"s.%d" % n, "peer"): 1 for n in range(100)})
    assert sender.sent_many == third.sent_many == []


def test_what_a_queue_has_no_member_left_for_is_handed_on_once(rig: ServerRig) -> None:
    plain = rig.client(b"SUB a 7")
    sender, third = FakePeer("s"), FakePeer("t")
    for peer in (sender, third):
        rig.router.peers.set_interest(peer, b"a", b"q", 1)
    messages = many(3)
    rig.server.accounts.deliver_many_from_peer(sender, "$G", b"a", [b"q"], messages)
    assert third.sent_many == [("$G", b"a", [FORWARDED + b"q"], messages)]
    assert sender.sent_many == []
    assert plain.read().count(b" 7 r.") == 3
    member = rig.client(b"SUB a q 9")
    rig.server.accounts.deliver_many_from_peer(sender, "$G", b"a", [FORWARDED + b"q"], messages)
    assert member.read().count(b" 9 r.") == 3
    assert plain.read() == b"", "plain copies went out before"
    member.connection.connection_lost(None)
    rig.server.accounts.deliver_many_from_peer(sender, "$G", b"a", [FORWARDED + b"q"], messages)
    assert len(third.sent_many) == 1, "never handed on twice"


def test_a_slow_client_is_closed_at_its_limit() -> None:
    rig = ServerRig(max_pending=1 << 20)
    peer = rig.client(b"SUB a 7")
    peer.transport.jammed = True
    for _ in range(12):
        rig.router.deliver_many(b"a", many(10, 10_000))
        rig.time.advance(0)
    assert peer.closed == "Slow Consumer (Pending Bytes)"
    assert rig.router.deliver_many(b"a", many(1)) == 0


def test_queue_interest_counts_members_of_that_queue_only(rig: ServerRig) -> None:
    client = rig.client(b"SUB a 1", b"SUB a other 2")
    assert not rig.router.queue_interest(b"a", b"q")
    client.send(b"SUB * q 3")
    assert rig.router.queue_interest(b"a", b"q")
    client.send(b"UNSUB 3")
    assert not rig.router.queue_interest(b"a", b"q")
    rig.router.peers.set_interest(FakePeer("far"), b"a", b"q", 2)
    assert rig.router.queue_interest(b"a", b"q")
