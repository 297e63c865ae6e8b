"""`$SYS` events of one server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from jetcluster.clock import SystemClock
from jetcluster.monitor.system import events as system_events
from jetcluster.monitor.system.events import SystemEvents
from jetcluster.monitor.view import ServerBlock
from jetcluster.server.server import Server
from testkit.server_rig import Nobody
from tests.unit.monitor import fake_node
from tests.unit.monitor.system import Asker
from tests.unit.monitor.wire import Wire


async def test_a_connection_comes_and_goes(server: Server, events: SystemEvents) -> None:
    system = Asker(server)
    system.listen(b"$SYS.ACCOUNT.>")
    wire = await Wire.open(server, "a", b"PUB x 2\r\nhi")
    seen = dict([await system.next(), await system.next()])
    connect = seen["$SYS.ACCOUNT.$G.CONNECT"]
    assert connect["type"] == "io.nats.server.advisory.v1.client_connect"
    assert (len(connect["id"]), connect["server"]["name"]) == (22, "n1")
    assert (connect["client"]["name"], connect["client"]["acc"], "stop" in connect["client"]) == ("a", "$G", False)
    assert list(connect["client"]) == [
        "start", "host", "id", "acc", "user", "name", "lang", "ver", "name_tag", "kind", "client_type",
    ]  # fmt: skip
    counted = seen["$SYS.ACCOUNT.$G.SERVER.CONNS"]
    assert counted["type"] == "io.nats.server.advisory.v1.account_connections"
    assert (counted["acc"], counted["conns"], counted["total_conns"]) == ("$G", 1, 1)
    await wire.close()
    seen = dict([await system.next(), await system.next()])
    gone = seen["$SYS.ACCOUNT.$G.DISCONNECT"]
    assert gone["type"] == "io.nats.server.advisory.v1.client_disconnect"
    assert (gone["reason"], gone["received"], gone["sent"]["msgs"]) == ("Client Closed", {"msgs": 1, "bytes": 2}, 0)
    assert gone["client"]["stop"] > gone["client"]["start"]
    counted = seen["$SYS.ACCOUNT.$G.SERVER.CONNS"]
    assert (counted["conns"], counted["received"]["msgs"]) == (0, 1)


async def test_many_changes_make_few_counts(server: Server, events: SystemEvents) -> None:
    system = Asker(server)
    system.listen(b"$SYS.SERVER.ACCOUNT.$G.CONNS")
    wires = [await Wire.open(server, "a") for _ in range(6)]
    last: dict[str, Any] = {}
    counts = 0
    while last.get("conns") != 6:
        last = (await system.next())[1]
        counts += 1
    assert counts <= 3
    for wire in wires:
        await wire.close()


async def test_the_beat_tells_of_accounts_with_connections_and_looks_at_no_others(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system_events, "CONNS_SECONDS", 0.02)
    for number in range(100):
        server.account(f"unused-{number}")
    system = Asker(server)
    system.listen(b"$SYS.ACCOUNT.*.SERVER.CONNS")
    wire = await Wire.open(server, "a")
    node = fake_node.node(server, SystemClock())
    events = SystemEvents(node, ServerBlock(node))
    asked: list[bytes] = []
    ask = events._bus.has_interest

    def spy(subject: bytes) -> bool:
        asked.append(subject)
        return ask(subject)

    monkeypatch.setattr(events._bus, "has_interest", spy)
    events.start()
    for _ in range(3):
        subject, told = await system.next()
        assert (subject, told["conns"]) == ("$SYS.ACCOUNT.$G.SERVER.CONNS", 1)
    assert not [subject for subject in asked if b"unused" in subject]
    events.stop()
    await wire.close()


async def test_refused_clients(server: Server, events: SystemEvents) -> None:
    server.state.authenticator = Nobody()
    system = Asker(server)
    system.listen(f"$SYS.SERVER.{server.server_id}.CLIENT.AUTH.ERR".encode())
    system.listen(b"$SYS.ACCOUNT.$G.DISCONNECT")
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b'CONNECT {"user":"mallory","pass":"secret"}\r\nPING\r\n')
    for _ in range(2):  # both subjects
        _, event = await system.next()
        assert event["reason"] == "Authentication Failure"
        assert (event["client"]["acc"], event["client"]["user"]) == ("$G", "mallory")
        assert "secret" not in str(event)
    await reader.read()
    writer.close()
    assert server.clients.closed[-1].user == "mallory"


async def test_who_never_logged_in_is_not_announced_as_gone(server: Server, events: SystemEvents) -> None:
    system = Asker(server)
    system.listen(b"$SYS.ACCOUNT.$G.DISCONNECT")
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"GARBAGE\r\n")
    await reader.read()
    writer.close()
    wire = await Wire.open(server, "a")
    await wire.close()
    _, event = await system.next()
    assert event["client"]["name"] == "a"
    assert system.replies.empty()


async def test_goodbye(server: Server, events: SystemEvents) -> None:
    system = Asker(server)
    system.listen(b"$SYS.SERVER.*.LAMEDUCK")
    system.listen(b"$SYS.SERVER.*.SHUTDOWN")
    events.lame_duck()
    subject, event = await system.next()
    assert (subject.rpartition(".")[2], event["id"]) == ("LAMEDUCK", server.server_id)
    events.stop()
    assert (await system.next())[0] == f"$SYS.SERVER.{server.server_id}.SHUTDOWN"
    assert server.clients.watcher is None


async def test_nothing_is_built_when_nobody_listens(
    server: Server, events: SystemEvents, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[str] = []
    monkeypatch.setattr(events, "_publish", lambda *args: built.append("event"))
    monkeypatch.setattr(system_events, "account_stats", lambda node, names: built.extend(names) or [])
    wire = await Wire.open(server, "a")
    await wire.close()
    while server.clients:
        await asyncio.sleep(0.005)
    await asyncio.sleep(0.02)
    assert built == []
