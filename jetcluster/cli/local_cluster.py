"""A cluster of `jetcluster serve` processes on the loopback: start, status and stop."""

from __future__ import annotations

import ctypes
import http.client
import json
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jetcluster.errors import JetclusterError

START_SECONDS = 20.0
STOP_SECONDS = 10.0
HOST = "127.0.0.1"
_PR_SET_PDEATHSIG = 1


class ClusterError(JetclusterError):
    """A node did not start; the text names it and has the end of its log."""


def held_ports(count: int) -> list[socket.socket]:
    """Returns sockets that hold a free port each until they are closed: bound with SO_REUSEADDR and not listening, so
    that whoever asks for this very port with the same option gets it, as servers do, and the kernel gives it to nobody
    who asks for a free one, nor to a connection that goes out."""
    held = []
    for _ in range(count):
        one = socket.socket()
        held.append(one)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.bind((HOST, 0))
    return held


def die_with_parent() -> None:
    """Makes the child end with its parent, before exec. A killed `up` must not leave servers that keep the ports."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


@dataclass(slots=True)
class LocalNode:
    """One node and its process, if it was started."""

    name: str
    port: int
    http_port: int
    cluster_port: int
    directory: Path
    process: subprocess.Popen[bytes] | None = None
    started: float = field(default=0.0)

    @property
    def url(self) -> str:
        return f"nats://{HOST}:{self.port}"

    @property
    def monitor_url(self) -> str:
        return f"http://{HOST}:{self.http_port}"

    @property
    def log_path(self) -> Path:
        return self.directory / "server.log"

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def fetch(self, path: str, timeout: float = 0.5) -> dict[str, Any] | None:
        """Returns a monitoring page, None without an answer, for one that is no page, or for an error status, such as
        503 of healthz."""
        try:
            with urllib.request.urlopen(f"{self.monitor_url}{path}", timeout=timeout) as response:  # noqa: S310
                found: dict[str, Any] = json.load(response)
                return found
        except (OSError, ValueError, http.client.HTTPException):
            return None

    def log_tail(self, lines: int = 8) -> str:
        try:
            return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])
        except OSError:
            return "(no log)"


class LocalCluster:
    """`count` nodes with a directory each under `root`, and consecutive client ports from `first_port`, or free
    ones. `config` is the configuration that the nodes share beside their flags."""

    def __init__(
        self, count: int, root: Path, first_port: int = 0, name: str = "local", config: Path | None = None
    ) -> None:
        self._config = config
        # Held to the end: between the choice of a port and the moment its node listens, or while the node is down,
        # another program's server took it, and was then asked for our node's health.
        self._held = held_ports(3 * count)
        ports = [int(one.getsockname()[1]) for one in self._held]
        clients = [first_port + i for i in range(count)] if first_port else ports[:count]
        self.name = name
        self.nodes = [
            LocalNode(f"n{i + 1}", clients[i], ports[count + i], ports[2 * count + i], root / f"n{i + 1}")
            for i in range(count)
        ]

    @property
    def urls(self) -> list[str]:
        return [node.url for node in self.nodes]

    def command(self, node: LocalNode) -> list[str]:
        words = [sys.executable, "-m", "jetcluster", "serve", "-a", HOST, "-p", str(node.port), "-n", node.name]
        words += ["-m", str(node.http_port), "-js", "-sd", str(node.directory), "-l", str(node.log_path)]
        if self._config is not None:
            words += ["-c", str(self._config)]
        if len(self.nodes) > 1:
            routes = ",".join(f"nats://{HOST}:{other.cluster_port}" for other in self.nodes)
            words += ["--cluster", f"nats://{HOST}:{node.cluster_port}", "--cluster_name", self.name]
            words += ["--routes", routes]
        return words

    def start(self) -> None:
        for node in self.nodes:
            self.start_node(node)

    def start_node(self, node: LocalNode) -> None:
        node.directory.mkdir(parents=True, exist_ok=True)
        # Its own process group: Ctrl-C in the terminal reaches only `up`, which then stops the nodes in order.
        # Output before the log is open (a bad flag, a traceback) goes to a file beside the log.
        with (node.directory / "stderr").open("wb") as errors:
            node.process = subprocess.Popen(  # noqa: S603 - our own program
                self.command(node),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                preexec_fn=die_with_parent,  # noqa: PLW1509 - no threads run yet; there is no other way to set it
                process_group=0,
            )
        node.started = time.monotonic()

    def wait_healthy(self, timeout: float = START_SECONDS, stop: threading.Event | None = None) -> None:
        """Waits until every node is healthy, which implies a leader, or `stop` is set. Raises ClusterError."""
        end = time.monotonic() + timeout
        waiting = list(self.nodes)
        stop = stop or threading.Event()
        while waiting and not stop.is_set():
            for node in list(waiting):
                if not node.is_running:
                    code = node.process.returncode if node.process else None
                    raise ClusterError(f"{node.name} ended with exit code {code}:\n{node.log_tail()}{_errors(node)}")
                if (node.fetch("/healthz") or {}).get("status") == "ok":
                    waiting.remove(node)
            if waiting and time.monotonic() > end:
                node = waiting[0]
                raise ClusterError(f"{node.name} is not healthy after {timeout:.0f} s:\n{node.log_tail()}")
            if waiting:
                stop.wait(0.05)

    def stop(self, timeout: float = STOP_SECONDS) -> list[str]:
        """Sends SIGTERM to all nodes, then SIGKILL to those that do not end; gives the ports back. Returns the names
        of the killed."""
        running = [node for node in self.nodes if node.is_running]
        for node in running:
            assert node.process is not None
            node.process.terminate()
        end = time.monotonic() + timeout
        killed = []
        for node in running:
            assert node.process is not None
            try:
                node.process.wait(max(end - time.monotonic(), 0.01))
            except subprocess.TimeoutExpired:
                node.process.kill()
                node.process.wait()
                killed.append(node.name)
        for one in self._held:
            one.close()
        return killed


def _errors(node: LocalNode) -> str:
    try:
        text = (node.directory / "stderr").read_text(errors="replace").strip()
    except OSError:
        return ""
    return f"\n{text}" if text else ""


def check_ports_free(ports: Sequence[int]) -> int | None:
    """Returns the first of `ports` that is in use, or None."""
    for port in ports:
        with socket.socket() as sock:
            # A server that just ended leaves connections in TIME_WAIT; nodes bind with this option, too.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                sock.bind((HOST, port))
            except OSError:
                return port
    return None
