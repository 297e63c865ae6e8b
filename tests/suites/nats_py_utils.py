"""Stands in for `tests.utils`, which nats-py's own tests import and its source package does not carry.

`tests/suites/run.py` copies this file there; it needs nothing but the standard library and two variables: SUITE_SERVER,
the executable, and SUITE_FILES, the folder that `tests/suites/files.py` has filled. Ports are fixed in the tests.
"""

from __future__ import annotations

import asyncio
import functools
import os
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import time
import unittest
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, ClassVar

FILES = Path(os.environ["SUITE_FILES"])
READY_SECONDS = 10.0
STOP_SECONDS = 5.0


class Natsd:
    """One server process. Like the harnesses in the wild it reads the log up to "Server is ready" and no further."""

    def __init__(self, port: int, *flags: str, http_port: int = 0, config: str = "", jetstream: bool = False) -> None:
        self.port, self.http_port = port, http_port
        self._flags = [*flags, *(["-m", str(http_port)] if http_port else []), *(["-c", config] if config else [])]
        self._store = tempfile.mkdtemp(prefix="suite-") if jetstream else ""
        if jetstream:
            self._flags += ["-js", "-sd", self._store]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        if self._process:
            return
        command = [os.environ["SUITE_SERVER"], "-a", "127.0.0.1", "-p", str(self.port), *self._flags]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert self._process.stderr
        said = []
        for line in self._process.stderr:
            said.append(line.decode())
            if "Server is ready" in said[-1]:
                break
        else:
            raise AssertionError(f"{command} ended with {self._process.wait()}: {''.join(said)}")
        _wait_for(self.port)

    def stop(self) -> None:
        """A server that does not end by itself fails the test."""
        if not self._process:
            return
        process, self._process = self._process, None
        process.send_signal(signal.SIGKILL)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        finally:
            for pipe in (process.stdout, process.stderr):
                if pipe:
                    pipe.close()

    def remove(self) -> None:
        self.stop()
        if self._store:
            shutil.rmtree(self._store, ignore_errors=True)


def _wait_for(port: int) -> None:
    until = time.monotonic() + READY_SECONDS
    while True:
        with socket.socket() as probe:
            if not probe.connect_ex(("127.0.0.1", port)):
                return
        assert time.monotonic() < until, f"nobody listens on port {port}"
        time.sleep(0.01)


def async_test(body: Callable[..., Awaitable[None]], seconds: float = 30) -> Callable[..., None]:
    """Runs the coroutine on the loop that the test case has made."""

    @functools.wraps(body)
    def run(self: Any, *args: Any, **options: Any) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_until_complete(asyncio.wait_for(body(self, *args, **options), seconds))

    return run


def async_long_test(body: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    return async_test(body, 60)


def async_debug_test(body: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    return async_test(body)


def get_config_file(name: str) -> str:
    return str(FILES / name)


class _Case(unittest.TestCase):
    """`started` of the servers run when the test begins; whatever runs at its end is stopped."""

    servers: ClassVar[Callable[[], list[Natsd]]]
    started: ClassVar[int]

    def setUp(self) -> None:
        super().setUp()
        self.loop = asyncio.new_event_loop()
        self.server_pool = type(self).servers()
        for natsd in self.server_pool:
            self.addCleanup(natsd.remove)
        for natsd in self.server_pool[: self.started]:
            natsd.start()

    def tearDown(self) -> None:
        self.loop.close()
        super().tearDown()


class _Tls(_Case):
    def setUp(self) -> None:
        super().setUp()
        self.ssl_ctx = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=get_config_file("cert.pem"))
        self.ssl_ctx.load_cert_chain(get_config_file("client.pem"), get_config_file("client-key.pem"))


def _case(servers: Callable[[], list[Natsd]], started: int = 1, base: type[_Case] = _Case) -> type[_Case]:
    return type("Case", (base,), {"servers": staticmethod(servers), "started": started})


def _configured(name: str, port: int = 4222, base: type[_Case] = _Case, **options: Any) -> type[_Case]:
    return _case(lambda: [Natsd(port, config=get_config_file(name), **options)], base=base)


def _member(at: int, *flags: str) -> Natsd:
    routes = ["--cluster_name", "suite", "--cluster", f"nats://127.0.0.1:{6223 + at}", "--routes", _SEED]
    return Natsd(4223 + at, *routes, *flags)


_SEED = "nats://127.0.0.1:6223"
_FOO, _HOGE = ("--user", "foo", "--pass", "bar"), ("--user", "hoge", "--pass", "fuga")
_TLS = (
    "--tlsverify", "--tlscert", get_config_file("server.pem"), "--tlskey", get_config_file("server-key.pem"),
    "--tlscacert", get_config_file("cert.pem"),
)  # fmt: skip

SingleServerTestCase = _case(lambda: [Natsd(4222, http_port=8222)])
SingleJetStreamServerTestCase = _case(lambda: [Natsd(4222, jetstream=True)])
SingleJetStreamServerLimitsTestCase = _configured("limits.conf", jetstream=True)
SingleWebSocketServerTestCase = _configured("ws.conf")
NoAuthUserServerTestCase = _configured("no_auth_user.conf", 4555)
NkeysServerTestCase = _configured("nkeys.conf")
TrustedServerTestCase = _configured("operator.conf")
MultiServerAuthTestCase = _case(lambda: [Natsd(4223, *_FOO, http_port=8223), Natsd(4224, *_HOGE, http_port=8224)], 2)
MultiServerAuthTokenTestCase = _case(
    lambda: [Natsd(port, "--auth", word) for port, word in ((4223, "token"), (4224, "token"), (4225, "secret"))], 3
)
TLSServerTestCase = _case(lambda: [Natsd(4224, *_TLS)], base=_Tls)
TLSServerHandshakeFirstTestCase = _configured("handshake_first.conf", 4224, _Tls)
MultiTLSServerAuthTestCase = _case(lambda: [Natsd(4223, *_FOO, *_TLS), Natsd(4224, *_HOGE, *_TLS)], 2, _Tls)
SingleWebSocketTLSServerTestCase = _configured("wss.conf", base=_Tls)
ClusteringTestCase = _case(lambda: [_member(at) for at in range(3)])
ClusteringDiscoveryAuthTestCase = _case(lambda: [_member(at, *_FOO) for at in range(3)], 3)
