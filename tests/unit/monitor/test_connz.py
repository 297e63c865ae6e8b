"""/connz of a real server with real connections."""

from __future__ import annotations

import asyncio

from jetcluster.monitor.pages import NodeSource
from jetcluster.server.server import Server
from tests.unit.monitor.wire import TIME, Wire


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
