"""/accountz: accounts, and what they share."""

from __future__ import annotations

from typing import Any

import pytest

from jetcluster.config.account_options import (
    AccountOptions,
    ExportOptions,
    ImportOptions,
    LatencyOptions,
    MappingDestination,
    MappingOptions,
)
from jetcluster.monitor.pages import NodeSource
from jetcluster.monitor.source import QueryError
from jetcluster.server.server import Server


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
