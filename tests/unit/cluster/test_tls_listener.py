"""A port whose connections begin with a handshake."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
import uvloop

from jetcluster.cluster.tls_listener import TlsListener
from jetcluster.config.options import TlsOptions
from jetcluster.config.tls import client_context, handshake_failure, server_context
from tests.unit.server.certificate import Authority


class Echo(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def factory(request: pytest.FixtureRequest) -> Callable[[], asyncio.AbstractEventLoop]:
    return request.param


def test_who_may_come_in(factory: Callable[[], asyncio.AbstractEventLoop], tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    cert, key = map(str, authority.issue("node"))
    tls = TlsOptions(cert_file=cert, key_file=key, ca_file=str(authority.file))
    refused: list[str] = []

    async def body() -> None:
        port = TlsListener(
            server_context(tls, mutual=True), 0.5, Echo, lambda _, error: refused.append(handshake_failure(error))
        )
        address = await port.start("127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*address, ssl=client_context(tls), server_hostname="localhost")
        writer.write(b"x" * 100_000)
        assert await reader.readexactly(100_000) == b"x" * 100_000
        bare = client_context(TlsOptions(ca_file=str(authority.file)))
        for context, text in ((bare, b""), (None, b"CONNECT {}\r\n"), (None, b"")):
            count = len(refused)
            other = await attempt(address, context, text)
            async with asyncio.timeout(10):
                while len(refused) == count:
                    await asyncio.sleep(0.01)
            if other is not None:
                other.close()
        port.close()
        writer.write(b"y")
        assert await reader.readexactly(1) == b"y"  # what stands goes on
        with pytest.raises(OSError, match=r".*"):
            await asyncio.open_connection(*address)
        writer.close()

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(body())
    assert refused[:2] == ["the other end shows no certificate", "the other end does not speak TLS"]
    assert len(refused) == 3


async def attempt(address: tuple[str, int], context: ssl.SSLContext | None, text: bytes) -> asyncio.StreamWriter | None:
    try:
        name = "localhost" if context is not None else None
        _, writer = await asyncio.open_connection(*address, ssl=context, server_hostname=name)
    except OSError:
        return None
    writer.write(text)
    return writer
