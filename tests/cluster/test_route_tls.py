"""TLS between the nodes of a cluster: every route is mutual, and who has no certificate of the authority stays out."""

from __future__ import annotations

import asyncio
import signal
import socket
import ssl
from pathlib import Path

import pytest

from testkit.certificates import Authority
from testkit.harness import Node, ProcessCluster, eventually

pytestmark = pytest.mark.cluster


def shown(address: tuple[str, int]) -> str:
    """The certificate of a cluster port, of which one with no certificate of its own gets no more."""
    return ssl.get_server_certificate(address, timeout=5)


async def says(node: Node, text: str) -> None:
    await eventually(lambda: text in node.log(), 10, f"{node.name} does not say {text!r}", node)


async def test_routes_with_certificates(tmp_path: Path, server: str) -> None:
    """Strangers with a certificate of another authority, with none, and without TLS are refused."""
    (tmp_path / "other").mkdir()
    authority, other = Authority(tmp_path), Authority(tmp_path / "other")
    block = authority.tls("node")
    async with ProcessCluster(server=server, config=f"cluster {{ {block} }}\n", monitor=True) as cluster:
        node = cluster[0]
        async with await node.connect() as client:
            await client.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"], "num_replicas": 3})
            large = bytes(range(256)) * 3000
            for n in range(20):
                assert b'"seq"' in (await client.request(f"s.{n}", large, within=5.0)).data
        await cluster.wait_current("S")
        address = ("127.0.0.1", node.cluster_port)

        def attempt(context: ssl.SSLContext | None) -> bytes:
            """Answer of the node to a stranger; b"" if it ends the connection."""
            with socket.create_connection(address, timeout=5) as plain:
                if context is None:
                    plain.sendall(b"CONNECT {}\r\n")
                    return plain.recv(1)
                with context.wrap_socket(plain) as secure:
                    secure.sendall(b"x")
                    return secure.recv(1)

        bare = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        bare.check_hostname, bare.verify_mode = False, ssl.CERT_NONE
        stranger = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        stranger.check_hostname, stranger.verify_mode = False, ssl.CERT_NONE
        stranger.load_cert_chain(*other.issue("stranger"))
        for context in (bare, stranger, None):
            try:
                assert await asyncio.to_thread(attempt, context) in (b"", b"\x15")
            except OSError:  # refused in the middle of the handshake
                continue
        if server == "jetcluster":
            # Renewed certificates are used after a reload; links that stand are not touched.
            before = await asyncio.to_thread(shown, address)
            authority.issue("node")
            node.signal(signal.SIGHUP)
            await says(node, "Reloaded server configuration")
            assert before != await asyncio.to_thread(shown, address)
            await says(node, "to the cluster port: TLS handshake error: the other end shows no certificate")
        assert len((await node.monitor("routez"))["routes"]) >= 2
