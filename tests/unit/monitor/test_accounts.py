"""/accountz, /accstatz, /raftz, /gatewayz and /debug/vars."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from jetcluster.config.account_options import AccountOptions
from jetcluster.config.sharing import (
    ExportOptions,
    ImportOptions,
    LatencyOptions,
    MappingDestination,
    MappingOptions,
)
from jetcluster.monitor.expvarz import expvarz
from jetcluster.monitor.node_source import NodeSource
from jetcluster.monitor.source import QueryError
from jetcluster.raft.api import Role
from jetcluster.server.server import Server
from tests.twins.time import ManualTime
from tests.unit.monitor import twins
from tests.unit.monitor.test_pages import Wire


@pytest.fixture
def node(server: Server) -> Any:
    clock = ManualTime()
    return twins.node(server, clock, twins.engine(clock))


async def test_accountz(server: Server, node: Any) -> None:
    for name in ("$G", "$SYS", "APP"):
        server.account(name)
    source = NodeSource(node)
    assert source.page("accountz", {})["accounts"] == ["$G", "$SYS", "APP"]
    detail = source.page("accountz", {"acc": "$SYS"})["account_detail"]
    assert (detail["is_system"], detail["jetstream_enabled"]) == (True, False)
    assert [entry["to"] for entry in detail["imports"]] == ["$SYS.REQ.USER.INFO"]
    assert "$SYS.DEBUG.SUBSCRIBERS" in {entry["subject"] for entry in detail["exports"]}
    detail = source.page("accountz", {"acc": "APP"})["account_detail"]
    assert {entry["to"] for entry in detail["imports"]} == {
        "$SYS.REQ.ACCOUNT.PING.CONNZ", "$SYS.REQ.SERVER.PING.CONNZ", "$SYS.REQ.ACCOUNT.PING.STATZ",
        "$SYS.REQ.USER.INFO",
    }  # fmt: skip
    with pytest.raises(QueryError, match="Account nobody does not exist"):
        source.page("accountz", {"acc": "nobody"})
    assert "nobody" not in source.page("accountz", {})["accounts"]


async def test_accountz_shows_what_is_shared(server: Server, node: Any) -> None:
    """Names and values are those of nats-server 2.15.2 with the same configuration."""
    exporter, importer = AccountOptions("A"), AccountOptions("B")
    exporter.exports = [
        ExportOptions("stream", "pub.>"),
        ExportOptions("service", "one.*", ["B"], latency=LatencyOptions("lat", 50)),
    ]
    exporter.mappings = [MappingOptions("w.*", [MappingDestination("x.$1", 30), MappingDestination("y", 20, "C")])]
    importer.imports = [
        ImportOptions("stream", "A", "pub.>", "imp.pub.>", prefix="imp"),
        ImportOptions("service", "A", "one.x", "ask", share=True),
    ]
    node.options.accounts = {"A": exporter, "B": importer}
    server.share(node.options.accounts, [], "$SYS")
    source = NodeSource(node)
    detail = source.page("accountz", {"acc": "A"})["account_detail"]
    assert detail["exports"] == [
        {"subject": "pub.>", "type": "stream"},
        {
            "subject": "one.*",
            "type": "service",
            "response_type": "Singleton",
            "service_latency": {"sampling": 50, "results": "lat"},
            "approved_accounts": ["B"],
        },
    ]
    assert detail["mappings"] == {
        "w.*": [
            {"subject": "x.$1", "weight": 30},
            {"subject": "w.$1", "weight": 100},
            {"subject": "y", "weight": 20, "cluster": "C"},
            {"subject": "w.$1", "weight": 100, "cluster": "C"},
        ]
    }
    of_importer = source.page("accountz", {"acc": "B"})["account_detail"]["imports"]
    flags = {"invalid": False, "tracking": False}
    assert of_importer[:2] == [
        {"subject": "pub.>", "account": "A", "local_subject": "imp.pub.>", "type": "stream", "share": False, **flags},
        {
            "subject": "one.x",
            "account": "A",
            "to": "ask",
            "local_subject": "ask",
            "type": "service",
            "share": True,
            "latency": {"sampling": 50, "results": "lat"},
            **flags,
        },
    ]


async def test_accstatz_counts_open_and_closed_connections(server: Server, node: Any) -> None:
    source = NodeSource(node)
    first = await Wire.open(server, "a", b"PUB x 3\r\nabc", b"SUB y 1")
    (stat,) = source.page("accstatz", {})["account_statz"]
    assert (stat["acc"], stat["conns"], stat["received"]["bytes"], stat["num_subscriptions"]) == ("$G", 1, 3, 1)
    slow = server.clients.get(1)
    assert slow is not None
    slow.abort("Slow Consumer (Pending Bytes)")
    await first.close()
    assert source.page("accstatz", {})["account_statz"] == []
    (stat,) = source.page("accstatz", {"unused": "1", "acc": "$G"})["account_statz"]
    assert (stat["conns"], stat["received"]["bytes"], stat["slow_consumers"]) == (0, 3, 1)


async def test_accstatz_tells_routes_from_clients(server: Server, node: Any) -> None:
    wire = await Wire.open(server, "a", b"PUB x 3\r\nabc", b"SUB y 1")
    traffic = node.jetstream.mesh.traffic
    traffic.sent("$G", 10)
    traffic.sent_many("$G", [(b"a", b"", b"", b"12345"), (b"a", b"", b"NATS", b"1")])
    traffic.received("$G", 4, 40)
    traffic.received("OTHER", 9, 90)
    (stat,) = NodeSource(node).page("accstatz", {})["account_statz"]
    none = {"msgs": 0, "bytes": 0}
    of_routes = {"msgs": 3, "bytes": 20}
    assert stat["sent"] == {**of_routes, "gateways": none, "routes": of_routes, "leafs": none}
    received = {"msgs": 5, "bytes": 43, "gateways": none, "routes": {"msgs": 4, "bytes": 40}, "leafs": none}
    assert stat["received"] == received
    await wire.close()


async def test_varz_shows_what_waits_for_the_disk_and_which_behaviours_there_are(node: Any) -> None:
    waits = node.jetstream.disk_waits
    waits.came, waits.begun, waits.waits, waits.wait_ns, waits.max_wait_ns = 7, 5, 3, 900, 500
    varz = NodeSource(node).page("varz", {})
    assert varz["disk_io_wait_stats"] == {"waiters": 2, "waits": 3, "wait_time": 900, "max_wait_time": 500}
    assert varz["feature_flags"]["js_ack_fc_v2"] is False
    meta = varz["jetstream"]["meta"]
    assert (meta["pending_requests"], meta["pending_infos"]) == (3, 2)
    assert varz["jetstream"]["limits"]["default_max_consumers"] == -1, "as nats-server says that there is no limit"
    node.options.jetstream.default_max_consumers = 50
    assert NodeSource(node).page("jsz", {})["limits"]["default_max_consumers"] == 50


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
    assert group["ipq_proposal_len"] == 0
    assert source.page("raftz", {"acc": "$G", "group": name}) == source.page("raftz", {"acc": "$G"})
    assert source.page("raftz", {"acc": "$G", "group": "other"}) == source.page("raftz", {"acc": "nobody"}) == {}


async def test_gatewayz(node: Any) -> None:
    found = NodeSource(node).page("gatewayz", {})
    assert (found["outbound_gateways"], found["inbound_gateways"]) == ({}, {})
    with pytest.raises(QueryError):
        NodeSource(node).page("gatewayz", {"accs": "x"})


def test_expvarz_keeps_the_command_line_to_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["serve", "--pass", "hunter2"])
    found = expvarz()
    assert found["memstats"]["Sys"] > 1_000_000
    assert "hunter2" not in str(found)
