"""Connections of the monitoring port that say nothing, half of it, or nonsense, or do not read; each beside one that
asks as it should."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest

from jetcluster.clock import SystemClock
from jetcluster.monitor import connections
from jetcluster.monitor.port import Monitor, start_monitor
from jetcluster.server.server import Server
from testkit.server_rig import ServerRig
from testkit.twins.log import ListLog
from tests.unit.monitor import fake_node


@pytest.fixture
async def monitor(server: Server, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Monitor]:
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.4)
    node = fake_node.node(server, SystemClock())
    node.monitor = await start_monitor(node)
    node.monitor.most_connections = 8
    assert await asked(node.monitor) == 200  # aiohttp is there
    yield node.monitor
    await node.monitor.stop()


async def asked(monitor: Monitor, path: str = "/varz") -> int:
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{monitor.port}{path}") as response:
        await response.read()
        return response.status


@asynccontextmanager
async def raw(monitor: Monitor, said: bytes = b"") -> AsyncIterator[asyncio.StreamReader]:
    reader, writer = await asyncio.open_connection("127.0.0.1", monitor.port)
    writer.write(said)
    try:
        yield reader
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def rest(reader: asyncio.StreamReader) -> bytes:
    """All up to the end of the connection, which must come."""
    async with asyncio.timeout(10):
        found = b""
        with contextlib.suppress(ConnectionError):
            while piece := await reader.read(65536):
                found += piece
        return found


HEAD = b"GET /healthz HTTP/1.1\r\nHost: x\r\n"


@pytest.mark.parametrize("said", [b"", b"G", b"GET /varz HTTP/1.1\r\n", HEAD + b"X-A: ", HEAD], ids=range(5))
async def test_who_does_not_finish_a_request_is_closed(monitor: Monitor, said: bytes) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with raw(monitor, said) as reader:
        assert await rest(reader) == b""
        assert 0.3 < loop.time() - began < 5
    assert await asked(monitor) == 200


async def test_drips_keep_no_connection_open(monitor: Monitor) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", monitor.port)
    writer.write(HEAD)
    ending = asyncio.ensure_future(rest(reader))
    for _ in range(100):
        if ending.done():
            break
        writer.write(b"X: y\r\n")
        await asyncio.sleep(0.05)
    assert ending.done() and await ending == b""
    writer.close()


async def test_a_connection_may_wait_for_its_next_request_but_not_in_the_middle_of_it(monitor: Monitor) -> None:
    async with raw(monitor, HEAD + b"\r\n") as reader:
        first = await reader.readuntil(b"}")
        assert first.startswith(b"HTTP/1.1 200 OK")
        await asyncio.sleep(0.8)
        assert len(monitor.connections) == 1, "longer than a head may take"
    reader, writer = await asyncio.open_connection("127.0.0.1", monitor.port)
    for _ in range(2):
        writer.write(HEAD + b"\r\n")
        assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 200 OK")
        await asyncio.sleep(0.6)
    writer.write(HEAD)
    assert await rest(reader) == b""
    writer.close()


@pytest.mark.parametrize("cut", [1, len(HEAD) // 2, len(HEAD)])
@pytest.mark.parametrize("apart", [False, True])
async def test_half_a_request_behind_another_one_is_not_waited_for(monitor: Monitor, cut: int, apart: bool) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", monitor.port)
    for piece in (HEAD + b"\r", b"\n" + HEAD[:cut]) if apart else (HEAD + b"\r\n" + HEAD[:cut],):
        writer.write(piece)
        await asyncio.sleep(0.05)
    assert (await rest(reader)).startswith(b"HTTP/1.1 200 OK")
    writer.close()


async def test_whole_requests_behind_another_one_are_answered_and_the_next_one_is_waited_for(monitor: Monitor) -> None:
    async with raw(monitor, (HEAD + b"\r\n") * 3) as reader:
        for _ in range(3):
            assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 200 OK")
        await asyncio.sleep(0.8)
        assert len(monitor.connections) == 1


async def test_who_does_not_read_an_answer_is_closed(monitor: Monitor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "ANSWER_SECONDS", 0.5)
    monkeypatch.setattr(connections, "IDLE_SECONDS", 0.5)
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(("127.0.0.1", monitor.port))
        slow.setblocking(False)
        request = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
        async with asyncio.timeout(10):
            await asyncio.get_running_loop().sock_sendall(slow, request * 30)
            while not len(monitor.connections):
                await asyncio.sleep(0.01)
            while len(monitor.connections):
                await asyncio.sleep(0.05)
    assert await asked(monitor) == 200


async def test_the_number_of_connections_is_bounded(monitor: Monitor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEAD_SECONDS", 60.0)
    async with contextlib.AsyncExitStack() as stack:
        silent = [await stack.enter_async_context(raw(monitor)) for _ in range(30)]
        for reader in silent[:20]:
            assert await rest(reader) == b"", "the oldest make room"
        assert len(monitor.connections) <= 8
        assert await asked(monitor) == 200


async def test_where_clients_have_taken_all_descriptors_few_may_look(server: Server) -> None:
    class Full:
        limit, reserve = 100, 32

        def crowded(self, descriptor: int) -> bool:
            return True

    node = fake_node.node(server, SystemClock())
    node.monitor = await start_monitor(node)
    assert await asked(node.monitor) == 200
    server.crowd.watch = Full()  # type: ignore[assignment]
    async with contextlib.AsyncExitStack() as stack:
        silent = [await stack.enter_async_context(raw(node.monitor)) for _ in range(12)]
        for reader in silent[: -connections.CONNECTIONS_WHEN_FULL]:
            assert await rest(reader) == b""
        assert len(node.monitor.connections) == connections.CONNECTIONS_WHEN_FULL
        assert await asked(node.monitor, "/healthz") == 200
    await node.monitor.stop()


@pytest.mark.parametrize(
    "said",
    [
        b"\x16\x03\x01" + b"\xff" * 500,
        b"GET / HTTP/9.9\r\n\r\n",
        b"NONSENSE\r\n\r\n",
        HEAD + b"a" * 20_000 + b"\r\n\r\n",
        HEAD + b"".join(b"H%d: v\r\n" % n for n in range(5000)) + b"\r\n",
        HEAD + b"Content-Length: 99999999999999999999\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\nffffffffffffffff\r\n",
        HEAD + b"Bad\x00Name: 1\r\n\r\n",
    ],
    ids=range(8),
)
async def test_nonsense_is_one_short_line(
    monitor: Monitor, said: bytes, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    log = ListLog()
    monkeypatch.setattr(connections, "log", log)
    for _ in range(5):
        async with raw(monitor, said) as reader:
            assert (await rest(reader))[:9] in (b"", b"HTTP/1.0 ", b"HTTP/1.1 ")
    assert len(log.lines) <= 1
    assert all(len(text) < 250 and "\n" not in text for text in log.events("info"))
    assert "Traceback" not in capfd.readouterr().err
    assert await asked(monitor) == 200


@pytest.mark.parametrize("full", [False, True])
def test_on_the_loop_of_a_server(full: bool) -> None:
    """Its transports are others than those of the tests' loop."""
    import uvloop

    async def play() -> None:
        server = ServerRig().server
        node = fake_node.node(server, SystemClock())
        node.monitor = await start_monitor(node)
        assert await asked(node.monitor) == 200
        node.monitor.connections.most = 0 if full else 8
        async with raw(node.monitor, HEAD + b"\r\n") as reader:
            if full:
                assert await rest(reader) == b""
            else:
                assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 200 OK")
        await node.monitor.stop()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(play())
