"""What one HTTP connection may cost, and how requests are told from what is none."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator

import pytest

from jetcluster.clock import SystemClock
from jetcluster.monitor import http_connection, start
from jetcluster.monitor.http_connection import BadRequest, parse
from jetcluster.monitor.start import Monitor, start_monitor
from jetcluster.server.server import Server
from tests.unit.monitor import twins

GET = b"GET /healthz HTTP/1.1\r\nHost: x\r\n"
LAST = GET + b"Connection: close\r\n\r\n"
OK = b'{"status":"ok"}'


@pytest.fixture
async def monitor(server: Server) -> AsyncIterator[Monitor]:
    node = twins.node(server, SystemClock())
    node.monitor = start_monitor(node)
    await node.monitor.serve()
    yield node.monitor
    await node.monitor.stop()


class Wire:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def answer(self) -> tuple[int, bytes]:
        head = await self.reader.readuntil(b"\r\n\r\n")
        size = int(head.partition(b"Content-Length: ")[2].partition(b"\r\n")[0])
        return int(head.split()[1]), await self.reader.readexactly(size)

    async def rest(self) -> bytes:
        async with asyncio.timeout(10):
            try:
                return await self.reader.read()
            except ConnectionError:
                return b""
            finally:
                self.writer.close()


async def send(monitor: Monitor, data: bytes) -> Wire:
    reader, writer = await asyncio.open_connection("127.0.0.1", monitor.port)
    writer.write(data)
    return Wire(reader, writer)


@pytest.mark.parametrize("sent", [b"", b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-A: ", b"POST / HTTP/1.1\r\nHost: x\r\n"
                                  b"Content-Length: 5\r\n\r\nab"])  # fmt: skip
async def test_a_request_comes_in_time_or_the_connection_ends(
    monitor: Monitor, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(http_connection, "REQUEST_SECONDS", 0.2)
    assert await (await send(monitor, sent)).rest() == b""


async def test_bytes_one_by_one_do_not_buy_time(monitor: Monitor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connection, "REQUEST_SECONDS", 0.2)
    wire = await send(monitor, GET)
    rest = asyncio.create_task(wire.rest())
    async with asyncio.timeout(10):
        while not rest.done():
            wire.writer.write(b"a")
            await asyncio.sleep(0.01)
    assert await rest == b""


async def test_a_kept_connection_is_answered_again_and_ends_when_nothing_comes(
    monitor: Monitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    wire = await send(monitor, GET + b"\r\n")
    assert await wire.answer() == (200, OK)
    monkeypatch.setattr(http_connection, "REQUEST_SECONDS", 0.2)
    wire.writer.write(GET + b"\r\n" + GET + b"\r\n")  # both at once: one after the other
    assert [await wire.answer(), await wire.answer()] == [(200, OK), (200, OK)]
    assert await wire.rest() == b""


async def test_who_does_not_read_his_page_is_cut_off(
    monitor: Monitor, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_connection, "READER_SECONDS", 0.3)
    monkeypatch.setattr("jetcluster.monitor.http.stacksz", lambda: "x" * 30_000_000)
    wire = await send(monitor, b"GET /stacksz HTTP/1.1\r\nHost: x\r\n\r\n")
    await asyncio.sleep(0)
    async with asyncio.timeout(10):
        while not monitor._connections:
            await asyncio.sleep(0.01)
        while monitor._connections:
            await asyncio.sleep(0.01)
    wire.writer.transport.abort()
    monkeypatch.setattr(http_connection, "READER_SECONDS", 30)
    wire = await send(monitor, b"GET /stacksz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert len((await wire.answer())[1]) == 30_000_000
    await wire.rest()


async def test_bodies_are_skipped_and_large_ones_end_the_connection(monitor: Monitor) -> None:
    wire = await send(monitor, b"POST /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nGET " + LAST)
    assert [await wire.answer(), await wire.answer()] == [(200, OK), (200, OK)]
    assert await wire.rest() == b""
    for more in (b"Content-Length: 99999999\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n5\r\n"):
        wire = await send(monitor, GET + more)
        assert await wire.answer() == (200, OK)
        assert await wire.rest() == b""


async def test_what_is_no_request_is_refused_in_one_line_and_never_logged(
    monitor: Monitor, capfd: pytest.CaptureFixture[str]
) -> None:
    for garbage in (b"\x16\x03\x01" + os.urandom(64) + b"\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\n", b"GET /\r\n\r\n"):
        wire = await send(monitor, garbage)
        assert (await wire.answer())[0] == 400
        assert await wire.rest() == b""
    for long in (GET + b"X: " + b"a" * 40_000, GET + b"X: " + b"a" * 40_000 + b"\r\n\r\n"):
        wire = await send(monitor, long)
        assert (await wire.answer())[0] == 431
        await wire.rest()
    assert "Traceback" not in capfd.readouterr().err


async def test_the_oldest_idle_connection_goes_for_a_new_one(monitor: Monitor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "MAX_CONNECTIONS", 3)
    silent = [await send(monitor, b"") for _ in range(3)]
    assert OK in await (await send(monitor, LAST)).rest()
    assert await silent[0].rest() == b""
    silent[2].writer.write(LAST)
    assert OK in await silent[2].rest()
    silent[1].writer.close()


async def test_who_has_said_all_is_answered(monitor: Monitor) -> None:
    wire = await send(monitor, GET + b"\r\n")
    wire.writer.write_eof()
    assert OK in await wire.rest()
    wire = await send(monitor, b"GET /healthz HTTP/1.0\r\n\r\n")
    assert OK in await wire.rest()


def test_a_request_is_taken_apart() -> None:
    found = parse(b"GET /a%20b/c?x=1&x=2&y=&z=%3E HTTP/1.1\r\nhost: h\r\nContent-Length: 7")
    assert found == ("GET", "/a b/c", {"x": "1", "y": "", "z": ">"}, 7, True)
    assert parse(b"HEAD / HTTP/1.0").keep is False
    assert parse(b"GET / HTTP/1.0\r\nConnection: Keep-Alive").keep is True


@pytest.mark.parametrize(
    "head",
    [
        b"", b"GET / HTTP/1.1", b"GET  / HTTP/1.1\r\nHost: x", b"GET / HTTP/1.1\r\nHost: x\r\nno colon",
        b"GET / HTTP/1.1\r\nHost: x\r\n folded: x", b"GET / HTTP/1.1\r\nHost: x\r\nA : x",
        b"GET / HTTP/1.1\r\nHost: x\r\nA: \0", b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: -1",
        b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: " + b"9" * 5000,
        b"GET /?" + b"a=1&" * 100 + b" HTTP/1.1\r\nHost: x",
    ],
)  # fmt: skip
def test_what_is_no_request(head: bytes) -> None:
    with pytest.raises(BadRequest):
        parse(head)
