"""Reload of a running node: each row of what may change live is changed, seen to be in force, and logged with
nats-server's words; a reload that is refused changes nothing."""

from __future__ import annotations

import asyncio
import copy
import json
import socket
import ssl
import stat
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from jetcluster import logs
from jetcluster.cli.merge import options_from
from jetcluster.doctor.facts import ServerFacts
from jetcluster.monitor.facts import server_facts
from jetcluster.monitor.start import NodeMonitoring
from jetcluster.node.node import Node
from jetcluster.node.process import reloading
from testkit.certificates import Authority

BASE = 'listen: "127.0.0.1:-1"\nserver_name: n\n'


class Running:
    """A node that was started from a file, and a client of it."""

    def __init__(self, node: Node, folder: Path) -> None:
        self.node = node
        self.folder = folder
        self.clients: list[Client] = []

    def write(self, text: str) -> None:
        (self.folder / "c.conf").write_text(BASE + text)

    def reload(self, text: str) -> list[str]:
        """The `Reloaded: ` lines of the log; raises AssertionError when the reload was refused."""
        self.write(text)
        told: list[str] = []
        node, real = self.node, self.node.log

        class Heard:
            def info(self, event: str, **_: object) -> None:
                told.append(event)

            def warning(self, event: str, **_: object) -> None:
                told.append(event)

            error = info

        node.log = Heard()  # type: ignore[assignment]
        try:
            refusal = node.reload("")
        finally:
            node.log = real
        assert refusal == ""
        return [line.removeprefix("Reloaded: ") for line in told if line.startswith("Reloaded: ")]

    async def client(self, **connect: Any) -> Client:
        client = await Client.open(self.node.server.port, **connect)
        self.clients.append(client)
        return client


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def open(cls, port: int, **connect: Any) -> Client:
        client = cls(*await asyncio.open_connection("127.0.0.1", port))
        await client.line()
        client.send(b"CONNECT " + json.dumps({"verbose": False, "protocol": 1, **connect}).encode() + b"\r\nPING\r\n")
        while await client.line() != b"PONG":
            pass
        return client

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def line(self) -> bytes:
        return (await asyncio.wait_for(self.reader.readline(), 5)).rstrip(b"\r\n")

    async def line_that_starts(self, start: bytes) -> bytes:
        while not (line := await self.line()).startswith(start):
            assert line or not self.reader.at_eof(), f"closed before {start!r}"
        return line


@asynccontextmanager
async def running(folder: Path, text: str = "") -> AsyncIterator[Running]:
    (folder / "c.conf").write_text(BASE + text)

    def read() -> Any:
        return options_from({"config": str(folder / "c.conf")})

    node = Node(read(), logs.get_logger("test"), reloading(read), monitoring=NodeMonitoring)
    await node.start()
    server = Running(node, folder)
    try:
        yield server
    finally:
        for client in server.clients:
            client.writer.close()
        await node.stop()


@pytest.fixture(autouse=True)
def _in_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


async def test_values_that_are_read_when_they_count(tmp_path: Path) -> None:
    async with running(tmp_path) as server:
        server_options: Callable[[str], Any] = lambda name: getattr(server.node.server.options, name)  # noqa: E731
        for text, line, name, value in (
            ("max_connections: 5", "max_connections = 5", "max_connections", 5),
            ("max_subscriptions: 5", "max_subscriptions = 5", "max_subscriptions", 5),
            ("max_sub_tokens: 5", "max_sub_tokens = 5", "max_sub_tokens", 5),
            ("max_control_line: 2048", "max_control_line = 2048", "max_control_line", 2048),
            ("max_payload: 100", "max_payload = 100", "max_payload", 100),
            ("ping_interval: '30s'", "ping_interval = 30s", "ping_interval", 30.0),
            ("ping_max: 5", "ping_max = 5", "ping_max", 5),
            ("write_deadline: '5s'", "write_deadline = 5s", "write_deadline", 5.0),
            ("write_timeout: retry", "write_timeout = retry", "write_timeout", "retry"),
            ("lame_duck_duration: '40s'", "lame_duck_duration = 40s", "lame_duck_duration", 40.0),
            ("lame_duck_grace_period: '5s'", "lame_duck_grace_period = 5s", "lame_duck_grace_period", 5.0),
            ("no_fast_producer_stall: true", "fast producers will not be stalled", "no_fast_producer_stall", True),
            ("max_traced_msg_len: 5", "max_traced_msg_len = 5", "max_traced_msg_len", 5),
            ("client_advertise: 'h:1'", "client_advertise = h:1", "client_advertise", "h:1"),
        ):
            before = server_options(name)
            assert before != value, name
            assert server.reload(text) == [line]
            assert server_options(name) == value
            server.reload("")
            assert server_options(name) == before


async def test_a_refused_reload_is_remembered_until_one_succeeds(tmp_path: Path) -> None:
    async with running(tmp_path) as server:
        node = server.node
        assert node.refused_reload is None
        server.write("no_such_field: 1\n")
        assert (reason := node.reload("")).endswith('unknown field "no_such_field"')
        refused = node.refused_reload
        assert refused is not None and refused.reason == reason
        facts = server_facts(node)
        assert facts.refused_reload == (reason, pytest.approx(0.0, abs=60.0))
        assert ServerFacts.from_dict(json.loads(json.dumps(facts.to_dict()))).refused_reload == facts.refused_reload
        server.reload("")
        assert node.refused_reload is None and server_facts(node).refused_reload is None


async def test_limits_that_clients_feel_at_once(tmp_path: Path) -> None:
    async with running(tmp_path) as server:
        old, new = await server.client(), await server.client()
        server.reload("max_connections: 1")
        assert await new.line_that_starts(b"-ERR") == b"-ERR 'maximum connections exceeded'"
        server.reload("max_subscriptions: 1\nmax_sub_tokens: 2")
        old.send(b"SUB a 1\r\nSUB b 2\r\n")
        assert await old.line_that_starts(b"-ERR") == b"-ERR 'maximum subscriptions exceeded'"
        server.reload("max_payload: 10")
        assert json.loads((await old.line_that_starts(b"INFO"))[5:])["max_payload"] == 10
        old.send(b"PUB a 11\r\n")
        assert await old.line_that_starts(b"-ERR") == b"-ERR 'Maximum Payload Violation'"


async def test_users_passwords_and_permissions(tmp_path: Path) -> None:
    users = "authorization { users: [ {user: a, password: %s, permissions: {subscribe: %s}}, {user: b, password: b} ] }"
    async with running(tmp_path, users % ("a", "'>'")) as server:
        a, b = await server.client(user="a", **{"pass": "a"}), await server.client(user="b", **{"pass": "b"})
        a.send(b"SUB secret 1\r\nPING\r\n")
        await a.line_that_starts(b"PONG")
        assert server.reload(users % ("a", "'open'")) == ["authorization users"]
        assert (
            await a.line_that_starts(b"-ERR")
            == b'-ERR \'Permissions Violation for Subscription to "secret" (sid "1")\''
        )
        assert server.reload(users % ("c", "'open'")) == ["authorization users"]
        assert await a.line_that_starts(b"-ERR") == b"-ERR 'Authorization Violation'"
        b.send(b"PING\r\n")
        await b.line_that_starts(b"PONG")
        await server.client(user="a", **{"pass": "c"})


async def test_accounts_come_and_go(tmp_path: Path) -> None:
    text = "accounts { A { users: [ {user: a, password: a} ] } %s }"
    async with running(tmp_path, text % "") as server:
        assert server.reload(text % ", B { users: [ {user: b, password: b} ] }") == ["accounts"]
        b = await server.client(user="b", **{"pass": "b"})
        assert server.reload(text % "") == ["accounts"]
        assert await b.line_that_starts(b"-ERR") == b"-ERR 'Authorization Violation'"


async def test_where_the_log_goes_and_what_it_says(tmp_path: Path) -> None:
    try:
        async with running(tmp_path) as server:
            first, second = tmp_path / "a.log", tmp_path / "b.log"
            assert server.reload("log_file: a.log, debug: true") == ["debug = true", "log_file = a.log"]
            server.node.log.debug("seen")
            server.reload("log_file: b.log, trace: true, logtime: false")
            server.node.log.debug("not seen")
            assert server.node.server.state.tracer is not None
            client = await server.client()
            client.send(b"PUB traced 0\r\n\r\nPING\r\n")
            await client.line_that_starts(b"PONG")
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as syslog:
                syslog.bind(("127.0.0.1", 0))
                syslog.settimeout(5)
                server.reload(f"remote_syslog: 'udp://127.0.0.1:{syslog.getsockname()[1]}'")
                server.node.log.info("to syslog")
                assert syslog.recv(1000).endswith(b": to syslog")
            server.reload("log_file: b.log, log_size_limit: 50")
            server.node.log.info("this line and the next are in a file put aside")
            server.reload("")
            assert "seen" in first.read_text()
            assert "not seen" not in "".join(path.read_text() for path in tmp_path.glob("*.log*"))
            assert any("<<- [PUB traced 0]" in path.read_text() for path in tmp_path.glob("b.log.*"))
            assert stat.S_IMODE(second.stat().st_mode) == 0o640
    finally:
        logs.configure(options_from({}))


async def test_files_that_name_the_process(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    async with running(tmp_path, "ports_file_dir: a") as server:
        assert len(list((tmp_path / "a").iterdir())) == 1
        assert server.reload("ports_file_dir: b\npid_file: x.pid") == ["pid_file = x.pid", "ports_file_dir = b"]
        assert list((tmp_path / "a").iterdir()) == []
        [ports] = (tmp_path / "b").iterdir()
        assert json.loads(ports.read_text())["nats"] == [f"nats://127.0.0.1:{server.node.server.port}"]
        assert (tmp_path / "x.pid").read_text().isdigit()
        server.reload("")
        assert list((tmp_path / "b").iterdir()) == []


async def test_tags_and_metadata_are_sent_to_others(tmp_path: Path) -> None:
    async with running(tmp_path, "server_tags: a") as server:
        assert server.reload("server_tags: [b, 'C,d']\nserver_metadata { k: v }") == ["tags", "metadata"]
        assert server.node.jetstream is not None
        assert server.node.jetstream.mesh.me.tags == ("b", "c", "d")
        too_many = ", ".join(f"'{number}{'x' * 200}'" for number in range(400))
        server.write(f"server_tags: [{too_many}]")
        assert server.node.reload("").startswith("server_tags: ")
        assert server.node.options.server_tags == ["b", "c", "d"]
        assert server.node.jetstream.mesh.zone_tag == "zone:"
        assert server.reload("zone_tag: 'AZ:'") == ["tags", "zone_tag = az:", "metadata"]
        assert server.node.jetstream.mesh.zone_tag == "az:"


async def test_leaf_remotes_come_and_go(tmp_path: Path) -> None:
    (tmp_path / "hub").mkdir()
    (tmp_path / "leaf").mkdir()
    async with running(tmp_path / "hub", "leafnodes { listen: '127.0.0.1:-1' }") as hub:
        links = hub.node.leafnodes.links

        async def until(count: int) -> None:
            async with asyncio.timeout(10):
                while len(links) != count:
                    await asyncio.sleep(0.01)

        remote = (
            f"leafnodes {{ reconnect: '10ms', remotes: [ {{url: 'nats://127.0.0.1:{hub.node.leafnodes.port}'%s}} ] }}"
        )
        async with running(tmp_path / "leaf") as leaf:
            assert leaf.reload(remote % "") == ["LeafNode remotes"]
            await until(1)
            before = links[0]
            leaf.reload(remote % "" + "\nmax_payload: 1000")
            await asyncio.sleep(0.05)
            assert links == [before], "a remote that is as before keeps its link"
            leaf.reload(remote % ", disabled: true")
            await until(0)
            leaf.reload(remote % ", deny_imports: x")
            await until(1)
            leaf.reload("leafnodes {}")
            await until(0)
            assert "old=" in leaf_refusal(leaf, "leafnodes { port: -1 }")


def leaf_refusal(server: Running, text: str) -> str:
    server.write(text)
    return server.node.reload("")


async def test_jetstream_grows(tmp_path: Path) -> None:
    text = "jetstream { store_dir: js, max_mem: %s, max_file: 10MB, limits { max_ack_pending: %d } }"
    async with running(tmp_path, text % ("1MB", 5)) as server:
        assert server.reload(text % ("2MB", 7)) == ["JetStream max_mem_store = 2.00 MB", "JetStream limits"]
        assert server.node.jetstream is not None and server.node.jetstream.capacity is not None
        assert server.node.jetstream.capacity.max_memory == 2 << 20
        assert server.node.jetstream.capacity.own_limits("$G").server_max_ack_pending == 7
        for refused in (text % ("1MB", 7), "", "jetstream { store_dir: other, max_mem: 2MB, max_file: 10MB }"):
            server.write(refused)
            assert server.node.reload("").startswith("config reload not supported for ")
        assert server.node.jetstream.capacity.max_memory == 2 << 20


async def test_websocket_fields(tmp_path: Path) -> None:
    async with running(tmp_path, "websocket { listen: '127.0.0.1:-1', no_tls: true }") as server:
        text = "websocket { listen: '127.0.0.1:-1', no_tls: true, compression: true, ping_interval: '7s' }"
        assert server.reload(text) == ["websocket"]
        port = server.node.server.ws_port
        assert port is not None
        assert (port.state.options.compression, port.state.options.ping_interval) == (True, 7.0)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("foo: 1", 'unknown field "foo"'),
        ("port: {", "Parse error on line 5"),
        ("http: '127.0.0.1:-1'", "config reload not supported for HTTPHost: old=, new=127.0.0.1"),
        ("max_pending: 10MB", "config reload not supported for MaxPending: old=67108864, new=10485760"),
        ("cluster { name: c, port: -1 }", "config reload not supported for cluster name: old=, new=c"),
        ("jetstream: enabled", "config reload not supported for JetStream: old=false, new=true"),
        ("websocket { port: -1, no_tls: true }", "config reload not supported for websocket port: old=0, new=-1"),
        ("log_file: no/x.log", "No such file or directory"),
        ("remote_syslog: 'http://x'", "error invalid network type"),
        ("pid_file: no/x.pid", "Could not write pidfile: open no/x.pid: no such file or directory"),
        ("max_payload: 100MB", "max_payload (104857600) cannot be higher than max_pending (67108864)"),
        ("tls { cert_file: x, key_file: y }", "open x: no such file or directory"),
    ],
)
async def test_a_refused_reload_changes_nothing(text: str, error: str, tmp_path: Path) -> None:
    async with running(tmp_path, "max_connections: 7") as server:
        before = copy.deepcopy(server.node.options)
        server.write(f"max_connections: 3\n{text}\n")
        assert error in server.node.reload("")
        assert server.node.options == before
        assert server.node.server.options.max_connections == 7
        client = await server.client()
        client.send(b"PING\r\n")
        await client.line_that_starts(b"PONG")


async def test_a_reload_that_is_asked_for_is_answered(tmp_path: Path) -> None:
    accounts = "system_account: SYS\naccounts { SYS { users: [ {user: s, password: s} ] } }\n"
    async with running(tmp_path, accounts) as server:
        system = await server.client(user="s", **{"pass": "s"})
        system.send(b"SUB _INBOX.r 1\r\n")

        async def ask() -> dict[str, Any]:
            system.send(f"PUB $SYS.REQ.SERVER.{server.node.server.server_id}.RELOAD _INBOX.r 0\r\n\r\n".encode())
            await system.line_that_starts(b"MSG _INBOX.r")
            found: dict[str, Any] = json.loads(await system.line())
            return found

        server.write(accounts + "max_payload: 1000")
        assert "error" not in await ask()
        assert server.node.server.options.max_payload == 1000
        server.write(accounts + "max_payload: 2000\nfoo: 1")
        assert 'unknown field "foo"' in (await ask())["error"]["description"]
        assert server.node.server.options.max_payload == 1000


async def test_the_cluster_s_password_and_address(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    text = "cluster { name: c, listen: '127.0.0.1:-1', authorization { user: r, password: %s } %s }"
    async with running(tmp_path / "one", text % ("old", "")) as one:
        assert one.node.jetstream is not None
        assert one.reload(text % ("new", ", cluster_advertise: 'example.org:7'")) == ["cluster"]
        assert one.node.jetstream.mesh.me.cluster_url == "example.org:7"
        assert one.reload(text % ("new", "")) == ["cluster"]
        address = one.node.jetstream.mesh.me.cluster_url
        assert address == f"127.0.0.1:{one.node.jetstream.cluster_port}"
        two_text = text + "\nserver_name: two"
        async with running(tmp_path / "two", two_text % ("new", f", routes: ['nats://{address}']")) as two:
            async with asyncio.timeout(10):
                while not one.node.jetstream.mesh.links:
                    await asyncio.sleep(0.01)
            assert two.reload(two_text % ("newer", f", routes: ['nats://{address}']")) == ["cluster"]
            assert len(one.node.jetstream.mesh.links) == 1, "links that stand stay"


@pytest.mark.parametrize("first", ["true", "false"])
async def test_leaf_links_take_the_authority_that_the_file_has_at_a_reload(first: str, tmp_path: Path) -> None:
    for name in ("old", "new", "hub"):
        (tmp_path / name).mkdir()
    old, new = (Authority(tmp_path / name, name) for name in ("old", "new"))
    known = tmp_path / "ca.pem"
    known.write_bytes(old.file.read_bytes())
    cert, key = old.issue("server")
    tls = (
        f"tls {{ cert_file: '{cert}', key_file: '{key}', ca_file: '{known}', handshake_first: {first}, verify: true }}"
    )
    async with running(tmp_path / "hub", f"leafnodes {{ listen: '127.0.0.1:-1', {tls} }}") as hub:
        leaves = hub.node.leafnodes
        port, before = leaves.port, leaves.state.tls.accepting
        known.write_bytes(new.file.read_bytes())
        hub.reload(f"leafnodes {{ listen: '127.0.0.1:-1', {tls} }}\nmax_payload: 1000")
        assert (leaves.port, leaves.state.tls.accepting is before) == (port, False)
        if first == "true":
            trust = ssl.create_default_context(cafile=str(old.file))
            trust.load_cert_chain(*new.issue("leaf"))
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trust)
            assert (await reader.readline()).startswith(b"INFO ")
            writer.close()
