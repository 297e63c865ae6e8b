"""Running it: reload, TLS, health, the files and signals around a start and a stop."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import ssl
import subprocess
import time
from pathlib import Path

import nats
import nats.errors
import pytest

from testkit.certificates import make_certificate
from testkit.client import Client, ClientError, create_stream
from testkit.harness import Node, ProcessCluster, eventually, find_server

pytestmark = pytest.mark.cluster

HEAVY = {
    "aiohttp",
    "typer",
    "click",
    "rich",
    "cryptography",
    "bcrypt",
    "hypothesis",
    "pydantic",
    "pydantic_core",
    "structlog",
    "ctypes",
}


def node_with(server: str, root: Path, config: str, *flags: str) -> Node:
    """A node without JetStream of its own flags: all is in the file."""
    node = ProcessCluster(1, server, root=root, config=config)[0]
    node.args = ["-a", "127.0.0.1", "-p", str(node.port), "-c", str(node.root / "server.conf"), *flags]
    return node


def rewrite(node: Node, config: str) -> None:
    (node.root / "server.conf").write_text(config)


async def reload(node: Node, expect: str = r"Reloaded server configuration \(sha256:") -> str:
    """SIGHUP; returns what the log says from there on, once it matches `expect`."""
    before = len(node.log())
    node.signal(signal.SIGHUP)
    await eventually(lambda: re.search(expect, node.log()[before:]) is not None, 5, f"no {expect!r} in the log", node)
    return node.log()[before:]


USERS = "authorization { users = [ {user: ann, password: a}, {user: bob, password: b} ] }\n"


async def test_reload_of_users_and_limits(server: str, tmp_path: Path) -> None:
    node = node_with(server, tmp_path, USERS)
    await node.start()
    try:
        ann = await Client.connect(f"nats://ann:a@127.0.0.1:{node.port}")
        bob = await Client.connect(f"nats://bob:b@127.0.0.1:{node.port}")
        rewrite(node, USERS.replace("password: a", "password: other") + "max_payload: 1000\n")
        log = await reload(node)
        assert "Reloaded: authorization users" in log
        assert "Reloaded: max_payload = 1000" in log
        await asyncio.wait_for(ann.closed.wait(), 3)
        assert b"Authorization Violation" in ann.last_error
        assert not bob.closed.is_set()
        bob.publish("x", b"y" * 1001)
        await asyncio.wait_for(bob.closed.wait(), 3)
        assert b"Maximum Payload Violation" in bob.last_error
        async with await Client.connect(f"nats://ann:other@127.0.0.1:{node.port}") as again:
            assert again.info["max_payload"] == 1000
    finally:
        node.kill9()


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("max_payload: 7\nfoo {\n", r"Parse error on line \d+: 'Unexpected EOF processing map.'"),
        ("max_payload: 7\nfoo: 1\n", r'server.conf:2:1: unknown field "foo"'),
        ("max_payload: 7\nserver_name: b\n", "config reload not supported for ServerName: old=a, new=b"),
    ],
    ids=["broken", "unknown", "fixed"],
)
async def test_a_reload_that_fails_changes_nothing(server: str, tmp_path: Path, text: str, error: str) -> None:
    node = node_with(server, tmp_path, "server_name: a\n")
    await node.start()
    try:
        rewrite(node, text)
        log = await reload(node, r"\[ERR\] Failed to reload server configuration: .*" + error)
        assert "Reloaded" not in log
        async with await Client.connect(node.url) as client:
            assert client.info["server_name"] == "a"
            assert client.info["max_payload"] == 1 << 20
        rewrite(node, "server_name: a\nmax_payload: 7\n")
        await reload(node)
    finally:
        node.kill9()


async def test_reload_by_the_signal_command_without_a_file(server: str, tmp_path: Path) -> None:
    async with ProcessCluster(1, server, root=tmp_path) as single:
        command = find_server(server)
        assert command is not None
        done = await asyncio.to_thread(
            subprocess.run, [*command, "--signal", f"reload={single[0].pid}"], capture_output=True, text=True
        )
        assert (done.returncode, done.stderr) == (0, "")
        expected = "can only reload config when a file is provided"
        await eventually(lambda: expected in single[0].log(), 5, f"no {expected!r}", single[0])
        assert single[0].alive


async def test_reload_of_log_file_and_level(server: str, tmp_path: Path) -> None:
    node = node_with(server, tmp_path, "server_name: a\n")
    await node.start()
    try:
        new_log = tmp_path / "new.log"
        rewrite(node, f'server_name: a\ndebug: true\nlog_file: "{new_log}"\n')
        node.signal(signal.SIGHUP)
        await eventually(
            lambda: new_log.exists() and "Reloaded server configuration" in new_log.read_text(),
            5,
            "nothing in the new log file",
            node,
        )
    finally:
        node.kill9()


async def test_reload_of_an_accounts_jetstream(server: str, tmp_path: Path) -> None:
    config = """
jetstream { store_dir: "$STORE" }
accounts { A { %s users: [ {user: a, password: a} ] } }
"""
    node = node_with(server, tmp_path, config % "")
    await node.start()
    try:
        async with await Client.connect(f"nats://a:a@127.0.0.1:{node.port}") as client:
            with pytest.raises(ClientError, match="10039"):
                await client.api("INFO")
            store = (config % "jetstream: { max_streams: 1 },").replace("$STORE", str(node.store))
            rewrite(node, store)
            await reload(node)
            assert (await client.api("INFO"))["limits"]["max_streams"] == 1
            await create_stream(client, "S", ["s"], 1)
            with pytest.raises(ClientError, match="10027"):
                await create_stream(client, "T", ["t"], 1)
    finally:
        node.kill9()


# --- TLS


def tls_block(cert: Path, key: Path, more: str = "") -> str:
    return f'tls {{ cert_file: "{cert}", key_file: "{key}", timeout: 5 {more} }}\n'


async def test_tls_clients_and_renewed_certificates(server: str, tmp_path: Path) -> None:
    first, second = tmp_path / "1", tmp_path / "2"
    first.mkdir(), second.mkdir()
    cert, key = make_certificate(first)
    node = node_with(server, tmp_path / "n", tls_block(cert, key))
    await node.start()
    try:
        trust = ssl.create_default_context(cafile=str(cert))
        client = await nats.connect(f"tls://localhost:{node.port}", tls=trust, allow_reconnect=False)
        assert client._server_info["tls_required"] is True
        inbox = await client.subscribe("a")
        await client.publish("a", b"over TLS")
        assert (await inbox.next_msg(3)).data == b"over TLS"
        # In clear: refused.
        reader, writer = await asyncio.open_connection("127.0.0.1", node.port)
        assert json.loads((await reader.readline())[5:])["tls_required"] is True
        writer.write(b"CONNECT {}\r\nPING\r\n")
        assert b"PONG" not in await asyncio.wait_for(reader.read(), 8)
        writer.close()
        # Certificates that were renewed come with a reload; who is connected stays.
        new_cert, new_key = make_certificate(second)
        rewrite(node, tls_block(new_cert, new_key))
        await reload(node)
        with pytest.raises(ssl.SSLError):
            await nats.connect(f"tls://localhost:{node.port}", tls=trust, allow_reconnect=False)
        renewed = ssl.create_default_context(cafile=str(new_cert))
        await (await nats.connect(f"tls://localhost:{node.port}", tls=renewed, allow_reconnect=False)).close()
        await client.publish("a", b"still here")
        assert (await inbox.next_msg(3)).data == b"still here"
        await client.close()
    finally:
        node.kill9()


async def test_tls_verify_wants_a_client_certificate(server: str, tmp_path: Path) -> None:
    cert, key = make_certificate(tmp_path)
    node = node_with(server, tmp_path / "n", tls_block(cert, key, f', ca_file: "{cert}", verify: true'))
    await node.start()
    try:
        trust = ssl.create_default_context(cafile=str(cert))
        with pytest.raises((OSError, nats.errors.Error, asyncio.TimeoutError)):
            await nats.connect(f"tls://localhost:{node.port}", tls=trust, allow_reconnect=False, connect_timeout=3)
        trust.load_cert_chain(cert, key)
        client = await nats.connect(f"tls://localhost:{node.port}", tls=trust, allow_reconnect=False)
        assert client._server_info["tls_verify"] is True
        await client.close()
    finally:
        node.kill9()


# --- files, stop, start


def ports_of(node: Node, directory: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = json.loads((directory / f"nats-server_{node.pid}.ports").read_text())
    return found


@pytest.mark.ours("nats-server lists every interface of a wildcard address")
async def test_ports_file_names_every_listener_by_its_own_address(server: str, tmp_path: Path) -> None:
    config = 'host: "::1"\nport: -1\nhttp: "127.0.0.2:-1"\ncluster { name: c, listen: "0.0.0.0:-1" }\n'
    node = node_with(server, tmp_path, config)
    node.args = ["-c", str(node.root / "server.conf"), "--ports_file_dir", str(tmp_path)]
    await node.start()
    try:
        ports = ports_of(node, tmp_path)
        assert re.fullmatch(r"nats://\[::1\]:\d+", ports["nats"][0])
        assert re.fullmatch(r"http://127\.0\.0\.2:\d+", ports["monitoring"][0])
        assert re.fullmatch(r"nats://127\.0\.0\.1:\d+", ports["cluster"][0])
        for url in (urls[0] for urls in ports.values()):
            host, _, port = url.partition("://")[2].rpartition(":")
            socket.create_connection((host.strip("[]"), int(port)), 3).close()
        assert f"Listening for client connections on [::1]:{ports['nats'][0].rpartition(':')[2]}" in node.log()
        assert await node.stop() == 0
        assert not list(tmp_path.glob("*.ports*"))
    finally:
        node.kill9()


async def test_a_ports_file_that_cannot_be_written_is_no_reason_to_stop(server: str, tmp_path: Path) -> None:
    node = node_with(server, tmp_path, "server_name: a\n", "--ports_file_dir", str(tmp_path / "missing"))
    await node.start()
    try:
        assert "[ERR] Error writing ports file (" in node.log()
        assert node.alive
    finally:
        node.kill9()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_an_idle_server_stops_at_once(server: str, tmp_path: Path, number: signal.Signals) -> None:
    """Other processes can only make it slower, so one quick stop of three shows that it waits for nothing."""
    took = []
    async with ProcessCluster(1, server, root=tmp_path) as single:
        for _ in range(3):
            start = time.monotonic()
            single[0].signal(number)
            assert await single[0].wait_exit(3) == 0 or server != "jetcluster"
            took.append(time.monotonic() - start)
            print(f"stopped after {took[-1]:.3f} s")
            if took[-1] < 1.0:  # the goal is 0.3 s; a loaded machine gets three times that
                return
            await single[0].start()
    raise AssertionError(f"stopped after {took} s")


async def test_a_signal_during_the_start_ends_it_cleanly(server: str, tmp_path: Path) -> None:
    """The node must handle TERM as soon as the port is open: harnesses wait for the port and may stop at once."""
    node = ProcessCluster(1, server, root=tmp_path)[0]
    node.spawn()
    try:

        async def open_port() -> bool:
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", node.port)) == 0

        await eventually(open_port, 10, "no port", node, every=0.001)
        node.signal(signal.SIGTERM)
        assert await node.wait_exit(5) == 0
        assert "Traceback" not in node.log()
    finally:
        node.kill9()


def test_nothing_heavy_is_imported_before_ready(tmp_path: Path) -> None:
    """Each of these costs 0.1 to 0.4 s of a cold start that is to take less than 0.5 s."""
    command = find_server("jetcluster")
    assert command is not None
    command = [command[0], "-X", "importtime", *command[1:], "-js", "-sd", str(tmp_path), "-a", "127.0.0.1", "-p", "-1"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])
    try:
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            if "Server is ready" in line:
                break
            lines.append(line)
        else:
            pytest.fail("".join(lines[-5:]))
        names = [line.rpartition("|")[2].strip() for line in lines if line.startswith("import time")]
        packages = {name.partition(".")[0] for name in names if "." in name}  # "rich" alone is an import we refused
        assert "asyncio" in packages  # the listing is what we take it for
        assert HEAVY & packages == set()
    finally:
        process.kill()
        process.communicate()


# --- health


async def test_health_follows_the_quorum(server: str, tmp_path: Path) -> None:
    cluster = ProcessCluster(3, server, root=tmp_path, monitor=True)
    async with cluster:
        async with await cluster[0].connect() as client:
            await create_stream(client, "S", ["s"], 3)
        await cluster.wait_current("S")
        survivor = cluster[2]
        for node in cluster.nodes:
            await eventually(lambda node=node: _status(node, "healthz", "ok"), 10, "not healthy", node)
        cluster[0].kill9()
        cluster[1].kill9()
        await eventually(lambda: _lacks_meta_leader(survivor), 30, "still healthy", survivor)
        assert await _status(survivor, "healthz", "unavailable")
        assert (await survivor.monitor("healthz?js-meta-only=true"))["status"] == "unavailable"
        for own in ("js-enabled-only", "js-server-only"):
            assert (await survivor.monitor(f"healthz?{own}=true"))["status"] == "ok"
        await cluster[0].start()
        await cluster[1].start()
        for node in cluster.nodes:
            await eventually(lambda node=node: _status(node, "healthz", "ok"), 20, "not healthy again", node)


async def _lacks_meta_leader(node: Node) -> bool:
    """The stream's replica may notice first that nobody leads."""
    return "meta leader" in (await node.monitor("healthz")).get("error", "")


async def _status(node: Node, path: str, wanted: str) -> bool:
    return bool((await node.monitor(path))["status"] == wanted)
