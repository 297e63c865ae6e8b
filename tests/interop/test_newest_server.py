"""Facts of nats-server 2.15.3, the version that our clients are told, at both servers: optional certificates, checks of
a reload, permissions for acks of version 2, and a link whose answers to flow control get lost."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from testkit.client import Client, create_stream
from testkit.harness import Node, eventually, find_server, free_ports
from tests.unit.server.tls_cases import IN, NO_TLS, Case, Certificates, outcome
from tests.unit.server.wire import close_all

from .leaf_pair import OURS, THEIRS

pytestmark = [
    pytest.mark.cluster, pytest.mark.interop, pytest.mark.thorough,
    pytest.mark.usefixtures("closed_wires", "newest_peer"),
]  # fmt: skip


@pytest.fixture(params=[OURS, THEIRS])
def kind(request: pytest.FixtureRequest) -> str:
    if find_server(request.param) is None:
        pytest.skip("nats-server is not on this machine: run `make tools`")
    return str(request.param)


@asynccontextmanager
async def running(kind: str, folder: Path, config: str) -> AsyncIterator[Node]:
    """A server that has nothing but this configuration; `$STORE` is its store."""
    (port,) = free_ports(1)
    command = find_server(kind)
    assert command is not None
    node = Node(kind, command, folder / kind, port, [])
    (node.root / "server.conf").write_text(config.replace("$STORE", str(node.store)))
    node.args = ["-a", "127.0.0.1", "-p", str(port), "-c", str(node.root / "server.conf")]
    await node.start()
    try:
        yield node
    finally:
        node.kill9()


async def test_an_optional_certificate_may_be_missing_but_not_wrong(kind: str, tmp_path: Path) -> None:
    certificates = Certificates(tmp_path / "certificates")
    shown = {"": IN, "plain": IN, "other": NO_TLS, "expired": NO_TLS}
    cases = [Case(name, tls="verify: optional", certificate=name) for name in shown]
    async with running(kind, tmp_path, certificates.config(cases[0])) as node:
        assert {case.name: await outcome(node.port, case, certificates) for case in cases} == shown
        await close_all()


# ---- whether a reload would do

JETSTREAM = 'jetstream { store_dir: "$STORE" }\n'
PLAIN = "max_payload: 1048576\n"
RELOADS = {
    "nothing": ("debug: true\n", "debug: true\n", True, True),
    "a limit": (PLAIN, "max_payload: 1000\n", True, True),
    "a name": ("server_name: a\n", "server_name: b\n", False, False),
    "another port": ("port: 4333\n", "port: 4334\n", False, False),
    "jetstream on": (PLAIN, JETSTREAM, False, True),  # theirs: docs/compatibility.md
    "jetstream off": (JETSTREAM, PLAIN, False, True),
}
"""Configuration before and after; whether ours, and nats-server, says that a reload would do."""


@pytest.mark.parametrize("name", RELOADS)
def test_a_reload_is_checked(kind: str, name: str, tmp_path: Path) -> None:
    before, after, *may = RELOADS[name]
    files = [tmp_path / "before.conf", tmp_path / "after.conf"]
    for file, text in zip(files, (before, after), strict=True):
        file.write_text(text.replace("$STORE", str(tmp_path / "store")))
    command = find_server(kind)
    assert command is not None
    done = subprocess.run(
        [*command, "-t", "-c", str(files[0]), "--test_reload", str(files[1])],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert (done.returncode == 0) == may[kind == THEIRS], done.stderr
    assert kind == THEIRS or done.returncode in (0, 3)
    assert ("config reload not supported" in done.stderr) != may[kind == THEIRS], done.stderr


async def test_what_the_check_says_of_jetstream_is_so(kind: str, tmp_path: Path) -> None:
    """A server of ours refuses the reload, and goes on; nats-server begins with JetStream."""
    async with running(kind, tmp_path, "") as node:
        (node.root / "server.conf").write_text(JETSTREAM.replace("$STORE", str(node.store)))
        node.signal(signal.SIGHUP)
        said = "config reload not supported for JetStream" if kind == OURS else "Reloaded server configuration"
        await eventually(lambda: said in node.log(), 10, f"{said!r} is not in the log", node)
        async with await node.connect() as client:
            answers = await answers_api(client)
            assert answers == (kind == THEIRS)


async def answers_api(client: Client) -> bool:
    for _ in range(20):
        reply = await client.request("$JS.API.INFO", b"", within=5.0)
        if reply.status != 503:
            return True
        await asyncio.sleep(0.1)
    return False


# ---- permissions for acks

PERMITTED = """
jetstream { store_dir: "$STORE"%(domain)s }
%(flag)s
no_auth_user: all
authorization { users: [
  { user: all, password: p }
  { user: one, password: p, permissions: {
      publish: ["$JS.API.CONSUMER.MSG.NEXT.>", "%(allowed)s"], subscribe: "_INBOX.>" } }
] }
"""
V1, V2 = "$JS.ACK.ORDERS.>", "$JS.ACK.*.*.ORDERS.>"


@pytest.mark.parametrize("domain", ["", "hub"])
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("allowed", [V1, V2])
async def test_a_permission_is_for_one_version_of_acks(
    kind: str, allowed: str, version: int, domain: str, tmp_path: Path
) -> None:
    """The fifth token of version 1 is a number, and the third one of version 2 the domain."""
    flag = "feature_flags: {js_ack_fc_v2: true}" if version == 2 else "feature_flags: {js_ack_fc_v2: false}"
    values = {"allowed": allowed, "flag": flag, "domain": f", domain: {domain}" if domain else ""}
    async with running(kind, tmp_path, PERMITTED % values) as node, await node.connect() as admin:
        await create_stream(admin, "ORDERS", ["orders"], 1)
        config = {"durable_name": "c", "ack_policy": "explicit"}
        await admin.api("CONSUMER.CREATE.ORDERS.c", {"stream_name": "ORDERS", "config": config})
        await admin.request("orders", b"1")
        async with await Client.connect(f"nats://one:p@127.0.0.1:{node.port}") as client:
            got: list[Any] = []
            client.subscribe("_INBOX.x", got.append)
            client.publish("$JS.API.CONSUMER.MSG.NEXT.ORDERS.c", b'{"batch":1,"expires":5000000000}', b"_INBOX.x")
            await eventually(lambda: bool(got), 10, "no message")
            tokens = got[0].reply.split(b".")
            assert len(tokens) == (9 if version == 1 else 11)
            assert version == 1 or (tokens[2], tokens[4]) == (domain.encode() or b"_", b"ORDERS")
            client.publish(got[0].reply.decode(), b"+ACK")
            await client.flush()
        info = await admin.api("CONSUMER.INFO.ORDERS.c")
        assert info["num_ack_pending"] == int((allowed == V1) != (version == 1))


# ---- answers to flow control that get lost

LINKED = """
jetstream { store_dir: "$STORE" }
no_auth_user: app
accounts {
  UP { jetstream: enabled, users: [ {user: up, password: p} ], exports: [
    {service: "$JS.API.>", response_type: stream}, {service: "$JS.FC.>"}, {stream: "deliver.>"} ] }
  APP { jetstream: enabled, users: [ {user: app, password: p} ], imports: [
    {service: {account: UP, subject: "$JS.API.>"}, to: "up.API.>"}
    %s
    {stream: {account: UP, subject: "deliver.>"}} ] }
}
"""
ANSWERS = '{service: {account: UP, subject: "$JS.FC.>"}}'


@pytest.mark.parametrize("answered", [True, False])
async def test_a_link_tells_that_its_answers_to_flow_control_get_lost(
    kind: str, answered: bool, tmp_path: Path
) -> None:
    async with running(kind, tmp_path, LINKED % (ANSWERS if answered else "")) as node:
        async with await Client.connect(f"nats://up:p@127.0.0.1:{node.port}") as above:
            await create_stream(above, "S", ["s"], 1)
            for _ in range(30):
                await asyncio.gather(*(above.request("s", bytes(1024)) for _ in range(100)))
        link = {"name": "S", "external": {"api": "up.API", "deliver": "deliver.link"}}
        async with await node.connect() as client:
            await create_stream(client, "MIRROR", [], 1, mirror=link)
            await create_stream(client, "SOURCED", [], 1, sources=[link])

            async def told(stream: str) -> tuple[int, bool]:
                info = await client.api(f"STREAM.INFO.{stream}")
                found = info["mirror"] if "mirror" in info else info["sources"][0]
                return found.get("error", {}).get("err_code", 0), info["state"]["messages"] == 3000

            for stream in ("MIRROR", "SOURCED"):
                wanted = (0, True) if answered else (10228, False)

                async def so(stream: str = stream, wanted: tuple[int, bool] = wanted) -> bool:
                    return await told(stream) == wanted

                await eventually(so, 60, f"{stream} does not come to {wanted}", node, every=0.3)
