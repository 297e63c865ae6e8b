"""Service imports: requests into another account and responses back, across nodes; what is waited for has an end."""

from __future__ import annotations

import json

import pytest

from jetcluster.config.account_options import ExportOptions, ImportOptions
from jetcluster.protocol.bus import Origin
from jetcluster.server.accounts import service_imports
from tests.unit.server.service_accounts import A, B, C
from tests.unit.server.sharing import Nodes, account, reply_of


@pytest.mark.parametrize(("asks", "serves", "hears"), [(0, 0, 0), (0, 1, 0), (0, 1, 2), (0, 0, 1)])
def test_requester_responder_and_inbox_on_any_nodes(asks: int, serves: int, hears: int) -> None:
    nodes = Nodes(3, A, B)
    server = nodes.client("A", b"SUB req.> 1", at=serves)
    inbox = nodes.client("B", b"SUB in 9", at=hears)
    nodes.client("B", at=asks).send(b"PUB ask in 2", b"hi")
    request = server.read()
    assert request.startswith(b"HMSG req.x 1 _R_.") and request.endswith(b'{"acc":"B"}\r\n\r\nhi\r\n')
    assert nodes.pending("A", asks) == 1
    server.send(b"PUB %b 3" % reply_of(request), b"yes")
    assert inbox.read() == b"MSG in 9 3\r\nyes\r\n"
    server.send(b"PUB %b 3" % reply_of(request), b"no!")
    assert inbox.read() == b""
    assert nodes.pending("A", asks) == 0


def test_through_two_accounts_and_nodes() -> None:
    nodes = Nodes(2, A, B, C)
    server = nodes.client("A", b"SUB req.> 1", at=1)
    asker = nodes.client("C", b"SUB in 9")
    asker.send(b"PUB far in 2", b"hi")
    request = server.read()
    assert b'Nats-Request-Info: {"acc":"C","svc":"B"}\r\n' in request
    server.send(b"PUB %b 3" % reply_of(request), b"yes")
    assert asker.read() == b"MSG in 9 3\r\nyes\r\n"
    assert (nodes.pending("A"), nodes.pending("B")) == (0, 0)


def test_nobody_serves() -> None:
    nodes = Nodes(2, A, B, C)
    asker = nodes.client("C", b"SUB in 9")
    answer = asker.ask(b"PUB far in 2", b"hi")
    assert b"NATS/1.0 503\r\nNats-Subject: far\r\n" in answer
    assert (nodes.pending("A"), nodes.pending("B")) == (0, 0)


def test_a_request_enters_the_other_account_once() -> None:
    """It does on the node where it was published; a copy that another node has of it is not asked again."""
    nodes = Nodes(2, A, B)
    server = nodes.client("A", b"SUB req.> 1", at=1)
    nodes.client("B", b"SUB ask 5", at=1)
    nodes.client("B").send(b"PUB ask in 2", b"hi")
    assert server.read().count(b"HMSG") == 1


def test_unanswered_requests_are_forgotten_in_time() -> None:
    nodes = Nodes(1, account("A", ExportOptions("service", "req.>", response_threshold=5.0)), B)
    nodes.client("A", b"SUB req.> 1")
    asker = nodes.client("B", b"SUB in.* 9")
    for number in range(3):
        asker.send(b"PUB ask in.%d 0" % number, b"")
    nodes.advance(4.9)
    assert nodes.pending("A") == 3
    nodes.advance(0.2)
    assert nodes.pending("A") == 0


def test_a_patient_service_does_not_keep_an_impatient_one_s_requests() -> None:
    patient = ExportOptions("service", "many", response_type="stream")
    nodes = Nodes(1, account("A", ExportOptions("service", "req.>", response_threshold=1.0), patient), B)
    nodes.client("A", b"SUB > 1")
    asker = nodes.client("B", b"SUB in.* 9")
    asker.send(b"PUB many in.1 0", b"")
    nodes.advance(1)
    asker.send(b"PUB ask in.2 0", b"", b"PUB ask in.3 0", b"")
    assert nodes.pending("A") == 3
    nodes.advance(1.1)
    assert nodes.pending("A") == 1
    nodes.advance(118)
    assert nodes.pending("A") == 0


def test_a_stream_of_responses_lives_as_long_as_it_flows() -> None:
    nodes = Nodes(1, account("A", ExportOptions("service", "many", response_type="stream", response_threshold=2.0)), B)
    server = nodes.client("A", b"SUB many 1")
    asker = nodes.client("B", b"SUB in 9")
    asker.send(b"PUB many in 0", b"")
    reply = reply_of(server.read())
    for _ in range(4):
        nodes.advance(1.5)
        server.send(b"PUB %b 1" % reply, b"x")
        assert asker.read().endswith(b"MSG in 9 1\r\nx\r\n")
    server.send(b"PUB %b 0" % reply, b"")
    assert asker.read() == b"MSG in 9 0\r\n\r\n"
    assert nodes.pending("A") == 0


def test_who_stops_listening_is_not_waited_for() -> None:
    nodes = Nodes(1, A, B)
    nodes.client("A", b"SUB req.> 1")
    asker = nodes.client("B", b"SUB in.* 9", b"SUB one 8")
    asker.send(b"PUB ask in.1 0", b"", b"PUB ask in.2 0", b"", b"PUB ask one 0", b"")
    assert nodes.pending("A") == 3
    asker.send(b"UNSUB 9")
    assert nodes.pending("A") == 1
    asker.connection.close("Client Closed")
    assert nodes.pending("A") == 0


def test_the_table_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_imports, "MAX_PENDING", 2)
    nodes = Nodes(1, A, B)
    server = nodes.client("A", b"SUB req.> 1")
    asker = nodes.client("B", b"SUB in.* 9")
    for number in range(3):
        asker.send(b"PUB ask in.%d 0" % number, b"")
    assert nodes.pending("A") == 2
    replies = [line.split()[3] for line in server.read().split(b"\r\n") if line.startswith(b"HMSG")]
    for reply in replies:
        server.send(b"PUB %b 0" % reply, b"")
    assert asker.read() == b"MSG in.1 9 0\r\n\r\nMSG in.2 9 0\r\n\r\n"


def test_a_circle_that_rules_did_not_see_ends() -> None:
    """Wildcards that meet in a third account: each export is entered once per message."""
    first = account("A", ExportOptions("service", "x.>"), ImportOptions("service", "B", "y.>", "x.y.>"))
    second = account("B", ExportOptions("service", "y.>"))
    nodes = Nodes(1, first, second)
    nodes.share(first, account("B", ExportOptions("service", "y.>"), ImportOptions("service", "A", "x.>", "y.x.>")))
    asker = nodes.client("A", b"SUB in 9")
    answer = asker.ask(b"PUB x.y.x.y.x.y.q in 0", b"")
    assert b"503" in answer
    assert (nodes.pending("A"), nodes.pending("B")) == (0, 0)


def test_sharing_tells_who_asks() -> None:
    shared = account("B", ImportOptions("service", "A", "req.x", "ask", share=True))
    nodes = Nodes(1, A, shared)
    server = nodes.client("A", b"SUB req.> 1")
    asker = nodes.client("B")
    asker.send(b"PUB ask 0", b"")
    header = server.read().split(b"Nats-Request-Info: ")[1].split(b"\r\n")[0]
    info = json.loads(header)
    assert (info["acc"], info["user"], info["server"], info["cluster"], info["kind"]) == ("B", "u", "n0", "C", "Client")


def test_a_forged_request_info_is_replaced() -> None:
    nodes = Nodes(1, A, B)
    server = nodes.client("A", b"SUB req.> 1")
    block = b'NATS/1.0\r\nNats-Request-Info: {"acc":"A"}\r\n\r\n'
    nodes.client("B").send(b"HPUB ask %d %d" % (len(block), len(block) + 1), block + b"x")
    request = server.read()
    assert request.count(b"Nats-Request-Info") == 1 and b'Nats-Request-Info: {"acc":"B"}' in request


def test_a_consumer_of_another_account_sees_the_requesters_interest() -> None:
    nodes = Nodes(2, A, B)
    server = nodes.client("A", b"SUB many 1")
    asker = nodes.client("B", b"SUB in 9")
    asker.send(b"PUB many in 0", b"")
    reply = reply_of(server.read())
    router = nodes.rigs[0].server.account("A")
    assert router.has_interest(reply) and router.backlog(reply) == 0
    messages = [(b"orders.1", b"$JS.ACK.S.C.1", b"", b"a"), (b"orders.2", b"$JS.ACK.S.C.2", b"", b"b")]
    assert router.deliver_many(reply, messages) == 1
    assert asker.read() == b"MSG orders.1 9 $JS.ACK.S.C.1 1\r\na\r\nMSG orders.2 9 $JS.ACK.S.C.2 1\r\nb\r\n"
    asker.send(b"UNSUB 9")
    assert not router.has_interest(reply)
    assert router.deliver_many(reply, messages) == 0


def test_deliveries_of_another_node_come_through() -> None:
    nodes = Nodes(2, A, B)
    server = nodes.client("A", b"SUB many 1", at=1)
    asker = nodes.client("B", b"SUB in 9")
    asker.send(b"PUB many in 0", b"")
    reply = reply_of(server.read())
    there = nodes.rigs[1].server.account("A")
    assert there.has_interest(reply)
    assert there.deliver_many(reply, [(b"orders.1", b"$JS.ACK.S.C.1", b"", b"a")]) == 1
    assert asker.read() == b"MSG orders.1 9 $JS.ACK.S.C.1 1\r\na\r\n"


def test_nothing_else_crosses() -> None:
    """An account that shares one subject shares no other: neither by wildcards, nor by reply subjects of others."""
    nodes = Nodes(1, A, B)
    server = nodes.client("A", b"SUB > 1")
    asker, other = nodes.client("B", b"SUB > 9"), nodes.client("D", b"SUB > 1")
    for subject in (b"req.x", b"req.y", b"many.x", b"_R_.a.b", b"$JS.API.INFO", b"$JS.ACK.S.C.1.1.1.1.0", b"ask.x"):
        asker.send(b"PUB %b 0" % subject, b"")
    assert server.read() == b""
    asker.read()
    asker.send(b"PUB ask in 0", b"")
    reply = reply_of(server.read())
    asker.read()
    other.send(b"PUB %b 0" % reply, b"")
    asker.send(b"PUB %b 0" % reply, b"")
    assert b"MSG in " not in asker.read()
    assert server.read() == b""
    assert other.read() == b"MSG %b 1 0\r\n\r\n" % reply


def test_a_router_knows_which_requests_it_imports() -> None:
    nodes = Nodes(1, A, B)
    router = nodes.rigs[0].server.account("B")
    router.subscribe(b">", lambda s, r, h, p, o: None)
    assert router.imports_service(b"ask") and not router.imports_service(b"req.x")


def test_who_hears_a_response_may_ask_again_at_once() -> None:
    """Mirrors do so: a message that a callback publishes is no part of the one that it hears."""
    nodes = Nodes(1, A, B)
    exporter, importer = (nodes.rigs[0].server.account(name) for name in "AB")
    exporter.subscribe(b"req.x", lambda s, r, h, p, o: exporter.publish(r, p))
    got: list[bytes] = []

    def hear(subject: bytes, reply: bytes, headers: bytes, payload: bytes, origin: Origin) -> None:
        got.append(payload)
        if len(payload) < 3:
            importer.publish(b"ask", payload + b"x", b"in.%d" % len(payload))

    importer.subscribe(b"in.*", hear)
    importer.publish(b"ask", b"x", b"in.0")
    assert got == [b"x", b"xx", b"xxx"]
    assert nodes.pending("A") == 0


def test_a_response_does_not_enter_its_own_import_again() -> None:
    nodes = Nodes(1, account("A", ExportOptions("service", ">")), account("B", ImportOptions("service", "A", ">")))
    server, other = nodes.client("A", b"SUB req 1"), nodes.client("A", b"SUB in 2")
    asker = nodes.client("B", b"SUB in 9")
    asker.send(b"PUB req in 0", b"")
    server.send(b"PUB %b 3" % reply_of(server.read()), b"yes")
    assert asker.read() == b"MSG in 9 3\r\nyes\r\n"
    assert other.read() == b""


def test_an_answer_that_schedules_says_that_it_comes_from_elsewhere() -> None:
    """The requester's reply subject may be one that a stream of its account stores."""
    nodes = Nodes(2, A, B)
    server = nodes.client("A", b"SUB many 1", at=1)
    router = nodes.rigs[0].server.account("B")
    stored: list[bytes] = []
    router.subscribe(b"in", lambda subject, reply, headers, payload, origin: stored.append(headers))
    nodes.client("B").send(b"PUB many in 0", b"")
    reply = reply_of(server.read())
    for block in (b"NATS/1.0\r\nNats-Schedule: @every 1s\r\n\r\n", b"NATS/1.0\r\nA: 1\r\n\r\n"):
        server.send(b"HPUB %b %d %d" % (reply, len(block), len(block) + 1), block + b"x")
    assert stored == [
        b"NATS/1.0\r\nNats-Schedule: @every 1s\r\nNats-Request-Info: {}\r\n\r\n",
        b"NATS/1.0\r\nA: 1\r\n\r\n",
    ]


def nodes() -> Nodes:
    return Nodes(1, account("A", ExportOptions("service", "req")), account("B", ImportOptions("service", "A", "req")))


def test_a_response_is_known_by_the_subject_that_was_made_for_it() -> None:
    cluster = nodes()
    service, requester = cluster.client("A", b"SUB req 1"), cluster.client("B", b"SUB in 1")
    requester.send(b"PUB req in 1", b"x")
    made = reply_of(service.read())
    sharing = cluster.rigs[0].server.sharing
    assert sharing is not None and not sharing.responses.awaited_in("B") and not sharing.responses.awaited_in("none")
    (response,) = sharing.responses.awaited_in("A").values()
    assert (response.subject, response.reply, response.importer.account) == (made, b"in", "B")
    service.send(b"PUB %b 3" % made, b"yes")
    assert requester.read() == b"MSG in 1 3\r\nyes\r\n"
    assert not sharing.responses.awaited_in("A"), "one response was awaited"


def test_the_exporting_account_asks_about_the_requester_in_its_own_account() -> None:
    cluster = nodes()
    exporter = cluster.rigs[0].server.account("A")
    service, requester = cluster.client("A", b"SUB req 1"), cluster.client("B", b"SUB in 1")
    assert exporter.requesters is None, "nobody has asked yet"
    requester.send(b"PUB req in 1", b"x")
    made = reply_of(service.read())
    assert exporter.has_interest(made) and exporter.backlog(made) == 0 == exporter.backlog_here(made)
    assert not exporter.has_interest(made + b"x") and exporter.backlog(made + b"x") == -1
    requester.send(b"UNSUB 1")
    assert not exporter.has_interest(made), "who has asked does not listen any more"
