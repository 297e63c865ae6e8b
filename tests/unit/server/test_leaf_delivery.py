"""Deliveries of messages that arrived on a leaf link, and those that must not happen."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from jetcluster.config.account_options import ExportOptions, ImportOptions
from jetcluster.protocol.interest import ELSEWHERE, FORWARDED
from jetcluster.server.accounts.leaf_delivery import deliver_from_leaf, deliver_mapped
from jetcluster.server.accounts.subscription import ORIGIN, is_marked, passes, take_origin
from testkit.server_rig import FakeLeaf, FakePeer, ServerRig
from tests.unit.server.sharing import Nodes, account, reply_of


def linked(spoke: bool) -> tuple[ServerRig, FakeLeaf, FakePeer]:
    """A node with a link on which something comes, and another node that wants it."""
    rig, link, node = ServerRig(), FakeLeaf(spoke), FakePeer("n2")
    rig.router.peers.add_leaf(link)
    rig.router.peers.set_leaf_interest(link, b"s", None, 1)
    rig.router.peers.set_interest(node, b"s", None, 1)
    return rig, link, node


def test_at_the_hub_s_end_it_goes_to_other_nodes_with_a_word_of_where_it_has_been() -> None:
    rig, link, node = linked(spoke=False)
    client = rig.client(b"SUB s 1")
    deliver_from_leaf(rig.router, link, b"s", b"s", b"", [], b"", b"x")
    assert client.read() == b"MSG s 1 1\r\nx\r\n"
    assert node.sent == [("$G", b"s", b"", [ORIGIN + b"L"], b"", b"x")]
    assert not link.sent, "it came from there"


def test_at_the_spoke_s_end_other_nodes_have_their_own_links() -> None:
    rig, link, node = linked(spoke=True)
    rig.router.peers.set_interest(node, b"s", b"q", 1)
    deliver_from_leaf(rig.router, link, b"s", b"s", b"", [b"q"], b"", b"x")
    assert node.sent == [("$G", b"s", b"", [FORWARDED + b"q"], b"", b"x")], "for a queue without a member here"


def test_a_read_of_the_link_is_answered_here_then_by_the_nearest_node() -> None:
    subject = b"$JS.API.DIRECT.GET.S"
    rig, link, near = linked(spoke=False)
    far = FakePeer("n3")
    far.distance = ELSEWHERE
    for node in (near, far):
        rig.router.peers.set_interest(node, subject, b"_sys_", 1)
    got: list[bytes] = []
    responder = rig.router.subscribe(subject, lambda s, r, h, p, o: got.append(p), b"_sys_")
    for _ in range(30):
        deliver_from_leaf(rig.router, link, subject, subject, b"r", [b"_sys_"], b"", b"x")
    assert (len(got), len(near.sent), len(far.sent)) == (30, 0, 0)
    rig.router.unsubscribe(responder)
    for _ in range(30):
        deliver_from_leaf(rig.router, link, subject, subject, b"r", [b"_sys_"], b"", b"x")
    assert (len(got), len(near.sent), len(far.sent)) == (30, 30, 0)


def test_of_several_links_the_hub_s_ends_get_it_but_not_those_of_the_cluster_that_has_it() -> None:
    rig, link, _ = linked(spoke=False)
    same, other = FakeLeaf(False, "same"), FakeLeaf(False, "other")
    other.remote_cluster = b"M"
    for one in (same, other):
        rig.router.peers.add_leaf(one)
        rig.router.peers.set_leaf_interest(one, b"s", None, 1)
    deliver_from_leaf(rig.router, link, b"s", b"shown", b"", [], b"", b"x")
    assert not same.sent and not same.sent_many
    assert [target for _, target, _, _ in other.sent_many] == [b"s"], "routed by one subject, shown with another"


def test_a_reserved_subject_goes_nowhere() -> None:
    rig, link, _ = linked(spoke=False)
    client = rig.client()
    rig.router.subscribe(b"$NRG.>", lambda *_: client.connection.close("it was taken"), local_only=True)
    deliver_from_leaf(rig.router, link, b"$NRG.x", b"$NRG.x", b"", [], b"", b"x")
    assert not client.closed


def test_what_is_mapped_does_not_go_back_to_the_link_it_came_by() -> None:
    rig, link, node = linked(spoke=False)
    route = rig.router.route_of(b"s")
    deliver_mapped(rig.router, route, b"s", b"", b"", b"x", link)
    assert not link.sent and len(node.sent) == 1
    assert deliver_mapped(rig.router, route, b"s", b"", b"", b"x", rig.client().connection) == 2
    assert len(link.sent) == 1 and len(node.sent) == 2


# Messages forwarded over a leaf link, and the mark of those that arrived on one.


def test_what_is_sent_on_a_link() -> None:
    hub: Any = SimpleNamespace(spoke=False, remote_cluster=b"X")
    same: Any = SimpleNamespace(spoke=False, remote_cluster=b"X")
    other: Any = SimpleNamespace(spoke=False, remote_cluster=b"Y")
    spoke: Any = SimpleNamespace(spoke=True, remote_cluster=b"X")
    up: Any = SimpleNamespace(spoke=True, remote_cluster=b"Z")
    node: Any = SimpleNamespace()
    leaves = [hub, same, other, spoke, up]
    told = {
        name: [link for link in leaves if passes(source, link, leaves)]
        for name, source in {"clients": None, "hub": hub, "spoke": spoke, "node": node}.items()
    }
    assert told["clients"] == leaves
    assert told["hub"] == [other, spoke, up], "not to the cluster that has it already"
    assert told["spoke"] == [hub, same, other], "no node of a leaf is a way between two hubs"
    assert told["node"] == [hub, same, other], "each node of a leaf has its own link"


def test_the_origin_of_a_message_goes_before_its_queues() -> None:
    assert take_origin([ORIGIN + b"X", b"q"]) == (b"X", [b"q"])
    assert take_origin([b"q", ORIGIN + b"X"]) == (b"", [b"q", ORIGIN + b"X"])
    assert take_origin([]) == (b"", [])
    assert is_marked(ORIGIN + b"X") and is_marked(FORWARDED) and not is_marked(b"q")


# Imports and mappings of an account that leaf links belong to: the other end gets their subjects, and is served.


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
    for source, subject, queue, count in nodes.rigs[0].server.account("B").peers.add_leaf(leaf):
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
    router = nodes.rigs[0].server.account("B")
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
    router = nodes.rigs[0].server.account("B")
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
    router = nodes.rigs[0].server.account("B")
    router.peers.set_leaf_interest(leaf, b">", None, 1)
    member = nodes.client("B", b"SUB bar q 1")
    deliver_from_leaf(router, leaf, b"foo", b"foo", b"", [], b"", b"hi")
    assert member.read() == b"MSG bar 1 2\r\nhi\r\n"
    assert leaf.sent == []
