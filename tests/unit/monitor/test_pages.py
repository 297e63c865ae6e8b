"""The short pages: /leafz (and what /varz says of leaf links), /debug/vars, /gatewayz, /routez, /raftz."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from jetcluster.clock import SystemClock
from jetcluster.config.options import LeafOptions, LeafRemoteOptions
from jetcluster.health.usage import ProcessUsage
from jetcluster.monitor.pages import NodeSource, expvarz
from jetcluster.monitor.source import QueryError
from jetcluster.raft.api import Role
from jetcluster.server.server import Server
from tests.unit.monitor import fake_node


class Link:
    """`LeafLink`, as the router and the monitor see it."""

    def __init__(self, cid: int, account: str) -> None:
        self.cid, self.account = cid, account
        self.peer_id, self.remote_name, self.remote_cluster = "NX", "edge", b"edge"
        self.spoke, self.ip, self.port, self.rtt, self.pending, self.wanted = False, "127.0.0.1", 5000, 0.001, 0, 1
        self.in_msgs, self.out_msgs, self.in_bytes, self.out_bytes = 1, 2, 3, 4


async def test_links_are_listed_with_what_they_want(server: Server) -> None:
    clock = SystemClock()
    node = fake_node.node(server, clock, fake_node.engine(clock))
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


def test_expvarz_keeps_the_command_line_to_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["serve", "--pass", "hunter2"])
    found = expvarz(ProcessUsage())
    assert found["memstats"]["Sys"] > 1_000_000
    assert "hunter2" not in str(found)


async def test_gatewayz(node: Any) -> None:
    found = NodeSource(node).page("gatewayz", {})
    assert (found["outbound_gateways"], found["inbound_gateways"]) == ({}, {})
    with pytest.raises(QueryError):
        NodeSource(node).page("gatewayz", {"accs": "x"})


async def test_routez(server: Server) -> None:
    clock = SystemClock()
    stats = SimpleNamespace(
        rid=3, did_solicit=True, configured=True, ip="127.0.0.1", port=6222, started=clock.monotonic() - 61,
        last_activity=clock.monotonic() - 1, rtt=0.00079, in_msgs=1, out_msgs=2, in_bytes=3, out_bytes=4,
    )  # fmt: skip
    link: Any = fake_node.FakeLink("BBBBBBBB", "n2", stats)
    node = fake_node.node(server, clock, fake_node.engine(clock))
    node.jetstream.mesh.links = {"BBBBBBBB": link}
    server.accounts["$G"].peers.set_interest(link, b"foo", b"q", 2)
    found = NodeSource(node).page("routez", {"subs": "1"})
    assert found["num_routes"] == 1
    route = found["routes"][0]
    assert (route["rid"], route["remote_id"], route["remote_name"]) == (3, "BBBBBBBB", "n2")
    assert (route["did_solicit"], route["is_configured"], route["pending_size"]) == (True, True, 5)
    assert (route["uptime"], route["rtt"], route["subscriptions"]) == ("1m1s", "790µs", 1)
    assert route["subscriptions_list"] == ["foo"]
    detailed = NodeSource(node).page("routez", {"subs": "detail"})["routes"][0]
    assert list(detailed)[-3:] == ["subscriptions", "subscriptions_list_detail", "compression"]
    assert detailed["subscriptions_list_detail"] == [
        {"subject": "foo", "qgroup": "q", "sid": "R $G foo q", "msgs": 0, "cid": 3},
    ]
    varz = NodeSource(node).page("varz", {})
    assert (varz["routes"], varz["in_msgs"], varz["in_client_msgs"]) == (1, 1, 0)
    assert varz["cluster"]["urls"] == ["127.0.0.1:6222"]
    assert "secret" not in str(varz)


async def test_raftz(node: Any) -> None:
    source = NodeSource(node)
    meta = source.page("raftz", {})["$SYS"]["_meta_"]
    assert (meta["id"], meta["state"], meta["size"], meta["quorum_needed"]) == ("AAAAAAAA", "LEADER", 3, 2)
    assert meta["peers"]["BBBBBBBB"]["last_seen"] == "5s"
    ((name, group),) = source.page("raftz", {"acc": "$G"})["$G"].items()
    assert name.startswith("S-R3F-")
    assert (group["committed"], group["wal"]["messages"]) == (10, 10)
    assert {key: value for key, value in group.items() if key.startswith("ipq_")} == {
        "ipq_proposal_len": 0, "ipq_entry_len": 0, "ipq_resp_len": 0, "ipq_apply_len": 0
    }  # fmt: skip
    raft = node.jetstream.jetstream.replicas[7].group
    raft.last_index, raft.commit_index, raft.applied_index = 18, 15, 13
    (group,) = source.page("raftz", {"acc": "$G"})["$G"].values()
    assert [group[f"ipq_{kind}_len"] for kind in ("proposal", "entry", "apply")] == [3, 8, 2]
    raft.role = Role.FOLLOWER
    (group,) = source.page("raftz", {"acc": "$G"})["$G"].values()
    assert group["ipq_proposal_len"] == 0 and not group.keys() & {"overrun", "overrun_count"}
    raft.overrun, raft.overrun_count = True, 3
    (group,) = source.page("raftz", {"acc": "$G"})["$G"].values()
    assert (group["overrun"], group["overrun_count"]) == (True, 3)
    assert source.page("raftz", {"acc": "$G", "group": name}) == source.page("raftz", {"acc": "$G"})
    assert source.page("raftz", {"acc": "$G", "group": "other"}) == source.page("raftz", {"acc": "nobody"}) == {}
