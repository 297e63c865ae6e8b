"""The WebSocket port of a whole node: stock clients over ws and wss, logins, monitoring, reload (node/)."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from operator import attrgetter
from pathlib import Path
from typing import Any

import aiohttp
import nats
import pytest

from jetcluster.monitor.pages import NodeSource
from jetcluster.monitor.varz import varz
from jetcluster.node.node import Node
from jetcluster.server.server import enter_lame_duck
from testkit.certificates import make_certificate
from tests.unit.node.rig import running as node_of


def url_of(node: Node) -> str:
    return node.listening()["websocket"][0]


@asynccontextmanager
async def raw(node: Node, **options: Any) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
    async with aiohttp.ClientSession() as session, session.ws_connect(url_of(node), **options) as connection:
        yield connection


async def heard(connection: aiohttp.ClientWebSocketResponse) -> bytes:
    return bytes(await connection.receive_bytes(timeout=5))


async def login(node: Node, connect: dict[str, Any], **options: Any) -> str:
    """ "PONG" or what was answered instead."""
    async with raw(node, **options) as connection:
        assert (await heard(connection)).startswith(b"INFO ")
        await connection.send_bytes(b"CONNECT " + json.dumps({"verbose": False, **connect}).encode() + b"\r\nPING\r\n")
        return (await heard(connection)).decode().strip()


async def plain_login(node: Node, connect: dict[str, Any]) -> str:
    """The same on the port for clients without WebSocket."""
    reader, writer = await asyncio.open_connection("127.0.0.1", node.server.port)
    await reader.readline()
    writer.write(b"CONNECT " + json.dumps({"verbose": False, **connect}).encode() + b"\r\nPING\r\n")
    answer = await asyncio.wait_for(reader.readline(), 5)
    writer.close()
    await writer.wait_closed()
    return answer.decode().strip()


@pytest.mark.filterwarnings("ignore:parameter 'timeout' of type 'float':DeprecationWarning")  # nats-py's own
@pytest.mark.parametrize("tls", [False, True])
async def test_a_stock_client_publishes_subscribes_and_uses_jetstream(tmp_path: Path, *, tls: bool) -> None:
    security, context = "no_tls: true", None
    if tls:
        cert, key = make_certificate(tmp_path)
        security = f'tls {{ cert_file: "{cert}", key_file: "{key}" }}'
        context = ssl.create_default_context(cafile=str(cert))
    text = f'websocket {{ listen: "127.0.0.1:-1", {security} }}\njetstream {{ store_dir: "{tmp_path / "js"}" }}\n'
    async with node_of(tmp_path, text) as node:
        assert url_of(node).startswith("wss://127.0.0.1:" if tls else "ws://127.0.0.1:")
        client = await nats.connect(url_of(node), tls=context, allow_reconnect=False)
        said = attrgetter("_server_info")(client)  # the port's own security, as nats-server says it: both or none
        assert [said.get(key) for key in ("tls_required", "tls_available")] == ([True, True] if tls else [None, None])
        subscription = await client.subscribe("big")
        body = bytes(range(256)) * 3000
        await client.publish("big", body)
        assert (await subscription.next_msg(timeout=10)).data == body
        js = client.jetstream()
        await js.add_stream(name="S", subjects=["s.>"])
        for at in range(20):
            assert (await js.publish("s.a", b"%d" % at)).seq == at + 1
        pull = await js.pull_subscribe("s.a", "d")
        assert [message.data for message in await pull.fetch(20, timeout=10)] == [b"%d" % at for at in range(20)]

        shown = NodeSource(node).page("connz", {})["connections"]
        assert [(one["type"], one["lang"]) for one in shown] == [("websocket", "python3")]
        await client.close()
        for _ in range(500):
            closed = NodeSource(node).page("connz", {"state": "closed"})["connections"]
            if closed:
                break
            await asyncio.sleep(0.01)
        assert [(one["type"], one["reason"]) for one in closed] == [("websocket", "Client Closed")]


async def test_what_monitoring_says_of_the_port(tmp_path: Path) -> None:
    text = 'websocket { listen: "127.0.0.1:-1", no_tls: true, compression: true, handshake_timeout: "3s" }\n'
    async with node_of(tmp_path, text) as node:
        assert varz(node)["websocket"] == {
            "host": "127.0.0.1",
            "port": node.server.ws_port.port if node.server.ws_port else 0,
            "handshake_timeout": 3_000_000_000,
            "no_tls": True,
            "compression": True,
        }


async def test_monitoring_shows_the_addresses_of_a_cluster_and_the_ports_own_anonymous_user(tmp_path: Path) -> None:
    text = (
        'websocket { listen: "127.0.0.1:-1", no_tls: true, advertise: "ws.example:443" }\n'
        'cluster { name: C, listen: "127.0.0.1:-1", authorization { user: r, password: p } }\n'
        "accounts { A { users: [ {user: a, password: p} ] } }\nno_auth_user: a\n"
    )
    async with node_of(tmp_path, text) as node:
        found = varz(node)
        assert found["ws_connect_urls"] == ["ws.example:443"]
        assert "no_auth_user" not in found["websocket"], "nats-server shows only one that the block has"


async def test_users_by_type_of_connection_cookies_and_reload(tmp_path: Path) -> None:
    users = """
        authorization { users: [
          {user: std, password: p, allowed_connection_types: ["STANDARD"]}
          {user: web, password: p, allowed_connection_types: ["WEBSOCKET"]}
        ] }
    """
    block = 'websocket { listen: "127.0.0.1:-1", no_tls: true, user_cookie: u, pass_cookie: w, %s }\n'
    async with node_of(tmp_path, users + block % "compression: false") as node:
        refused = "-ERR 'Authorization Violation'"
        assert await login(node, {"user": "web", "pass": "p"}) == "PONG"
        assert await login(node, {"user": "std", "pass": "p"}) == refused
        assert await login(node, {"user": "web", "pass": "wrong"}) == refused
        assert await login(node, {}) == refused
        assert await login(node, {}, headers={"Cookie": "u=web; w=p"}) == "PONG"
        assert await login(node, {"user": "std"}, headers={"Cookie": "u=web; w=p"}) == refused
        assert await plain_login(node, {"user": "web", "pass": "p"}) == refused  # of the other port it is no user
        assert await plain_login(node, {"user": "std", "pass": "p"}) == "PONG"

        (tmp_path / "c.conf").write_text(
            'listen: "127.0.0.1:-1"\nserver_name: n1\n' + users + block % "no_auth_user: web"
        )
        assert node.reload("test") == ""
        assert await login(node, {}) == "PONG"


async def test_a_login_of_its_own(tmp_path: Path) -> None:
    text = 'websocket { listen: "127.0.0.1:-1", no_tls: true, token_cookie: t, authorization { token: secret } }\n'
    async with node_of(tmp_path, text) as node:
        assert await login(node, {}) == "-ERR 'Authorization Violation'"
        assert await login(node, {"auth_token": "secret"}) == "PONG"
        assert await login(node, {}, headers={"Cookie": "t=secret"}) == "PONG"
        assert await plain_login(node, {}) == "PONG"


async def test_clients_get_an_info_when_the_server_goes_away(tmp_path: Path) -> None:
    text = 'websocket { listen: "127.0.0.1:-1", no_tls: true }\n'
    async with node_of(tmp_path, text) as node, raw(node) as connection:
        await heard(connection)
        await node.stop()
        message = await connection.receive(timeout=5)
        assert (message.type, message.data) == (aiohttp.WSMsgType.CLOSE, 1001)


async def test_lame_duck_over_websocket(tmp_path: Path) -> None:
    """WebSocket clients get an INFO and are closed like the others, with a close frame, and nobody new is let in."""
    text = """
    cluster { name: c, listen: "127.0.0.1:-1" }
    websocket { listen: "127.0.0.1:-1", no_tls: true }
    """
    async with node_of(tmp_path, text) as node:
        node.server.options.lame_duck_duration, node.server.options.lame_duck_grace_period = 0.1, 0.1
        async with raw(node) as connection:
            await heard(connection)
            await connection.send_bytes(b'CONNECT {"verbose":false,"protocol":1}\r\nPING\r\n')
            while b"PONG" not in await heard(connection):
                pass
            leaving = asyncio.ensure_future(enter_lame_duck(node.server))
            told = await heard(connection)
            while b'"ldm":true' not in told:
                told = await heard(connection)
            url = url_of(node)
            async with aiohttp.ClientSession() as session:
                with pytest.raises(aiohttp.ClientError):
                    await session.ws_connect(url)
            closing = await connection.receive(timeout=5)
            assert closing.type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED), closing
            await leaving
        assert {closed.reason for closed in node.server.clients.closed} == {"Server Shutdown"}
