from __future__ import annotations

import json
from typing import Any

import pytest

from jetcluster.api.request import Request
from jetcluster.api.streams import meta_limits
from jetcluster.errors import by_code
from jetcluster.meta.state import Assignment
from jetcluster.model.limits import AccountLimits
from tests.unit.api.fake_cluster import Client

CREATE = "io.nats.jetstream.api.v1.stream_create_response"


def refused(reply: dict[str, Any]) -> tuple[int, int]:
    assert set(reply["error"]) == {"code", "err_code", "description"}, "L1: nats.py takes exactly these"
    return reply["error"]["code"], reply["error"]["err_code"]


async def test_create_replies_with_the_stream_info(client: Client) -> None:
    reply = await client.create("S", subjects=["s.>"], num_replicas=3)
    assert list(reply) == ["type", "config", "created", "state", "cluster", "ts", "did_create"]
    assert (reply["type"], reply["did_create"]) == (CREATE, True)
    assert reply["config"]["metadata"] == {"_nats.level": "5", "_nats.req.level": "0", "_nats.ver": "2.15.3"}
    assert client.cluster.heard_of == [client.cluster.machine.applied_index], "its server knows of it, too"
    assert reply["config"]["num_replicas"] == 3
    assigned = client.cluster.machine.assignment("A", "S")
    assert assigned is not None
    assert sorted(assigned.peers) == ["n1", "n2", "n3"]
    # Answered only after the leader said that it can be published to.
    assert client.cluster.asked == [("S", "ready", {"revision": assigned.revision})]


async def test_create_again(client: Client) -> None:
    await client.create("S")
    again = await client.create("S", subjects=["S"], max_msgs=-1, duplicate_window=120_000_000_000)
    assert again["config"]["name"] == "S"
    assert "did_create" not in again
    assert refused(await client.create("S", max_msgs=1)) == (400, 10058)


async def test_an_update_is_refused_at_once_while_no_server_of_the_stream_is_there(client: Client) -> None:
    """And nothing is decided: its server would carry it out when it is back."""
    await client.create("S")
    known = client.cluster.machine.assignment("A", "S")
    assert known is not None
    client.cluster.online = {"n1", "n2", "n3"} - set(known.peers)
    assert refused(await client.ask("STREAM.UPDATE.S", {"name": "S", "max_msgs": 2})) == (500, 10118)
    client.cluster.online = {"n1", "n2", "n3"}
    client.cluster.refuse["S"] = by_code(10008)  # they are there, and nobody leads
    assert refused(await client.ask("STREAM.UPDATE.S", {"name": "S", "max_msgs": 2})) == (503, 10008)
    assert client.cluster.machine.assignment("A", "S") == known


async def test_what_is_decided_is_not_answered_as_a_failure(client: Client) -> None:
    """The leader is lost between the decision and its coming into force."""
    await client.create("S")

    def lost(body: dict[str, Any]) -> dict[str, Any]:
        raise by_code(10008)

    client.cluster.answers["ready"] = lost
    updated = await client.ask("STREAM.UPDATE.S", {"name": "S", "max_msgs": 2})
    assert (updated["config"]["max_msgs"], updated["cluster"]) == (2, {"name": "C1"})
    assert updated["state"]["messages"] == 0
    made = await client.create("N", first_seq=10)
    assert made["did_create"] is True and (made["state"]["first_seq"], made["state"]["last_seq"]) == (10, 9)
    assert refused(await client.create("N", first_seq=10)) == (503, 10008), "nothing was done"
    made = await client.create("ONE", first_seq=1)
    assert (made["state"]["first_seq"], made["state"]["last_seq"]) == (0, 0), "as its leader shows it"


async def test_a_standalone_server_says_did_create_each_time_and_shows_the_cluster_in_info_only() -> None:
    client = Client(clustered=False)
    for _ in range(2):
        reply = await client.create("S")
        assert reply["did_create"] is True
        assert "cluster" not in reply
    assert (await client.ask("STREAM.INFO.S"))["cluster"] == {"leader": "N1"}
    assert refused(await client.create("R", num_replicas=3)) == (500, 10074)


@pytest.mark.parametrize(
    ("suffix", "body", "code", "err_code"),
    [
        ("STREAM.CREATE.X", {"name": "Y"}, 400, 10056),
        ("STREAM.CREATE.X", b"", 400, 10056),
        ("STREAM.CREATE.X", {}, 400, 10056),
        ("STREAM.CREATE.X", b"null", 400, 10025),
        ("STREAM.CREATE.X", b"{", 400, 10025),
        ("STREAM.CREATE.X", b"[]", 400, 10025),
        ("STREAM.CREATE.X", {"name": "X", "max_msgs": "1"}, 400, 10025),
        ("STREAM.CREATE.X/y", {"name": "X/y"}, 400, 10128),
        ("STREAM.CREATE.X", {"name": "X", "subjects": ["T"]}, 400, 10065),
        ("STREAM.CREATE.X", {"name": "X", "num_replicas": 5}, 400, 10005),
        ("STREAM.CREATE.X", {"name": "X", "num_replicas": 6}, 500, 10052),
        ("STREAM.CREATE.X", {"name": "X", "num_replicas": -1}, 400, 10133),
        ("STREAM.CREATE.X", {"name": "X", "sealed": True}, 500, 10052),
        ("STREAM.CREATE.X", {"name": "X", "mirror_direct": True}, 500, 10052),
        ("STREAM.CREATE.X", {"name": "X", "mirror": {"name": "X"}}, 500, 10052),
        ("STREAM.CREATE.X", {"name": "X", "max_msgs_per_subject": 1, "pedantic": True}, 400, 10157),
        ("STREAM.UPDATE.NONE", {"name": "NONE"}, 404, 10059),
        ("STREAM.UPDATE.NONE", {"name": "NONE", "num_replicas": 9}, 404, 10059),
        ("STREAM.UPDATE.T", {"name": "T", "storage": "memory"}, 500, 10052),
        ("STREAM.UPDATE.T", {"name": "U"}, 400, 10056),
        ("STREAM.UPDATE.T", b"", 500, 10052),
        ("STREAM.UPDATE.NONE", {}, 500, 10052),
        ("STREAM.SNAPSHOT.T", {"deliver_subject": "a.*"}, 400, 10015),
        ("STREAM.SNAPSHOT.T", {"chunk_size": 2048}, 400, 10015),
        ("STREAM.SNAPSHOT.NONE", {"deliver_subject": "a"}, 404, 10059),
        ("STREAM.RESTORE.T", {"config": {"name": "T"}, "state": {}}, 400, 10130),
        ("STREAM.RESTORE.T", {"config": {"name": "U"}, "state": {}}, 400, 10056),
        ("STREAM.RESTORE.U", {"config": {"name": "U"}}, 400, 10003),
        ("STREAM.RESTORE.U", {"config": {"name": "U", "subjects": ["T"]}, "state": {}}, 400, 10065),
        ("STREAM.UPDATE.T", {"name": "T", "mirror": {"name": "Z"}}, 400, 10055),
        ("STREAM.UPDATE.T", {"name": "T", "sources": [{"name": "T"}]}, 500, 10052),
        ("STREAM.INFO.NONE", None, 404, 10059),
        ("STREAM.INFO.T", {"subjects_filter": 7}, 400, 10025),
        ("STREAM.DELETE.NONE", None, 404, 10059),
        ("STREAM.DELETE.T", {"a": 1}, 400, 10038),
        ("STREAM.DELETE.T", b"x", 400, 10038),
        ("STREAM.PURGE.T", {"seq": 1, "keep": 1}, 400, 10003),
        ("STREAM.PURGE.NONE", {"seq": 1, "keep": 1}, 404, 10059),
        ("STREAM.PURGE.T", {"filter": "a..b"}, 400, 10003),
        ("STREAM.PURGE.T", b"{", 400, 10025),
        ("STREAM.MSG.DELETE.T", None, 400, 10003),
        ("STREAM.MSG.DELETE.T", {}, 400, 10003),
        ("STREAM.MSG.DELETE.NONE", {}, 404, 10059),
        ("STREAM.MSG.GET.NONE", {"seq": 1}, 404, 10059),
        ("STREAM.NAMES", b"{", 400, 10025),
        ("STREAM.SNAPSHOT.T", {}, 400, 10003),
        ("STREAM.RESTORE.T", {}, 400, 10003),
        ("STREAM.PEER.REMOVE.NONE", {}, 400, 10003),
        ("STREAM.PEER.REMOVE.NONE", {"peer": "x"}, 404, 10059),
        ("STREAM.INFO", None, 400, 10003),
        ("STREAM.INFO.A.B", None, 400, 10003),
        ("STREAM.BOGUS.A", None, 400, 10003),
        ("BOGUS", None, 400, 10003),
        ("CONSUMER.NAMES.NONE", None, 404, 10059),
        ("CONSUMER.INFO.NONE.c", None, 404, 10059),
    ],
)
async def test_refusals(suffix: str, body: Any, code: int, err_code: int, client: Client) -> None:
    await client.create("T")
    reply = await client.ask(suffix, body)
    assert refused(reply) == (code, err_code)
    assert reply["type"].startswith("io.nats.jetstream.api.v1.")


@pytest.mark.parametrize(
    ("suffix", "extra"),
    [
        ("STREAM.INFO.NONE", {"total": 0, "offset": 0, "limit": 0}),
        ("STREAM.PURGE.NONE", {"purged": 0}),
        ("CONSUMER.LIST.NONE", {"total": 0, "offset": 0, "limit": 0, "consumers": []}),
    ],
)
async def test_error_replies_hold_what_the_real_ones_hold(suffix: str, extra: dict[str, Any]) -> None:
    reply = await Client().ask(suffix)
    assert list(reply) == ["type", "error", *extra]
    assert {key: reply[key] for key in extra} == extra


async def test_update(client: Client) -> None:
    await client.create("S", subjects=["s"])
    reply = await client.ask("STREAM.UPDATE.S", {"name": "S", "subjects": ["s", "t"], "max_msgs": 9})
    assert (reply["type"].rpartition(".")[2], "did_create" in reply) == ("stream_update_response", False)
    assert (reply["config"]["subjects"], reply["config"]["max_msgs"]) == (["s", "t"], 9)
    assigned = client.cluster.machine.assignment("A", "S")
    assert assigned is not None
    assert client.cluster.asked[-1] == ("S", "ready", {"revision": assigned.revision})


async def test_info_shows_a_page_only_with_a_filter(client: Client) -> None:
    await client.create("S")
    plain = await client.ask("STREAM.INFO.S", b" ")
    assert list(plain)[:4] == ["type", "total", "offset", "limit"]
    assert (plain["total"], plain["limit"]) == (0, 0)
    paged = await client.ask("STREAM.INFO.S", {"subjects_filter": ">", "deleted_details": True, "unknown": 1})
    assert (paged["total"], paged["limit"]) == (7, 100_000)
    wanted = {"subjects_filter": ">", "deleted_details": True, "offset": 0, "revision": 4}
    assert client.cluster.asked[-1][2] == wanted


async def test_info_shows_the_leaders_configuration_when_it_is_newer(client: Client) -> None:
    await client.create("S")
    old = client.cluster.machine.assignment("A", "S")
    assert old is not None
    await client.ask("STREAM.UPDATE.S", {"name": "S", "max_msgs": 9})
    client.cluster.assignment = lambda account, name: old  # type: ignore[method-assign]
    assert (await client.ask("STREAM.INFO.S"))["config"]["max_msgs"] == 9


async def test_an_update_is_refused_by_the_newest_configuration_alone(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This node has not heard yet of an update that another one has answered."""
    await client.create("S", subjects=["s"], num_replicas=1)
    before = client.cluster.machine.assignment("A", "S")
    config: dict[str, Any] = {"name": "S", "subjects": ["s"], "num_replicas": 1, "placement": {"cluster": "C1"}}
    there = {"learners": [], "outgoing": [], "voters": [] if before is None else list(before.peers)}
    client.cluster.answers["members"] = lambda body: there
    assert "error" not in await client.ask("STREAM.UPDATE.S", config)
    monkeypatch.setattr(client.cluster, "assignment", lambda account, name: before)
    client.cluster.answers["members"] = lambda body: {"learners": ["n2"], "outgoing": [], "voters": ["n1"]}
    assert "error" not in await client.ask("STREAM.UPDATE.S", config | {"description": "no other place"})
    assert "error" not in await client.ask("STREAM.UPDATE.S", config | {"num_replicas": 3}), "of one thing alone"
    elsewhere = await client.ask("STREAM.UPDATE.S", {"name": "S", "subjects": ["s"], "num_replicas": 3})
    assert refused(elsewhere) == (400, 10226), "it may not be sent elsewhere while it is on its way"


async def test_a_lagging_node_asks_the_meta_leader_before_it_says_not_found(client: Client) -> None:
    await client.create("S")
    client.cluster.lagging = True
    assert "error" not in await client.ask("STREAM.INFO.S")


async def test_a_stream_made_anew_is_found_although_this_node_knows_the_old_one(client: Client) -> None:
    await client.create("S")
    old = client.cluster.machine.assignment("A", "S")
    await client.ask("STREAM.DELETE.S")
    await client.create("S")
    client.cluster.assignment = lambda account, name: old  # type: ignore[method-assign]
    assert "error" not in await client.ask("STREAM.INFO.S")
    await client.ask("STREAM.DELETE.S")
    assert refused(await client.ask("STREAM.INFO.S")) == (404, 10059)


async def test_a_leaderless_stream_is_an_error_not_silence(client: Client) -> None:
    await client.create("S")
    client.cluster.refuse["S"] = by_code(10008)
    assert refused(await client.ask("STREAM.INFO.S")) == (503, 10008)


async def test_delete_waits_until_all_nodes_know(client: Client) -> None:
    await client.create("S")
    assert await client.ask("STREAM.DELETE.S", {}) == {
        "type": "io.nats.jetstream.api.v1.stream_delete_response",
        "success": True,
    }
    assert client.cluster.settled == [client.cluster.machine.applied_index]


async def test_names_pages_and_filters(client: Client) -> None:
    for name in ("B", "A", "C"):
        await client.create(name, subjects=[f"{name}.>"])
    all_of_them = await client.ask("STREAM.NAMES")
    assert list(all_of_them) == ["type", "total", "offset", "limit", "streams"]
    assert all_of_them["streams"] == ["A", "B", "C"]
    assert (await client.ask("STREAM.NAMES", {"offset": 1}))["streams"] == ["B", "C"]
    beyond = await client.ask("STREAM.NAMES", {"offset": 100})
    assert (beyond["total"], beyond["offset"], beyond["streams"]) == (3, 3, [])
    assert (await client.ask("STREAM.NAMES", {"offset": -1}))["offset"] == 0
    assert (await client.ask("STREAM.NAMES", {"subject": "B.x"}))["streams"] == ["B"]
    assert (await client.ask("STREAM.NAMES", {"subject": "nothing"}))["streams"] == []


async def test_list_shows_what_answered_and_names_what_did_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jetcluster.api.streams.LIST_SECONDS", 0.05)
    client = Client()
    for name in ("A", "B", "C"):
        await client.create(name)
    full = await client.ask("STREAM.LIST")
    assert [s["config"]["name"] for s in full["streams"]] == ["A", "B", "C"]
    assert "missing" not in full
    client.cluster.refuse = {"A": by_code(10008), "C": None}
    reply = await client.ask("STREAM.LIST")
    assert list(reply) == ["type", "total", "offset", "limit", "streams", "missing"]
    assert ([s["config"]["name"] for s in reply["streams"]], reply["missing"]) == (["B"], ["A", "C"])
    assert (reply["total"], reply["limit"]) == (3, 256)
    monkeypatch.setattr("jetcluster.cluster.meta_service.LIST_BYTES", 1)
    reply = await client.ask("STREAM.LIST", {"offset": 1})
    assert ([s["config"]["name"] for s in reply["streams"]], reply["limit"]) == (["B"], 1), "they are long"


async def test_purge_msg_get_and_msg_delete_reach_the_leader(client: Client) -> None:
    await client.create("S")
    client.cluster.answers = {
        "purge": lambda body: {"purged": 4},
        "msg_delete": lambda body: {"deleted": 1},
        "msg_get": lambda body: {"response": '{"type":"t","message":{}}'},
    }
    purged = await client.ask("STREAM.PURGE.S", {"filter": "S", "keep": 2})
    assert purged == {"type": "io.nats.jetstream.api.v1.stream_purge_response", "success": True, "purged": 4}
    assert client.cluster.asked[-1][2] == {"filter": "S", "seq": 0, "keep": 2, "revision": 4}
    assert (await client.ask("STREAM.MSG.DELETE.S", {"seq": 3}))["success"] is True
    assert client.cluster.asked[-1][2] == {"seq": 3, "no_erase": False, "revision": 4}
    raw = await client.raw("$JS.API.STREAM.MSG.GET.S", b'{"seq":1,"x":"\xff"}')
    assert raw == b'{"type":"t","message":{}}'
    assert client.cluster.asked[-1][2]["payload"].encode("latin-1") == b'{"seq":1,"x":"\xff"}'


async def test_errors_of_the_leader_come_through(client: Client) -> None:
    await client.create("S")
    client.cluster.refuse["S"] = by_code(10043, seq=2)
    reply = await client.ask("STREAM.MSG.DELETE.S", {"seq": 2})
    assert reply["error"] == {"code": 400, "err_code": 10043, "description": "sequence 2 not found"}


async def test_stepdown(client: Client) -> None:
    await client.create("S")
    client.cluster.answers["stepdown"] = lambda body: {}
    assert (await client.ask("STREAM.LEADER.STEPDOWN.S", {"placement": {"preferred": "N2"}}))["success"] is True
    placement = {"cluster": "", "tags": [], "preferred": "N2"}
    assert client.cluster.asked[-1] == ("S", "stepdown", {"placement": placement, "revision": 4})
    for suffix in ("LEADER.STEPDOWN", "PEER.REMOVE"):
        assert refused(await Client(clustered=False).ask(f"STREAM.{suffix}.S")) == (503, 10010)


async def test_account_limits() -> None:
    limits = AccountLimits(max_streams=1, max_storage=1000, storage_max_stream_bytes=800, max_bytes_required=True)
    client = Client(limits=limits)
    client.context.own_limits = lambda account: limits
    assert refused(await client.create("S")) == (400, 10113)
    assert refused(await client.create("S", max_bytes=801)) == (400, 10122)
    assert refused(await client.create("S", max_bytes=600, num_replicas=3)) == (500, 10047)
    assert "error" not in await client.create("S", max_bytes=600)
    assert refused(await client.create("T", max_bytes=100)) == (400, 10027)


async def test_what_the_servers_hold_is_a_limit_of_new_streams_without_a_cluster_alone() -> None:
    for clustered in (True, False):
        client = Client(clustered=clustered, limits=AccountLimits(max_storage=1000))
        reply = await client.create("S", max_bytes=1001)
        assert ("error" in reply) is not clustered, "where it is placed decides in a cluster"
        assert clustered or refused(reply) == (500, 10047)


async def test_creates_at_once_spread_over_the_nodes() -> None:
    import asyncio

    client = Client()
    await asyncio.gather(*(client.create(f"S{i}") for i in range(30)))
    assert [client.cluster.machine.replicas_on(peer) for peer in ("n1", "n2", "n3")] == [10, 10, 10]


def test_no_number_of_streams_is_any_number() -> None:
    """As in nats-server; no bytes are none."""
    found = meta_limits(AccountLimits(max_memory=0, max_storage=0, max_streams=0), {"num_replicas": 1})
    assert found == {"limits": {"max_streams": -1, "max_memory": 0, "max_storage": 0}}


async def test_account_info() -> None:
    client = Client(domain="hub")
    await client.create("S", max_bytes=500, num_replicas=3)
    await client.ask("STREAM.INFO.NONE")
    for subject in ("$JS.API.INFO", "$JS.hub.API.INFO", "$JS.API.ACCOUNT.INFO"):
        reply = json.loads(await client.raw(subject))
        assert reply["type"] == "io.nats.jetstream.api.v1.account_info_response"
        assert (reply["storage"], reply["memory"], reply["streams"], reply["consumers"]) == (300, 0, 1, 4)
        assert (reply["reserved_storage"], reply["domain"]) == (500, "hub")
        assert list(reply["limits"].items()) == [
            *((name, -1) for name in ("max_memory", "max_storage", "max_streams", "max_consumers", "max_ack_pending")),
            *((f"{storage}_max_stream_bytes", -1) for storage in ("memory", "storage")),
            ("max_bytes_required", False),
        ], "nats-server's fields: strict clients refuse others"
        assert (reply["api"]["level"], reply["api"]["errors"]) == (5, 1)
    assert reply["api"]["total"] == 4, "a request for it does not count itself"


@pytest.mark.parametrize(
    ("fields", "err_code", "text"),
    [
        ({"max_msgs": -7}, 10157, "pedantic mode: max_msgs must be set to -1"),
        ({"max_age": 60_000_000_000}, 10157, "pedantic mode: duplicate window cannot be bigger than max age"),
        ({"max_age": 50_000_000}, 10052, "max age needs to be >= 100ms"),
        ({"max_msgs": 0, "duplicate_window": 0, "num_replicas": 0}, 0, ""),
    ],
)
async def test_pedantic_requests_are_not_mended(
    fields: dict[str, Any], err_code: int, text: str, client: Client
) -> None:
    reply = await client.ask("STREAM.CREATE.P", {"name": "P", "pedantic": True, "subjects": ["p.>"], **fields})
    assert reply.get("error", {}).get("err_code", 0) == err_code
    assert reply.get("error", {}).get("description", "") == text
    wrong_anyway = text.startswith(("roll-ups", "max age", "replicas"))
    plain = await client.ask("STREAM.CREATE.P", {"name": "P", "subjects": ["p.>"], **fields})
    assert (plain["error"]["description"] == text) if wrong_anyway else ("error" not in plain)


@pytest.mark.parametrize(
    ("fields", "err_code"),
    [({}, 10157), ({"max_age": 30_000_000_000}, 10157), ({"duplicate_window": 60_000_000_000}, 0),
     ({"duplicate_window": 90_000_000_000}, 10052), ({"max_bytes": 6_000_000}, 10157), ({"sealed": True}, 10052)],
)  # fmt: skip
async def test_pedantic_under_a_server_limit(fields: dict[str, Any], err_code: int) -> None:
    client = Client(limits=AccountLimits(duplicate_window_max=60_000_000_000, storage_max_stream_bytes=5_000_000))
    error = (await client.create("P", pedantic=True, subjects=["p"], **fields)).get("error", {})
    assert error.get("err_code", 0) == err_code
    if err_code == 10157:
        assert error["description"] == "pedantic mode: duplicate window limits are higher than current limits"


@pytest.mark.parametrize(
    ("suffix", "body", "key"),
    [
        ("STREAM.CREATE.T", {"name": "T", "subjects": ["T"], "Extra": 1}, "Extra"),
        ("STREAM.CREATE.U", {"name": "U", "placement": {"zone": "x"}}, "zone"),
        ("STREAM.INFO.T", {"x": None}, "x"),
        ("STREAM.NAMES", {"limit": 5}, "limit"),
        ("STREAM.PURGE.T", {"all": True}, "all"),
        ("STREAM.MSG.DELETE.T", {"seq": 1, "bogus": 1}, "bogus"),
        ("STREAM.SNAPSHOT.T", {"deliver_subject": "a", "unk": 1}, "unk"),
    ],
)
async def test_unknown_keys_are_refused_when_strict(
    suffix: str, body: dict[str, Any], key: str, client: Client
) -> None:
    client.context.strict = True
    await client.create("T")
    reply = await client.ask(suffix, body)
    assert reply["error"] == {
        "code": 400,
        "err_code": 10025,
        "description": f'invalid JSON: json: unknown field "{key}"',
    }


async def test_known_keys_pass_in_any_case_when_strict(client: Client) -> None:
    client.context.strict = True
    reply = await client.ask("STREAM.CREATE.T", {"Name": "T", "SUBJECTS": ["t"], "pedantic": False})
    assert "error" not in reply


async def test_limits_that_consumers_exceed_are_refused(client: Client) -> None:
    await client.create("S", subjects=["s"])
    told: list[Any] = [{"names": ["a", "b"]}, {"names": []}]
    client.cluster.answers["consumers_beyond"] = lambda body: told.pop(0)
    config = {"name": "S", "subjects": ["s"], "consumer_limits": {"max_ack_pending": 5}}
    refused = (await client.ask("STREAM.UPDATE.S", config))["error"]
    assert refused["err_code"] == 10069 and refused["description"] == "change to limits violates consumers: a, b"
    assert "error" not in await client.ask("STREAM.UPDATE.S", config)
    assert "error" not in await client.ask("STREAM.UPDATE.S", {"name": "S", "subjects": ["s"]})
    assert told == [], "asked where there are limits"


async def test_subjects_that_bring_consumers_their_letters_are_refused(client: Client) -> None:
    await client.create("S", subjects=["s"])
    asked: list[Any] = []

    def leader(body: dict[str, Any]) -> dict[str, Any]:
        asked.append(body["taking"])
        return {"names": [], "cyclic": ["a", "b"]}

    client.cluster.answers["consumers_beyond"] = leader
    assert "error" not in await client.ask("STREAM.UPDATE.S", {"name": "S", "subjects": ["s"], "max_msgs": 5})
    assert not asked, "it takes what it took"
    for change in ({"subjects": ["s", "dead.>"]}, {"subjects": ["s"], "sources": [{"name": "O"}]}):
        refused = (await client.ask("STREAM.UPDATE.S", {"name": "S", **change}))["error"]
        assert refused["err_code"] == 10069
        assert refused["description"] == "dead letters would come back to consumers: a, b"
    assert [body["subjects"] for body in asked] == [["s", "dead.>"], ["s"]] and asked[1]["sources"]


async def test_a_stream_under_way_is_not_sent_elsewhere(client: Client) -> None:
    members: dict[str, list[str]] = {"voters": ["n1"], "learners": [], "outgoing": []}
    client.cluster.answers["members"] = lambda body: members
    await client.create("S", num_replicas=1)
    tagged = {"kind": "node", "request": "t", "peer": "n3", "name": "N3", "tags": ["x"], "jetstream": True}
    client.cluster.apply(json.dumps(tagged).encode())
    members["voters"] = list(client.cluster.machine.assignment("A", "S").peers)  # type: ignore[union-attr]

    async def update(**fields: Any) -> int:
        reply = await client.ask("STREAM.UPDATE.S", {"name": "S", **fields})
        return int(reply.get("error", {}).get("err_code", 0))

    assert (await client.ask("STREAM.CANCEL_MOVE.S"))["error"]["err_code"] == 10129
    assert (await client.ask("STREAM.CANCEL_MOVE.T"))["error"]["err_code"] == 10059
    members["learners"] = ["n2"]
    assert await update(placement={"tags": ["x"]}) == 10226  # a change of replicas is under way
    members["learners"] = []
    members["outgoing"] = ["n2"]
    assert await update(placement={"tags": ["x"]}) == 10226
    members["outgoing"] = []
    if members["voters"] == ["n3"]:
        await client.ask("STREAM.PEER.REMOVE.S", {"peer": "N3"})
        members["voters"] = list(client.cluster.machine.assignment("A", "S").peers)  # type: ignore[union-attr]
    assert await update(placement={"tags": ["x"]}) == 0
    assert await update(placement={"tags": ["x"]}, num_replicas=2) == 10124
    assert await update(placement={}, num_replicas=2) == 10123
    assert await update(placement={"tags": ["!y"]}) == 10124
    assert await update(placement={"tags": ["x"]}, description="allowed") == 0
    reply = await client.ask("STREAM.CANCEL_MOVE.S")
    assert (reply["type"], "placement" in reply["config"]) == (
        "io.nats.jetstream.api.v1.stream_cancel_move_response",
        False,
    )
    assert client.cluster.machine.assignment("A", "S").peers == tuple(members["voters"])  # type: ignore[union-attr]
    assert (await client.ask("STREAM.CANCEL_MOVE.S"))["error"]["err_code"] == 10129


async def test_a_replica_that_is_to_leave_stays(client: Client) -> None:
    members: dict[str, list[str]] = {"learners": [], "outgoing": []}
    client.cluster.answers["members"] = lambda body: members
    await client.create("S", num_replicas=2)
    node = {"kind": "node", "request": "t", "peer": "n3", "name": "N3", "tags": [], "jetstream": True}
    client.cluster.apply(json.dumps(node).encode())
    machine = client.cluster.machine
    before = list(machine.assignment("A", "S").peers)  # type: ignore[union-attr]
    members["voters"] = before
    assert (await client.ask("STREAM.CANCEL_MOVE.S"))["error"]["err_code"] == 10129
    assert (await client.ask("STREAM.PEER.EVACUATE.S", {"peer": before[0]}))["success"] is True
    assert list(machine.assignment("A", "S").peers) != before  # type: ignore[union-attr]
    members["voters"], members["outgoing"] = list(machine.assignment("A", "S").peers), before  # type: ignore[union-attr]
    assert "error" not in await client.ask("STREAM.CANCEL_MOVE.S")
    assert sorted(machine.assignment("A", "S").peers) == sorted(before)  # type: ignore[union-attr]


async def test_another_number_of_replicas_is_taken_back(client: Client) -> None:
    members: dict[str, list[str]] = {"learners": [], "outgoing": []}
    client.cluster.answers["members"] = lambda body: members
    await client.create("S", num_replicas=1)
    before = found(client).peers
    members["voters"] = list(before)
    updated = await client.ask("STREAM.UPDATE.S", {"name": "S", "num_replicas": 2, "description": "kept"})
    assert updated["config"]["num_replicas"] == len(found(client).peers) == 2
    cancelled = await client.ask("STREAM.CANCEL_MOVE.S")
    assert cancelled["type"] == "io.nats.jetstream.api.v1.stream_cancel_move_response"
    assert (cancelled["config"]["num_replicas"], cancelled["config"]["description"]) == (1, "kept")
    assert found(client).peers == before
    members["learners"] = ["n9"]
    assert (await client.ask("STREAM.CANCEL_MOVE.S"))["error"]["err_code"] == 10129, "they only have to go"
    members["learners"] = []
    assert (await client.ask("STREAM.CANCEL_MOVE.S"))["error"]["err_code"] == 10129
    await client.ask("STREAM.UPDATE.S", {"name": "S", "num_replicas": 2})
    members["voters"] = both = list(found(client).peers)
    await client.ask("STREAM.UPDATE.S", {"name": "S", "num_replicas": 1})
    assert len(found(client).peers) == 1
    assert (await client.ask("STREAM.CANCEL_MOVE.S"))["config"]["num_replicas"] == 2
    assert list(found(client).peers) == both


async def test_a_rescued_stream_keeps_its_number_of_replicas(client: Client) -> None:
    """It has one replica and is given the others back, which nobody asked for with an update."""
    await client.create("S", num_replicas=2)
    kept, other = found(client).peers
    client.cluster.answers["members"] = lambda body: {"voters": [kept], "learners": [other], "outgoing": []}
    rescue = {"kind": "stream_rescue", "request": "r", "account": "A", "name": "S", "gid": found(client).gid}
    client.cluster.apply(json.dumps({**rescue, "number": 1, "kept": kept, "peers": [other]}).encode())
    assert (found(client).rescue, found(client).kept) == (1, kept)
    assert (await client.ask("STREAM.CANCEL_MOVE.S"))["error"]["err_code"] == 10129


async def test_a_stream_that_is_given_a_replica_in_place_of_a_lost_one_keeps_its_number(client: Client) -> None:
    await client.create("S", num_replicas=2)
    a, b = found(client).peers
    members = {"voters": [a], "learners": [b], "outgoing": []}
    client.cluster.answers["members"] = lambda body: members
    for number, peers in enumerate([[a], [a, b]]):  # its server was removed, and there was no other; then there is one
        change = {"kind": "stream_peers", "request": f"r{number}", "account": "A", "name": "S", "peers": peers}
        client.cluster.apply(json.dumps({**change, "gid": found(client).gid}).encode())
    assert (await client.ask("STREAM.CANCEL_MOVE.S"))["error"]["err_code"] == 10129
    assert (found(client).replicas, found(client).peers) == (2, (a, b))


def found(client: Client) -> Assignment:
    assignment = client.cluster.machine.assignment("A", "S")
    assert assignment is not None
    return assignment


@pytest.mark.parametrize("verb", ["remove", "evacuate"])
@pytest.mark.parametrize(
    ("body", "err_code"), [(None, 10003), ({}, 10003), ({"peer": ""}, 10003), ({"peer": "N9"}, 10040)]
)
async def test_peer_remove_refusals(body: Any, err_code: int, client: Client, verb: str) -> None:
    subject = f"STREAM.PEER.{verb.upper()}.S"
    await client.create("S", num_replicas=3)
    reply = await client.ask(subject, body)
    assert reply["type"] == f"io.nats.jetstream.api.v1.stream_{verb}_peer_response"
    assert reply["error"]["err_code"] == err_code
    assert (await client.ask(subject, {"peer": "N1"}))["error"]["err_code"] == 10075
    assert (await Client(clustered=False).ask(subject, body))["error"]["err_code"] == 10010


async def test_only_where_a_stream_republishes_to_now_may_stay(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """This node has not heard yet that another one has changed it."""
    there, here = ({"republish": {"src": ">", "dest": f"{word}.>"}} for word in ("not.mine", "mine"))
    plain = {"name": "S", "subjects": ["s.>"]}
    await client.create("S", subjects=["s.>"], **there)
    old = found(client)
    await client.ask("STREAM.UPDATE.S", plain | here)
    monkeypatch.setattr(client.cluster, "assignment", lambda account, name: old)
    monkeypatch.setattr(Request, "may_deliver_to", lambda request, subject: subject.startswith("mine."))
    assert refused(await client.ask("STREAM.UPDATE.S", plain | there)) == (500, 10052)
    assert "error" not in await client.ask("STREAM.UPDATE.S", plain | here | {"description": "new"})
