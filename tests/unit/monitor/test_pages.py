"""/varz, /connz, /routez and /subsz of a real server with real connections."""

from __future__ import annotations

import asyncio
import re
from types import SimpleNamespace
from typing import Any

import pytest

from jetcluster.clock import SystemClock
from jetcluster.monitor.node_source import NodeSource
from jetcluster.monitor.source import QueryError
from jetcluster.server.server import Server
from tests.unit.monitor import twins

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?Z")


class Wire:
    """A client by hand."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def open(cls, server: Server, name: str, *lines: bytes) -> Wire:
        wire = cls(*await asyncio.open_connection("127.0.0.1", server.port))
        await wire.send(
            b'CONNECT {"verbose":false,"name":"%b","lang":"test","version":"1","user":"%b"}' % ((name.encode(),) * 2),
            *lines,
        )
        return wire

    async def send(self, *lines: bytes) -> None:
        self.writer.write(b"".join(line + b"\r\n" for line in (*lines, b"PING")))
        while (await self.reader.readline()) != b"PONG\r\n":
            pass

    async def close(self) -> None:
        self.writer.close()
        await self.writer.wait_closed()


@pytest.fixture
def source(server: Server) -> NodeSource:
    return NodeSource(twins.node(server, SystemClock()))


async def test_varz_has_the_types_that_exporters_decode(server: Server, source: NodeSource) -> None:
    wire = await Wire.open(server, "a", b"SUB foo 1", b"PUB foo 2\r\nhi")
    source.count_request("/varz")
    found = source.page("varz", {})
    for key in ("server_id", "server_name", "version", "go", "host", "uptime", "system_account", "http_base_path"):
        assert isinstance(found[key], str), key
    for key in (
        "proto", "port", "max_connections", "ping_interval", "ping_max", "http_port", "https_port", "max_control_line",
        "max_payload", "max_pending", "write_deadline", "mem", "cores", "gomaxprocs", "connections",
        "total_connections", "routes", "remotes", "leafnodes", "in_msgs", "out_msgs", "in_bytes", "out_bytes",
        "slow_consumers", "stale_connections", "subscriptions",
    ):  # fmt: skip
        assert isinstance(found[key], int), key
    assert isinstance(found["cpu"], float)
    assert all(TIME.fullmatch(found[key]) for key in ("start", "now", "config_load_time"))
    assert found["ping_interval"] == 120 * 10**9
    assert (found["connections"], found["in_msgs"], found["out_bytes"], found["subscriptions"]) == (1, 1, 2, 1)
    assert found["http_req_stats"] == {"/varz": 1}
    assert found["mem"] > 1_000_000
    assert found["jetstream"] == found["cluster"] == {}
    await wire.close()


async def test_connz(server: Server, source: NodeSource) -> None:
    first = await Wire.open(server, "a", b"SUB foo q 1", b"SUB bar.* 2", b"UNSUB 2 5", b"PUB foo 2\r\nhi")
    second = await Wire.open(server, "b")
    found = source.page("connz", {})
    assert (found["num_connections"], found["total"], found["offset"], found["limit"]) == (2, 2, 0, 1024)
    one = found["connections"][0]
    assert one["name"] == "a"
    assert (one["kind"], one["type"], one["lang"], one["version"], one["ip"]) == (
        "Client",
        "nats",
        "test",
        "1",
        "127.0.0.1",
    )
    assert (one["in_msgs"], one["out_msgs"], one["in_bytes"], one["subscriptions"]) == (1, 1, 2, 2)
    assert "authorized_user" not in one
    assert "subscriptions_list" not in one
    assert TIME.fullmatch(one["start"])
    detail = source.page("connz", {"subs": "detail", "auth": "1", "cid": str(one["cid"])})
    assert detail["limit"] == 1
    one = detail["connections"][0]
    assert one["account"] == "$G"
    by_subject = {entry["subject"]: entry for entry in one["subscriptions_list_detail"]}
    assert by_subject["foo"] == {
        "subject": "foo", "qgroup": "q", "sid": "1", "msgs": 1, "cid": one["cid"],
    }  # fmt: skip
    assert by_subject["bar.*"]["max"] == 5
    listed = source.page("connz", {"subs": "1"})["connections"][0]["subscriptions_list"]
    assert sorted(listed) == ["bar.*", "foo"]
    await first.close()
    await second.close()


async def test_connz_sorts_pages_and_shows_the_closed(server: Server, source: NodeSource) -> None:
    quiet = await Wire.open(server, "quiet")
    busy = await Wire.open(server, "busy", b"PUB x 1\r\na", b"PUB x 1\r\na", b"SUB y 1")
    gone = await Wire.open(server, "gone")
    await gone.close()
    while len(server.clients) > 2:
        await asyncio.sleep(0.005)

    def names(**query: str) -> list[str]:
        return [connection["name"] for connection in source.page("connz", query)["connections"]]

    assert names(sort="msgs_from") == ["busy", "quiet"]
    assert names(sort="subs") == ["busy", "quiet"]
    assert names(sort="cid") == ["quiet", "busy"]
    assert names(limit="1", offset="1") == ["busy"]
    assert names(state="closed") == ["gone"]
    assert names(state="all", sort="start") == ["quiet", "busy", "gone"]
    for sort in (
        "cid",
        "start",
        "subs",
        "pending",
        "msgs_to",
        "msgs_from",
        "bytes_to",
        "bytes_from",
        "last",
        "idle",
        "uptime",
        "rtt",
    ):
        assert sorted(names(state="all", sort=sort)) == ["busy", "gone", "quiet"], sort
    assert names(state="closed", sort="reason") == names(state="closed", sort="stop") == ["gone"]
    assert names(sort="uptime") == ["busy", "quiet"], "the youngest first"
    assert names(mqtt_client="x") == []
    for filtered in ({"cid": "999"}, {"user": "nobody"}, {"filter_subject": "z", "acc": "$G"}, {"mqtt_client": "x"}):
        page = source.page("connz", filtered)
        assert (page["num_connections"], page["total"]) == (0, 2), "the total is of all in this state"
    assert source.page("connz", {"acc": "nobody"})["total"] == 0
    closed = source.page("connz", {"state": "closed"})["connections"][0]
    assert closed["reason"] == "Client Closed"
    assert TIME.fullmatch(closed["stop"])
    await quiet.close()
    await busy.close()


@pytest.mark.parametrize(
    ("page", "query", "text"),
    [
        ("connz", {"limit": "abc"}, "Error decoding int for 'limit': strconv.Atoi: parsing \"abc\": invalid syntax"),
        ("connz", {"subs": "x"}, "Error decoding boolean for 'subs': strconv.ParseBool: parsing \"x\": invalid syntax"),
        ("connz", {"sort": "foo"}, "invalid sorting option: foo"),
        ("connz", {"state": "foo"}, "Error decoding state for foo"),
        ("connz", {"sort": "stop"}, "sort by stop only valid on closed connections"),
        ("connz", {"cid": "-1"}, "Error decoding uint64 for 'cid': strconv.ParseUint: parsing \"-1\": invalid syntax"),
        ("connz", {"state": "1"}, "Error decoding state for 1"),
        ("connz", {"filter_subject": "a"}, "filter by subject only valid with account filtering"),
        ("subsz", {"test": "a..b"}, "invalid test subject, must be valid publish subject: a..b"),
        ("subsz", {"limit": "x"}, "Error decoding int for 'limit': strconv.Atoi: parsing \"x\": invalid syntax"),
    ],
)  # fmt: skip
async def test_senseless_parameters(source: NodeSource, page: str, query: dict[str, str], text: str) -> None:
    with pytest.raises(QueryError) as caught:
        source.page(page, query)
    assert str(caught.value) == text


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


async def test_routez(server: Server) -> None:
    clock = SystemClock()
    stats = SimpleNamespace(
        rid=3, did_solicit=True, configured=True, ip="127.0.0.1", port=6222, started=clock.monotonic() - 61,
        last_activity=clock.monotonic() - 1, rtt=0.00079, in_msgs=1, out_msgs=2, in_bytes=3, out_bytes=4,
    )  # fmt: skip
    link: Any = twins.LinkTwin("BBBBBBBB", "n2", stats)
    node = twins.node(server, clock, twins.engine(clock))
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
