"""/subsz of a real server with real connections."""

from __future__ import annotations

from jetcluster.monitor.pages import NodeSource
from jetcluster.server.server import Server
from tests.unit.monitor.wire import Wire


async def test_subsz(server: Server, source: NodeSource) -> None:
    wire = await Wire.open(server, "a", b"SUB foo 1", b"SUB foo.* q 2", b"SUB > 3", b"PUB foo 0\r\n", b"PUB foo 0\r\n")
    found = source.page("subsz", {"subs": "1"})
    assert (found["num_subscriptions"], found["total"], found["num_inserts"], found["num_removes"]) == (3, 3, 3, 0)
    assert [entry["subject"] for entry in found["subscriptions_list"]].count("foo.*") == 1
    assert found["num_matches"] == 2
    assert found["cache_hit_rate"] == 0.5
    assert (found["max_fanout"], found["avg_fanout"]) == (2, 2.0)
    tested = source.page("subsz", {"subs": "1", "test": "foo.x"})
    assert sorted(entry["subject"] for entry in tested["subscriptions_list"]) == [">", "foo.*"]
    paged = source.page("subsz", {"subs": "1", "limit": "1", "offset": "2"})
    assert (len(paged["subscriptions_list"]), paged["total"]) == (1, 3)
    assert source.page("subsz", {"acc": "nobody", "subs": "1"})["total"] == source.page("subsz", {})["total"] == 0
    await wire.close()
