"""Deliveries of messages that arrived on a leaf link, and those that must not happen."""

from __future__ import annotations

from jetcluster.protocol.interest import FORWARDED
from jetcluster.server.accounts.leaf_delivery import deliver_from_leaf, deliver_mapped
from jetcluster.server.accounts.subscription import ORIGIN
from testkit.server_rig import Bench, FakeLeaf, FakePeer


def site(spoke: bool) -> tuple[Bench, FakeLeaf, FakePeer]:
    """A node with a link on which something comes, and another node that wants it."""
    bench, link, node = Bench(), FakeLeaf(spoke), FakePeer("n2")
    bench.router.peers.add_leaf(link)
    bench.router.peers.set_leaf_interest(link, b"s", None, 1)
    bench.router.peers.set_interest(node, b"s", None, 1)
    return bench, link, node


def test_at_the_hub_s_end_it_goes_to_other_nodes_with_a_word_of_where_it_has_been() -> None:
    bench, link, node = site(spoke=False)
    client = bench.client(b"SUB s 1")
    deliver_from_leaf(bench.router, link, b"s", b"s", b"", [], b"", b"x")
    assert client.read() == b"MSG s 1 1\r\nx\r\n"
    assert node.sent == [("$G", b"s", b"", [ORIGIN + b"L"], b"", b"x")]
    assert not link.sent, "it came from there"


def test_at_the_spoke_s_end_other_nodes_have_their_own_links() -> None:
    bench, link, node = site(spoke=True)
    bench.router.peers.set_interest(node, b"s", b"q", 1)
    deliver_from_leaf(bench.router, link, b"s", b"s", b"", [b"q"], b"", b"x")
    assert node.sent == [("$G", b"s", b"", [FORWARDED + b"q"], b"", b"x")], "for a queue without a member here"


def test_of_several_links_the_hub_s_ends_get_it_but_not_those_of_the_cluster_that_has_it() -> None:
    bench, link, _ = site(spoke=False)
    same, other = FakeLeaf(False, "same"), FakeLeaf(False, "other")
    other.remote_cluster = b"M"
    for one in (same, other):
        bench.router.peers.add_leaf(one)
        bench.router.peers.set_leaf_interest(one, b"s", None, 1)
    deliver_from_leaf(bench.router, link, b"s", b"shown", b"", [], b"", b"x")
    assert not same.sent and not same.sent_many
    assert [target for _, target, _, _ in other.sent_many] == [b"s"], "routed by one subject, shown with another"


def test_a_reserved_subject_goes_nowhere() -> None:
    bench, link, _ = site(spoke=False)
    client = bench.client()
    bench.router.subscribe(b"$NRG.>", lambda *_: client.connection.close("it was taken"), local_only=True)
    deliver_from_leaf(bench.router, link, b"$NRG.x", b"$NRG.x", b"", [], b"", b"x")
    assert not client.closed


def test_what_is_mapped_does_not_go_back_to_the_link_it_came_by() -> None:
    bench, link, node = site(spoke=False)
    route = bench.router.route_of(b"s")
    deliver_mapped(bench.router, route, b"s", b"", b"", b"x", link)
    assert not link.sent and len(node.sent) == 1
    assert deliver_mapped(bench.router, route, b"s", b"", b"", b"x", bench.client().connection) == 2
    assert len(link.sent) == 1 and len(node.sent) == 2
