"""A WebSocket under a client connection: handshake, frames, back-pressure, ways to end (server/ws/transport.py)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from jetcluster.config.options import WebSocketOptions
from jetcluster.health.descriptors import DescriptorWatch
from jetcluster.protocol.websocket import BINARY, CLOSE, CONTINUATION, PING
from jetcluster.server.server import Server
from jetcluster.server.ws import transport
from jetcluster.server.ws.port import WsPort
from tests.unit.protocol.test_websocket import deflated, masked, unframed
from tests.unit.server.serving import on_both_loops, serving

REQUEST = (
    b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n%s\r\n"
)
DEFLATE = b"Sec-WebSocket-Extensions: permessage-deflate\r\n"
CONNECT = b'CONNECT {"verbose":false}\r\n'


@asynccontextmanager
async def listening(options: WebSocketOptions | None = None, **of_server: Any) -> AsyncIterator[tuple[Server, WsPort]]:
    async with serving(**of_server) as server:
        options = options or WebSocketOptions(compression=True)
        options.host, options.port, options.no_tls = "127.0.0.1", -1, True
        server.options.websocket = options
        port = server.ws_port = WsPort(server.parts)
        await port.start()
        yield server, port


class Peer:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def frame(self) -> tuple[int, bytes]:
        head = await asyncio.wait_for(self.reader.readexactly(2), 5)
        more = {126: 2, 127: 8}.get(head[1], 0)
        length = await self.reader.readexactly(more)
        size = int.from_bytes(length) if more else head[1]
        return unframed(head + length + await self.reader.readexactly(size))[0]

    async def text_until(self, wanted: bytes) -> bytes:
        found = b""
        while wanted not in found:
            opcode, payload = await self.frame()
            assert opcode & 0x0F == BINARY, (opcode, payload)
            found += payload
        return found


@asynccontextmanager
async def dialled(port: WsPort, more: bytes = b"") -> AsyncIterator[Peer]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port.port)
    try:
        writer.write(REQUEST % more)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
        peer = Peer(reader, writer)
        opcode, info = await peer.frame()
        assert opcode & 0x0F == BINARY
        assert json.loads(info[5:])["port"] == port.port
        yield peer
    finally:
        writer.close()


@on_both_loops
async def test_the_protocol_runs_above_frames_of_any_cut_and_pings_are_answered() -> None:
    async with listening() as (_, port), dialled(port) as peer:
        text = CONNECT + b"SUB a 1\r\nPUB a 3\r\nxyz\r\nPING\r\n"
        peer.writer.write(masked(BINARY, text[:30], final=False) + masked(PING, b"hi") + masked(0, text[30:]))
        assert await peer.frame() == (0x8A, b"hi")
        assert await peer.text_until(b"PONG\r\n") == b"MSG a 1 3\r\nxyz\r\nPONG\r\n"
        peer.writer.write(masked(CLOSE, b"\x03\xe8bye"))
        assert await peer.frame() == (0x88, b"\x03\xe8bye")
        assert await peer.reader.read() == b""


@on_both_loops
async def test_one_frame_per_turn_and_it_is_compressed() -> None:
    async with listening() as (_, port), dialled(port, DEFLATE) as peer:
        text = CONNECT + b"SUB a 1\r\n" + b"PUB a 3\r\nxyz\r\n" * 20 + b"PING\r\n"
        peer.writer.write(masked(BINARY, deflated(text), rsv=4))
        assert await peer.frame() == (0xC2, b"MSG a 1 3\r\nxyz\r\n" * 20 + b"PONG\r\n")


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\x82\x06PING\r\n", b"\x03\xeamask bit missing"),
        (masked(BINARY, b"\xff\xff\xff", rsv=4), b"\x03\xefcorrupt compressed message"),
        (masked(BINARY, CONNECT + b"PUB a 9999999\r\n"), b"\x03\xf1Maximum Message Payload Exceeded"),
        (masked(BINARY, b"FOO\r\n"), b"\x03\xeaProtocol Violation"),
        (masked(BINARY, b"PUB " + b"a" * 5000), b"\x03\xf0Maximum Control Line Exceeded"),
    ],
)
@on_both_loops
async def test_a_connection_that_is_ended_says_why(data: bytes, status: bytes) -> None:
    async with listening() as (server, port), dialled(port, DEFLATE) as peer:
        peer.writer.write(data)
        frame = await peer.frame()
        if frame[0] & 0x0F == BINARY:
            assert frame[1].startswith(b"-ERR ")
            frame = await peer.frame()
        assert frame == (0x88, status)
        assert await peer.reader.read() == b""
        assert server.clients.closed[0].client_type == "websocket"


async def answer(port: WsPort, data: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port.port)
    writer.write(data)
    found = await asyncio.wait_for(reader.read(), 5)
    writer.close()
    return found


@on_both_loops
async def test_garbage_in_place_of_a_request_and_data_that_comes_too_early() -> None:
    async with listening() as (server, port):
        for data in (b"\r\n\r\n", b"\x00" * 20_000, b"CONNECT {}\r\nPING\r\n\r\n", REQUEST % b"" + b"\x82"):
            assert (await answer(port, data)).startswith(b"HTTP/1.1 400 ")
        assert not server.sockets


@on_both_loops
async def test_a_handshake_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "MAX_HANDSHAKES", 1)
    async with listening(WebSocketOptions(handshake_timeout=0.3)) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port.port)
        writer.write(b"GET / HTTP/1.1\r\n")
        await asyncio.sleep(0.05)
        other, other_writer = await asyncio.open_connection("127.0.0.1", port.port)
        for one in (other, reader):  # one too many, and one too slow
            with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
                await asyncio.wait_for(one.readexactly(1), 5)
        writer.close()
        other_writer.close()


@on_both_loops
async def test_the_store_keeps_its_descriptors() -> None:
    async with listening() as (server, port):
        assert (await answer(port, b"\r\n\r\n")).startswith(b"HTTP/1.1 400 ")
        server.crowd.watch = DescriptorWatch(lambda: 10)  # every descriptor is one of the last
        found = b""
        with contextlib.suppress(ConnectionError):
            found = await answer(port, b"\r\n\r\n")
        assert found == b""
        server.crowd.watch = None
        assert (await answer(port, b"\r\n\r\n")).startswith(b"HTTP/1.1 400 ")


@on_both_loops
async def test_who_does_not_read_is_a_slow_consumer() -> None:
    async with listening(max_pending=1024 * 1024) as (server, port), dialled(port) as peer:
        peer.writer.write(masked(BINARY, CONNECT + b"SUB a 1\r\nPING\r\n"))
        await peer.text_until(b"PONG\r\n")
        router = server.account("$G")
        for _ in range(400):
            router.publish(b"a", bytes(60_000))
            await asyncio.sleep(0)
            if server.clients.closed:
                break
        assert server.clients.closed[0].reason == "Slow Consumer (Pending Bytes)"
        assert server.state.slow_consumers == 1


@on_both_loops
async def test_a_bomb_is_worked_off_in_turns_so_that_others_are_served_meanwhile() -> None:
    async with listening() as (server, port), dialled(port, DEFLATE) as peer:
        commands = 60_000
        peer.writer.write(masked(BINARY, deflated(CONNECT + b"PUB a 0\r\n\r\n" * commands + b"PING\r\n", 9), rsv=4))
        client = next(iter(server.clients))
        seen = set()
        while client.in_msgs < commands:
            seen.add(client.in_msgs)
            await asyncio.sleep(0)
        await peer.text_until(b"PONG\r\n")
        assert len(seen) > 10


@pytest.mark.parametrize(
    "frames",
    [
        masked(PING, b"") * 30_000,
        masked(BINARY, b"", final=False) + masked(CONTINUATION, b"", final=False) * 30_000,
        masked(BINARY, b"", rsv=4) * 30_000,
        masked(BINARY, b"+", final=False) + masked(CONTINUATION, b"OK\r\n+", final=False) * 20_000,
    ],
    ids=["pings", "continuations", "compressed-empties", "words"],
)
@on_both_loops
async def test_frames_before_the_login_are_work_as_well(frames: bytes) -> None:
    """Nobody's turn of the loop is longer for it."""
    async with listening() as (_, port), dialled(port, DEFLATE) as peer:
        longest, stop = 0.0, False

        async def watch() -> None:
            nonlocal longest
            while not stop:
                begun = time.process_time()
                await asyncio.sleep(0)
                longest = max(longest, time.process_time() - begun)

        watching = asyncio.ensure_future(watch())
        peer.writer.write(frames)
        peer.writer.write(masked(PING, b"last"))
        while await peer.frame() != (0x8A, b"last"):
            pass
        stop = True
        await watching
        assert longest < 0.06, "noise, and the client of this test; a step has about a millisecond"


@on_both_loops
async def test_what_was_sent_before_the_socket_closed_counts() -> None:
    async with listening() as (server, port), dialled(port) as peer:
        taken: list[bytes] = []
        server.account("$G").subscribe(b"n", lambda s, r, h, p, o: taken.append(p))
        peer.writer.write(masked(BINARY, CONNECT))
        peer.writer.write(b"".join(masked(BINARY, b"PUB n 4\r\n%04d\r\n" % n) for n in range(3000)))
        peer.writer.close()
        while server.clients or server.sockets:
            await asyncio.sleep(0.001)
        assert taken == [b"%04d" % n for n in range(3000)]


@on_both_loops
async def test_close_frames_are_sent_at_the_stop_and_handshakes_are_dropped() -> None:
    async with listening() as (server, port), dialled(port) as peer:
        reader, writer = await asyncio.open_connection("127.0.0.1", port.port)
        await asyncio.sleep(0.05)
        await server.stop()
        assert await peer.frame() == (0x88, b"\x03\xe9Server Shutdown")
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await asyncio.wait_for(reader.readexactly(1), 5)
        writer.close()


@on_both_loops
async def test_clients_get_the_other_nodes_websocket_ports() -> None:
    async with listening(cluster_name="c") as (_, port), dialled(port) as peer:
        text = b'CONNECT {"verbose":false,"protocol":1}\r\nPING\r\n'
        peer.writer.write(masked(BINARY, text))
        await peer.text_until(b"} \r\n")
        port.set_peer_urls(["10.0.0.2:8080", port.own_url])
        info = await peer.text_until(b"} \r\n")
        assert json.loads(info[5:])["connect_urls"] == [f"127.0.0.1:{port.port}", "10.0.0.2:8080"]
