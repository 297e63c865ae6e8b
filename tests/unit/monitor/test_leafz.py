"""/leafz, and what /varz says of leaf links."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from jetcluster.clock import SystemClock
from jetcluster.config.options import LeafOptions, LeafRemoteOptions
from jetcluster.monitor.node_source import NodeSource
from jetcluster.server.server import Server

from . import twins


class Link:
    """`LeafLink`, as the router and the monitor see it."""

    def __init__(self, cid: int, account: str) -> None:
        self.cid, self.account = cid, account
        self.peer_id, self.remote_name, self.remote_cluster = "NX", "edge", b"edge"
        self.spoke, self.ip, self.port, self.rtt, self.pending, self.wanted = False, "127.0.0.1", 5000, 0.001, 0, 1
        self.in_msgs, self.out_msgs, self.in_bytes, self.out_bytes = 1, 2, 3, 4


async def test_links_are_listed_with_what_they_want(server: Server) -> None:
    clock = SystemClock()
    node = twins.node(server, clock, twins.engine(clock))
    source = NodeSource(node)
    assert source.page("leafz", {})["leafs"] == []
    assert source.page("varz", {})["leaf"] == {}
    link: Any = Link(9, "$G")
    node.leafnodes = SimpleNamespace(links=[Link(12, "A"), link], port=7422)
    remote = LeafRemoteOptions(urls=["nats://user:secret@hub:7422"])
    node.options.leafnodes = LeafOptions(port=-1, remotes=[remote])
    server.accounts["$G"].peers.set_leaf_interest(link, b"foo", None, 1)
    found = source.page("leafz", {"subs": "1", "acc": "$G"})
    assert (found["leafnodes"], len(source.page("leafz", {})["leafs"])) == (1, 2)
    leaf = found["leafs"][0]
    assert (leaf["id"], leaf["name"], leaf["account"], leaf["is_spoke"], leaf["rtt"]) == (9, "edge", "$G", False, "1ms")
    assert (leaf["in_msgs"], leaf["out_msgs"], leaf["in_bytes"], leaf["out_bytes"]) == (1, 2, 3, 4)
    assert (leaf["subscriptions"], leaf["subscriptions_list"]) == (1, ["foo"])
    varz = source.page("varz", {})
    assert (varz["leafnodes"], varz["leaf"]["port"], varz["in_msgs"]) == (2, 7422, 2)
    assert varz["leaf"]["remotes"] == [{"local_account": "$G", "urls": ["hub:7422"]}]
