"""The cost of connections for a node: memory of idle clients, CPU of a TLS handshake, time of a permission check.

    python -m bench connections [--clients 10000] [--handshakes 300]

Prints one line of JSON per figure. Memory is the resident set of the server process (VmRSS) before and with all
clients connected, logged in and subscribed to one subject each; with TLS for 1,000 clients, without a subscription. A
TLS figure is user and system CPU of the server process per connection from accept to the PONG that follows CONNECT,
without session resumption: how many per second one core takes is its inverse. A permission check is timed where it
happens, in the read loop: a batch of PUBs of a client with permissions against the same batch of one without, on
subjects seen before.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import socket
import ssl
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.result import cpu_seconds
from jetcluster.auth.authenticator import Authenticator, AuthResult
from jetcluster.auth.permissions import UserPermissions
from jetcluster.config.account_options import PermissionOptions, SubjectLists
from jetcluster.config.options import Options
from jetcluster.server.permissions import ConnectionPermissions
from testkit.certificates import Authority, subject
from testkit.harness import Node, find_server, free_ports, resident
from testkit.server_rig import QUIET, Peer, ServerRig

LIMIT = 1_500_000_000
"""Bytes for 10,000 idle clients."""
PER_SECOND = 200
CHECK_LIMIT = 2e-6
BATCH = 200
"""Connections that are being made at a time."""


def server(folder: Path, config: str = "") -> Node:
    command = find_server("jetcluster")
    assert command is not None
    (port,) = free_ports(1)
    node = Node("bench", command, folder, port, [])
    (folder / "server.conf").write_text(f"max_connections: 100000\n{config}")
    node.args = ["-a", "127.0.0.1", "-p", str(port), "-c", str(folder / "server.conf")]
    return node


def raise_limit(files: int) -> None:
    """Raises the limit of open files of this process and those it starts. Raises RuntimeError when the system does not
    allow it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < files:
        raise RuntimeError(f"{files} open files are needed, the limit is {hard}: raise it (ulimit -Hn), or --clients")
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))


async def idle(folder: Path, clients: int) -> dict[str, Any]:
    raise_limit(clients + 500)
    node = server(folder)
    await node.start()
    loop = asyncio.get_running_loop()
    sockets: list[socket.socket] = []

    async def come(number: int) -> None:
        one = socket.socket()
        one.setblocking(False)
        sockets.append(one)
        await loop.sock_connect(one, ("127.0.0.1", node.port))
        connect = b'CONNECT {"verbose":false,"protocol":1,"lang":"python3","name":"idle"}\r\n'
        await loop.sock_sendall(one, connect + b"SUB idle.%d 1\r\nPING\r\n" % number)
        text = b""
        while b"PONG" not in text:
            text += await loop.sock_recv(one, 4096)

    try:
        before, begun, cpu = resident(node.pid), time.monotonic(), cpu_seconds(node.pid)
        for start in range(0, clients, BATCH):
            await asyncio.gather(*(come(number) for number in range(start, min(start + BATCH, clients))))
        seconds = time.monotonic() - begun
        await asyncio.sleep(3)  # the first PINGs of the server, too
        with_all = resident(node.pid)
        spent = cpu_seconds(node.pid)
        await asyncio.sleep(5)
        return {
            "figure": "idle clients", "clients": clients, "rss_mb": round(with_all / 1e6, 1),
            "rss_before_mb": round(before / 1e6, 1), "bytes_per_client": (with_all - before) // clients,
            "connect_seconds": round(seconds, 1), "connect_cpu_us": round((spent - cpu) / clients * 1e6),
            "cpu_percent_idle": round((cpu_seconds(node.pid) - spent) / 5 * 100, 1),
            "goal_mb": LIMIT / 1e6, "met": with_all * 10_000 / clients < LIMIT,
        }  # fmt: skip
    finally:
        for one in sockets:
            one.close()
        node.kill9()


def times(count: int, work: Callable[[], None]) -> None:
    for _ in range(count):
        work()


async def handshakes(folder: Path, kind: str, count: int) -> dict[str, Any]:
    authority = Authority(folder)
    cert, key = authority.issue_to("server", subject(("CN", "localhost")), rsa_bits=2048 if kind == "RSA 2048" else 0)
    node = server(folder, f'tls {{ cert_file: "{cert}", key_file: "{key}", timeout: 10 }}')
    await node.start()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE

    def come() -> None:
        with socket.create_connection(("127.0.0.1", node.port)) as plain:
            assert plain.recv(4096).startswith(b"INFO")
            with context.wrap_socket(plain) as secure:
                secure.sendall(b'CONNECT {"verbose":false}\r\nPING\r\n')
                while b"PONG" not in secure.recv(4096):
                    pass

    try:
        await asyncio.to_thread(times, 20, come)  # imports, caches
        rounds = []
        for _ in range(3):
            before = cpu_seconds(node.pid)
            await asyncio.to_thread(times, count, come)
            rounds.append((cpu_seconds(node.pid) - before) / count)
        spent = statistics.median(rounds)
        return {
            "figure": f"TLS connection, {kind}", "cpu_ms": round(spent * 1e3, 2),
            "rounds_cpu_ms": [round(one * 1e3, 2) for one in rounds],
            "per_second_and_core": round(1 / spent), "goal": PER_SECOND, "met": 1 / spent >= PER_SECOND,
        }  # fmt: skip
    finally:
        node.kill9()


async def idle_with_tls(folder: Path, clients: int) -> dict[str, Any]:
    authority = Authority(folder)
    cert, key = authority.issue("server")
    node = server(folder, f'tls {{ cert_file: "{cert}", key_file: "{key}", timeout: 10 }}')
    await node.start()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    held: list[ssl.SSLSocket] = []

    def come() -> None:
        plain = socket.create_connection(("127.0.0.1", node.port))
        assert plain.recv(4096).startswith(b"INFO")
        secure = context.wrap_socket(plain)
        held.append(secure)
        secure.sendall(b'CONNECT {"verbose":false}\r\nPING\r\n')
        while b"PONG" not in secure.recv(4096):
            pass

    try:
        come()  # imports
        before = resident(node.pid)
        await asyncio.to_thread(times, clients, come)
        await asyncio.sleep(3)
        with_all = resident(node.pid)
        return {
            "figure": "idle clients with TLS", "clients": clients, "rss_mb": round(with_all / 1e6, 1),
            "rss_before_mb": round(before / 1e6, 1), "bytes_per_client": (with_all - before) // clients,
        }  # fmt: skip
    finally:
        for one in held:
            one.close()
        node.kill9()


class _Allowed(Authenticator):
    """Lets everybody in, with a few allow and deny entries, literals and filters."""

    required = True

    def __init__(self, *, restricted: bool) -> None:
        super().__init__(Options())
        allow = ["orders.>", "events.*.created", "audit", "_INBOX.>", "$JS.API.>"]
        lists = SubjectLists(allow, ["orders.secret.>", "orders.*.private"])
        self._entries = UserPermissions(PermissionOptions(lists, lists)) if restricted else None

    def check(self, *_: Any, **__: Any) -> AuthResult:
        return AuthResult("$G", "u", self._entries)


def checks(messages: int = 20_000, rounds: int = 9) -> dict[str, Any]:
    subjects = [b"orders.%d.new" % number for number in range(100)]
    batch = b"".join(b"PUB %b 2\r\nok\r\n" % subjects[number % 100] for number in range(1000))

    def peer(*, restricted: bool) -> Peer:
        found = ServerRig(_Allowed(restricted=restricted)).client(connect=QUIET)
        found.ask(batch)
        return found

    def seconds(peer: Peer) -> float:
        begun = time.perf_counter()
        for _ in range(messages // 1000):
            peer.send(batch)
            peer.rig.time.advance(0)
        return (time.perf_counter() - begun) / messages

    free, bound = peer(restricted=False), peer(restricted=True)
    pairs = [(seconds(free), seconds(bound)) for _ in range(rounds)]
    extra = statistics.median(bound - free for free, bound in pairs)
    rules = bound.connection.session.permissions
    assert isinstance(rules, ConnectionPermissions)
    begun = time.perf_counter()
    for _ in range(messages // 100):
        for one in subjects:
            rules.can_publish(one)
    alone = (time.perf_counter() - begun) / (messages // 100 * 100)
    return {
        "figure": "permission check, cache hit", "read_loop_us": round(extra * 1e6, 2),
        "call_us": round(alone * 1e6, 2), "publish_us": round(statistics.median(one for one, _ in pairs) * 1e6, 2),
        "goal_us": CHECK_LIMIT * 1e6, "met": extra < CHECK_LIMIT,
    }  # fmt: skip


async def run(clients: int, count: int) -> None:
    print(json.dumps({"figure": "load average", "before": [round(one, 1) for one in os.getloadavg()]}), flush=True)
    with tempfile.TemporaryDirectory(prefix="jetcluster-bench-") as name:
        folder = Path(name)
        print(json.dumps(checks()), flush=True)
        for kind in ("RSA 2048", "ECDSA P-256"):
            place = folder / kind.split()[0]
            place.mkdir()
            print(json.dumps(await handshakes(place, kind, count)), flush=True)
        (folder / "tls").mkdir()
        print(json.dumps(await idle_with_tls(folder / "tls", min(clients, 1000))), flush=True)
        (folder / "idle").mkdir()
        print(json.dumps(await idle(folder / "idle", clients)), flush=True)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--handshakes", type=int, default=300, help="per round; three rounds for each kind of key")


def main(arguments: argparse.Namespace) -> None:
    asyncio.run(run(arguments.clients, arguments.handshakes))
