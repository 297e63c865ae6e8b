"""The server on real sockets, on asyncio's loop and on uvloop, and its lame duck mode."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from pathlib import Path

import nats
import pytest

from jetcluster.config.tls_options import TlsOptions
from jetcluster.server.listener import ListenError
from jetcluster.server.server import enter_lame_duck
from testkit.certificates import make_certificate
from tests.unit.server.serving import dial, on_both_loops, serving


@on_both_loops
async def test_lame_duck() -> None:
    async with serving(cluster_name="c", lame_duck_duration=0.2, lame_duck_grace_period=0.1) as server:
        server.set_connect_urls(["127.0.0.1:1111"])
        clients = [await dial(server) for _ in range(4)]
        for reader, writer, _ in clients:
            writer.write(b'CONNECT {"verbose":false,"protocol":1}\r\nPING\r\n')
            assert await reader.readline() == b"PONG\r\n"
            await reader.readline()
        old, old_writer, _ = await dial(server)
        leaving = asyncio.ensure_future(enter_lame_duck(server))
        ends = []
        for reader, _, first in clients:
            info = json.loads((await reader.readline())[5:])
            assert info["ldm"] is True
            assert info["connect_urls"] == ["127.0.0.1:1111"]
            assert first["connect_urls"][0] == f"127.0.0.1:{server.port}"
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", server.port)
        for reader, writer, _ in clients:
            assert await reader.read() == b""
            ends.append(asyncio.get_running_loop().time())
            writer.close()
        assert await old.read() == b"", "a client that never said CONNECT gets no INFO, but its end"
        old_writer.close()
        await leaving
        assert ends[-1] - ends[0] > 0.05, "they go one after the other"
        assert {c.reason for c in server.clients.closed} == {"Server Shutdown"}


@on_both_loops
async def test_stock_client() -> None:
    async with serving() as server:
        a = await nats.connect(f"nats://127.0.0.1:{server.port}")
        b = await nats.connect(f"nats://127.0.0.1:{server.port}")
        service = await a.subscribe("svc.*", queue="q")
        await a.flush()
        request = asyncio.ensure_future(b.request("svc.echo", b"hello", headers={"K": "v"}, timeout=2))
        message = await service.next_msg(2)
        assert (message.data, message.headers) == (b"hello", {"K": "v"})
        await message.respond(b"back")
        assert (await request).data == b"back"
        with pytest.raises(nats.errors.NoRespondersError):
            await b.request("nobody", b"", timeout=2)
        await a.drain()
        await b.close()


@on_both_loops
async def test_a_reader_that_stops_reading_is_closed_and_others_live() -> None:
    async with serving(max_pending=2 * 1024 * 1024) as server:
        _, slow, _ = await dial(server)
        slow.transport.pause_reading()
        slow.write(b'CONNECT {"verbose":false}\r\nSUB flood 1\r\n')
        reader, writer, _ = await dial(server)
        writer.write(b'CONNECT {"verbose":false}\r\nPING\r\n')
        assert await reader.readline() == b"PONG\r\n"
        payload = b"x" * 100_000
        for _ in range(400):
            writer.write(b"PUB flood %d\r\n%b\r\n" % (len(payload), payload))
            await writer.drain()
            if server.state.slow_consumers:
                break
        writer.write(b"PING\r\n")
        assert await asyncio.wait_for(reader.readline(), 10) == b"PONG\r\n"
        assert server.state.slow_consumers == 1
        assert [c.reason for c in server.clients.closed] == ["Slow Consumer (Pending Bytes)"]
        slow.close()
        writer.close()


@on_both_loops
async def test_error_reaches_a_client_that_is_still_sending() -> None:
    """Without lingering the unread payload would reset the connection and take the -ERR with it."""
    async with serving(max_payload=1000) as server:
        for _ in range(5):
            reader, writer, _ = await dial(server)
            writer.write(b'CONNECT {"verbose":false}\r\nPUB a 1000000\r\n' + b"x" * 1_000_002)
            assert await reader.readline() == b"-ERR 'Maximum Payload Violation'\r\n"
            assert await reader.read() == b""
            writer.close()


@on_both_loops
async def test_stop_writes_what_is_queued() -> None:
    async with serving() as server:
        reader, writer, _ = await dial(server)
        writer.write(b'CONNECT {"verbose":false}\r\nSUB a 1\r\nPING\r\n')
        assert await reader.readline() == b"PONG\r\n"
        server.account("$G").publish(b"a", b"x" * 500_000)
        began = asyncio.get_running_loop().time()
        stopping = asyncio.ensure_future(server.stop())
        data = await reader.read()
        await stopping
        assert len(data) == len(b"MSG a 1 500000\r\n") + 500_002
        assert asyncio.get_running_loop().time() - began < 1.0
        assert [c.reason for c in server.clients.closed] == ["Server Shutdown"]
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", server.port)
        writer.close()


@on_both_loops
async def test_port_in_use() -> None:
    async with serving() as server:
        with pytest.raises(ListenError) as error:
            async with serving(port=server.port):
                pass
        where = f"127.0.0.1:{server.port}"
        assert str(error.value) == (
            f'Error listening on port: {where}, "listen tcp {where}: bind: address already in use"'
        )


@on_both_loops
async def test_what_comes_before_the_tls_handshake_is_not_obeyed(tmp_path: Path) -> None:
    """On uvloop a connection reads from its first moment on, whatever `connection_made` says."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*make_certificate(tmp_path))
    async with serving(tls=TlsOptions(), context=context) as server:
        for _ in range(20):
            plain = socket.create_connection(("127.0.0.1", server.port))
            plain.sendall(b"CONNECT {}\r\nPING\r\n")
            plain.setblocking(False)
            reader, writer = await asyncio.open_connection(sock=plain)
            try:
                said = await reader.read()
            except ConnectionResetError:
                said = b""
            assert b"PONG" not in said
            assert b"+OK" not in said
            writer.close()
        assert {c.reason for c in server.clients.closed} == {"TLS Handshake Failure"}


@pytest.mark.parametrize("first", [False, True])
@on_both_loops
async def test_tls(tmp_path: Path, first: bool) -> None:
    cert, key = make_certificate(tmp_path)
    server_side = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server_side.load_cert_chain(cert, key)
    client_side = ssl.create_default_context(cafile=str(cert))
    async with serving(tls=TlsOptions(handshake_first=first), context=server_side) as server:
        client = await nats.connect(
            f"tls://localhost:{server.port}", tls=client_side, tls_handshake_first=first, connect_timeout=5
        )
        inbox = await client.subscribe("a")
        await client.publish("a", b"x" * 300_000)
        assert len((await inbox.next_msg(3)).data) == 300_000
        await client.close()
        if first:
            return
        # A client that goes on in clear is closed, and the server lives.
        reader, writer, info = await dial(server)
        assert info["tls_required"] is True
        writer.write(b"CONNECT {}\r\n")
        assert await reader.read() == b""
        writer.close()
        assert "TLS Handshake Failure" in [c.reason for c in server.clients.closed]
