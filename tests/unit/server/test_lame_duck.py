"""Lame duck mode on real sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import pytest

from jetcluster.server.lame_duck import enter_lame_duck

from .live import Body, dial, run, serving

__all__ = ["run"]


def test_lame_duck(run: Callable[[Body], None]) -> None:
    async def body() -> None:
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

    run(body)
