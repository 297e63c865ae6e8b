"""Secrets are in no log, trace, monitoring page or error: one distinctive secret for each place that can hold one."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import aiohttp
import pytest

from jetcluster.config.lexer import ConfigError
from jetcluster.config.load import load_file
from testkit.harness import Node, find_server, free_ports
from tests.signer import OPERATOR, USER, Key
from tests.unit.server.wire import Wire, errors

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("closed_wires"), pytest.mark.thorough]
PAGES = (
    "varz", "connz?auth=1&subs=detail&state=all", "routez?subs=detail", "leafz?subs=1", "gatewayz", "subsz?subs=1",
    "accountz?acc=A", "accstatz", "jsz?accounts=1&streams=1&consumers=1&config=1", "raftz", "healthz", "metrics", "",
    "debug/vars", "ipqueuesz",
)  # fmt: skip
MARK = "s3cr3t"


def config(folder: Path, ports: list[int], seed: str, more: str = "") -> str:
    _, _, route, leaf, websocket = ports
    creds = folder / "user.creds"
    operator = Key(OPERATOR)
    jwt = operator.token(Key(USER), MARK, {})
    creds.write_text(
        f"-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
    )
    return f"""
    debug: true, trace: true, logtime: false
    server_name: n1
    accounts {{
      A {{ users: [ {{user: ann, password: {MARK}-user{more}}}, {{user: bob, password: {MARK}-bob}} ] }}
      $SYS {{ users: [ {{user: sys, password: {MARK}-sys}} ] }}
    }}
    cluster {{ name: C, listen: "127.0.0.1:{route}"
      authorization {{ user: r, password: {MARK}-cluster }}
      routes [ "nats://r:{MARK}-route@127.0.0.1:1", "nats://r:{MARK}-self@127.0.0.1:{route}" ] }}
    leafnodes {{ listen: "127.0.0.1:{leaf}", reconnect: "100ms"
      authorization {{ users: [ {{user: l, password: {MARK}-leaf, account: A}} ] }}
      remotes [
        {{ url: "nats-leaf://l:{MARK}-leafurl@127.0.0.1:1", account: A }}
        {{ url: "nats-leaf://l:{MARK}-refused@127.0.0.1:{leaf}", account: A }}
        {{ url: "nats-leaf://{MARK}-tokenurl@127.0.0.1:{leaf}", account: A }}
        {{ url: "nats-leaf://127.0.0.1:{leaf}", account: A, nkey: {seed} }}
        {{ url: "nats-leaf://localhost:{leaf}", account: A, credentials: "{creds}" }}
      ] }}
    websocket {{ listen: "127.0.0.1:{websocket}", no_tls: true, user_cookie: u, pass_cookie: p, token_cookie: t,
      jwt_cookie: "" }}
    """


def leaked(text: str, *others: str) -> list[str]:
    return [*re.findall(f"{MARK}[a-z-]*", text), *(one for one in others if one in text)]


async def talk(port: int, websocket: int) -> None:
    for connect in (
        {"user": "ann", "pass": f"{MARK}-user"},
        {"user": "ann", "pass": f"{MARK}-wrong"},
        {"user": "ann", "auth_token": f"{MARK}-token", "jwt": f"{MARK}-jwt.x.y", "sig": f"{MARK}-sig"},
        {"nkey": "x", "sig": f"{MARK}-sig"},
    ):
        wire = await Wire.open(port)
        await wire.log_in(**connect)
    raw = await Wire.open(port)
    raw.send(f'CONNECT {{"user":"ann","pass":"{MARK}-broken"')  # no JSON
    await raw.settle()
    escaped = await Wire.open(port)
    escaped.send(f'connect\t{{"user":"ann","pa\\u0073s":"{MARK}-escaped","pass" : "{MARK}-spaced"}}')
    await escaped.settle()
    for cookies in ({"u": "ann", "p": f"{MARK}-cookie"}, {"t": f"{MARK}-cookietoken"}):
        async with (
            aiohttp.ClientSession(cookies=cookies) as session,
            session.ws_connect(f"ws://127.0.0.1:{websocket}") as connection,
        ):
            await connection.receive_bytes(timeout=5)
            await connection.send_bytes(b'CONNECT {"verbose":false}\r\nPING\r\n')
            await connection.receive(timeout=5)


async def pages(node: Node) -> str:
    async with aiohttp.ClientSession() as session:
        texts = []
        for page in PAGES:
            async with session.get(f"http://127.0.0.1:{node.http_port}/{page}") as reply:
                texts.append(f"--- {page}\n{await reply.text()}")
    return "\n".join(texts)


async def test_logs_traces_and_pages(tmp_path: Path) -> None:
    ports = free_ports(5)
    command, seed = find_server("jetcluster"), Key(USER).seed
    assert command is not None
    node = Node("n1", command, tmp_path / "n1", ports[0], [])
    node.http_port = ports[1]
    file = tmp_path / "server.conf"
    file.write_text(config(tmp_path, ports, seed))
    node.args = ["-a", "127.0.0.1", "-p", str(ports[0]), "-m", str(ports[1]), "-c", str(file), "-DVV"]
    try:
        await node.start()
        await talk(ports[0], ports[4])
        shown = await pages(node)
        wire = await Wire.open(ports[0])
        assert errors(await wire.log_in(user="sys", **{"pass": f"{MARK}-sys"})) == []
        await wire.ask("SUB in 1", "SUB $SYS.> 2")
        for request in ("PING.VARZ", "PING.CONNZ", "PING.LEAFZ", "PING.ROUTEZ", "PING.ACCOUNTZ", "PING.STATSZ"):
            wire.publish(f"$SYS.REQ.SERVER.{request}", json.dumps({"auth": True}).encode(), "in")
        wire.publish("$SYS.REQ.ACCOUNT.A.CONNZ", b'{"auth":true}', "in")
        bob = await Wire.open(ports[0])
        await bob.log_in(user="bob", **{"pass": f"{MARK}-bobwrong"})
        heard = []
        for _ in range(20):
            heard += await wire.settle()
            await asyncio.sleep(0.02)
        answers = b"\n".join(frame.payload for frame in heard).decode()
        assert answers.count('"server_id"') + answers.count('"server":') > 5
        # Reloads that are taken over, and one that is not.
        file.write_text(config(tmp_path, ports, seed, "er"))
        node.signal(1)
        await asyncio.sleep(0.3)
        file.write_text(config(tmp_path, ports, seed).replace(f"{MARK}-leaf,", f"{MARK}-leafnew,"))
        node.signal(1)
        await asyncio.sleep(0.3)
        log = node.log()
        assert "Reloaded" in log
        assert "reload not supported for LeafNode" in log
        assert "CONNECT" in log, "a trace without a CONNECT proves nothing"
        jwt = (tmp_path / "user.creds").read_text().split("\n")[1]
        for where, text in (("log", log), ("pages", shown), ("$SYS", answers)):
            found = leaked(text, seed, jwt, jwt.rpartition(".")[2])
            lines = [line for line in text.splitlines() if MARK in line or seed in line or jwt in line]
            assert not found, (where, found, lines[:3])
    finally:
        node.kill9()


@pytest.mark.parametrize(
    "text",
    [
        'authorization {{ user: u, password: "{0}", token: "{0}" }}',
        'authorization {{ users [ {{user: u, password: "{0}", zip: 1}} ] }}',
        'authorization {{ password: ["{0}"] }}',
        "authorization {{ user: u, password: {0} {0} }} }}",
        'authorization {{ user: u, password: "{0}',
        'leafnodes {{ remotes [ {{ url: "nats-leaf://u:{0}@127.0.0.1:x" }} ] }}',
        'leafnodes {{ remotes [ {{ url: "nats-leaf://127.0.0.1:1", nkey: "SU{0}" }} ] }}',
        'cluster {{ name: c, listen: 1, routes [ "nats://u:{0}@127.0.0.1:x" ] }}',
        'accounts {{ A {{ users [ {{user: u, password: "{0}"}}, {{user: u, password: "{0}"}} ] }} }}',
    ],
)
def test_errors_of_a_configuration(tmp_path: Path, text: str) -> None:
    (tmp_path / "server.conf").write_text(text.format(MARK) + "\n")
    with pytest.raises(ConfigError) as caught:
        load_file(str(tmp_path / "server.conf"))
    assert str(caught.value)
    assert not leaked(str(caught.value)), caught.value
