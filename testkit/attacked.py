"""A server under attack, and the client that is to notice nothing: what the test and the figure have in common."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from testkit.attacks import Wire, config, prepare
from testkit.harness import free_ports

EVERY = 0.005


class Probe:
    """The client that is to notice nothing."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._wire = Wire(server.ports["client"], timeout=120)
        self._stop = threading.Event()
        self.waits: list[float] = []
        self.worked: list[float] = []
        """Seconds that the server's loop has worked, on a processor, while each PING waited: of a machine that others
        use as well this says more than the time on the wall."""
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with contextlib.suppress(OSError, EOFError):
            while not self._stop.wait(EVERY):
                worked, begun = self._server.loop_cpu, time.perf_counter()
                self._wire.flush()
                self.waits.append(time.perf_counter() - begun)
                self.worked.append(self._server.loop_cpu - worked)
        self._wire.socket.close()

    def take(self) -> tuple[list[float], list[float]]:
        """Seconds of each PING since the last call, sorted; and of work meanwhile."""
        (waits, self.waits), (worked, self.worked) = (self.waits, []), (self.worked, [])
        return sorted(waits), sorted(worked)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(120)


class Server:
    """One process of ours."""

    def __init__(self, folder: Path) -> None:
        self.ports = dict(zip(("client", "leaf", "websocket", "http"), free_ports(4), strict=True))
        path = folder / "server.conf"
        path.write_text(config(self.ports, str(folder / "store")))
        self._log = (folder / "log").open("w")
        command = [sys.executable, "-m", "jetcluster", "serve", "-c", str(path)]
        self._process = subprocess.Popen(command, stdout=self._log, stderr=subprocess.STDOUT)
        self.log_path = folder / "log"
        end = time.monotonic() + 20
        while "Server is ready" not in self.log_path.read_text():
            if self._process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(self.log_path.read_text()[-2000:])
            time.sleep(0.05)

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    @property
    def cpu(self) -> float:
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def loop_cpu(self) -> float:
        """Seconds of processor time of the thread that has the event loop."""
        pid = self._process.pid
        fields = Path(f"/proc/{pid}/task/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory(self, name: str = "VmHWM") -> int:
        """MiB: the peak, or `VmRSS`."""
        for line in Path(f"/proc/{self._process.pid}/status").read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1]) // 1024
        return 0

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()


def attack(server: Server, kinds: Sequence[str], seconds: float) -> list[str]:
    """Runs these at the same time; what they said."""
    ports = json.dumps(server.ports)
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "testkit.attacks", kind, str(seconds), ports],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for kind in kinds
    ]  # fmt: skip
    said = []
    for kind, one in zip(kinds, running, strict=True):
        out, error = one.communicate(timeout=seconds * 4 + 120)
        said += [f"{kind}: {line}" for line in [*out.splitlines(), *error.splitlines()[-1:]]]
    return said


def figures(waits: list[float]) -> dict[str, float]:
    """Milliseconds of sorted waits."""

    def at(share: float) -> float:
        return round(waits[min(int(len(waits) * share), len(waits) - 1)] * 1000, 1) if waits else -1.0

    return {"pings": len(waits), "p50": at(0.5), "p99": at(0.99), "p99.9": at(0.999), "max": at(1.0)}


@contextlib.contextmanager
def attacked() -> Iterator[tuple[Server, Probe]]:
    """A server with the stream that is searched, and the client that watches it."""
    with tempfile.TemporaryDirectory() as folder:
        server = Server(Path(folder))
        try:
            prepare(server.ports["client"])
            probe = Probe(server)
            try:
                yield server, probe
            finally:
                probe.stop()
        finally:
            server.stop()


def measure(server: Server, probe: Probe, kinds: Sequence[str], seconds: float) -> dict[str, Any]:
    probe.take()
    cpu = server.cpu
    said = attack(server, kinds, seconds)
    time.sleep(0.5)
    waits, worked = probe.take()
    held = figures(worked)
    return {
        **figures(waits),
        "worked_p50": held["p50"],
        "worked_max": held["max"],
        "cpu": round(server.cpu - cpu, 2),
        "peak_mib": server.memory(),
        "said": said,
    }
