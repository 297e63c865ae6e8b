"""Symptoms of connections (docs/symptoms/connections.md) on real servers: the texts, and what ends each."""

from __future__ import annotations

import asyncio
import signal
import socket
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID

from jetcluster.cli.commands import run_command
from jetcluster.doctor.facts import Remote
from jetcluster.doctor.server_rules import look_at_server
from testkit.certificates import Authority
from testkit.client import Client, ClientError
from testkit.harness import Node, ProcessCluster, eventually, free_port
from tests.cluster.test_symptoms import findings, found, logged
from tests.symptom_page import shown
from tests.unit.doctor.cases import server

pytestmark = [pytest.mark.cluster, pytest.mark.ours("the pages are about this server"), pytest.mark.thorough]

ROUTES = """cluster {{
  listen: "127.0.0.1:{own}", authorization {{ user: r, password: {password} }}
  routes: [ "nats://r:{password}@127.0.0.1:{other}" ]
}}
"""

HUB = Remote("A", "hub:7422", connected=False)
LEAF_DOWN = "\n".join(f"{one.code}  {one.what}" for one in look_at_server(server(leaf_remotes=(HUB,))))
"""The finding, which comes half a minute after a start."""


def expired(authority: Authority) -> tuple[Path, Path]:
    names = [x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))]
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "old")])
    return authority.issue_to("old", name, names, days=-1)


async def streams(node: Node, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """Exit code and errors of a command that connects with TLS."""
    code = await asyncio.to_thread(run_command, ["streams", "-s", f"tls://127.0.0.1:{node.port}", *words])
    return code, capsys.readouterr().err


async def lines(node: Node, sent: bytes) -> str:
    """All that the server sends to a client that sends no more than that."""
    reader, writer = await asyncio.open_connection("127.0.0.1", node.port)
    writer.write(sent)
    try:
        return (await asyncio.wait_for(reader.read(-1), 20.0)).decode()
    finally:
        writer.close()


async def test_tls_that_is_refused_and_a_certificate_that_is_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    authority = Authority(tmp_path)
    certificate, key = expired(authority)
    config = f'tls {{ cert_file: "{certificate}", key_file: "{key}" }}\n'
    cluster = ProcessCluster(1, root=tmp_path / "server", config=config, monitor=True)
    node = cluster[0]
    try:
        await node.start()
        with pytest.raises(ClientError):
            await Client.connect(node.url)
        trust = ("--tlsca", str(authority.file))
        _, unknown = await streams(node, capsys)
        log = await logged(node, "does not know the authority")
        shown("a-tls-handshake-fails", unknown, log)
        _, over = await streams(node, capsys, *trust)
        await logged(node, "this one's certificate is over")
        log = await logged(node, "[WRN] The certificate for clients is over: who checks it does not connect")
        shown("a-certificate-is-over", over, log, await findings(node))
        for old, new in zip((certificate, key), authority.issue("new"), strict=True):
            old.write_bytes(new.read_bytes())
        node.signal(1)
        await eventually(lambda: "Reloaded server configuration" in node.log(), 10.0, "no reload", node)
        assert await streams(node, capsys, *trust) == (0, "")

        async def well() -> bool:
            return "JC123" not in await findings(node)

        await eventually(well, 10.0, "the finding stays", node)
    finally:
        cluster.stop_all()


async def _room(node: Node) -> bool:
    return bool((await node.monitor("connz"))["num_connections"] == 1)


async def test_connections_that_end() -> None:
    config = """
max_connections: 5
ping_interval: 1s
ping_max: 1
max_pending: 100000
max_payload: 100000
authorization { timeout: 1, users: [ { user: a, password: b } ] }
"""
    async with ProcessCluster(1, config=config + "no_auth_user: a\n", monitor=True) as cluster:
        node = cluster[0]
        stale = lines(node, b'CONNECT {"verbose":false,"user":"a","pass":"b"}\r\nPING\r\n')
        shown("stale-connection", await stale)
        clients = [await node.connect() for _ in range(5)]
        with pytest.raises(ClientError) as caught:
            await node.connect()
        shown("maximum-connections-exceeded", f"-ERR {caught.value}")
        for client in clients[1:]:
            client.close()
            await client.closed.wait()
        await eventually(lambda: _room(node), 10.0, "the closed clients stay", node)
        slow, writer = await asyncio.open_connection("127.0.0.1", node.port, limit=1000)
        writer.write(b'CONNECT {"verbose":false,"user":"a","pass":"b"}\r\nSUB x 1\r\nPING\r\n')
        await asyncio.wait_for(slow.readuntil(b"PONG\r\n"), 10.0)
        for _ in range(300):
            clients[0].publish("x", b"y" * 90_000)
        shown("slow-consumer", await logged(node, "Slow Consumer"))
        assert (await node.monitor("varz"))["slow_consumers"] == 1
        writer.close()
        (node.root / "server.conf").write_text(config)
        node.signal(1)
        await eventually(lambda: "Reloaded server configuration" in node.log(), 10.0, "no reload", node)
        shown("authentication-timeout", await lines(node, b""))


def without(node: Node, flag: str) -> None:
    at = node.args.index(flag)
    del node.args[at : at + 2]


async def test_a_route_is_refused(tmp_path: Path) -> None:
    cluster = ProcessCluster(2, root=tmp_path, config="#")
    first, second = cluster.nodes
    ports = [node.cluster_port for node in cluster.nodes]

    def configure(node: Node, password: str, own: int, other: int) -> None:
        (node.root / "server.conf").write_text(ROUTES.format(password=password, own=own, other=other))

    try:
        configure(first, "one", *ports)
        configure(second, "two", *reversed(ports))
        for node in cluster.nodes:
            without(node, "--cluster")
            without(node, "--routes")
            node.spawn()
        for node in cluster.nodes:
            await node.wait_ready()

        def logs() -> str:  # either may be the one that dials
            return first.log() + second.log()

        texts = ("Refused connection of n", "refused by the peer")
        await eventually(lambda: all(text in logs() for text in texts), 20.0, "no refusal", second)
        shown("a-route-is-refused", logs())
        configure(second, "one", *reversed(ports))
        second.signal(1)
        await cluster.wait_meta()
    finally:
        cluster.stop_all()


async def test_a_leaf_link_is_refused(tmp_path: Path) -> None:
    port = free_port()
    hub = f'leafnodes {{ listen: "127.0.0.1:{port}", authorization {{ user: edge, password: right }} }}\n'
    leaf = 'leafnodes {{ remotes [ {{ url: "nats-leaf://edge:{}@127.0.0.1:{}" }} ] }}\n'
    far = ProcessCluster(1, root=tmp_path / "hub", config=hub, monitor=True)
    near = ProcessCluster(1, root=tmp_path / "leaf", config=leaf.format("wrong", port))
    try:
        await near[0].start()
        away = await logged(near[0], "Error trying to connect as leafnode")
        await far[0].start()
        refused = await logged(near[0], "the other end says")
        shown("a-leaf-link-is-down", away, refused, LEAF_DOWN)
        (near[0].root / "server.conf").write_text(leaf.format("right", port))
        near[0].signal(1)

        async def linked() -> bool:
            return bool((await far[0].monitor("leafz"))["leafnodes"])

        await eventually(linked, 20.0, "no leaf link", near[0])
    finally:
        near.stop_all()
        far.stop_all()


async def ends(cluster: ProcessCluster) -> str:
    """The log of a server that ends at its start."""
    cluster[0].spawn()
    assert await cluster[0].wait_exit(20.0) == 1
    return cluster[0].log()


async def test_a_reload_is_refused(tmp_path: Path) -> None:
    async with ProcessCluster(1, root=tmp_path, config="max_payload: 1MB\n", monitor=True) as single:
        node, file = single[0], single[0].root / "server.conf"
        right = file.read_text()
        file.write_text(right + "max_payloadd: 3\n")
        node.signal(signal.SIGHUP)
        log = await logged(node, "Failed to reload")
        told = await found(node, "JC127")
        assert 'unknown field "max_payloadd"' in told
        shown("a-reload-is-refused", log, told)
        file.write_text(right)
        node.signal(signal.SIGHUP)
        await logged(node, "Reloaded server configuration")

        async def gone() -> bool:
            return "JC127" not in await findings(node)

        await eventually(gone, 20.0, "the finding stays", node)


async def test_a_server_does_not_start(tmp_path: Path) -> None:
    wrong = await ends(ProcessCluster(1, root=tmp_path / "wrong", config="max_payloadd: 3\n"))
    taken = ProcessCluster(1, root=tmp_path / "taken")
    with socket.create_server(("127.0.0.1", taken[0].port)):
        busy = await ends(taken)
    no_folder = ProcessCluster(1, root=tmp_path / "file")
    no_folder[0].store.mkdir()
    (no_folder[0].store / "jetstream").write_text("")
    shown("a-server-does-not-start", wrong.replace("server.conf", "c.conf"), busy, await ends(no_folder))
    (no_folder[0].store / "jetstream").unlink()
    for cluster in (taken, no_folder):
        async with cluster:
            assert cluster[0].alive
