"""Stream imports: shadows of subscriptions, on one node and across nodes. What nats-server does with the same is in
tests/interop/test_imports.py."""

from __future__ import annotations

from jetcluster.config.account_options import ExportOptions, ImportOptions
from jetcluster.protocol.bus import Origin
from tests.unit.server.sharing import Nodes, account

A = account("A", ExportOptions("stream", "pub.>"))
B = account("B", ImportOptions("stream", "A", "pub.>", "imp.pub.>", prefix="imp"))


def test_publisher_and_importer_on_different_nodes() -> None:
    nodes = Nodes(3, A, B)
    reader = nodes.client("B", b"SUB imp.pub.> 1", at=2)
    member = nodes.client("B", b"SUB imp.pub.x q 2", at=1)
    writer = nodes.client("A", at=0)
    writer.send(b"PUB pub.x 2", b"hi")
    assert reader.read() == b"MSG imp.pub.x 1 2\r\nhi\r\n"
    assert member.read() == b"MSG imp.pub.x 2 2\r\nhi\r\n"


def test_a_subject_that_becomes_too_long_reaches_nobody() -> None:
    to = ".".join(["$1"] * 60)
    nodes = Nodes(
        1, account("A", ExportOptions("stream", "a.*")), account("B", ImportOptions("stream", "A", "a.*", to))
    )
    reader, writer = nodes.client("B", b"SUB > 1"), nodes.client("A")
    writer.send(b"PUB a.%b 0" % (b"x" * 3000), b"")
    assert reader.read() == b""
    writer.send(b"PUB a.x 0", b"")
    assert reader.read() == b"MSG %b 1 0\r\n\r\n" % b".".join([b"x"] * 60)


def test_interest_ends_with_the_subscription_on_all_nodes() -> None:
    nodes = Nodes(2, A, B)
    reader = nodes.client("B", b"SUB imp.pub.> 1", at=1)
    assert nodes.rigs[0].server.account("A").has_interest(b"pub.x")
    reader.send(b"UNSUB 1")
    assert not nodes.rigs[0].server.account("A").has_interest(b"pub.x")
    reader.send(b"SUB imp.pub.y 2")
    reader.connection.close("Client Closed")
    assert not nodes.rigs[0].server.account("A").has_interest(b"pub.y")


def test_a_reload_moves_the_shadows_of_subscriptions_that_are_there() -> None:
    nodes = Nodes(1, A, B)
    reader, writer = nodes.client("B", b"SUB > 1"), nodes.client("A")
    writer.send(b"PUB pub.x 1", b"1")
    assert reader.read() == b"MSG imp.pub.x 1 1\r\n1\r\n"
    nodes.share(A, account("B", ImportOptions("stream", "A", "pub.>", "other.pub.>", prefix="other")))
    writer.send(b"PUB pub.x 1", b"2")
    assert reader.read() == b"MSG other.pub.x 1 1\r\n2\r\n"
    nodes.share(A, account("B"))
    writer.send(b"PUB pub.x 1", b"3")
    assert reader.read() == b""
    assert not nodes.rigs[0].server.account("A").has_interest(b"pub.x")


def test_an_import_that_is_no_longer_exported_ends() -> None:
    nodes = Nodes(1, A, B)
    reader, writer = nodes.client("B", b"SUB > 1"), nodes.client("A")
    nodes.share(account("A"), B)
    writer.send(b"PUB pub.x 1", b"1")
    assert reader.read() == b""


def test_the_servers_own_callbacks_are_out_of_reach() -> None:
    """An account that imports everything does not offer its API, acks and requests to the exporter."""
    everything = account("B", ImportOptions("stream", "A", ">"))
    nodes = Nodes(1, account("A", ExportOptions("stream", ">")), everything)
    router = nodes.rigs[0].server.account("B")
    got: list[bytes] = []

    def take(subject: bytes, reply: bytes, headers: bytes, payload: bytes, origin: Origin) -> None:
        got.append(subject)

    for subject in (b"$JS.API.>", b"$JS.ACK.S.C.>", b"$SYS.REQ.USER.INFO", b"_R_.x.*"):
        router.subscribe(subject, take)
    router.subscribe(b"local", take, local_only=True)
    router.subscribe(b"stored.>", take)
    writer = nodes.client("A")
    for subject in (b"$JS.API.STREAM.DELETE.S", b"$JS.ACK.S.C.1.1.1.1.1", b"$SYS.REQ.USER.INFO", b"_R_.x.y", b"local"):
        writer.send(b"PUB %b 0" % subject, b"")
    assert got == []
    writer.send(b"PUB stored.x 0", b"")
    assert got == [b"stored.x"]


def test_what_a_consumer_delivers_keeps_its_own_subject() -> None:
    nodes = Nodes(1, A, B)
    reader = nodes.client("B", b"SUB imp.pub.d 1")
    router = nodes.rigs[0].server.account("A")
    message = (b"orders.1", b"$JS.ACK.x", b"", b"m")
    assert router.deliver_many(b"pub.d", [message, (b"pub.d", b"", b"", b"")]) == 1
    assert reader.read() == b"MSG orders.1 1 $JS.ACK.x 1\r\nm\r\nMSG imp.pub.d 1 0\r\n\r\n"


def test_limits_of_a_subscription_count_imported_messages() -> None:
    nodes = Nodes(1, A, B)
    reader, writer = nodes.client("B", b"SUB imp.> 1", b"UNSUB 1 2"), nodes.client("A")
    for number in b"123":
        writer.send(b"PUB pub.x 1", b"%c" % number)
    assert reader.read() == b"MSG imp.pub.x 1 1\r\n1\r\nMSG imp.pub.x 1 1\r\n2\r\n"
    assert not nodes.rigs[0].server.account("A").has_interest(b"pub.x")


def test_a_stream_of_the_importer_sees_that_a_schedule_comes_from_elsewhere() -> None:
    nodes = Nodes(2, A, B)
    router = nodes.rigs[1].server.account("B")
    stored: list[bytes] = []
    router.subscribe(b"imp.pub.>", lambda subject, reply, headers, payload, origin: stored.append(headers))
    reader = nodes.client("B", b"SUB imp.pub.> 1", at=1)
    for block in (b"NATS/1.0\r\nNats-Schedule: @every 1s\r\n\r\n", b"NATS/1.0\r\nA: 1\r\n\r\n"):
        nodes.client("A").send(b"HPUB pub.x %d %d" % (len(block), len(block) + 1), block + b"x")
        assert block in reader.read()
    assert stored == [
        b"NATS/1.0\r\nNats-Schedule: @every 1s\r\nNats-Request-Info: {}\r\n\r\n",
        b"NATS/1.0\r\nA: 1\r\n\r\n",
    ]
