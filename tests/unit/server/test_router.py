"""The router of one account: internal subscriptions, queue groups, and the contract with the mesh."""

from __future__ import annotations

from collections import Counter

import pytest

from jetcluster.protocol.bus import Origin, Outgoing
from jetcluster.protocol.interest import AWAY, ELSEWHERE, FORWARDED, NEAR
from testkit.server_rig import FakePeer, ServerRig

Got = list[tuple[bytes, bytes, bytes, bytes, str]]


def collector() -> tuple[Got, object]:
    got: Got = []

    def callback(subject: bytes, reply: bytes, headers: bytes, payload: bytes, origin: Origin) -> None:
        got.append((subject, reply, headers, payload, origin.kind))

    return got, callback


@pytest.fixture
def rig() -> ServerRig:
    return ServerRig()


def test_internal_publish_and_subscribe(rig: ServerRig) -> None:
    got, callback = collector()
    subscription = rig.router.subscribe(b"a.*", callback)
    assert rig.router.has_interest(b"a.b")
    assert not rig.router.has_interest(b"a")
    assert rig.router.publish(b"a.b", b"x", b"r", b"HH") == 1
    assert got == [(b"a.b", b"r", b"HH", b"x", "internal")]
    rig.router.unsubscribe(subscription)
    rig.router.unsubscribe(subscription)
    assert rig.router.publish(b"a.b") == 0
    assert not rig.router.has_interest(b"a.b")


def test_a_listener_is_somebody_with_that_very_subject(rig: ServerRig) -> None:
    rig.client(b"SUB _INBOX.abc.* 7")
    assert rig.router.has_interest(b"_INBOX.abc.1") and not rig.router.has_listener(b"_INBOX.abc.1")
    rig.client(b"SUB _INBOX.abc.1 8")
    assert rig.router.has_listener(b"_INBOX.abc.1")


def test_invalid_internal_subject(rig: ServerRig) -> None:
    with pytest.raises(ValueError, match="invalid subject"):
        rig.router.subscribe(b"a..b", collector()[1])


def test_client_message_reaches_callback_with_its_origin(rig: ServerRig) -> None:
    origins: list[Origin] = []
    rig.router.subscribe(b"js.>", lambda s, r, h, p, o: origins.append(o))
    peer = rig.client()
    peer.send(b"PUB js.a 1", b"x")
    assert origins == [peer.connection]
    assert (origins[0].kind, origins[0].account) == ("client", "$G")


def test_publish_many_renders_plain_messages(rig: ServerRig) -> None:
    peer = rig.client(b"SUB _INBOX.abc.* 7")
    other = rig.client(b"SUB _INBOX.xyz.1 8")
    big = b"z" * 5000
    rig.router.publish_many(
        [
            (b"_INBOX.abc.1", b"one"),
            (b"_INBOX.xyz.1", b"other"),
            (b"_INBOX.abc.2", big),
            (b"nobody.1", b"lost"),
            (b"_INBOX.abc.", b"empty token"),
        ]
    )
    assert peer.read() == b"MSG _INBOX.abc.1 7 3\r\none\r\nMSG _INBOX.abc.2 7 5000\r\n" + big + b"\r\n"
    assert other.read() == b"MSG _INBOX.xyz.1 8 5\r\nother\r\n"
    assert peer.connection.out_msgs == 2
    assert peer.connection.out_bytes == 5003


def test_publish_many_obeys_maximum(rig: ServerRig) -> None:
    peer = rig.client(b"SUB _INBOX.abc.* 7", b"UNSUB 7 2")
    rig.router.publish_many([(b"_INBOX.abc.%d" % n, b"") for n in range(5)])
    assert peer.read() == b"MSG _INBOX.abc.0 7 0\r\n\r\nMSG _INBOX.abc.1 7 0\r\n\r\n"
    assert peer.connection.subscriptions == {}


def test_publish_many_reaches_peers(rig: ServerRig) -> None:
    remote = FakePeer("p")
    rig.router.peers.set_interest(remote, b"_INBOX.far.*", None, 1)
    rig.router.publish_many([(b"_INBOX.far.1", b"ack")])
    assert remote.sent == [("$G", b"_INBOX.far.1", b"", [], b"", b"ack")]


def test_queue_group_is_spread_evenly(rig: ServerRig) -> None:
    peers = [rig.client(b"SUB q.* grp %d" % n) for n in range(3)]
    publisher = rig.client()
    for _ in range(3000):
        publisher.send(b"PUB q.1 0", b"")
    counts = [p.connection.out_msgs for p in peers]
    assert sum(counts) == 3000
    assert all(900 < count < 1100 for count in counts), counts


def test_queue_member_that_cannot_take_it_is_skipped(rig: ServerRig) -> None:
    quiet = rig.client(b"SUB q grp 1", connect=b'CONNECT {"verbose":false,"echo":false}\r\n')
    other = rig.client(b"SUB q grp 1")
    for _ in range(20):
        quiet.send(b"PUB q 0", b"")
    assert quiet.connection.out_msgs == 0
    assert other.connection.out_msgs == 20


def test_queue_weighs_local_members_against_remote_ones(rig: ServerRig) -> None:
    local = rig.client(b"SUB q grp 1")
    remote = FakePeer("p")
    rig.router.peers.set_interest(remote, b"q", b"grp", 3)
    for _ in range(4000):
        rig.router.publish(b"q")
    assert 900 < local.connection.out_msgs < 1100
    assert len(remote.sent) + local.connection.out_msgs == 4000
    assert remote.sent[0] == ("$G", b"q", b"", [b"grp"], b"", b"")


def test_system_queue_prefers_this_node(rig: ServerRig) -> None:
    got, callback = collector()
    responder = rig.router.subscribe(b"$JS.API.DIRECT.GET.S", callback, queue=b"_sys_")
    remote = FakePeer("p")
    rig.router.peers.set_interest(remote, b"$JS.API.DIRECT.GET.S", b"_sys_", 2)
    client = rig.client()
    for _ in range(50):
        client.send(b"PUB $JS.API.DIRECT.GET.S _INBOX.1 0", b"")
    assert (len(got), len(remote.sent)) == (50, 0)
    rig.router.unsubscribe(responder)
    client.send(b"PUB $JS.API.DIRECT.GET.S _INBOX.1 0", b"")
    assert remote.sent == [("$G", b"$JS.API.DIRECT.GET.S", b"_INBOX.1", [b"_sys_"], b"", b"")]


def asked(rig: ServerRig, peers: list[FakePeer], subject: bytes, times: int = 300) -> list[int]:
    """Number of times that each peer is asked, of so many."""
    before = [len(peer.sent) for peer in peers]
    for _ in range(times):
        assert rig.router.publish(subject) == 1
    return [len(peer.sent) - count for peer, count in zip(peers, before, strict=True)]


def test_the_nearest_member_of_the_system_queue_is_asked(rig: ServerRig) -> None:
    subject, router = b"$JS.API.DIRECT.GET.S", rig.router
    peers = [FakePeer(name) for name in "pqrs"]
    for peer in peers:
        peer.distance = ELSEWHERE
        router.peers.set_interest(peer, subject, b"_sys_", 1)
    assert min(asked(rig, peers, subject)) > 40, "as good as each other"
    peers[0].distance = peers[1].distance = NEAR
    near, also, *far = asked(rig, peers, subject)
    assert far == [0, 0] and min(near, also) > 100
    router.peers.set_interest(peers[0], subject, b"_sys_", 5)
    near, also, *far = asked(rig, peers, subject, 600)
    assert far == [0, 0] and near > 3 * also > 0, "by the number of members"
    peers[0].distance = AWAY
    assert asked(rig, peers, subject) == [0, 300, 0, 0], "one that does not answer now is not asked"
    router.peers.drop_peer(peers[1])
    assert asked(rig, peers, subject)[:2] == [0, 0], "one that is gone neither: elsewhere is better than nobody"
    for peer in peers:
        peer.distance = AWAY
    assert sum(asked(rig, peers, subject)) == 300, "better than no answer"


def test_other_queue_groups_are_spread_over_all_zones(rig: ServerRig) -> None:
    peers = [FakePeer("p"), FakePeer("q")]
    peers[1].distance = ELSEWHERE
    for peer in peers:
        rig.router.peers.set_interest(peer, b"work", b"workers", 1)
    assert min(asked(rig, peers, b"work")) > 100


def test_a_read_whose_member_has_left_is_handed_to_the_nearest_other_one(rig: ServerRig) -> None:
    subject, peers = b"$JS.API.DIRECT.GET.S", [FakePeer(name) for name in "pqr"]
    for peer, distance in zip(peers, (NEAR, ELSEWHERE, NEAR), strict=True):
        peer.distance = distance
        rig.router.peers.set_interest(peer, subject, b"_sys_", 1)
    for _ in range(20):
        rig.router.deliver_from_peer(peers[0], subject, b"r", [b"_sys_"], b"", b"")
    assert [len(peer.sent) for peer in peers] == [0, 0, 20]
    assert peers[2].sent[0][3] == [FORWARDED + b"_sys_"]


def test_the_only_member_of_the_system_queue_here_is_called_directly(rig: ServerRig) -> None:
    subject, router = b"$JS.API.DIRECT.GET.S", rig.router
    router.peers.set_interest(FakePeer("p"), subject, b"_sys_", 2)
    assert router.lookup(subject).single is None
    callback = collector()[1]
    responder = router.subscribe(subject, callback, queue=b"_sys_")
    assert router.lookup(subject).single is callback
    other = router.subscribe(subject, collector()[1], queue=b"_sys_")
    assert router.lookup(subject).single is None, "two share the work"
    router.unsubscribe(other)
    listener = rig.client(b"SUB $JS.API.DIRECT.GET.S 1")
    assert router.lookup(subject).single is None, "others hear of it too"
    listener.send(b"UNSUB 1")
    assert router.lookup(subject).single is callback
    router.unsubscribe(responder)
    assert router.lookup(subject).single is None
    router.subscribe(b"other", callback, queue=b"g")
    assert router.lookup(b"other").single is None, "an ordinary queue group shares with other nodes"


def test_a_peer_gets_one_copy_with_all_its_queues(rig: ServerRig) -> None:
    remote = FakePeer("p")
    rig.router.peers.set_interest(remote, b"a.*", None, 1)
    rig.router.peers.set_interest(remote, b"a.>", None, 1)
    rig.router.peers.set_interest(remote, b"a.b", b"g", 1)
    rig.router.peers.set_interest(remote, b"a.b", b"h", 1)
    assert rig.router.publish(b"a.b", b"x", b"r", b"HH") == 3
    assert len(remote.sent) == 1
    account, subject, reply, queues, headers, payload = remote.sent[0]
    assert (account, subject, reply, sorted(queues), headers, payload) == (
        "$G", b"a.b", b"r", [b"g", b"h"], b"HH", b"x",
    )  # fmt: skip


def test_interest_is_reported(rig: ServerRig) -> None:
    heard: list[tuple[str, bytes, bytes | None, int]] = []
    rig.server.accounts.listen(lambda a, s, q, n: heard.append((a, s, q, n)))
    _, callback = collector()
    rig.router.subscribe(b"local", callback, local_only=True)
    one = rig.router.subscribe(b"a", callback)
    client = rig.client(b"SUB a 1", b"SUB b q 2", b"SUB b q 3")
    assert heard == [("$G", b"a", None, 1), ("$G", b"b", b"q", 1), ("$G", b"b", b"q", 2)]
    assert sorted(rig.server.accounts.interests(), key=str) == [
        ("$G", b"a", None, 1), ("$G", b"b", b"q", 2)
    ]  # fmt: skip
    heard.clear()
    rig.router.unsubscribe(one)
    assert heard == [], "a client still wants it"
    client.connection.connection_lost(None)
    assert Counter(heard) == Counter([("$G", b"a", None, 0), ("$G", b"b", b"q", 1), ("$G", b"b", b"q", 0)])
    assert list(rig.server.accounts.interests()) == []


def test_remote_interest_changes(rig: ServerRig) -> None:
    remote = FakePeer("p")
    rig.router.peers.set_interest(remote, b"a..b", None, 1)
    rig.router.peers.set_interest(remote, b"a", None, 1)
    rig.router.peers.set_interest(remote, b"a", None, 1)
    assert rig.router.publish(b"a") == 1
    rig.router.peers.set_interest(remote, b"a", None, 0)
    rig.router.peers.set_interest(remote, b"a", None, 0)
    assert rig.router.publish(b"a") == 0
    rig.router.peers.set_interest(remote, b"a", b"q", 2)
    rig.router.peers.set_interest(remote, b"b", None, 1)
    assert list(rig.server.accounts.interests()) == [], "what others want is not ours to tell"
    rig.server.accounts.drop_peer(remote)
    assert rig.router.publish(b"a") == rig.router.publish(b"b") == 0
    assert rig.router.index.count == 0


def test_delivery_from_a_peer_stays_here(rig: ServerRig) -> None:
    got, callback = collector()
    rig.router.subscribe(b"a", callback)
    mine, only_mine = collector()
    rig.router.subscribe(b"a", only_mine, local_only=True)
    client = rig.client(b"SUB a 1", b"SUB a q 2", b"SUB a q 3")
    sender, third = FakePeer("s"), FakePeer("t")
    rig.router.peers.set_interest(sender, b"a", None, 1)
    rig.router.peers.set_interest(third, b"a", None, 1)
    rig.server.accounts.deliver_from_peer(sender, "$G", b"a", b"r", [], b"HH", b"x")
    assert got == [(b"a", b"r", b"HH", b"x", "peer")]
    assert mine == [], "local_only sees only what is published here"
    assert client.read() == b"HMSG a 1 r 2 3\r\nHHx\r\n"
    rig.server.accounts.deliver_from_peer(sender, "$G", b"a", b"", [b"q"], b"", b"y")
    assert client.read().count(b"MSG a ") == 2
    assert sender.sent == third.sent == []


def test_messages_that_come_together_reach_their_takers_in_order_and_outlive_one_that_raises(rig: ServerRig) -> None:
    got, callback = collector()
    failures: list[int] = []

    def raising(*_: object) -> None:
        raise RuntimeError("a bug")

    rig.router.subscribe(b"c", callback)
    rig.router.subscribe(b"bad", raising)
    client, both = rig.client(b"SUB a.* 1"), rig.client(b"SUB b 2")
    rig.router.subscribe(b"b", callback)
    sender, other = FakePeer("s"), FakePeer("t")
    rig.router.peers.set_interest(other, b"b", None, 1)
    subjects = [b"a.1", b"a.2", b"bad", b"a.1", b"b", b"c", b"nobody", b"a.3"]
    messages = [(subject, b"", b"", b"%d" % number) for number, subject in enumerate(subjects)]
    rig.server.accounts.deliver_each_from_peer(sender, "$G", messages, lambda: failures.append(1))
    rig.server.accounts.deliver_each_from_peer(sender, "UNHEARD", messages, lambda: failures.append(1))
    assert client.read() == b"".join(b"MSG %b 1 1\r\n%b\r\n" % (s, p) for s, _, _, p in messages if s[:2] == b"a.")
    assert both.read() == b"MSG b 2 1\r\n4\r\n"
    assert [(m[0], m[3], m[4]) for m in got] == [(b"b", b"4", "peer"), (b"c", b"5", "peer")]
    assert (failures, other.sent) == ([1], [])


@pytest.mark.parametrize("form", [b"s.1", b"s.%d", b"$JS.ACK.S.C.1.%d.3.4.5"])
def test_what_a_taker_gives_back_is_not_offered_again_and_again(rig: ServerRig, form: bytes) -> None:
    """A stream whose valve is closed takes one at a time; a frame has a thousand of them."""
    offered, taken = [], []

    def one(subject: bytes, reply: bytes, headers: bytes, payload: bytes, origin: Origin) -> None:
        offered.append(1)
        taken.append(payload)

    def many(messages: list[Outgoing], origin: Origin) -> int:
        offered.append(len(messages))
        taken.append(messages[0][3])
        return 1

    for subject in (b"s.*", b"$JS.ACK.S.C.*.*.*.*.*"):
        rig.router.subscribe(subject, one, bulk=many)
    messages = [(form % n if b"%" in form else form, b"", b"", b"%d" % n) for n in range(1000)]
    rig.server.accounts.deliver_each_from_peer(FakePeer("n"), "$G", messages, lambda: None)
    assert taken == [b"%d" % n for n in range(1000)]
    assert sum(offered) < 2 * len(messages)


def test_what_a_taker_changes_counts_for_the_messages_behind(rig: ServerRig) -> None:
    client = rig.client(b"SUB a 1")
    subscription = rig.router.subscribe(b"go", lambda *_: client.send(b"UNSUB 1"))
    messages = [(subject, b"", b"", b"") for subject in (b"a", b"go", b"a")]
    rig.server.accounts.deliver_each_from_peer(FakePeer("s"), "$G", messages, lambda: None)
    assert client.read() == b"MSG a 1 0\r\n\r\n"
    rig.router.unsubscribe(subscription)


def test_a_queue_without_local_members_is_handed_on_once(rig: ServerRig) -> None:
    plain = rig.client(b"SUB a 1")
    sender, third = FakePeer("s"), FakePeer("t")
    rig.router.peers.set_interest(sender, b"a", b"q", 1)
    rig.router.peers.set_interest(third, b"a", b"q", 1)
    rig.server.accounts.deliver_from_peer(sender, "$G", b"a", b"", [b"q"], b"", b"x")
    assert sender.sent == []
    assert third.sent == [("$G", b"a", b"", [FORWARDED + b"q"], b"", b"x")]
    assert plain.read() == b"MSG a 1 1\r\nx\r\n"
    # The other side of such a hop: the queue's member gets it, plain subscriptions had theirs.
    member = rig.client(b"SUB a q 9")
    rig.server.accounts.deliver_from_peer(sender, "$G", b"a", b"", [FORWARDED + b"q"], b"", b"x")
    assert member.read() == b"MSG a 9 1\r\nx\r\n"
    assert plain.read() == b""
    member.connection.connection_lost(None)
    rig.server.accounts.deliver_from_peer(sender, "$G", b"a", b"", [FORWARDED + b"q"], b"", b"x")
    assert len(third.sent) == 1, "never handed on twice"


def test_accounts_are_separate(rig: ServerRig) -> None:
    got, callback = collector()
    rig.server.account("OTHER").subscribe(b">", callback)
    rig.client().send(b"PUB a 0", b"")
    assert got == []
    assert rig.server.account("OTHER") is rig.server.account("OTHER")


def test_a_repeated_subject_gets_a_cache_entry_of_its_own(rig: ServerRig) -> None:
    got, callback = collector()
    rig.router.subscribe(b"js.*", callback)
    client = rig.client()
    for _ in range(3):
        client.send(b"PUB js.a 0", b"")
    assert b"js.a" in rig.router.literals
    later, callback = collector()
    rig.router.subscribe(b"js.*", callback)
    client.send(b"PUB js.a 0", b"")
    assert (len(got), len(later)) == (4, 1)


def test_backlog_is_that_of_the_slowest_taker(rig: ServerRig) -> None:
    slow, fast = rig.client(b"SUB a.* 1"), rig.client(b"SUB a.b 1")
    slow.transport.jammed = True
    assert rig.router.backlog(b"a.b") == 0
    rig.router.publish(b"a.b", b"x" * 100_000)
    rig.time.advance(0)
    assert rig.router.backlog(b"a.b") > 100_000
    assert fast.connection.pending == 0
    slow.transport.drain()
    assert rig.router.backlog(b"a.b") == 0
    assert rig.router.backlog(b"nobody") == -1


def test_backlog_counts_links_to_peers_too(rig: ServerRig) -> None:
    near, far = FakePeer("near"), FakePeer("far")
    rig.router.peers.set_interest(near, b"inbox.1", None, 1)
    rig.router.peers.set_interest(far, b"inbox.*", None, 1)
    near.pending, far.pending = 10, 70
    assert rig.router.backlog(b"inbox.1") == 70
    rig.router.peers.set_interest(far, b"inbox.*", None, 0)
    assert rig.router.backlog(b"inbox.1") == 10


def test_publish_frames_renders_all_parts_of_an_answer_in_order(rig: ServerRig) -> None:
    peer = rig.client(b"SUB _INBOX.abc 7")
    block = b"NATS/1.0\r\nA: b\r\n\r\n"
    assert rig.router.publish_frames(b"_INBOX.abc", [(block, b"one"), (b"", b"two"), (block, b"")]) == 1
    assert peer.read() == (
        b"HMSG _INBOX.abc 7 18 21\r\n%bone\r\nMSG _INBOX.abc 7 3\r\ntwo\r\nHMSG _INBOX.abc 7 18 18\r\n%b\r\n"
        % (block, block)
    )
    assert (peer.connection.out_msgs, peer.connection.out_bytes) == (3, 21 + 3 + 18)
    assert rig.router.publish_frames(b"_INBOX.nobody", [(block, b"one")]) == 0


def test_publish_frames_obeys_maximum_and_tells_that_the_reader_is_gone(rig: ServerRig) -> None:
    peer = rig.client(b"SUB _INBOX.abc 7", b"UNSUB 7 2")
    assert rig.router.publish_frames(b"_INBOX.abc", [(b"", b"%d" % n) for n in range(5)]) == 0
    assert peer.read() == b"MSG _INBOX.abc 7 1\r\n0\r\nMSG _INBOX.abc 7 1\r\n1\r\n"


def test_publish_frames_reaches_peers(rig: ServerRig) -> None:
    remote = FakePeer("p")
    rig.router.peers.set_interest(remote, b"_INBOX.far.*", None, 1)
    assert rig.router.publish_frames(b"_INBOX.far.1", [(b"h", b"one"), (b"", b"two")]) == 1
    messages = [(b"_INBOX.far.1", b"", b"h", b"one"), (b"_INBOX.far.1", b"", b"", b"two")]
    assert remote.sent_many == [("$G", b"_INBOX.far.1", [], messages)]
    assert remote.sent == []


def test_an_exclusive_subscription_takes_what_clients_publish_and_nothing_else(rig: ServerRig) -> None:
    got, plain = collector()
    claimed, claim = collector()
    peer = FakePeer("n2")
    rig.router.subscribe(b"a.>", plain)
    rig.router.peers.set_interest(peer, b"a.b", None, 1)
    listener = rig.client(b"SUB a.b 1", b"SUB a.b q 2")
    listener.read()
    publisher = rig.client()
    subscription = rig.router.subscribe(b"a.*", claim, local_only=True, exclusive=True)
    publisher.send(b"PUB a.b r 1", b"x")
    assert [m[:4] for m in claimed] == [(b"a.b", b"r", b"", b"x")]
    assert (got, peer.sent, listener.read()) == ([], [], b"")
    # what the server itself says, and what peers say, goes to all others
    assert rig.router.publish(b"a.b", b"y") == 4
    rig.router.deliver_from_peer(peer, b"a.b", b"", [], b"", b"z")
    assert [m[3] for m in got] == [b"y", b"z"]
    assert len(peer.sent) == 1
    assert listener.read() == b"MSG a.b 1 1\r\ny\r\nMSG a.b 2 1\r\ny\r\nMSG a.b 1 1\r\nz\r\n"
    assert len(claimed) == 1
    assert not rig.router.has_interest(b"a.") and rig.router.has_interest(b"a.c")
    rig.router.unsubscribe(subscription)
    publisher.send(b"PUB a.b 1", b"w")
    assert (len(claimed), got[-1][3]) == (1, b"w")


def test_an_exclusive_subscription_is_no_interest_of_others(rig: ServerRig) -> None:
    rig.router.subscribe(b"a.*", collector()[1], local_only=True, exclusive=True)
    assert not rig.router.has_interest(b"a.b")
    assert rig.router.publish(b"a.b") == 0
    assert list(rig.router.local.entries()) == []
