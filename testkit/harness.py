"""Real server processes for tests, the demo, the bench and chaos: one node or a cluster on loopback, ended by pid.

The server is a parameter: `jetcluster` (this tree) or `nats-server` (the peer, an oracle for the same tests).
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import functools
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

from testkit.client import Client, ClientError
from testkit.forks import ForkedProcess, ForkServer, die_with_parent

TOP = Path(__file__).resolve().parents[1]
READY = "Server is ready"
START_TIMEOUT = 20.0


class HarnessError(Exception):
    """A server did not start, or did not do in time what it was asked for. Carries the end of its log."""


def find_server(kind: str) -> list[str] | None:
    """The command line that starts `kind`, or None when it is not on this machine."""
    if kind == "jetcluster":
        return [sys.executable, "-m", "jetcluster", "serve"]
    own = TOP / "scripts" / "nats-server"
    for path in (os.environ.get("NATS_SERVER"), TOP / ".tools/bin/nats-server", shutil.which("nats-server")):
        if path and Path(path).is_file() and not (own.exists() and Path(path).samefile(own)):
            return [str(path)]
    return None


def find_nats_cli() -> str | None:
    local = Path(os.environ.get("NATS_CLI") or TOP / ".tools/bin/nats")
    return str(local) if local.is_file() else shutil.which("nats")


PORTS = range(16000, 32000)
"""Below the ephemeral range, so that no outgoing connection takes the port while its node is down."""
BLOCK = 500
_mine: list[int] = []
"""Ports of the blocks that this process has, in the order in which they are given out; used ones go to the end."""
_locks: list[int] = []
"""File descriptors: a block is this process's while its file is locked."""


def _claim_block() -> None:
    """Between the moment a port is found free and the moment its server listens, nobody else may find it free: other
    test processes take their ports from other blocks. Raises HarnessError."""
    folder = Path(tempfile.gettempdir()) / f"jetcluster-ports-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    for start in random.SystemRandom().sample(PORTS[::BLOCK], len(PORTS) // BLOCK):
        lock = os.open(folder / str(start), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            continue
        _locks.append(lock)
        _mine.extend(range(start, start + BLOCK))
        return
    raise HarnessError(f"all ports from {PORTS.start} to {PORTS.stop} are claimed by other test processes ({folder})")


def free_port() -> int:
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """Ports on 127.0.0.1. No other test process is given them."""
    found: list[int] = []
    while len(found) < count:
        for _ in range(len(_mine)):
            port = _mine.pop(0)
            _mine.append(port)
            if port not in found and not busy_ports([port]):
                found.append(port)
                if len(found) == count:
                    return found
        _claim_block()
    return found


def busy_ports(ports: Iterable[int]) -> list[int]:
    """The ports on 127.0.0.1, of those given, that cannot be bound now."""
    busy = []
    for port in ports:
        with socket.socket() as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                one.bind(("127.0.0.1", port))
            except OSError:
                busy.append(port)
    return busy


def resident(pid: int) -> int:
    """Bytes of memory that the process has (VmRSS)."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))


@functools.cache
def _fork_server() -> ForkServer:
    return ForkServer()


class Node:
    """One server process: its ports, store, log. `start` again after a stop uses the same store and ports."""

    forked: ClassVar[bool] = False
    """Servers of this tree are forked from a process that has imported them, which is cheaper (`forks.ForkServer`);
    those with an environment or a command of their own never are."""

    def __init__(self, name: str, command: Sequence[str], root: Path, port: int, args: Sequence[str]) -> None:
        self.name = name
        self.port = port
        self.url = f"nats://127.0.0.1:{port}"
        self.root = root
        self.store = root / "store"
        self.log_path = root / "log"
        self.args = list(args)
        self.env: dict[str, str] = {}
        """Added to its environment."""
        self._command = list(command)
        self.process: subprocess.Popen[bytes] | ForkedProcess | None = None
        self.http_port = 0
        self.cluster_port = 0
        self.ready_seconds = 0.0
        root.mkdir(parents=True, exist_ok=True)

    @property
    def pid(self) -> int:
        assert self.process is not None, f"{self.name} was never started"
        return self.process.pid

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def limit_files(self, most: int) -> None:
        """Limits every process that is started from now on: so many file descriptors, and it cannot have more."""
        self._command = ["sh", "-c", f'ulimit -n {most}; exec "$0" "$@"', *self._command]

    def spawn(self) -> None:
        """Starts the process and returns at once."""
        assert not self.alive, f"{self.name} runs already"
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(TOP), os.environ.get("PYTHONPATH", "")]))}
        env.pop("PYTHONDONTWRITEBYTECODE", None)  # compiling everything at every start costs more than the start itself
        env |= self.env
        self._log_start = self.log_path.stat().st_size if self.log_path.exists() else 0
        self._spawned = time.monotonic()
        if Node.forked and not self.env and self._command == find_server("jetcluster"):
            self.process = _fork_server().start(["serve", *self.args], env, self.root, self.log_path)
            return
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [*self._command, *self.args],
                stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=env, cwd=self.root, preexec_fn=die_with_parent,
            )  # fmt: skip

    async def wait_ready(self, within: float = START_TIMEOUT) -> None:
        """Waits until the log of this start says it is ready. Raises HarnessError with the log's end."""
        deadline = time.monotonic() + within
        while READY not in self.log(self._log_start):
            if not self.alive:
                raise HarnessError(f"{self.name} ended with {self.process and self.process.returncode}:\n{self.tail()}")
            if time.monotonic() > deadline:
                raise HarnessError(f"{self.name} not ready after {within:.0f} s:\n{self.tail()}")
            await asyncio.sleep(0.005)
        self.ready_seconds = time.monotonic() - self._spawned

    async def start(self) -> None:
        self.spawn()
        await self.wait_ready()

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill9(self) -> None:
        """SIGKILL and reap. Nothing if it is not running."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait(10)

    async def stop(self, within: float = 15.0) -> int:
        """SIGTERM; returns the exit code. Raises HarnessError (and kills) when it does not end in time."""
        assert self.process is not None
        if self.alive:
            self.process.terminate()
        return await self.wait_exit(within)

    async def wait_exit(self, within: float) -> int:
        assert self.process is not None
        deadline = time.monotonic() + within
        while (code := self.process.poll()) is None:
            if time.monotonic() > deadline:
                self.kill9()
                raise HarnessError(f"{self.name} did not end within {within:.0f} s:\n{self.tail()}")
            await asyncio.sleep(0.01)
        return int(code)

    def log(self, since: int = 0) -> str:
        try:
            with self.log_path.open("rb") as file:
                file.seek(since)
                return file.read().decode(errors="replace")
        except FileNotFoundError:
            return ""

    def tail(self, lines: int = 25) -> str:
        return "\n".join(self.log().splitlines()[-lines:])

    async def connect(self, **options: Any) -> Client:
        return await Client.connect(self.url, name=f"test-{self.name}", **options)

    async def monitor(self, path: str) -> dict[str, Any]:
        """GET on the monitoring port, decoded JSON (of an error status too)."""
        assert self.http_port, (
            f"{self.name} was started without monitoring: mark the test as `monitored`, or pass monitor=True"
        )

        def get() -> bytes:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}/{path}", timeout=5) as reply:
                    return bytes(reply.read())
            except urllib.error.HTTPError as error:
                with error:
                    return error.read()

        answer: dict[str, Any] = json.loads(await asyncio.to_thread(get))
        return answer


class ProcessCluster:
    """`n` nodes of one cluster. Use as an async context manager: on an exception its folder (stores, logs) is kept."""

    def __init__(
        self, n: int = 3, server: str = "jetcluster", *, root: Path | None = None, name: str = "C", config: str = "",
        flags: Sequence[str] = (), keep: bool = False, monitor: bool = False,
        base_port: int = 0,
    ) -> None:  # fmt: skip
        """`config` is added to every node's config file; `flags` to every command line.

        Ports are free ones, or 3 * n from `base_port` on: clients', routes', monitoring.
        """
        command = find_server(server)
        if command is None:
            raise HarnessError(f"{server} is not installed (make tools)")
        self.server = server
        self._own_root = root is None
        self.root = root or Path(tempfile.mkdtemp(prefix="jetcluster-test-"))
        self._keep = keep
        self.failed = False
        """Set by whoever uses it and saw a failure that is no exception here (a pytest fixture)."""
        ports = list(range(base_port, base_port + 3 * n)) if base_port else free_ports(3 * n)
        routes = ",".join(f"nats://127.0.0.1:{p}" for p in ports[n : 2 * n])
        self.nodes: list[Node] = []
        for at in range(n):
            folder = self.root / f"n{at + 1}"
            node = Node(f"n{at + 1}", command, folder, ports[at], [])
            node.args = ["-a", "127.0.0.1", "-p", str(ports[at]), "-n", node.name, "-js", "-sd", str(node.store)]
            if n > 1:
                node.cluster_port = ports[n + at]
                node.args += ["--cluster", f"nats://127.0.0.1:{ports[n + at]}", "--cluster_name", name,
                              "--routes", routes]  # fmt: skip
            if monitor:
                node.http_port = ports[2 * n + at]
                node.args += ["-m", str(node.http_port)]
            if config:
                (folder / "server.conf").write_text(config.replace("$STORE", str(node.store)))
                node.args += ["-c", str(folder / "server.conf")]
            node.args += flags
            self.nodes.append(node)

    @property
    def urls(self) -> list[str]:
        return [node.url for node in self.nodes]

    def __getitem__(self, at: int) -> Node:
        return self.nodes[at]

    def node(self, name: str) -> Node:
        return next(node for node in self.nodes if node.name == name)

    async def start(self) -> None:
        """Starts all and waits until each one answers the stream API (so the meta group has a leader)."""
        for node in self.nodes:
            node.spawn()
        for node in self.nodes:
            await node.wait_ready()
        await self.wait_meta()

    async def wait_meta(self, nodes: Sequence[Node] | None = None, within: float = START_TIMEOUT) -> None:
        for node in nodes or [n for n in self.nodes if n.alive]:
            await eventually(functools.partial(_answers_api, node), within, f"{node.name} has no meta leader", node)

    def stop_all(self) -> None:
        """SIGTERM to all, SIGKILL to those that are left after 5 s."""
        for node in self.nodes:
            if node.alive:
                node.signal(signal.SIGCONT)
                node.signal(signal.SIGTERM)
        deadline = time.monotonic() + 5
        while any(node.alive for node in self.nodes) and time.monotonic() < deadline:
            time.sleep(0.01)
        for node in self.nodes:
            node.kill9()

    def kill9_all(self) -> None:
        """All at once: every SIGKILL is sent before the first process is reaped."""
        for node in self.nodes:
            if node.alive:
                node.signal(signal.SIGKILL)
        for node in self.nodes:
            node.kill9()

    async def __aenter__(self) -> ProcessCluster:
        try:
            await self.start()
        except BaseException:
            self._report()
            self.kill9_all()
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        failed = self.failed or kind is not None
        if failed:
            self._report()
        self.stop_all()
        if not failed and self._own_root and not self._keep:
            shutil.rmtree(self.root, ignore_errors=True)

    def _report(self) -> None:
        print(f"\n{self.server} logs and stores are kept in {self.root}")
        for node in self.nodes:
            state = "runs" if node.alive else f"ended with {node.process.returncode if node.process else None}"
            print(f"--- {node.name} ({state})\n{node.tail()}")

    # -- streams

    async def stream_leader(self, stream: str, within: float = 10.0, ask: Node | None = None) -> Node:
        """The node that leads the stream now, as STREAM.INFO says it."""
        found: list[Node] = []

        async def leads() -> bool:
            for node in [ask] if ask else [n for n in self.nodes if n.alive]:
                with contextlib.suppress(ClientError, OSError, TimeoutError):
                    async with await node.connect() as client:
                        info = await client.api(f"STREAM.INFO.{stream}", within=1.0)
                        name = info.get("cluster", {}).get("leader") or self.nodes[0].name
                        if self.node(name).alive:
                            found.append(self.node(name))
                            return True
            return False

        await eventually(leads, within, f"{stream} has no leader")
        return found[-1]

    async def wait_current(self, stream: str, within: float = 30.0, replicas: int = 2) -> dict[str, Any]:
        """Waits until the leader reports `replicas` followers, all current and without lag; returns that
        STREAM.INFO."""
        last: dict[str, Any] = {}

        async def current() -> bool:
            with contextlib.suppress(ClientError, OSError, TimeoutError):
                async with await next(n for n in self.nodes if n.alive).connect() as client:
                    last.update(await client.api(f"STREAM.INFO.{stream}", within=2.0))
                    peers = last["cluster"].get("replicas") or []
                    return len(peers) == replicas and all(
                        p["current"] and not p.get("lag") and not p.get("offline") for p in peers
                    )
            return False

        try:
            await eventually(current, within, f"{stream} is not current")
        except HarnessError as error:
            raise HarnessError(f"{error}: {last.get('cluster')}") from None
        return last


@contextlib.contextmanager
def frozen(nodes: Collection[Node]) -> Iterator[None]:
    """Stops the processes meanwhile: they keep their connections and answer nothing."""
    for node in nodes:
        node.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        for node in nodes:
            node.signal(signal.SIGCONT)


async def _answers_api(node: Node) -> bool:
    try:
        async with await node.connect() as client:
            await client.api("STREAM.NAMES", {}, within=1.0)
            return True
    except (ClientError, OSError, TimeoutError):
        return False


async def eventually(
    check: Callable[[], Awaitable[bool] | bool], within: float, what: str, node: Node | None = None, every: float = 0.02
) -> float:
    """Polls; returns the seconds it took. Raises HarnessError(what) after `within` seconds."""
    start = time.monotonic()
    while not (await found if isinstance(found := check(), Awaitable) else found):
        if time.monotonic() - start > within:
            raise HarnessError(f"{what} after {within:.0f} s" + (f":\n{node.tail()}" if node else ""))
        await asyncio.sleep(every)
    return time.monotonic() - start
