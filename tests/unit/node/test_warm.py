"""A server that says it is ready is warm: its first requests cost what later ones cost."""

from __future__ import annotations

import base64
import json
import os
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from testkit.certificates import make_certificate

TOP = Path(__file__).parents[3]
JSON = dict[str, Any]
MOST_MODULES = 398
"""Modules of our own in a server without clients; with those of leases, of reads that ask how fresh
they are and that wait within bounds, of the watch over consumers, of the names of accounts in subjects, of servers
that are being removed, of tasks that are cancelled, of limits of accounts, and of what erasures leave on the disk."""


class Link:
    """A connection that speaks the client protocol; every answer is awaited."""

    def __init__(self, port: int, name: str = "") -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), 20)
        self._received = b""
        self._inbox = f"in{name}"
        self._asked = 0

    def __enter__(self) -> Link:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def line(self) -> bytes:
        while b"\r\n" not in self._received:
            chunk = self.socket.recv(65536)
            assert chunk, "the server closed the connection"
            self._received += chunk
        found, _, self._received = self._received.partition(b"\r\n")
        return found

    def payload(self, size: int) -> bytes:
        while len(self._received) < size + 2:
            chunk = self.socket.recv(65536)
            assert chunk, "the server closed the connection"
            self._received += chunk
        found, self._received = self._received[:size], self._received[size + 2 :]
        return found

    def log_in(self) -> None:
        start = f'CONNECT {{"verbose":false,"headers":true,"no_responders":true}}\r\nSUB {self._inbox}.* 1\r\nPING\r\n'
        self.socket.sendall(start.encode())
        while self.line() != b"PONG":
            pass

    def ask(self, subject: str, body: bytes = b"") -> bytes:
        """The payload of the next message, which is the answer to a publish there."""
        self._asked += 1
        self.socket.sendall(f"PUB {subject} {self._inbox}.{self._asked} {len(body)}\r\n".encode() + body + b"\r\n")
        while True:
            verb, *words = self.line().split(b" ")
            if verb in (b"MSG", b"HMSG"):
                answer = self.payload(int(words[-1]))
                if verb == b"HMSG":
                    answer = answer[int(words[-2]) :]
                return answer


class WarmNode:
    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        certificate, key = make_certificate(folder)
        self.tls = ssl.create_default_context(cafile=certificate)
        config = folder / "server.conf"
        tls = f'cert_file: "{certificate}", key_file: "{key}"'
        config.write_text(
            f'listen: "127.0.0.1:-1", http: "127.0.0.1:-1", ports_file_dir: "{folder}"\n'
            f'jetstream {{ store_dir: "{folder}" }}\n'
            'websocket { listen: "127.0.0.1:-1", no_tls: true }\nleafnodes { listen: "127.0.0.1:-1" }\n'
            f"tls {{ {tls} }}\nallow_non_tls: true\n"
        )
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.unit.node.warm_node", str(config)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=TOP,
            env={name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"},
        )  # fmt: skip
        assert self.process.stderr is not None
        log = []
        for line in self.process.stderr:
            log.append(line)
            if "Server is ready" in line:
                break
        else:
            pytest.fail("".join(log[-10:]))
        found = json.loads(next(folder.glob("*.ports")).read_text())
        self.is_built = False
        self.at_ready = self.tell()[1]
        self.ports = {kind: urlsplit(urls[0]).port or 0 for kind, urls in found.items()}

    def tell(self) -> tuple[float, set[str]]:
        """Its processor time in seconds, and what it has imported."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(file=self.process.stdin, flush=True)
        told = json.loads(self.process.stdout.readline())
        self.is_built = told["built"]
        return told["seconds"], set(told["modules"])

    def warm(self) -> set[str]:
        """Modules that the server has imported when all is there that this configuration needs, after a client has
        come and a page was asked for."""
        self.page()
        deadline = time.monotonic() + 20
        wanted = {"jetcluster.auth.certificates", "jetcluster.monitor.metrics"}
        while not (wanted <= self.tell()[1] and self.is_built):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return self.tell()[1]

    def page(self) -> None:
        with socket.create_connection(("127.0.0.1", self.ports["monitoring"]), 20) as http:
            http.sendall(b"GET /varz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert b"200" in http.recv(100)
            while http.recv(65536):
                pass

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmNode]:
    node = WarmNode(tmp_path_factory.mktemp("warm") / "server")
    yield node
    node.close()


def ok(answer: bytes) -> JSON:
    found: JSON = json.loads(answer)
    assert "error" not in found, found
    return found


def requests(node: WarmNode, link: Link, at: int) -> dict[str, Callable[[], object]]:
    """One of each kind, in this order; `at` makes names of their own."""
    name = f"S{at}"
    stream = {"name": name, "subjects": [f"{name}.>"], "allow_direct": True, "metadata": {"a": "b"}}
    bucket = {"name": f"KV_B{at}", "subjects": [f"$KV.B{at}.>"], "max_msgs_per_subject": 5, "allow_direct": True}
    objects = {"name": f"OBJ_B{at}", "subjects": [f"$O.B{at}.C.>", f"$O.B{at}.M.>"], "allow_rollup_hdrs": True}
    mirror = {"name": f"M{at}", "mirror": {"name": name}}
    consumer = {"stream_name": name, "config": {"durable_name": "c", "ack_policy": "explicit", "ack_wait": 10**9}}
    api = "$JS.API."

    def create(config: JSON) -> Callable[[], object]:
        return lambda: ok(link.ask(f"{api}STREAM.CREATE.{config['name']}", json.dumps(config).encode()))

    def web_socket() -> None:
        key = base64.b64encode(os.urandom(16))
        with socket.create_connection(("127.0.0.1", node.ports["websocket"]), 20) as ws:
            ws.sendall(
                b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                b"Sec-WebSocket-Key: %s\r\nSec-WebSocket-Version: 13\r\n\r\n" % key
            )
            assert b"101" in ws.recv(100)
            text = b"CONNECT {}\r\nPING\r\n"
            ws.sendall(b"\x82" + bytes([0x80 | len(text)]) + bytes(4) + text)
            received = b""
            while b"PONG" not in received:
                received += ws.recv(65536)

    def tls() -> None:
        with Link(node.ports["nats"], "tls") as secure:
            assert b"INFO" in secure.line()
            secure.socket = node.tls.wrap_socket(secure.socket, server_hostname="localhost")
            secure.log_in()
            ok(secure.ask(f"{api}INFO"))

    def leaf() -> None:
        with Link(node.ports["leafnode"]) as hub:
            assert b"INFO" in hub.line()
            hub.socket.sendall(b'CONNECT {"name":"leaf","server_id":"L%d"}\r\nPING\r\nLS+ a.b\r\n' % at)
            while hub.line() != b"PONG":
                pass

    return {
        "account": lambda: ok(link.ask(f"{api}INFO")),
        "stream": create(stream),
        "publish": lambda: ok(link.ask(f"{name}.a", b"x")),
        "consumer": lambda: ok(link.ask(f"{api}CONSUMER.CREATE.{name}.c", json.dumps(consumer).encode())),
        "pull": lambda: link.ask(f"{api}CONSUMER.MSG.NEXT.{name}.c", b'{"batch":1}'),
        "consumer info": lambda: ok(link.ask(f"{api}CONSUMER.INFO.{name}.c")),
        "direct get": lambda: link.ask(f"$JS.API.DIRECT.GET.{name}", b'{"seq":1}'),
        "message get": lambda: ok(link.ask(f"{api}STREAM.MSG.GET.{name}", b'{"seq":1}')),
        "stream info": lambda: ok(link.ask(f"{api}STREAM.INFO.{name}", b'{"subjects_filter":">"}')),
        "stream list": lambda: ok(link.ask(f"{api}STREAM.LIST")),
        "stream update": lambda: ok(
            link.ask(f"{api}STREAM.UPDATE.{name}", json.dumps({**stream, "max_msgs": 9}).encode())
        ),
        "refusal": lambda: json.loads(link.ask(f"{api}STREAM.CREATE.X", b'{"name":7}'))["error"],
        "bucket": create(bucket),
        "put": lambda: ok(link.ask(f"$KV.B{at}.k", b"v")),
        "get": lambda: link.ask(f"$JS.API.DIRECT.GET.KV_B{at}.$KV.B{at}.k"),
        "object store": create(objects),
        "object": lambda: json.loads(link.ask(f"$OBJ.B{at}", b'{"op":"list"}')),
        "mirror": create(mirror),
        "purge": lambda: ok(link.ask(f"{api}STREAM.PURGE.{name}")),
        "consumer delete": lambda: ok(link.ask(f"{api}CONSUMER.DELETE.{name}.c")),
        "stream delete": lambda: ok(link.ask(f"{api}STREAM.DELETE.M{at}")),
        "web socket": web_socket,
        "tls": tls,
        "leaf": leaf,
        "page": node.page,
    }


def test_a_start_imports_nothing_that_waits_for_clients(node: WarmNode) -> None:
    """A second later neither: models, pages and their libraries come with the first client and the first page."""
    assert "jetcluster.server.ws.port" in node.at_ready
    time.sleep(1.0)
    later = node.tell()[1]
    assert "jetcluster.api.endpoints" in later, "the handlers, which the first request needs at once"
    for name in (
        "pydantic",
        "pydantic_core",
        "jetcluster.model.base",
        "aiohttp",
        "structlog",
        "rich",
        "jetcluster.top",
    ):
        assert name not in later, name
    own = [name for name in later if name.startswith("jetcluster.")]
    assert len(own) < MOST_MODULES, (
        "each costs a start half a millisecond: what not every server needs is imported late"
    )


def test_the_first_requests_import_nothing_and_cost_what_the_second_ones_cost(node: WarmNode) -> None:
    costs: list[dict[str, float]] = []
    imported: dict[str, list[str]] = {}
    with Link(node.ports["nats"]) as link:
        assert b"INFO" in link.line()
        link.log_in()
        modules = node.warm()
        for at in range(3):
            costs.append({})
            for kind, request in requests(node, link, at).items():
                before, _ = node.tell()
                request()
                after, found = node.tell()
                costs[-1][kind] = after - before
                if found - modules:
                    imported[kind] = sorted(found - modules)
                modules |= found
    for kind in costs[0]:
        print(f"{kind:16}", *(f"{cost[kind] * 1000:7.1f}" for cost in costs), imported.get(kind, ""))
    assert imported == {}
    for kind, first in costs[0].items():
        later = max(cost[kind] for cost in costs[1:])
        assert first < 4 * later + 0.03, f"{kind}: {first} s of processor time, {later} s later on"
