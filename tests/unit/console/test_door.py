"""The console's door on the monitoring port of a whole node: what goes through it, what does not, and what goes on
beside it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import bcrypt
import pytest

from jetcluster.console.audit import MAX_LINES
from jetcluster.monitor import connections, port
from jetcluster.monitor.pages import NodeSource
from jetcluster.monitor.start import NodeMonitoring
from jetcluster.node.node import Node
from jetcluster.server.ws import transport
from testkit.certificates import make_certificate
from testkit.twins.log import ListLog
from tests.unit.node.rig import running as node_of
from tests.unit.server.serving import on_both_loops

CONSOLE = 'http: "127.0.0.1:-1"\nconsole: true\n'
USERS = """
authorization { users: [
  {user: web, password: p}
  {user: std, password: p, allowed_connection_types: ["STANDARD"]}
] }
"""
REFUSED = "-ERR 'Authorization Violation'"
KEY = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"


def request_of(node: Node, path: str = "/ui/nats", more: str = "") -> bytes:
    return (
        f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{node.monitor_port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"{KEY}{more}\r\n"
    ).encode()


PAGE = b"GET /raftz HTTP/1.1\r\nHost: x\r\n\r\n"


@asynccontextmanager
async def raw(node: Node, **options: Any) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
    url = f"{'wss' if node.options.https_port else 'ws'}://127.0.0.1:{node.monitor_port}/ui/nats"
    async with aiohttp.ClientSession() as session, session.ws_connect(url, **options) as connection:
        yield connection


async def heard(connection: aiohttp.ClientWebSocketResponse) -> bytes:
    return bytes(await connection.receive_bytes(timeout=5))


async def enter(connection: aiohttp.ClientWebSocketResponse, **connect: Any) -> str:
    """Logs in; "PONG" or what was answered instead."""
    told = await heard(connection)
    assert told.startswith(b"INFO ") and b"connect_urls" not in told
    await connection.send_bytes(b"CONNECT " + json.dumps({"verbose": False, **connect}).encode() + b"\r\nPING\r\n")
    return (await heard(connection)).decode().split("\r\n")[0]


@asynccontextmanager
async def socket(node: Node, tls: ssl.SSLContext | None = None) -> AsyncIterator[tuple[asyncio.StreamReader, Any]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", node.monitor_port, ssl=tls)
    try:
        async with asyncio.timeout(15):
            yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def opened(reader: asyncio.StreamReader) -> None:
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
    assert (await reader.readexactly(4))[:1] == b"\x82"
    assert (await reader.readexactly(5)) == b"INFO "


async def refusal(node: Node, **options: Any) -> int:
    with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
        async with raw(node, **options):
            pass
    return caught.value.status


def guards(node: Node) -> connections.Connections:
    assert isinstance(node.monitoring, NodeMonitoring) and node.monitoring.listener is not None
    found = node.monitoring.listener.connections
    assert found is not None
    return found


async def page(node: Node, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(PAGE)
    assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 200 OK")


async def test_logins_are_those_of_the_servers_users(tmp_path: Path) -> None:
    async with node_of(tmp_path, CONSOLE + USERS) as node:
        for connect, answer in (
            ({"user": "web", "pass": "p"}, "PONG"),
            ({"user": "web", "pass": "x"}, REFUSED),
            ({}, REFUSED),
            ({"user": "std", "pass": "p"}, REFUSED),
        ):
            async with raw(node) as connection:
                assert await enter(connection, **connect) == answer, connect


async def test_changes_are_in_the_log_with_who_made_them_and_nothing_of_strangers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="jetcluster.server")
    async with node_of(tmp_path, CONSOLE + USERS) as node:
        async with raw(node) as connection:
            assert await enter(connection, user="web", **{"pass": "p"}) == "PONG"
            await connection.send_bytes(b"PUB $JS.API.STREAM.DELETE.S 0\r\n\r\nPUB $JS.API.INFO 0\r\n\r\nPING\r\n")
            assert (await heard(connection)).startswith(b"PONG")
        async with raw(node) as connection:
            await heard(connection)
            await connection.send_bytes(b"PUB secret.of.a.stranger 0\r\n\r\nPING\r\n")
            await heard(connection)
    told = [text for text in caplog.messages if " - console: " in text]
    assert len(told) == 1
    assert "web" in told[0] and told[0].endswith(" - console: STREAM.DELETE.S")
    assert "stranger" not in caplog.text


@pytest.mark.parametrize("user", ["web", "slow"])
@pytest.mark.parametrize("junk", [b"", b"PUB junk 0\r\n\r\n" * (MAX_LINES + 1), b"PUB $JS.API.X 0\r\n\r\n" * 40])
@pytest.mark.parametrize("end", [b"PING\r\n", b"nonsense\r\n"])
async def test_no_change_is_executed_untold(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, user: str, junk: bytes, end: bytes
) -> None:
    """The login, many other publishes, the change, and an error of protocol, all in one read."""
    caplog.set_level("INFO", logger="jetcluster.server")
    slow = bcrypt.hashpw(b"p", bcrypt.gensalt(4)).decode()
    users = f'authorization {{ users: [ {{user: web, password: p}}, {{user: slow, password: "{slow}"}} ] }}'
    async with node_of(tmp_path, CONSOLE + users) as node, raw(node) as connection:
        done: list[bytes] = []
        node.server.account("$G").subscribe(b"changed", lambda *took: done.append(took[0]))
        await heard(connection)
        login = json.dumps({"verbose": False, "user": user, "pass": "p"}).encode()
        changes = b"PUB $JS.API.STREAM.DELETE.S 0\r\n\r\nPUB changed 0\r\n\r\n"
        await connection.send_bytes(b"CONNECT " + login + b"\r\n" + junk + changes + end)
        await heard(connection)
    assert done == [b"changed"]
    assert [text.split(" - console: ")[1] for text in caplog.messages if "STREAM.DELETE" in text] == ["STREAM.DELETE.S"]


async def test_reads_that_change_something_elsewhere_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """By their answer, by the report of a traced message, by a mapping of their subject."""
    caplog.set_level("INFO", logger="jetcluster.server")
    mapped = 'mappings: { "$JS.API.STREAM.INFO.X": "changed", "short.*": "$JS.API.STREAM.DELETE.$1" }\n'
    traced = b"NATS/1.0\r\nNats-Trace-Dest: changed\r\n\r\n"
    flood = [b"PUB junk 0\r\n\r\n"] * (MAX_LINES + 1)
    async with node_of(tmp_path, CONSOLE + mapped) as node, raw(node) as connection:
        node.server.account("$G").subscribe(b"changed", lambda *_: None)
        node.server.account("$G").subscribe(b"mine.>", lambda *_: None)
        assert await enter(connection, headers=True) == "PONG"
        commands = [
            *flood,
            b"SUB own.* 1\r\nSUB mine.1 2\r\n",
            b"PUB $JS.API.INFO _INBOX.a 0\r\n\r\n",
            b"PUB $JS.API.STREAM.LIST own.a 0\r\n\r\n",
            b"PUB $JS.API.STREAM.INFO.S changed 0\r\n\r\n",
            b"PUB $JS.API.STREAM.INFO.S $JS.API.STREAM.PURGE.S 0\r\n\r\n",
            b"PUB $JS.API.STREAM.LIST mine.1 0\r\n\r\n",
            b"HPUB $JS.API.INFO %d %d\r\n%b\r\n" % (len(traced), len(traced), traced),
            b"PUB $JS.API.STREAM.INFO.X 0\r\n\r\n",
            b"PUB short.S 0\r\n\r\n",
        ]
        await connection.send_bytes(b"".join(commands) + b"nonsense\r\n")
        with contextlib.suppress(TypeError):
            while True:
                await heard(connection)
    told = [text.split(" - console: ")[1] for text in caplog.messages if " - console: " in text]
    assert [text for text in told if "junk" not in text] == [
        "reads $JS.API.STREAM.INFO.S, answer to changed",
        "reads $JS.API.STREAM.INFO.S, answer to $JS.API.STREAM.PURGE.S",
        "reads $JS.API.STREAM.LIST, answer to mine.1",
        "reads $JS.API.INFO, report to changed",
        "reads $JS.API.STREAM.INFO.X, mapped",
        "publishes to short.S, 0 bytes, mapped",
        "and 1 publishes more in 10 s",
    ]


async def test_monitoring_shows_what_it_is_and_its_port_counts_it_no_more(tmp_path: Path) -> None:
    async with node_of(tmp_path, CONSOLE) as node, raw(node) as connection:
        assert await enter(connection, name="jetcluster console") == "PONG"
        shown = NodeSource(node).page("connz", {})["connections"]
        assert [(one["type"], one["name"], one["ip"]) for one in shown] == [
            ("console", "jetcluster console", "127.0.0.1")
        ]
        assert len(guards(node)) == 0


@on_both_loops
async def test_over_tls(tmp_path: Path) -> None:
    cert, key = make_certificate(tmp_path)
    text = f'https: "127.0.0.1:-1"\nconsole: true\ntls {{ cert_file: "{cert}", key_file: "{key}" }}\n'
    context = ssl.create_default_context(cafile=str(cert))
    async with node_of(tmp_path, text) as node:
        async with raw(node, ssl=context) as connection:
            assert await enter(connection) == "PONG"
            await connection.send_bytes(b"SUB a 1\r\nPUB a 70000\r\n" + b"x" * 70_000 + b"\r\n")
            found = b""
            while len(found) < 70_000:
                found += await heard(connection)
            assert found.startswith(b"MSG a 1 70000\r\n")
        async with socket(node, context) as (reader, writer):
            await page(node, reader, writer)
            writer.write(request_of(node))
            await opened(reader)


@on_both_loops
async def test_a_request_in_pieces_of_one_byte(tmp_path: Path) -> None:
    async with node_of(tmp_path, CONSOLE) as node, socket(node) as (reader, writer):
        for byte in request_of(node):
            writer.write(bytes([byte]))
            await asyncio.sleep(0)
        await opened(reader)


@on_both_loops
async def test_a_proxy_may_ask_for_it_on_a_connection_that_had_other_requests(tmp_path: Path) -> None:
    async with node_of(tmp_path, CONSOLE) as node, socket(node) as (reader, writer):
        for _ in range(3):
            await page(node, reader, writer)
        assert len(guards(node)) == 1
        head = request_of(node)
        writer.write(head[:7])
        await asyncio.sleep(0.05)
        writer.write(head[7:])
        await opened(reader)
        assert len(guards(node)) == 0
        writer.write(b"\x89\x80\0\0\0\0")  # a ping of the WebSocket
        body = await reader.readuntil(b"\x8a\x00")
        assert b"HTTP/1.1" not in body


async def test_other_requests_are_answered_as_without_it(tmp_path: Path) -> None:
    async with node_of(tmp_path, CONSOLE) as node:
        async with socket(node) as (reader, writer):
            writer.write(PAGE * 3)
            for _ in range(3):
                assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 200 OK")
            for byte in b"GET /ui/nats.json HTTP/1.1\r\nHost: x\r\n\r\n":
                writer.write(bytes([byte]))
                await asyncio.sleep(0)
            assert (await reader.readuntil(b"page not found\n")).startswith(b"HTTP/1.1 404 ")
            await page(node, reader, writer)
        async with aiohttp.ClientSession() as session:
            url = f"http://127.0.0.1:{node.monitor_port}/ui/nats"
            async with session.post(url) as answer:
                assert answer.status == 503 and answer.headers["Connection"] == "close"
            async with session.get(url) as answer:
                assert (answer.status, await answer.text()) == (
                    400,
                    "Bad Request: invalid value for header 'Upgrade'\n",
                )


@pytest.mark.parametrize("said", [b"GET /ui", b"GET /ui/nats HTTP/1.1\r\nHost: x\r\n"])
@pytest.mark.parametrize("before", [False, True])
async def test_slow_heads_are_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: bytes, before: bool) -> None:
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.3)
    monkeypatch.setattr("jetcluster.console.door.HANDSHAKE_SECONDS", 0.3)
    async with node_of(tmp_path, CONSOLE) as node, socket(node) as (reader, writer):
        if before:
            await page(node, reader, writer)
        writer.write(said)
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        assert len(guards(node)) == 0


async def test_pages_of_other_hosts_are_refused_and_a_proxy_may_end_the_tls(tmp_path: Path) -> None:
    async with node_of(tmp_path, CONSOLE + "console_hosts: [Ops.example]\n") as node:
        own = f"127.0.0.1:{node.monitor_port}"
        for origin in (f"http://{own}", f"https://{own}"):
            async with raw(node, headers={"Origin": origin}) as connection:
                assert await enter(connection) == "PONG"
        async with raw(node, headers={"Origin": "https://ops.example", "Host": "ops.example"}) as connection:
            assert await enter(connection) == "PONG"
        for origin in (
            "http://evil.example", f"http://127.0.0.1:{node.monitor_port + 1}", "null", "file://", f"{own}", "http://",
            f"ftp://{own}", "https://[",
        ):  # fmt: skip
            assert await refusal(node, headers={"Origin": origin}) == 403, origin


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("evil.example", 403), ("evil.example.", 403), ("localhost.evil.example", 403), ("127.0.0.1.evil.example", 403),
        ("localhost", 101), ("a.localhost:80", 101), ("[::1]:80", 101), ("10.1.2.3", 101),
    ],
)  # fmt: skip
async def test_without_a_login_no_name_of_others_leads_in(tmp_path: Path, host: str, expected: int) -> None:
    """A page of evil.example, whose name got this server's address, is of the same host as its request."""
    headers = {"Origin": f"http://{host}", "Host": host}
    async with node_of(tmp_path, CONSOLE) as node:
        if expected == 403:
            assert await refusal(node, headers=headers) == 403
        else:
            async with raw(node, headers=headers) as connection:
                assert await enter(connection) == "PONG"


@pytest.mark.parametrize("more", ["", "no_auth_user: web\n"])
async def test_a_login_keeps_pages_of_other_names_out(tmp_path: Path, more: str) -> None:
    headers = {"Origin": "http://evil.example", "Host": "evil.example"}
    async with node_of(tmp_path, CONSOLE + USERS + more) as node:
        if more:
            assert await refusal(node, headers=headers) == 403, "it would be let in as that user"
        else:
            async with raw(node, headers=headers) as connection:
                assert await enter(connection) == REFUSED


async def test_below_a_base_path(tmp_path: Path) -> None:
    async with node_of(tmp_path, CONSOLE + 'http_base_path: "/nats/"\n') as node:
        assert await refusal(node) == 404
        async with socket(node) as (reader, writer):
            writer.write(request_of(node, "/nats/ui/nats"))
            await opened(reader)


async def test_off_by_default(tmp_path: Path) -> None:
    async with node_of(tmp_path, 'http: "127.0.0.1:-1"\n') as node:
        assert await refusal(node) == 404


async def test_the_log_says_where_it_is_and_that_it_asks_for_no_login(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = ListLog()
    monkeypatch.setattr(port, "log", log)
    async with node_of(tmp_path, CONSOLE + "http_base_path: /a\n") as node:
        assert log.events("info")[-1] == f"Console on http://127.0.0.1:{node.monitor_port}/a/ui/"
        assert [line.partition(":")[0] for line in log.events("warning")] == ["The console asks for no login"]
    log.lines.clear()
    async with node_of(tmp_path, CONSOLE + USERS):
        assert log.events("info")[-1].startswith("Console on http://") and not log.events("warning")
    log.lines.clear()
    async with node_of(tmp_path, 'http: "127.0.0.1:-1"\n'):
        assert "Console" not in str(log.lines)


async def test_a_user_that_a_reload_removes_is_cut_off(tmp_path: Path) -> None:
    async with node_of(tmp_path, CONSOLE + USERS) as node, raw(node) as connection:
        assert await enter(connection, user="web", **{"pass": "p"}) == "PONG"
        (tmp_path / "c.conf").write_text(
            'listen: "127.0.0.1:-1"\nserver_name: n1\n' + CONSOLE + USERS.replace("user: web", "user: other")
        )
        assert node.reload("test") == ""
        assert b"-ERR" in await heard(connection)
        assert (await connection.receive(timeout=5)).type is aiohttp.WSMsgType.CLOSE
        async with raw(node) as again:
            assert await enter(again, user="other", **{"pass": "p"}) == "PONG"


async def test_a_reload_that_turns_it_on_is_refused(tmp_path: Path) -> None:
    async with node_of(tmp_path, 'http: "127.0.0.1:-1"\n') as node:
        (tmp_path / "c.conf").write_text('listen: "127.0.0.1:-1"\nserver_name: n1\n' + CONSOLE)
        assert "Console: old=false, new=true" in node.reload("test")


async def test_the_server_stops(tmp_path: Path) -> None:
    async with node_of(tmp_path, CONSOLE) as node, raw(node) as connection, socket(node) as (reader, writer):
        assert await enter(connection) == "PONG"
        writer.write(request_of(node)[:-2])
        await asyncio.sleep(0.05)
        stopping = asyncio.ensure_future(node.stop())
        await asyncio.sleep(0)
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""  # in its handshake
        message = await connection.receive(timeout=5)
        assert (message.type, message.data) == (aiohttp.WSMsgType.CLOSE, 1001)
        await stopping


async def test_while_the_server_goes_away_its_pages_are_answered_and_nobody_is_let_in(tmp_path: Path) -> None:
    async with node_of(tmp_path, CONSOLE) as node:
        node.server.options.lame_duck_duration, node.server.options.lame_duck_grace_period = 0.1, 0.4
        async with raw(node) as connection, socket(node) as (reader, writer), socket(node) as (early, half):
            assert await enter(connection) == "PONG"
            half.write(request_of(node)[:-2])
            await asyncio.sleep(0.05)
            leaving = asyncio.ensure_future(node.lame_duck())
            while not node.server.lame_duck:
                await asyncio.sleep(0.01)
            assert await refusal(node) == 503
            half.write(b"\r\n")
            assert (await early.read()).startswith(b"HTTP/1.1 503 ")
            await page(node, reader, writer)
            while (message := await connection.receive(timeout=5)).type is aiohttp.WSMsgType.BINARY:
                pass
            assert message.type is aiohttp.WSMsgType.CLOSE
            await leaving


async def test_no_more_handshakes_than_may_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "MAX_HANDSHAKES", 1)
    async with node_of(tmp_path, CONSOLE) as node, socket(node) as (slow, first), socket(node) as (reader, writer):
        first.write(request_of(node)[:-2])
        await asyncio.sleep(0.05)
        writer.write(request_of(node))
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        first.write(b"\r\n")
        await opened(slow)
