"""PubAcks on their way to clients, other nodes and others are noted for those who take them."""

from __future__ import annotations

import pytest

from jetcluster.clock import SECOND
from jetcluster.protocol.bus import TOLD_ANYTHING, Callback, Outgoing
from jetcluster.server.accounts.told_tables import MAX_TAKERS
from testkit.server_rig import FakePeer, ServerRig


@pytest.fixture
def rig() -> ServerRig:
    return ServerRig()


def nothing() -> Callback:
    return lambda subject, reply, headers, payload, origin: None


ACK = b'{"stream":"S","seq":%d}'
OF_S = b'{"stream":"S",'


def test_a_client_is_told_what_pub_acks_to_it_say(rig: ServerRig) -> None:
    rig.client(b"SUB one.* 1")
    rig.client(b"SUB two.* 1")
    limited = rig.client(b"SUB three.* 1", b"UNSUB 1 5")
    rig.router.publish_many([(b"one.1", ACK % 4), (b"one.2", ACK % 7), (b"one.3", ACK % 6)])
    rig.router.publish_many([(b"two.1", ACK % 8), (b"two.1", b""), (b"nobody", ACK % 99)])
    rig.router.publish_many([(b"three.1", ACK % 9)])
    assert [rig.router.told(reply, OF_S, 0) for reply in (b"one.9", b"two.9", b"three.9")] == [7, 8, 9]
    assert rig.router.told(b"one.9", b'{"stream":"T",', 0) == 0
    assert b"MSG three.1" in limited.read()


def test_a_client_is_told_what_pub_acks_of_another_node_say(rig: ServerRig) -> None:
    rig.client(b"SUB one.* 1")
    rig.client(b"SUB two.* 1")
    node = FakePeer("B")
    rig.router.deliver_from_peer(node, b"one.1", b"", [], b"", ACK % 3)
    run: list[Outgoing] = [(b"two.1", b"", b"", ACK % 5), (b"one.1", b"", b"", ACK % 6), (b"one.2", b"", b"", b"text")]
    rig.router.deliver_each_from_peer(node, run, lambda: None)
    assert [rig.router.told(reply, OF_S, 0) for reply in (b"one.9", b"two.9")] == [6, 5]


def test_what_passes_to_others_than_clients_counts_for_everybody(rig: ServerRig) -> None:
    """An account that imports, a leaf node, the server itself: who reads there is not known here."""
    rig.client(b"SUB one.* 1")
    rig.router.subscribe(b"own.*", nothing())
    rig.router.publish_many([(b"own.1", ACK % 4)])
    assert rig.router.told(b"one.9", OF_S, 0) == 4
    rig.router.deliver_each_from_peer(FakePeer("B"), [(b"own.1", b"", b"", ACK % 5)], lambda: None)
    assert rig.router.told(b"one.9", OF_S, 0) == 5


def test_a_client_that_shows_an_ack_to_another_one_tells_nothing(rig: ServerRig) -> None:
    rig.client(b"SUB one.* 1")
    rig.client().send(b"PUB one.1 %d" % len(ACK % 5), ACK % 5)
    assert rig.router.told(b"one.9", OF_S, 0) == 0


def test_who_shares_a_reply_subject_with_many_may_have_been_told_what_they_were(rig: ServerRig) -> None:
    for _ in range(MAX_TAKERS + 1):
        rig.client(b"SUB all 1")
    rig.client(b"SUB one.* 1")
    rig.router.publish_many([(b"all", ACK % 5)])
    assert rig.router.told(b"all", OF_S, 0) == rig.router.told(b"one.1", OF_S, 0) == 5


def test_a_wall_clock_that_is_off_makes_no_ack_one_of_an_earlier_stream(
    rig: ServerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.client(b"SUB one.* 1")
    right = rig.time.time_ns
    monkeypatch.setattr(rig.time, "time_ns", lambda: right() - 3600 * SECOND)
    rig.router.publish_many([(b"one.1", ACK % 5)])
    monkeypatch.setattr(rig.time, "time_ns", right)
    rig.time.advance(1.0)
    assert rig.router.told(b"one.9", OF_S, 1 * SECOND) == 5, "the stream was created when it was told of"
    rig.time.advance(20.0)
    assert rig.router.told(b"one.9", OF_S, 1 * SECOND) == 0, "an earlier stream of that name"
    assert rig.router.told(b"one.9", OF_S, 60 * SECOND) == 5


def wanted_at_a_node(rig: ServerRig, subject: bytes, queue: bytes | None = None) -> None:
    rig.server.accounts.set_remote_interest(FakePeer("B"), "$G", subject, queue, 1)


def test_what_takers_at_other_nodes_were_told_is_not_known_here(rig: ServerRig) -> None:
    """A node that handed a request on for a client of another one is asked what that client was told."""
    rig.client(b"SUB both.* 1")
    rig.client(b"SUB here.* 1")
    for subject, queue in ((b"there.*", None), (b"both.*", None), (b"group", b"Q")):
        wanted_at_a_node(rig, subject, queue)
    rig.router.publish_many([(b"here.1", ACK % 4), (b"both.1", ACK % 5)])
    for reply in (b"there.1", b"both.1", b"group", b"nobody"):
        assert rig.router.told(reply, OF_S, 0) == TOLD_ANYTHING
    assert rig.router.told(b"here.1", OF_S, 0) == 4
