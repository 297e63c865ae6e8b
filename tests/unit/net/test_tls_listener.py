"""A port whose connections begin with a handshake."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
import uvloop

from jetcluster.config.tls import client_context, handshake_failure, server_context
from jetcluster.config.tls_options import TlsOptions
from jetcluster.net.tls_listener import TlsListener
from testkit.certificates import Authority, subject


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


async def test_strangers_and_those_who_stop_half_way(tmp_path: Path) -> None:
    """An expired certificate, one of another authority that is called like ours, and that authority itself; and hellos
    that never end. A member comes in before, between and after them."""
    (tmp_path / "other").mkdir()
    authority, other = Authority(tmp_path), Authority(tmp_path / "other")
    cert, key = map(str, authority.issue("node"))
    tls = TlsOptions(cert_file=cert, key_file=key, ca_file=str(authority.file))
    expired = authority.issue_to("expired", subject(("CN", "node")), days=-1)
    foreign = other.issue("node")
    refused: list[str] = []
    members: list[Echo] = []

    class Member(Echo):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            members.append(self)
            super().connection_made(transport)

    port = TlsListener(
        server_context(tls, mutual=True), 1.0, Member, lambda _, error: refused.append(handshake_failure(error))
    )
    address = await port.start("127.0.0.1", 0)

    async def comes_in() -> None:
        before = len(members)
        reader, writer = await asyncio.open_connection(*address, ssl=client_context(tls), server_hostname="localhost")
        writer.write(b"x")
        assert await reader.readexactly(1) == b"x"
        assert len(members) == before + 1
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    await comes_in()
    strangers: list[asyncio.StreamWriter] = []
    for chain in (expired, foreign, (other.file, other.key_file)):
        context = client_context(TlsOptions(ca_file=str(authority.file)))
        context.load_cert_chain(*chain)
        writer = await attempt(address, context, b"CONNECT {}\r\n")
        if writer is not None:  # TLS 1.3: this end is done before the other has looked
            strangers.append(writer)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        client_context(tls).wrap_bio(incoming, outgoing, server_hostname="localhost").do_handshake()
    hello = outgoing.read()
    stuck = []
    for start in (hello[:1], hello[: len(hello) // 2], hello, b""):
        reader, writer = await asyncio.open_connection(*address)
        writer.write(start)
        stuck.append((reader, writer))
    await comes_in()
    async with asyncio.timeout(15):
        for reader, writer in stuck:
            with contextlib.suppress(ConnectionError):
                while await reader.read(65_536):
                    pass
            writer.close()
        while len(refused) < 7:
            await asyncio.sleep(0.01)
    for writer in strangers:
        writer.close()
    assert len(members) == 2
    await comes_in()
    port.close()
    await asyncio.sleep(0.05)  # what was closed is gone
