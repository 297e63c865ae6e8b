"""Handshakes that stop half-way, never end, or begin again: each costs a bounded time and memory, and nobody waits."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import ssl
import struct
import time
from pathlib import Path

import pytest

from tests.unit.server.rig import configured
from tests.unit.server.tls_cases import VERIFY, Case, Certificates, outcome

pytestmark = pytest.mark.usefixtures("closed_wires")

TIMEOUT = 1.0
"""Seconds that the table's configurations give a handshake."""
PATIENCE = 4.0


def hello(context: ssl.SSLContext) -> tuple[bytes, ssl.SSLObject, ssl.MemoryBIO, ssl.MemoryBIO]:
    """A ClientHello, and what goes on with it."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    session = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        session.do_handshake()
    return outgoing.read(), session, incoming, outgoing


def record(body: bytes) -> bytes:
    """A TLS record of a handshake."""
    return b"\x16\x03\x01" + struct.pack(">H", len(body)) + body


async def test_handshakes_that_stop_half_way(certificates: Certificates, tmp_path: Path) -> None:
    case = Case("", VERIFY, certificate="plain", first=True)
    (tmp_path / "server.conf").write_text(certificates.config(Case("", f"{VERIFY}, handshake_first: true")))
    context = certificates.context(case)
    first, *_ = hello(context)
    endless = b"\x01" + (1 << 23).to_bytes(3, "big") + bytes(16_000)  # a ClientHello of 8 MB
    starts = {
        "nothing": b"", "one byte": first[:1], "half a ClientHello": first[: len(first) // 2], "a ClientHello": first,
        "a record's head alone": first[:5], "empty records": record(b"") * 3,
        "the beginning of a long one": record(endless[:8000]), "twice the same": first + first,
        "no TLS": b"CONNECT {}\r\nPING\r\n", "an alert": b"\x15\x03\x03\x00\x02\x01\x00",
        "SSL 2": b"\x80\x2e\x01\x00\x02",
    }  # fmt: skip
    async with configured(tmp_path / "server.conf") as (server, _):
        began = time.monotonic()
        stuck = []
        for start in starts.values():
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(start)
            stuck.append((reader, writer))
        # Who does it as it should be done comes in meanwhile.
        assert await outcome(server.port, case, certificates) == "in"
        for (reader, writer), name in zip(stuck, starts, strict=True):
            try:
                async with asyncio.timeout(TIMEOUT + PATIENCE):
                    while await reader.read(65_536):
                        pass
            except TimeoutError:
                pytest.fail(f"{name}: the connection is still there")
            except ConnectionError:
                pass
            writer.close()
        assert time.monotonic() - began < TIMEOUT + PATIENCE
        assert server.clients.handshakes == 0
        assert [one.reason for one in server.clients.closed].count("TLS Handshake Failure") == len(starts)


async def test_a_handshake_without_end_is_not_kept(certificates: Certificates, tmp_path: Path) -> None:
    """Data in place of a ClientHello is refused when it is too long, and not collected until the time is up."""
    (tmp_path / "server.conf").write_text(certificates.config(Case("", "handshake_first: true, timeout: 60")))
    async with configured(tmp_path / "server.conf") as (server, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        try:
            async with asyncio.timeout(15):
                writer.write(record(b"\x01" + (1 << 23).to_bytes(3, "big") + bytes(16_000)))  # a ClientHello of 8 MB
                for _ in range(15):
                    writer.write(record(bytes(16_000)))
                while await reader.read(65_536):
                    pass
        except ConnectionError:
            pass
        assert [one.reason for one in server.clients.closed] == ["TLS Handshake Failure"]
        writer.close()
        assert await outcome(server.port, Case("", first=True), certificates) == "in"


@pytest.mark.skipif(
    shutil.which("openssl") is None, reason="there is no openssl command, and Python cannot renegotiate"
)
@pytest.mark.parametrize(("said", "goes_on"), [("PING\r\n", True), ("R\nPING\r\n", False)], ids=["plain", "again"])
async def test_nobody_negotiates_again(certificates: Certificates, tmp_path: Path, said: str, goes_on: bool) -> None:
    """TLS 1.2 lets a client ask for another handshake on the same connection, each of which costs this end more."""
    (tmp_path / "server.conf").write_text(certificates.config(Case("", "handshake_first: true")))
    async with configured(tmp_path / "server.conf") as (server, _):
        client = await asyncio.create_subprocess_exec(
            "openssl", "s_client", "-connect", f"127.0.0.1:{server.port}", "-tls1_2", "-legacy_renegotiation",
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        assert client.stdin is not None and client.stdout is not None
        try:
            async with asyncio.timeout(30):
                told = b""
                while b"INFO {" not in told:
                    told += await client.stdout.read(65_536)
                client.stdin.write(b'CONNECT {"verbose":false}\r\n')
                await client.stdin.drain()
                await asyncio.sleep(0.2)  # what it reads at once is one message, and `R` must begin one
                for line in said.splitlines(keepends=True):
                    with contextlib.suppress(ConnectionError):  # it has ended, as it should
                        client.stdin.write(line.encode())
                        await client.stdin.drain()
                    await asyncio.sleep(0.2)
                while b"PONG" not in told and (more := await client.stdout.read(65_536)):
                    told += more
        finally:
            if client.returncode is None:
                client.kill()
            await client.wait()
        assert (b"PONG" in told) is goes_on
        assert (b"RENEGOTIATING" in told) is not goes_on
        assert (b"no renegotiation" in told) is not goes_on
