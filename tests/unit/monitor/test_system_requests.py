"""`$SYS.REQ` requests: who is answered what."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from jetcluster.clock import SystemClock
from jetcluster.monitor.pages import NodeSource
from jetcluster.monitor.system import answers, requests
from jetcluster.server.server import Server
from tests.unit.monitor import fake_node
from tests.unit.monitor.system import Asker, services
from tests.unit.monitor.wire import Wire


@pytest.fixture
async def node(server: Server) -> AsyncIterator[Any]:
    clock = SystemClock()
    found = fake_node.node(server, clock, fake_node.engine(clock))
    found.options.server_tags = ["az:1", "ssd"]
    running = services(found, reload="line 3 is wrong")
    yield found
    await running.stop()


@pytest.fixture
def system(node: Any, server: Server) -> Asker:
    return Asker(server)


async def test_every_kind_is_answered_to_all_and_to_one(system: Asker, server: Server) -> None:
    for kind in set(requests.VIEWS) - {"IDZ", "STATSZ", "HISTORY"}:
        for subject in (f"$SYS.REQ.SERVER.PING.{kind}", f"$SYS.REQ.SERVER.{server.server_id}.{kind}"):
            reply = await system.ask(subject)
            assert set(reply) == {"server", "data"}, (kind, reply)
            assert isinstance(reply["data"], dict)
    for subject in ("$SYS.REQ.SERVER.PING", "$SYS.REQ.SERVER.PING.STATSZ"):
        reply = await system.ask(subject)
        assert set(reply) == {"server", "statsz"}
        assert reply["statsz"]["active_servers"] == 1
    block = reply["server"]
    assert (block["name"], block["id"], block["cluster"], block["domain"]) == ("n1", server.server_id, "c1", "hub")
    assert (block["tags"], block["jetstream"]) == (["az:1", "ssd"], True)
    assert (await system.ask("$SYS.REQ.SERVER.PING"))["server"]["seq"] == block["seq"] + 1
    assert await system.ask("$SYS.REQ.SERVER.PING.IDZ") == {"name": "n1", "host": "127.0.0.1", "id": server.server_id}


async def test_the_data_are_those_of_the_endpoints(system: Asker, node: Any) -> None:
    source = NodeSource(node)
    for kind, options, query in (
        ("JSZ", {"accounts": True, "streams": True, "limit": 5}, {"accounts": "1", "streams": "1", "limit": "5"}),
        ("JSZ", {"streams": True, "lag": True}, {"streams": "1", "lag": "1"}),
        ("JSZ", {"streams": True, "stream_offset": 0, "stream_limit": 1}, {"streams": "1", "stream-limit": "1"}),
        (
            "JSZ",
            {"streams": True, "stream_offset": 1, "stream_limit": 1},
            {"streams": "1", "stream-offset": "1", "stream-limit": "1"},
        ),
        ("SUBSZ", {"subscriptions": True, "account": "$G"}, {"subs": "1", "acc": "$G"}),
        ("ACCOUNTZ", {"account": "$G"}, {"acc": "$G"}),
        ("RAFTZ", {"account": "$G"}, {"acc": "$G"}),
        ("CONNZ", {"state": 1, "limit": 7, "sort": "stop"}, {"state": "closed", "limit": "7", "sort": "stop"}),
    ):
        data = (await system.ask(f"$SYS.REQ.SERVER.PING.{kind}", **options))["data"]
        page = source.page(kind.lower(), query)
        for moment in ("now",):
            data.pop(moment, None), page.pop(moment, None)
        assert data.keys() == page.keys(), kind
        assert data.get("limit") == page.get("limit")
    assert data["limit"] == 7
    health = (await system.ask("$SYS.REQ.SERVER.PING.HEALTHZ", account="nobody"))["data"]
    assert (health["status_code"], health["status"]) == (404, "unavailable")
    assert list(health) == ["status", "status_code", "error"]


@pytest.mark.parametrize(
    ("wanted", "answers"),
    [
        ({"server_name": "n"}, True),
        ({"server_name": "n", "exact_match": True}, False),
        ({"server_name": "n1", "exact_match": True}, True),
        ({"server_name": "n2"}, False),
        ({"cluster": "c1"}, True),
        ({"cluster": "other"}, False),
        ({"host": "127."}, True),
        ({"host": "10."}, False),
        ({"tags": ["ssd"]}, True),
        ({"tags": ["SSD"]}, True),
        ({"tags": ["ssd", "az:2"]}, False),
        ({"domain": "hub"}, True),
        ({"domain": "edge"}, False),
    ],
)
async def test_filters(system: Asker, wanted: dict[str, Any], answers: bool) -> None:
    if answers:
        assert (await system.ask("$SYS.REQ.SERVER.PING.HEALTHZ", **wanted))["server"]["name"] == "n1"
    else:
        assert await system.silent("$SYS.REQ.SERVER.PING.HEALTHZ", **wanted)


async def test_senseless_requests_are_refused(system: Asker, server: Server) -> None:
    ping = "$SYS.REQ.SERVER.PING.CONNZ"
    assert (await system.ask(ping, sort="nonsense"))["error"]["code"] == 500
    for options in ({"limit": {"a": 1}}, {"limit": "1"}, {"auth": 1}, {"state": "closed"}, {"user": 5}):
        refused = (await system.ask(ping, **options))["error"]
        assert (refused["code"], refused["description"][:21]) == (400, "json: cannot unmarsha"), options
    assert (await system.ask(ping, filter_subject="foo"))["error"] == {
        "code": 500, "description": "filter by subject only valid with account filtering",
    }  # fmt: skip
    assert (await system.ask_raw(ping, b'{"lim":bad'))["error"]["description"].startswith("invalid character")
    assert (await system.ask_raw(ping, b"[1]"))["error"]["code"] == 400
    assert (await system.ask_raw(ping, b"[" * 60_000))["error"]["code"] == 400
    assert (await system.ask_raw(ping, b" " * 70_000 + b"x"))["error"]["code"] == 400
    assert server.account("$SYS").ask(b"$SYS.REQ.SERVER.PING.NOPEZ", b"", b"inbox") == 0


async def test_the_health_of_a_consumer(system: Asker) -> None:
    """Its name is a text, and `consumer` of JSZ is none."""
    ping = "$SYS.REQ.SERVER.PING"
    asked = await system.ask(f"{ping}.HEALTHZ", account="$G", stream="S", consumer="C")
    assert asked["data"]["status_code"] in (200, 404), asked
    refused = await system.ask(f"{ping}.HEALTHZ", consumer="C")
    assert refused["data"]["error"] == '"stream" must not be empty when checking consumer health'
    for kind, value in (("HEALTHZ", True), ("JSZ", "C")):
        assert (await system.ask(f"{ping}.{kind}", consumer=value))["error"]["code"] == 400


async def test_only_the_meta_leader_answers_leader_only(server: Server) -> None:
    clock = SystemClock()
    node = fake_node.node(server, clock, fake_node.engine(clock, leader="BBBBBBBB"))
    running = services(node)
    assert await Asker(server).silent("$SYS.REQ.SERVER.PING.JSZ", leader_only=True)
    await running.stop()


async def test_a_reply_is_bounded(system: Asker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "MAX_REPLY_BYTES", 400)
    reply = await system.ask("$SYS.REQ.SERVER.PING.VARZ")
    assert (reply["error"]["code"], "page" in reply["error"]["description"]) == (500, True)


async def test_a_defect_is_answered(system: Asker, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server.clients, "totals", lambda: 1 / 0)
    reply = await system.ask("$SYS.REQ.SERVER.PING.VARZ")
    assert reply["error"] == {"code": 500, "description": "internal error, see the log"}
    assert "data" in await system.ask("$SYS.REQ.SERVER.PING.HEALTHZ")


async def test_a_program_that_was_replaced_while_it_runs(system: Asker, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        told = asyncio.Event()
        patched.setitem(sys.modules, "jetcluster.monitor.system.answers", None)
        patched.setattr(requests, "log", SimpleNamespace(exception=lambda text: told.set()))
        system.bus.ask(b"$SYS.REQ.SERVER.PING.IDZ", b"", b"inbox")
        await asyncio.wait_for(told.wait(), 10)
    assert "name" in await system.ask("$SYS.REQ.SERVER.PING.IDZ")
    assert system.replies.empty()


async def test_too_many_requests_at_once(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "MAX_QUEUED", 3)
    running = services(fake_node.node(server, SystemClock()))
    system = Asker(server)
    for _ in range(10):
        system.bus.ask(b"$SYS.REQ.SERVER.PING.IDZ", b"", b"inbox")
    for _ in range(3):
        await system.next()
    assert running.dropped == 7
    await system.ask("$SYS.REQ.SERVER.PING.IDZ")
    await running.stop()


async def test_an_answer_that_takes_long_holds_up_no_short_one(system: Asker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list of very many consumers takes seconds, and whether the server is well must be known meanwhile."""
    over, begun = asyncio.Event(), 0
    most = requests.MAX_GROWING
    answer = answers.SystemAnswers.answer

    async def slow(self: answers.SystemAnswers, request: requests.SystemRequest) -> bytes:
        nonlocal begun
        if b"consumers" in request.body:
            begun += 1
            await over.wait()
        return await answer(self, request)

    monkeypatch.setattr(answers.SystemAnswers, "answer", slow)

    def ask() -> None:
        system.bus.ask(b"$SYS.REQ.SERVER.PING.JSZ", b'{"consumers": true}', b"inbox")

    ask()
    for kind in ("HEALTHZ", "VARZ", "IDZ", "STATSZ", "JSZ"):
        assert "error" not in await system.ask(f"$SYS.REQ.SERVER.PING.{kind}")
    for _ in range(most):
        ask()
    assert "error" not in await system.ask("$SYS.REQ.SERVER.PING.HEALTHZ")
    assert begun == most, "one more waits"
    over.set()
    for _ in range(most + 1):
        assert "streams" in (await system.next())[1]["data"]
    assert begun == most + 1


async def test_an_account_that_asks_too_much_does_not_hold_up_the_others(
    system: Asker, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "MAX_OF_OTHERS", 5)
    noisy, quiet = Asker(server, "NOISY"), Asker(server, "QUIET")
    for _ in range(2):
        for _ in range(50):
            noisy.bus.ask(b"$SYS.REQ.USER.INFO", b"", b"inbox")
        quiet.bus.ask(b"$SYS.REQ.USER.INFO", b"", b"inbox")
        assert "name" in await system.ask("$SYS.REQ.SERVER.PING.IDZ")
        assert (noisy.replies.qsize(), quiet.replies.qsize()) == (5, 1)
        for _ in range(5):
            await noisy.next()
        await quiet.next()


async def test_accounts(system: Asker, server: Server) -> None:
    wire = await Wire.open(server, "a", b"SUB foo 1")
    ask = "$SYS.REQ.ACCOUNT.$G."
    info = (await system.ask(ask + "INFO"))["data"]
    assert (info["account_name"], info["client_connections"], info["jetstream_enabled"]) == ("$G", 1, True)
    assert (await system.ask(ask + "CONNZ", auth=True))["data"]["connections"][0]["account"] == "$G"
    assert (await system.ask(ask + "SUBSZ", subscriptions=True))["data"]["subscriptions_list"]
    assert (await system.ask(ask + "JSZ", streams=True))["data"]["stream_detail"][0]["name"] == "S"
    assert (await system.ask(ask + "STATZ"))["data"]["account_statz"][0]["conns"] == 1
    assert (await system.ask(ask + "CONNS"))["total_conns"] == 1
    assert (await system.ask(ask + "LEAFZ"))["data"]["leafs"] == []
    (stat,) = (await system.ask("$SYS.REQ.ACCOUNT.PING.STATZ"))["data"]["account_statz"]
    assert (stat["acc"], stat["num_subscriptions"] > 0) == ("$G", True)
    unused = await system.ask("$SYS.REQ.ACCOUNT.PING.STATZ", accounts=["$SYS"], include_unused=True)
    assert [stat["acc"] for stat in unused["data"]["account_statz"]] == ["$SYS"]
    both = await system.ask("$SYS.REQ.ACCOUNT.PING.STATZ", accounts=["$G", "nobody"], include_unused=True)
    assert [stat["acc"] for stat in both["data"]["account_statz"]] == ["$G"]
    assert await system.silent("$SYS.REQ.ACCOUNT.$SYS.STATZ")
    await wire.close()


async def test_to_ask_about_an_account_does_not_make_it(system: Asker, server: Server) -> None:
    assert await system.silent("$SYS.REQ.ACCOUNT.nobody.CONNS")
    assert await system.silent("$SYS.REQ.ACCOUNT.nobody.STATZ")
    for kind, text in (
        ("INFO", "Account nobody does not exist"),
        ("JSZ", 'account "nobody" not found'),
    ):
        assert (await system.ask(f"$SYS.REQ.ACCOUNT.nobody.{kind}"))["error"] == {"code": 500, "description": text}
    for kind in ("CONNZ", "SUBSZ", "LEAFZ"):
        assert "data" in await system.ask(f"$SYS.REQ.ACCOUNT.nobody.{kind}")
    assert (await system.ask("$SYS.REQ.ACCOUNT.$SYS.JSZ"))["error"]["description"].endswith("not jetstream enabled")
    assert (await system.ask("$SYS.REQ.SERVER.PING.ACCOUNTZ", account="nobody"))["error"]["code"] == 500
    assert "nobody" not in {router.account for router in server.accounts}


async def test_an_ordinary_account_learns_about_itself_only(node: Any, server: Server) -> None:
    wire = await Wire.open(server, "a", b"SUB foo 1")
    server.account("OTHER")
    own, other = Asker(server, "$G"), Asker(server, "OTHER")
    for subject in ("$SYS.REQ.ACCOUNT.PING.CONNZ", "$SYS.REQ.SERVER.PING.CONNZ"):
        assert (await own.ask(subject))["data"]["num_connections"] == 1
        assert (await other.ask(subject, acc="$G"))["data"]["num_connections"] == 0
        own.bus.ask(subject.encode(), b'{"server_name":"other"}', b"inbox")  # not answered
    (stat,) = (await own.ask("$SYS.REQ.ACCOUNT.PING.STATZ"))["data"]["account_statz"]
    assert stat["acc"] == "$G"
    asked = await other.ask("$SYS.REQ.ACCOUNT.PING.STATZ", accounts=["$G"], include_unused=True)
    assert [stat["acc"] for stat in asked["data"]["account_statz"]] == ["OTHER"]
    assert (await own.ask("$SYS.REQ.USER.INFO"))["data"]["account"] == "$G"
    for subject in (
        "$SYS.REQ.SERVER.PING", "$SYS.REQ.SERVER.PING.VARZ", f"$SYS.REQ.SERVER.{server.server_id}.KICK",
        "$SYS.REQ.ACCOUNT.$G.CONNZ", "$SYS.REQ.ACCOUNT.PING.INFO", "$SYS.REQ.SERVER.PING.SUBSZ",
    ):  # fmt: skip
        assert own.bus.ask(subject.encode(), b"", b"inbox") == 0, subject
    await wire.close()


async def test_commands(system: Asker, server: Server) -> None:
    own = f"$SYS.REQ.SERVER.{server.server_id}."
    assert (await system.ask(own + "RELOAD"))["error"] == {"code": 500, "description": "line 3 is wrong"}
    wire = await Wire.open(server, "a")
    (cid,) = [client.cid for client in server.clients]
    assert set(await system.ask(own + "LDM", cid=cid)) == {"server"}
    while b'"ldm":true' not in await asyncio.wait_for(wire.reader.readline(), 5):
        pass
    assert (await system.ask(own + "KICK", cid=999))["error"]["description"] == "no such client or leafnode id"
    assert (await system.ask(own + "LDM", cid=999))["error"]["description"] == "no such client id"
    assert (await system.ask(own + "KICK"))["error"]["code"] == 500
    assert set(await system.ask(own + "KICK", cid=cid)) == {"server"}
    assert server.clients.closed[-1].reason == "Kicked"
    assert server.account("$SYS").ask(b"$SYS.REQ.SERVER.PING.KICK", b"", b"inbox") == 0
    await wire.close()


async def test_after_the_stop_nobody_answers(server: Server) -> None:
    running = services(fake_node.node(server, SystemClock()))
    system = Asker(server)
    await system.ask("$SYS.REQ.SERVER.PING.IDZ")
    await running.stop()
    assert system.bus.ask(b"$SYS.REQ.SERVER.PING.IDZ", b"", b"inbox") == 0
    assert server.account("NEW").ask(b"$SYS.REQ.USER.INFO", b"", b"inbox") == 0
