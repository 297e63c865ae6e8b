"""Counts of subscribers: over all nodes, and of the account that asks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from jetcluster.config.account_options import ExportOptions, ImportOptions
from jetcluster.config.options import Options
from jetcluster.monitor.system.subscriber_counts import MAX_OPEN_COUNTS, SubscriberCounts
from tests.unit.server.sharing import Nodes, account

ASK = "$SYS.DEBUG.SUBSCRIBERS"


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    system = account("$SYS", ExportOptions("service", ASK))
    made = Nodes(3, system, account("B", ImportOptions("service", "$SYS", ASK)))
    counts = [SubscriberCounts(SimpleNamespace(server=rig.server, options=Options())) for rig in made.rigs]  # type: ignore[arg-type]
    for one in counts:
        one.start()
    yield made
    for one in counts:
        one.stop()


def asked(nodes: Nodes, who: str, text: bytes, at: int = 0) -> bytes:
    client = nodes.client(who, b"SUB in 9", at=at)
    client.send(b"PUB %b in %d" % (ASK.encode(), len(text)), text)
    answer = client.read()
    client.connection.close("Client Closed")
    return answer.split(b"\r\n")[1] if answer else b""


def test_all_nodes_count(nodes: Nodes) -> None:
    for at in range(3):
        nodes.client("B", b"SUB a.b 1", b"SUB a.* 2", b"SUB a.b q 3", b"SUB c 4", at=at)
        nodes.client("C", b"SUB a.b 1", at=at)
    assert asked(nodes, "B", b"a.b") == b"9"
    assert asked(nodes, "B", b"a.b q", at=2) == b"3"
    assert asked(nodes, "B", b"a.>") == b"9"
    assert asked(nodes, "$SYS", b"a.b") == b"0"
    assert asked(nodes, "B", b"a..b") == b"0"


def test_an_account_gets_its_own_numbers_whatever_it_claims(nodes: Nodes) -> None:
    nodes.client("C", b"SUB a.b 1")
    client = nodes.client("B", b"SUB in 9")
    block = b'NATS/1.0\r\nNats-Request-Info: {"acc":"C"}\r\n\r\n'
    client.send(b"HPUB %b in %d %d" % (ASK.encode(), len(block), len(block) + 3), block + b"a.b")
    assert client.read() == b"MSG in 9 1\r\n0\r\n"


def test_a_node_that_does_not_answer_is_not_waited_for(nodes: Nodes) -> None:
    nodes.rigs[2].server.account("$SYS").subscribe(b"$SYS.REQ.ACCOUNT.NSUBS", lambda s, r, h, p, o: None)
    there = nodes.links[0, 2]
    there.send_msg = lambda *_: None  # type: ignore[method-assign]
    nodes.client("B", b"SUB a 1", at=1)
    client = nodes.client("B", b"SUB in 9")
    client.send(b"PUB %b in 1" % ASK.encode(), b"a")
    assert client.read() == b""
    nodes.advance(0.6)
    assert client.read() == b"MSG in 9 1\r\n1\r\n"


def test_questions_under_way_are_bounded(nodes: Nodes) -> None:
    for there in (1, 2):
        nodes.links[0, there].send_msg = lambda *_: None  # type: ignore[method-assign]
    client = nodes.client("B", b"SUB in 9")
    for _ in range(MAX_OPEN_COUNTS + 5):
        client.send(b"PUB %b in 1" % ASK.encode(), b"a")
    nodes.advance(0.6)
    assert client.read().count(b"MSG in") == MAX_OPEN_COUNTS


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b"x", b'{"acc":1,"subject":"a..b"}', b'{"acc":"B","subject":"a","queue":"%"}']
)
def test_bad_questions_of_nodes_are_dropped(nodes: Nodes, body: bytes) -> None:
    client = nodes.client("$SYS", b"SUB in 9")
    client.send(b"PUB $SYS.REQ.ACCOUNT.NSUBS in %d" % len(body), body + b"")
    assert client.read().replace(b"MSG in 9 1\r\n0\r\n", b"") == b""


def test_operators_ask_each_node(nodes: Nodes) -> None:
    nodes.client("B", b"SUB a 1", at=1)
    client = nodes.client("$SYS", b"SUB in 9")
    body = json.dumps({"acc": "B", "subject": "a"}).encode()
    client.send(b"PUB $SYS.REQ.ACCOUNT.NSUBS in %d" % len(body), body)
    assert sorted(client.read().split(b"\r\n")[1::2]) == [b"0", b"0", b"1"]
