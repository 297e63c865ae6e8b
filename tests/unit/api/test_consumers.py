"""Requests about consumers, those of mirrors and sources of nats-server on streams without `limits` retention too."""

from __future__ import annotations

import json
from typing import Any

import pytest

from jetcluster.api.consumers import make_durable, waits_for_acks
from jetcluster.errors import ApiError, by_code
from jetcluster.model.consumer import ConsumerConfig
from jetcluster.model.limits import AccountLimits
from testkit.sim.nodes import Cluster, Node
from testkit.sim.shared import virtual_time
from tests.unit.api.fake_cluster import Client
from tests.unit.replica.test_mirror_host import fill, stop, with_api

SECOND = 1_000_000_000
CONFIG = {"ack_policy": "explicit"}


class Leader:
    """The stream's leader as the edge sees it: remembers what it was asked, answers with what it was given."""

    def __init__(self, client: Client, *, created: bool = True) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.error: ApiError | None = None
        self.created = created
        self.long = False
        """True when configurations are so long that a page has fewer consumers."""
        self.config: dict[str, Any] = {"metadata": {"_nats.req.level": "0"}, "num_replicas": 0, "opt_start_time_ns": 5}
        for kind in ("create", "info", "list", "names", "delete", "pause", "reset", "unpin", "stepdown", "leave"):
            client.cluster.answers[f"consumer_{kind}"] = lambda body, kind=kind: self.answer(kind, body)

    def answer(self, kind: str, body: dict[str, Any]) -> dict[str, Any]:
        self.asked.append((kind, {key: value for key, value in body.items() if key != "revision"}))
        if self.error is not None:
            raise self.error
        info = {"stream_name": "S", "name": "c", "config": body.get("config", self.config), "num_pending": 2}
        return {
            "create": {"info": info, "created": self.created},
            "info": info,
            "list": {"total": 300, "consumers": [info], **({"limit": 1} if self.long else {})},
            "names": {"total": 300, "names": ["c"]},
            "reset": {"info": info, "reset_seq": 7},
        }.get(kind, {})

    @property
    def last(self) -> dict[str, Any]:
        return self.asked[-1][1]


async def started(**options: Any) -> tuple[Client, Leader]:
    client = Client(**options)
    assert "error" not in await client.create("S", subjects=["s.>"])
    return client, Leader(client)


def body(config: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {"stream_name": "S", "config": CONFIG | (config or {}), **more}


async def test_create_sends_the_whole_configuration_and_shows_what_clients_know() -> None:
    client, leader = await started()
    heard = client.bus.collect(b"$JS.EVENT.ADVISORY.CONSUMER.CREATED.S.c")
    start = {"deliver_policy": "by_start_time", "opt_start_time": "1970-01-01T00:00:09Z", "filter_subject": "s.a.*"}
    reply = await client.ask("CONSUMER.CREATE.S.c.s.a.*", body(start, action="create"))
    assert reply["type"] == "io.nats.jetstream.api.v1.consumer_create_response"
    assert (reply["stream_name"], reply["name"], reply["num_pending"]) == ("S", "c", 2)
    assert reply["config"]["opt_start_time"] == "1970-01-01T00:00:09Z"
    assert "opt_start_time_ns" not in reply["config"]
    assert set(reply["config"]["metadata"]) == {"_nats.level", "_nats.ver", "_nats.req.level"}
    [(kind, sent)] = leader.asked
    assert (kind, sent["name"], sent["action"], sent["max_consumers"]) == ("create", "c", "create", 0)
    assert (sent["config"]["opt_start_time_ns"], sent["config"]["ack_wait"]) == (9 * SECOND, 30 * SECOND)
    assert sent["request"]
    assert [(e["action"], e["consumer"], e["client"]) for _, e in heard] == [
        ("create", "c", {"acc": "A", "user": "u1"})
    ]
    leader.created = False
    await client.ask("CONSUMER.CREATE.S.c", body())
    assert len(heard) == 1


async def test_names() -> None:
    client, leader = await started()
    for subject, config, name, shown in (
        ("CREATE.S", {}, None, None),
        ("CREATE.S", {"name": "n"}, "n", "n"),
        ("CREATE.S.tok", {"name": "other"}, "tok", "tok"),
        ("CREATE.S.tok", {"durable_name": "tok", "name": "x"}, "tok", "tok"),
        ("DURABLE.CREATE.S.d", {"durable_name": "d"}, "d", "d"),
    ):
        reply = await client.ask(f"CONSUMER.{subject}", body(config))
        assert "error" not in reply, reply
        assert leader.last["name"] == name or (name is None and len(leader.last["name"]) == 8)
        assert leader.last["config"].get("name") == shown
        assert leader.last["config"].get("durable_name") == config.get("durable_name")


async def test_two_ephemeral_consumers_have_two_names() -> None:
    client, leader = await started()
    for _ in range(2):
        await client.ask("CONSUMER.CREATE.S", body())
    assert leader.asked[0][1]["name"] != leader.asked[1][1]["name"]


@pytest.mark.parametrize(
    ("suffix", "request_body", "code", "err_code"),
    [
        ("CREATE.S.c", None, 400, 10056),
        ("CREATE.S.c", {}, 400, 10056),
        ("CREATE.S.c", {"stream_name": "T", "config": CONFIG}, 400, 10056),
        ("CREATE.S.c", b"{x", 400, 10025),
        ("CREATE.S.c", b"hello", 400, 10025),
        ("CREATE.S.c", body(action="x"), 400, 10025),
        ("CREATE.S.a/b", body(), 400, 10127),
        ("CREATE.S.a\\b", body({"durable_name": "z"}), 400, 10127),
        ("CREATE.S", body({"name": "a/b"}), 400, 10127),
        ("CREATE.S.c", body({"durable_name": "other"}), 400, 10017),
        ("CREATE.S", body({"durable_name": "c"}), 400, 10020),
        ("DURABLE.CREATE.S.c", body(), 400, 10018),
        ("DURABLE.CREATE.S.c", body({"durable_name": "other"}), 400, 10017),
        ("CREATE.S.c.s.a", body({"filter_subject": "s.b"}), 400, 10131),
        ("CREATE.S.c.s.a", body(), 400, 10131),
        ("CREATE.S.c.s.a", body({"filter_subjects": ["s.a"]}), 400, 10137),
        ("CREATE.NONE.c", {"stream_name": "NONE", "config": CONFIG}, 404, 10059),
        ("CREATE.S.c", body({"max_deliver": -5}, pedantic=True), 400, 10157),
        ("CREATE.S.c", body({"num_replicas": 2}), 400, 10126),
        ("CREATE.S.c", body({"metadata": {"jetcluster.max_ack_pendng_per_subject": "1"}}), 500, 10052),
        ("INFO.S.c", {"x": 1}, 400, 10038),
        ("INFO.NONE.c", None, 404, 10059),
        ("DELETE.S.c", b"junk", 400, 10038),
        ("DELETE.NONE.c", None, 404, 10059),
        ("PAUSE.S.c", b"{x", 400, 10025),
        ("PAUSE.S.c", {"pause_until": "zz"}, 400, 10025),
        ("RESET.S.c", b"xx", 400, 10025),
        ("RESET.S.c", {"seq": -1}, 400, 10025),
        ("RESET.NONE.c", None, 404, 10059),
        ("UNPIN.S.c", None, 400, 10025),
        ("UNPIN.S.c", {}, 400, 10025),
        ("UNPIN.S.c", {"group": "a b"}, 400, 10162),
        ("UNPIN.NONE.c", {"group": "a"}, 404, 10059),
        ("LEADER.STEPDOWN.NONE.c", None, 404, 10059),
        ("LIST.NONE", None, 404, 10059),
        ("NAMES.S", b"{x", 400, 10025),
    ],
)
async def test_refused_here(suffix: str, request_body: Any, code: int, err_code: int) -> None:
    client, leader = await started()
    reply = await client.ask(f"CONSUMER.{suffix}", request_body)
    assert (reply["error"]["code"], reply["error"]["err_code"]) == (code, err_code), reply
    assert leader.asked == []


async def test_replicas_need_a_cluster() -> None:
    client, _ = await started(clustered=False)
    reply = await client.ask("CONSUMER.CREATE.NONE.c", {"stream_name": "NONE", "config": {"num_replicas": 3}})
    assert reply["error"]["err_code"] == 10074
    assert (await client.ask("CONSUMER.LEADER.STEPDOWN.NONE.c"))["error"]["err_code"] == 10010


@pytest.mark.parametrize(
    "suffix",
    ["CREATE.S.c", "INFO.S.c", "DELETE.S.c", "PAUSE.S.c", "RESET.S.c", "UNPIN.S.c", "LEADER.STEPDOWN.S.c", "LIST.S"],
)
async def test_the_leaders_refusal_is_the_answer(suffix: str) -> None:
    client, leader = await started()
    heard = client.bus.collect(b"$JS.EVENT.ADVISORY.CONSUMER.>")
    leader.error = by_code(10014)
    bodies = {"CREATE.S.c": body(), "UNPIN.S.c": {"group": "g"}}
    reply = await client.ask(f"CONSUMER.{suffix}", bodies.get(suffix))
    zeros = {
        "PAUSE.S.c": {"paused": False, "pause_until": "0001-01-01T00:00:00Z"},
        "RESET.S.c": {"reset_seq": 0},
        "LIST.S": {"total": 0, "offset": 0, "limit": 0, "consumers": []},
    }
    assert reply == {"type": reply["type"], "error": by_code(10014).to_dict(), **zeros.get(suffix, {})}
    assert heard == []


async def test_a_stream_s_own_number_of_consumers_is_left_to_its_leader() -> None:
    """This server may know an older one, and would refuse what another server has just permitted."""
    client, leader = await started(limits=AccountLimits(max_consumers=5))
    await client.ask("CONSUMER.CREATE.S.c", body())
    assert leader.last["max_consumers"] == 5
    for limit in (3, 5):
        await client.create(f"L{limit}", subjects=[f"l{limit}"], max_consumers=limit)
        await client.ask(f"CONSUMER.CREATE.L{limit}.c", {**body(), "stream_name": f"L{limit}"})
        assert leader.last["max_consumers"] == 5


@pytest.mark.parametrize(
    ("of_stream", "limits", "expected"),
    [
        (-1, AccountLimits(default_max_consumers=7), 7),
        (0, AccountLimits(default_max_consumers=7), 7),
        (9, AccountLimits(default_max_consumers=7), 0),
        (-1, AccountLimits(default_max_consumers=7, max_consumers=9), 9),
        (-1, AccountLimits(default_max_consumers=-1), 0),
    ],
)
async def test_the_server_s_default_counts_where_nobody_else_says_a_number(
    of_stream: int, limits: AccountLimits, expected: int
) -> None:
    client, leader = await started(limits=limits)
    await client.create("L", subjects=["l"], max_consumers=of_stream)
    await client.ask("CONSUMER.CREATE.L.c", {**body(), "stream_name": "L"})
    assert leader.last["max_consumers"] == expected


async def test_info_and_delete() -> None:
    client, leader = await started()
    heard = client.bus.collect(b"$JS.EVENT.ADVISORY.CONSUMER.DELETED.S.c")
    reply = await client.ask("CONSUMER.INFO.S.c", b" {} ")
    assert reply["type"] == "io.nats.jetstream.api.v1.consumer_info_response"
    assert (reply["name"], sorted(reply["config"])) == ("c", ["metadata", "num_replicas"])
    assert await client.ask("CONSUMER.DELETE.S.c") == {
        "type": "io.nats.jetstream.api.v1.consumer_delete_response", "success": True,
    }  # fmt: skip
    assert leader.asked == [("info", {"name": "c"}), ("delete", {"name": "c"})]
    assert [(e["type"], e["stream"], e["consumer"], e["action"]) for _, e in heard] == [
        ("io.nats.jetstream.advisory.v1.consumer_action", "S", "c", "delete")
    ]


async def test_list_and_names_page() -> None:
    client, leader = await started()
    reply = await client.ask("CONSUMER.LIST.S", {"offset": 256, "bogus": 1})
    assert (reply["total"], reply["offset"], reply["limit"]) == (300, 256, 256)
    assert reply["consumers"][0]["config"]["metadata"] == {"_nats.req.level": "0"}
    assert leader.last == {"offset": 256, "limit": 256}
    leader.long = True
    assert (await client.ask("CONSUMER.LIST.S"))["limit"] == 1
    for offset, shown in ((-2, 0), (500, 300)):
        reply = await client.ask("CONSUMER.NAMES.S", {"offset": offset})
        assert reply == {
            "type": "io.nats.jetstream.api.v1.consumer_names_response",
            "total": 300, "offset": shown, "limit": 1024, "consumers": ["c"],
        }  # fmt: skip
    await client.ask("CONSUMER.NAMES.S", b" ")
    assert leader.last == {"offset": 0, "limit": 1024}


async def test_pause_and_resume() -> None:
    client, leader = await started()
    heard = client.bus.collect(b"$JS.EVENT.ADVISORY.CONSUMER.PAUSE.S.c")
    now = client.cluster.time.time_ns()
    type = "io.nats.jetstream.api.v1.consumer_pause_response"
    reply = await client.ask("CONSUMER.PAUSE.S.c", {"pause_until": "2999-01-01T00:00:00+00:00"})
    until = 32_472_144_000 * SECOND
    assert reply == {
        "type": type, "paused": True, "pause_until": "2999-01-01T00:00:00Z", "pause_remaining": until - now,
    }  # fmt: skip
    assert leader.last == {"name": "c", "pause_until": until}
    for past in ({"pause_until": "1969-01-01T00:00:00Z"}, {"pause_until": "0001-01-01T00:00:00Z"}, None, b" "):
        until = past["pause_until"] if isinstance(past, dict) else "0001-01-01T00:00:00Z"
        assert await client.ask("CONSUMER.PAUSE.S.c", past) == {"type": type, "paused": False, "pause_until": until}
        assert leader.last == {"name": "c", "pause_until": 0}
    assert [e["pause_until"] for _, e in heard] == ["2999-01-01T00:00:00Z", *["0001-01-01T00:00:00Z"] * 4]
    assert [e["paused"] for _, e in heard] == [True, False, False, False, False]


async def test_reset_unpin_stepdown() -> None:
    client, leader = await started()
    reply = await client.ask("CONSUMER.RESET.S.c", {"seq": 7})
    assert (reply["reset_seq"], reply["name"], leader.last["seq"]) == (7, "c", 7)
    await client.ask("CONSUMER.RESET.S.c")
    assert leader.last == {"name": "c", "seq": 0}
    assert await client.ask("CONSUMER.UNPIN.S.c", {"group": "g"}) == {
        "type": "io.nats.jetstream.api.v1.consumer_unpin_response"
    }
    assert leader.last == {"name": "c", "group": "g"}
    await client.ask("CONSUMER.LEADER.STEPDOWN.S.c", {"placement": {"preferred": "n2"}})
    placement = {"cluster": "", "tags": [], "preferred": "n2"}
    assert leader.last == {"name": "c", "placement": placement, "preferred": "n2"}
    assert (await client.ask("CONSUMER.LEADER.STEPDOWN.S.c"))["success"] is True
    assert leader.last == {"name": "c", "placement": {}, "preferred": ""}


@pytest.mark.parametrize("verb", ["remove", "evacuate"])
async def test_a_consumer_leaves_a_server(verb: str) -> None:
    client, leader = await started()
    subject = f"CONSUMER.PEER.{verb.upper()}.S.c"
    assert await client.ask(subject, {"peer": "n2"}) == {
        "type": f"io.nats.jetstream.api.v1.consumer_{verb}_peer_response",
        "success": True,
    }
    assert leader.last == {"name": "c", "peer": "n2"}
    for body in (None, {}, {"peer": ""}):
        assert (await client.ask(subject, body))["error"]["err_code"] == 10003
    assert (await Client(clustered=False).ask(subject, {"peer": "n2"}))["error"]["err_code"] == 10010


async def test_a_source_goes_on_with_the_stream_it_knows_only() -> None:
    """The check is for `sourcing` consumers alone, and for sources that know something, as in nats-server 2.15.2."""

    async def create(known: bytes, **config: Any) -> dict[str, Any]:
        headers = b"NATS/1.0\r\nNats-Stream-Identity: %b\r\n\r\n" % known
        wish = {"name": "c", "ack_policy": "none", **config}
        return await client.ask("CONSUMER.CREATE.S.c", {"stream_name": "S", "config": wish}, headers)

    client, _ = await started()
    assert "error" not in await create(b"", sourcing=True)
    assert "error" not in await create(b"another", sourcing=False)
    refused = await create(b"another", sourcing=True)
    assert (refused["error"]["code"], refused["error"]["err_code"]) == (400, 10225)
    identity = refused["error"]["description"].removeprefix("consumer's stream identity does not match: ").encode()
    assert len(identity) == 8
    assert "error" not in await create(identity, sourcing=True)
    await client.ask("STREAM.DELETE.S")
    await client.create("S", subjects=["s.>"])
    assert (await create(identity, sourcing=True))["error"]["err_code"] == 10225


ASKED: dict[str, Any] = {
    "name": "JS_SRC_x", "deliver_policy": "by_start_sequence", "opt_start_seq": 4, "ack_policy": "none",
    "ack_wait": 79_200_000_000_000, "max_deliver": 1, "flow_control": True, "deliver_subject": "$JS.S.a",
    "idle_heartbeat": 1_000_000_000, "inactive_threshold": 10_000_000_000, "direct": True, "sourcing": True,
}  # fmt: skip


def test_only_where_messages_would_go_unseen() -> None:
    link = ConsumerConfig.model_validate(ASKED)
    assert waits_for_acks(link, {"retention": "workqueue"}) and waits_for_acks(link, {"retention": "interest"})
    assert not waits_for_acks(link, {"retention": "limits"})
    assert not waits_for_acks(ConsumerConfig.model_validate({**ASKED, "sourcing": False}), {"retention": "interest"})


def test_what_it_becomes() -> None:
    link = ConsumerConfig.model_validate(ASKED)
    assert make_durable(link) == 4
    wire = link.to_wire()
    assert wire == {
        "durable_name": "JS_SRC_x", "name": "JS_SRC_x", "deliver_policy": "all", "ack_policy": "flow_control",
        "replay_policy": "instant", "max_ack_pending": 1000, "flow_control": True, "deliver_subject": "$JS.S.a",
        "idle_heartbeat": 1_000_000_000, **{k: v for k, v in wire.items() if k == "priority_policy"},
    }  # fmt: skip


async def ask(node: Node, **more: Any) -> dict[str, Any]:
    body = json.dumps({"stream_name": "UP", "config": {**ASKED, **more}}).encode()
    answer: dict[str, Any] = json.loads((await node.request(b"$JS.API.CONSUMER.CREATE.UP", body))[2])
    return answer


@virtual_time
@pytest.mark.parametrize("retention", ["workqueue", "interest"])
async def test_it_goes_on_where_it_says_and_what_it_has_is_acknowledged(retention: str) -> None:
    async with Cluster() as cluster:
        apis = with_api(cluster)
        await cluster.create("UP", retention=retention)
        first = await ask(cluster["B"], deliver_policy="all", opt_start_seq=0)
        assert first["config"]["ack_policy"] == "flow_control" and first["name"] == "JS_SRC_x"
        await fill(cluster["A"], 10)
        leader = await cluster.led("UP")
        got: list[bytes] = []
        listening = leader.bus.subscribe(b"$JS.S.a", lambda _s, _r, _h, payload, _o: payload and got.append(payload))
        await cluster.until(lambda: len(got) == 10, what="all are delivered")
        assert leader.replica("UP").store.messages == 10, "none is gone"
        leader.bus.unsubscribe(listening)
        again: list[bytes] = []
        leader.bus.subscribe(b"$JS.S.b", lambda _s, _r, _h, payload, _o: payload and again.append(payload))
        found = await ask(cluster["C"], deliver_subject="$JS.S.b")
        assert (found["delivered"]["consumer_seq"], found["config"]["deliver_subject"]) == (0, "$JS.S.b")
        await cluster.until(lambda: len(again) == 7, what="from 4 on")
        assert again == [b"%d" % n for n in range(3, 10)]
        await cluster.until(lambda: all(node.replica("UP").store.first_seq == 4 for node in cluster), what="1 to 3 go")
        await stop(apis)


@pytest.mark.parametrize("way", ["field", "metadata"])
@pytest.mark.parametrize("suffix", ["CREATE", "DURABLE.CREATE"])
async def test_letters_go_only_where_their_client_may_publish(way: str, suffix: str) -> None:
    client, leader = await started()
    client.bus.is_guarded = lambda filter: filter == b"away.*.>"  # type: ignore[method-assign]
    restricted = b"NATS/1.0\r\nNats-Deliver-Guarded: 1\r\n\r\n"
    for subject, refused in (("away.{stream}.{subject}", True), ("dead.{subject}", False)):
        wish = {"dead_letter": {"subject": subject}}
        if way == "metadata":
            wish = {"metadata": {"jetcluster.dead_letter.subject": subject}}
        fields = body({"durable_name": "c", "max_deliver": 1, **wish})
        reply = await client.ask(f"CONSUMER.{suffix}.S.c", fields, headers=restricted)
        assert len(leader.asked) == (not refused)
        if refused:
            assert reply["error"]["err_code"] == 10052 and "dead_letter subject is not permitted" in str(reply["error"])
            assert "error" not in await client.ask(f"CONSUMER.{suffix}.S.c", fields), "others may"
            leader.asked.clear()
