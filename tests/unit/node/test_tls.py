"""TLS of the other ports of a whole node: leaf links, WebSocket, monitoring."""

from __future__ import annotations

import asyncio
import json
import ssl
from pathlib import Path

import aiohttp
import pytest

from testkit.certificates import pin_of
from tests.unit.node.test_websocket import node_of, url_of
from tests.unit.server.tls_cases import NO_TLS, Case, Certificates
from tests.unit.server.wire import Wire, errors


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("tls"))


def block(certificates: Certificates, more: str) -> str:
    cert, key = certificates.server
    return f'tls {{ cert_file: "{cert}", key_file: "{key}", ca_file: "{certificates.authority.file}", {more} }}'


async def leaf(port: int, context: ssl.SSLContext, *, first: bool = False, **connect: str) -> str:
    """The account it is bound to, or why not."""
    try:
        wire = await Wire.open(port, tls=context, first=first)
        told = {"server_id": f"N{port}", "name": "leaf", "version": "2.12.0", "protocol": 3, **connect}
        wire.send(f"CONNECT {json.dumps(told)}")
        frames = await wire.settle()
    except OSError:
        return NO_TLS
    if found := errors(frames):
        return found[0]
    infos = [json.loads(frame.text) for frame in frames if frame.verb == "INFO"]
    return infos[-1]["remote_account"] if infos and not wire.over else NO_TLS


USERS = 'authorization { users: [ { user: "CN=dan,OU=it,O=Example", account: A }, { user: "CN=ivy,O=Example" } ] }'


@pytest.mark.parametrize("own", [True, False], ids=["leafnodes.authorization", "users"])
async def test_leafs_are_known_by_their_certificates(certificates: Certificates, tmp_path: Path, own: bool) -> None:
    pins = f'pinned_certs: ["{pin_of(certificates.files["dn"][0])}", "{pin_of(certificates.files["plain"][0])}"]'
    users = "" if own else 'users: [ { user: "CN=dan,OU=it,O=Example" } ]'
    text = f"accounts {{ A {{ {users} }} }}\n"
    text += f'leafnodes {{ listen: "127.0.0.1:-1", {USERS if own else ""}\n'
    text += block(certificates, f'verify_and_map: true, handshake_first: "60ms", {pins}') + "}\n"

    def shows(name: str) -> ssl.SSLContext:
        return certificates.context(Case("", certificate=name))

    async with node_of(tmp_path, text) as node:
        port = node.leafnodes.port
        assert await leaf(port, shows("dn")) == "A"
        assert await leaf(port, shows("dn"), first=True) == "A"
        assert await leaf(port, shows("dn"), user="CN=ivy,O=Example") == "A"  # CONNECT does not count
        assert await leaf(port, shows("plain")) == "Authorization Violation"
        assert await leaf(port, shows("rdn")) == NO_TLS  # not pinned
        assert await leaf(port, shows("other")) == NO_TLS
        assert await leaf(port, certificates.context(Case(""))) == NO_TLS


async def test_websocket_clients_are_known_by_their_certificates(certificates: Certificates, tmp_path: Path) -> None:
    users = 'users: [ { user: "CN=dan,OU=it,O=Example" } ]'
    text = f'accounts {{ A {{ {users} }} }}\nwebsocket {{ listen: "127.0.0.1:-1", '
    text += block(certificates, "verify_and_map: true") + "}\n"

    async def come(name: str) -> str:
        context = certificates.context(Case("", certificate=name))
        try:
            async with (
                aiohttp.ClientSession() as session,
                session.ws_connect(url_of(node).replace("127.0.0.1", "localhost"), ssl=context) as connection,
            ):
                await connection.receive_bytes(timeout=5)
                await connection.send_bytes(b'CONNECT {"verbose":false,"protocol":1}\r\nPING\r\n')
                text = b""
                while b"remote_account" not in text and b"-ERR" not in text:
                    text += await connection.receive_bytes(timeout=5)
                return text.decode()
        except (aiohttp.ClientError, OSError):
            return NO_TLS

    async with node_of(tmp_path, text) as node:
        assert '"remote_account":"A"' in await come("dn")
        assert "-ERR 'Authorization Violation'" in await come("plain")
        assert await come("") == NO_TLS
        # Whose user is a certificate has no password: nobody comes in by leaving it out at another port.
        wire = await Wire.open(node.server.port)
        assert errors(await wire.log_in(user="CN=dan,OU=it,O=Example")) == ["Authorization Violation"]


@pytest.mark.parametrize("verify", [False, True])
async def test_monitoring_over_tls(certificates: Certificates, tmp_path: Path, verify: bool) -> None:
    """nats-server asks those who look for no certificate; `https_verify` does."""
    text = f'https: "127.0.0.1:-1"\nhttps_verify: {str(verify).lower()}\n' + block(certificates, "verify: true") + "\n"

    async def status(name: str) -> int:
        context = certificates.context(Case("", certificate=name))
        url = f"https://localhost:{node.monitor_port}/healthz"
        try:
            async with aiohttp.ClientSession() as session, session.get(url, ssl=context) as reply:
                return reply.status
        except (aiohttp.ClientError, OSError):
            return 0

    async with node_of(tmp_path, text) as node, asyncio.timeout(10):
        assert await status("plain") == 200
        assert await status("") == (0 if verify else 200)
        assert await status("other") == (0 if verify else 200)
