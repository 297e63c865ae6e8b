"""The router of one account: internal subscriptions, queue groups, and the contract with the mesh."""

from __future__ import annotations

from collections import Counter

import pytest

from jetcluster.protocol.bus import Origin
from jetcluster.protocol.interest import FORWARDED
from testkit.server_rig import Bench, FakePeer

Got = list[tuple[bytes, bytes, bytes, bytes, str]]


def collector() -> tuple[Got, object]:
    got: Got = []

    def callback(subject: bytes, reply: bytes, headers: bytes, payload: bytes, origin: Origin) -> None:
        got.append((subject, reply, headers, payload, origin.kind))

    return got, callback


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_internal_publish_and_subscribe(bench: Bench) -> None:
    got, callback = collector()
    subscription = bench.router.subscribe(b"a.*", callback)
    assert bench.router.has_interest(b"a.b")
    assert not bench.router.has_interest(b"a")
    assert bench.router.publish(b"a.b", b"x", b"r", b"HH") == 1
    assert got == [(b"a.b", b"r", b"HH", b"x", "internal")]
    bench.router.unsubscribe(subscription)
    bench.router.unsubscribe(subscription)
    assert bench.router.publish(b"a.b") == 0
    assert not bench.router.has_interest(b"a.b")


def test_a_listener_is_somebody_with_that_very_subject(bench: Bench) -> None:
    bench.client(b"SUB _INBOX.abc.* 7")
    assert bench.router.has_interest(b"_INBOX.abc.1") and not bench.router.has_listener(b"_INBOX.abc.1")
    bench.client(b"SUB _INBOX.abc.1 8")
    assert bench.router.has_listener(b"_INBOX.abc.1")


def test_invalid_internal_subject(bench: Bench) -> None:
    with pytest.raises(ValueError, match="invalid subject"):
        bench.router.subscribe(b"a..b", collector()[1])


def test_client_message_reaches_callback_with_its_origin(bench: Bench) -> None:
    origins: list[Origin] = []
    bench.router.subscribe(b"js.>", lambda s, r, h, p, o: origins.append(o))
    peer = bench.client()
    peer.send(b"PUB js.a 1", b"x")
    assert origins == [peer.connection]
    assert (origins[0].kind, origins[0].account) == ("client", "$G")


def test_publish_many_renders_plain_messages(bench: Bench) -> None:
    peer = bench.client(b"SUB _INBOX.abc.* 7")
    other = bench.client(b"SUB _INBOX.xyz.1 8")
    big = b"z" * 5000
    bench.router.publish_many(
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


def test_publish_many_obeys_maximum(bench: Bench) -> None:
    peer = bench.client(b"SUB _INBOX.abc.* 7", b"UNSUB 7 2")
    bench.router.publish_many([(b"_INBOX.abc.%d" % n, b"") for n in range(5)])
    assert peer.read() == b"MSG _INBOX.abc.0 7 0\r\n\r\nMSG _INBOX.abc.1 7 0\r\n\r\n"
    assert peer.connection.subscriptions == {}


def test_publish_many_reaches_peers(bench: Bench) -> None:
    remote = FakePeer("p")
    bench.router.peers.set_interest(remote, b"_INBOX.far.*", None, 1)
    bench.router.publish_many([(b"_INBOX.far.1", b"ack")])
    assert remote.sent == [("$G", b"_INBOX.far.1", b"", [], b"", b"ack")]


def test_queue_group_is_spread_evenly(bench: Bench) -> None:
    peers = [bench.client(b"SUB q.* grp %d" % n) for n in range(3)]
    publisher = bench.client()
    for _ in range(3000):
        publisher.send(b"PUB q.1 0", b"")
    counts = [p.connection.out_msgs for p in peers]
    assert sum(counts) == 3000
    assert all(900 < count < 1100 for count in counts), counts


def test_queue_member_that_cannot_take_it_is_skipped(bench: Bench) -> None:
    quiet = bench.client(b"SUB q grp 1", connect=b'CONNECT {"verbose":false,"echo":false}\r\n')
    other = bench.client(b"SUB q grp 1")
    for _ in range(20):
        quiet.send(b"PUB q 0", b"")
    assert quiet.connection.out_msgs == 0
    assert other.connection.out_msgs == 20


def test_queue_weighs_local_members_against_remote_ones(bench: Bench) -> None:
    local = bench.client(b"SUB q grp 1")
    remote = FakePeer("p")
    bench.router.peers.set_interest(remote, b"q", b"grp", 3)
    for _ in range(4000):
        bench.router.publish(b"q")
    assert 900 < local.connection.out_msgs < 1100
    assert len(remote.sent) + local.connection.out_msgs == 4000
    assert remote.sent[0] == ("$G", b"q", b"", [b"grp"], b"", b"")


def test_system_queue_prefers_this_node(bench: Bench) -> None:
    got, callback = collector()
    responder = bench.router.subscribe(b"$JS.API.DIRECT.GET.S", callback, queue=b"_sys_")
    remote = FakePeer("p")
    bench.router.peers.set_interest(remote, b"$JS.API.DIRECT.GET.S", b"_sys_", 2)
    client = bench.client()
    for _ in range(50):
        client.send(b"PUB $JS.API.DIRECT.GET.S _INBOX.1 0", b"")
    assert (len(got), len(remote.sent)) == (50, 0)
    bench.router.unsubscribe(responder)
    client.send(b"PUB $JS.API.DIRECT.GET.S _INBOX.1 0", b"")
    assert remote.sent == [("$G", b"$JS.API.DIRECT.GET.S", b"_INBOX.1", [b"_sys_"], b"", b"")]


def test_the_only_member_of_the_system_queue_here_is_called_directly(bench: Bench) -> None:
    subject, router = b"$JS.API.DIRECT.GET.S", bench.router
    router.peers.set_interest(FakePeer("p"), subject, b"_sys_", 2)
    assert router.lookup(subject).single is None
    callback = collector()[1]
    responder = router.subscribe(subject, callback, queue=b"_sys_")
    assert router.lookup(subject).single is callback
    other = router.subscribe(subject, collector()[1], queue=b"_sys_")
    assert router.lookup(subject).single is None, "two share the work"
    router.unsubscribe(other)
    listener = bench.client(b"SUB $JS.API.DIRECT.GET.S 1")
    assert router.lookup(subject).single is None, "others hear of it too"
    listener.send(b"UNSUB 1")
    assert router.lookup(subject).single is callback
    router.unsubscribe(responder)
    assert router.lookup(subject).single is None
    router.subscribe(b"other", callback, queue=b"g")
    assert router.lookup(b"other").single is None, "an ordinary queue group shares with other nodes"


def test_a_peer_gets_one_copy_with_all_its_queues(bench: Bench) -> None:
    remote = FakePeer("p")
    bench.router.peers.set_interest(remote, b"a.*", None, 1)
    bench.router.peers.set_interest(remote, b"a.>", None, 1)
    bench.router.peers.set_interest(remote, b"a.b", b"g", 1)
    bench.router.peers.set_interest(remote, b"a.b", b"h", 1)
    assert bench.router.publish(b"a.b", b"x", b"r", b"HH") == 3
    assert len(remote.sent) == 1
    account, subject, reply, queues, headers, payload = remote.sent[0]
    assert (account, subject, reply, sorted(queues), headers, payload) == (
        "$G", b"a.b", b"r", [b"g", b"h"], b"HH", b"x",
    )  # fmt: skip


def test_interest_is_reported(bench: Bench) -> None:
    heard: list[tuple[str, bytes, bytes | None, int]] = []
    bench.server.accounts.listener = lambda a, s, q, n: heard.append((a, s, q, n))
    _, callback = collector()
    bench.router.subscribe(b"local", callback, local_only=True)
    one = bench.router.subscribe(b"a", callback)
    client = bench.client(b"SUB a 1", b"SUB b q 2", b"SUB b q 3")
    assert heard == [("$G", b"a", None, 1), ("$G", b"b", b"q", 1), ("$G", b"b", b"q", 2)]
    assert sorted(bench.server.accounts.interests(), key=str) == [
        ("$G", b"a", None, 1), ("$G", b"b", b"q", 2)
    ]  # fmt: skip
    heard.clear()
    bench.router.unsubscribe(one)
    assert heard == [], "a client still wants it"
    client.connection.connection_lost(None)
    assert Counter(heard) == Counter([("$G", b"a", None, 0), ("$G", b"b", b"q", 1), ("$G", b"b", b"q", 0)])
    assert list(bench.server.accounts.interests()) == []


def test_remote_interest_changes(bench: Bench) -> None:
    remote = FakePeer("p")
    bench.router.peers.set_interest(remote, b"a..b", None, 1)
    bench.router.peers.set_interest(remote, b"a", None, 1)
    bench.router.peers.set_interest(remote, b"a", None, 1)
    assert bench.router.publish(b"a") == 1
    bench.router.peers.set_interest(remote, b"a", None, 0)
    bench.router.peers.set_interest(remote, b"a", None, 0)
    assert bench.router.publish(b"a") == 0
    bench.router.peers.set_interest(remote, b"a", b"q", 2)
    bench.router.peers.set_interest(remote, b"b", None, 1)
    assert list(bench.server.accounts.interests()) == [], "what others want is not ours to tell"
    bench.server.accounts.drop_peer(remote)
    assert bench.router.publish(b"a") == bench.router.publish(b"b") == 0
    assert bench.router.index.count == 0


def test_delivery_from_a_peer_stays_here(bench: Bench) -> None:
    got, callback = collector()
    bench.router.subscribe(b"a", callback)
    mine, only_mine = collector()
    bench.router.subscribe(b"a", only_mine, local_only=True)
    client = bench.client(b"SUB a 1", b"SUB a q 2", b"SUB a q 3")
    sender, third = FakePeer("s"), FakePeer("t")
    bench.router.peers.set_interest(sender, b"a", None, 1)
    bench.router.peers.set_interest(third, b"a", None, 1)
    bench.server.accounts.deliver_from_peer(sender, "$G", b"a", b"r", [], b"HH", b"x")
    assert got == [(b"a", b"r", b"HH", b"x", "peer")]
    assert mine == [], "local_only sees only what is published here"
    assert client.read() == b"HMSG a 1 r 2 3\r\nHHx\r\n"
    bench.server.accounts.deliver_from_peer(sender, "$G", b"a", b"", [b"q"], b"", b"y")
    assert client.read().count(b"MSG a ") == 2
    assert sender.sent == third.sent == []


def test_messages_that_come_together_reach_their_takers_in_order_and_outlive_one_that_raises(bench: Bench) -> None:
    got, callback = collector()
    failures: list[int] = []

    def raising(*_: object) -> None:
        raise RuntimeError("a bug")

    bench.router.subscribe(b"c", callback)
    bench.router.subscribe(b"bad", raising)
    client, both = bench.client(b"SUB a.* 1"), bench.client(b"SUB b 2")
    bench.router.subscribe(b"b", callback)
    sender, other = FakePeer("s"), FakePeer("t")
    bench.router.peers.set_interest(other, b"b", None, 1)
    subjects = [b"a.1", b"a.2", b"bad", b"a.1", b"b", b"c", b"nobody", b"a.3"]
    messages = [(subject, b"", b"", b"%d" % number) for number, subject in enumerate(subjects)]
    bench.server.accounts.deliver_each_from_peer(sender, "$G", messages, lambda: failures.append(1))
    bench.server.accounts.deliver_each_from_peer(sender, "UNHEARD", messages, lambda: failures.append(1))
    assert client.read() == b"".join(b"MSG %b 1 1\r\n%b\r\n" % (s, p) for s, _, _, p in messages if s[:2] == b"a.")
    assert both.read() == b"MSG b 2 1\r\n4\r\n"
    assert [(m[0], m[3], m[4]) for m in got] == [(b"b", b"4", "peer"), (b"c", b"5", "peer")]
    assert (failures, other.sent) == ([1], [])


def test_what_a_taker_changes_counts_for_the_messages_behind(bench: Bench) -> None:
    client = bench.client(b"SUB a 1")
    subscription = bench.router.subscribe(b"go", lambda *_: client.send(b"UNSUB 1"))
    messages = [(subject, b"", b"", b"") for subject in (b"a", b"go", b"a")]
    bench.server.accounts.deliver_each_from_peer(FakePeer("s"), "$G", messages, lambda: None)
    assert client.read() == b"MSG a 1 0\r\n\r\n"
    bench.router.unsubscribe(subscription)


def test_a_queue_without_local_members_is_handed_on_once(bench: Bench) -> None:
    plain = bench.client(b"SUB a 1")
    sender, third = FakePeer("s"), FakePeer("t")
    bench.router.peers.set_interest(sender, b"a", b"q", 1)
    bench.router.peers.set_interest(third, b"a", b"q", 1)
    bench.server.accounts.deliver_from_peer(sender, "$G", b"a", b"", [b"q"], b"", b"x")
    assert sender.sent == []
    assert third.sent == [("$G", b"a", b"", [FORWARDED + b"q"], b"", b"x")]
    assert plain.read() == b"MSG a 1 1\r\nx\r\n"
    # The other side of such a hop: the queue's member gets it, plain subscriptions had theirs.
    member = bench.client(b"SUB a q 9")
    bench.server.accounts.deliver_from_peer(sender, "$G", b"a", b"", [FORWARDED + b"q"], b"", b"x")
    assert member.read() == b"MSG a 9 1\r\nx\r\n"
    assert plain.read() == b""
    member.connection.connection_lost(None)
    bench.server.accounts.deliver_from_peer(sender, "$G", b"a", b"", [FORWARDED + b"q"], b"", b"x")
    assert len(third.sent) == 1, "never handed on twice"


def test_accounts_are_separate(bench: Bench) -> None:
    got, callback = collector()
    bench.server.account("OTHER").subscribe(b">", callback)
    bench.client().send(b"PUB a 0", b"")
    assert got == []
    assert bench.server.account("OTHER") is bench.server.account("OTHER")


def test_a_repeated_subject_gets_a_cache_entry_of_its_own(bench: Bench) -> None:
    got, callback = collector()
    bench.router.subscribe(b"js.*", callback)
    client = bench.client()
    for _ in range(3):
        client.send(b"PUB js.a 0", b"")
    assert b"js.a" in bench.router.literals
    later, callback = collector()
    bench.router.subscribe(b"js.*", callback)
    client.send(b"PUB js.a 0", b"")
    assert (len(got), len(later)) == (4, 1)


def test_backlog_is_that_of_the_slowest_taker(bench: Bench) -> None:
    slow, fast = bench.client(b"SUB a.* 1"), bench.client(b"SUB a.b 1")
    slow.transport.jammed = True
    assert bench.router.backlog(b"a.b") == 0
    bench.router.publish(b"a.b", b"x" * 100_000)
    bench.time.advance(0)
    assert bench.router.backlog(b"a.b") > 100_000
    assert fast.connection.pending == 0
    slow.transport.drain()
    assert bench.router.backlog(b"a.b") == 0
    assert bench.router.backlog(b"nobody") == -1


def test_backlog_counts_links_to_peers_too(bench: Bench) -> None:
    near, far = FakePeer("near"), FakePeer("far")
    bench.router.peers.set_interest(near, b"inbox.1", None, 1)
    bench.router.peers.set_interest(far, b"inbox.*", None, 1)
    near.pending, far.pending = 10, 70
    assert bench.router.backlog(b"inbox.1") == 70
    bench.router.peers.set_interest(far, b"inbox.*", None, 0)
    assert bench.router.backlog(b"inbox.1") == 10


def test_publish_frames_renders_all_parts_of_an_answer_in_order(bench: Bench) -> None:
    peer = bench.client(b"SUB _INBOX.abc 7")
    block = b"NATS/1.0\r\nA: b\r\n\r\n"
    assert bench.router.publish_frames(b"_INBOX.abc", [(block, b"one"), (b"", b"two"), (block, b"")]) == 1
    assert peer.read() == (
        b"HMSG _INBOX.abc 7 18 21\r\n%bone\r\nMSG _INBOX.abc 7 3\r\ntwo\r\nHMSG _INBOX.abc 7 18 18\r\n%b\r\n"
        % (block, block)
    )
    assert (peer.connection.out_msgs, peer.connection.out_bytes) == (3, 21 + 3 + 18)
    assert bench.router.publish_frames(b"_INBOX.nobody", [(block, b"one")]) == 0


def test_publish_frames_obeys_maximum_and_tells_that_the_reader_is_gone(bench: Bench) -> None:
    peer = bench.client(b"SUB _INBOX.abc 7", b"UNSUB 7 2")
    assert bench.router.publish_frames(b"_INBOX.abc", [(b"", b"%d" % n) for n in range(5)]) == 0
    assert peer.read() == b"MSG _INBOX.abc 7 1\r\n0\r\nMSG _INBOX.abc 7 1\r\n1\r\n"


def test_publish_frames_reaches_peers(bench: Bench) -> None:
    remote = FakePeer("p")
    bench.router.peers.set_interest(remote, b"_INBOX.far.*", None, 1)
    assert bench.router.publish_frames(b"_INBOX.far.1", [(b"h", b"one"), (b"", b"two")]) == 1
    messages = [(b"_INBOX.far.1", b"", b"h", b"one"), (b"_INBOX.far.1", b"", b"", b"two")]
    assert remote.sent_many == [("$G", b"_INBOX.far.1", [], messages)]
    assert remote.sent == []


def test_an_exclusive_subscription_takes_what_clients_publish_and_nothing_else(bench: Bench) -> None:
    got, plain = collector()
    claimed, claim = collector()
    peer = FakePeer("n2")
    bench.router.subscribe(b"a.>", plain)
    bench.router.peers.set_interest(peer, b"a.b", None, 1)
    listener = bench.client(b"SUB a.b 1", b"SUB a.b q 2")
    listener.read()
    publisher = bench.client()
    subscription = bench.router.subscribe(b"a.*", claim, local_only=True, exclusive=True)
    publisher.send(b"PUB a.b r 1", b"x")
    assert [m[:4] for m in claimed] == [(b"a.b", b"r", b"", b"x")]
    assert (got, peer.sent, listener.read()) == ([], [], b"")
    # what the server itself says, and what peers say, goes to all others
    assert bench.router.publish(b"a.b", b"y") == 4
    bench.router.deliver_from_peer(peer, b"a.b", b"", [], b"", b"z")
    assert [m[3] for m in got] == [b"y", b"z"]
    assert len(peer.sent) == 1
    assert listener.read() == b"MSG a.b 1 1\r\ny\r\nMSG a.b 2 1\r\ny\r\nMSG a.b 1 1\r\nz\r\n"
    assert len(claimed) == 1
    assert not bench.router.has_interest(b"a.") and bench.router.has_interest(b"a.c")
    bench.router.unsubscribe(subscription)
    publisher.send(b"PUB a.b 1", b"w")
    assert (len(claimed), got[-1][3]) == (1, b"w")


def test_an_exclusive_subscription_is_no_interest_of_others(bench: Bench) -> None:
    bench.router.subscribe(b"a.*", collector()[1], local_only=True, exclusive=True)
    assert not bench.router.has_interest(b"a.b")
    assert bench.router.publish(b"a.b") == 0
    assert list(bench.router.local.entries()) == []
