"""Imports and mappings of an account that leaf links belong to: the other end is told of them, and served."""

from __future__ import annotations

import pytest

from jetcluster.config.account_options import ExportOptions, ImportOptions
from jetcluster.server.accounts.leaf_delivery import deliver_from_leaf
from testkit.server_rig import FakeLeaf
from tests.unit.server.sharing import Nodes, account, reply_of

A = account("A", ExportOptions("service", "req.>"), ExportOptions("stream", "pub.>"))
B = account(
    "B",
    ImportOptions("service", "A", "req.x", "ask"),
    ImportOptions("stream", "A", "pub.>", "imp.pub.>"),
    foo="bar",
)


@pytest.fixture(params=[True, False], ids=["spoke's end", "hub's end"])
def leaf(request: pytest.FixtureRequest) -> FakeLeaf:
    return FakeLeaf(request.param)


def join(nodes: Nodes, leaf: FakeLeaf) -> None:
    for source, subject, queue, count in nodes.benches[0].server.account("B").peers.add_leaf(leaf):
        leaf.interest_changed(source, subject, queue, count)


def test_imports_and_mappings_are_offered(leaf: FakeLeaf) -> None:
    nodes = Nodes(1, A, B)
    join(nodes, leaf)
    assert leaf.told == {b"ask": 1, b"foo": 1}
    nodes.share(A, account("B", ImportOptions("service", "A", "req.x", "please")))
    assert leaf.told == {b"please": 1}


def test_a_request_from_the_link(leaf: FakeLeaf) -> None:
    nodes = Nodes(1, A, B)
    join(nodes, leaf)
    router = nodes.benches[0].server.account("B")
    router.peers.set_leaf_interest(leaf, b"in.*", None, 1)
    server = nodes.client("A", b"SUB req.> 1")
    deliver_from_leaf(router, leaf, b"ask", b"ask", b"in.1", [], b"", b"hi")
    request = server.read()
    assert request.endswith(b"hi\r\n")
    server.send(b"PUB %b 3" % reply_of(request), b"yes")
    assert leaf.sent == [("B", b"in.1", b"", [], b"", b"yes")]


def test_the_other_end_subscribes_to_an_import(leaf: FakeLeaf) -> None:
    nodes = Nodes(2, A, B)
    join(nodes, leaf)
    router = nodes.benches[0].server.account("B")
    router.peers.set_leaf_interest(leaf, b"imp.pub.x", None, 1)
    router.peers.set_leaf_interest(leaf, b"imp.pub.q", b"workers", 2)
    writer = nodes.client("A")
    writer.send(b"PUB pub.x 2", b"hi", b"PUB pub.q 4", b"work")
    assert leaf.sent == [("B", b"imp.pub.x", b"", [], b"", b"hi"), ("B", b"imp.pub.q", b"", [b"workers"], b"", b"work")]
    nodes.client("A", at=1).send(b"PUB pub.x 5", b"there")
    expected = 2 if leaf.spoke else 3  # at the spoke's end the other node has a link of its own
    assert len(leaf.sent) == expected
    router.peers.drop_leaf(leaf)
    writer.send(b"PUB pub.x 2", b"no")
    assert len(leaf.sent) == expected


def test_messages_of_the_link_are_mapped_and_do_not_come_back(leaf: FakeLeaf) -> None:
    nodes = Nodes(1, A, B)
    join(nodes, leaf)
    router = nodes.benches[0].server.account("B")
    router.peers.set_leaf_interest(leaf, b">", None, 1)
    member = nodes.client("B", b"SUB bar q 1")
    deliver_from_leaf(router, leaf, b"foo", b"foo", b"", [], b"", b"hi")
    assert member.read() == b"MSG bar 1 2\r\nhi\r\n"
    assert leaf.sent == []
