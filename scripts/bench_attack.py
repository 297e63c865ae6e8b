"""Measures what a client notices of attacks on its server.

    python -m scripts.bench_attack [--seconds 5] [--only KIND[,KIND]] [--together] [--json FILE]

One node with ports for clients, leaf nodes, WebSocket and monitoring. Each kind of `tests/cluster/attacks.py` is run
for so many seconds from a process of its own, one after the other, then (`--together`) all at once; meanwhile another
client sends a PING every 5 ms and takes the time to its PONG. Prints for each kind the latencies at p50, p99, p99.9 and
the longest, the processor time of the server, and its peak resident memory so far; then one line of JSON.

`worked` is the processor time, in units of 10 ms, that the server's loop itself took while a PING waited: at most that
long it was kept by something else.

The goal is 100 ms at p99.9, one kind after the other, on a machine with nothing else to do; all at once the attackers'
processes take what the machine has, and the figure says more of it than of the server.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from testkit.harness import free_ports
from tests.cluster.attacks import KINDS, Wire, config, prepare

EVERY = 0.005
GOAL = 0.1
"""Seconds, at p99.9."""


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
        self._process = subprocess.Popen(command, stdout=self._log, stderr=subprocess.STDOUT)  # noqa: S603 - ours
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
        subprocess.Popen(  # noqa: S603 - this tree's own
            [sys.executable, "-m", "tests.cluster.attacks", kind, str(seconds), ports],
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


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--only", default="")
    parser.add_argument("--together", action="store_true")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    kinds = given.only.split(",") if given.only else list(KINDS)
    results: dict[str, Any] = {}
    with attacked() as (server, probe):
        rounds = [("nothing", [])] + [(kind, [kind]) for kind in kinds]
        if given.together:
            rounds.append(("together", kinds))
        print(
            f"{'kind':22} {'pings':>6} {'p50':>7} {'p99':>7} {'p99.9':>7} {'max ms':>8} "
            f"{'worked':>7} {'cpu s':>6} {'peak MiB':>8}"
        )
        for name, some in rounds:
            if not some:
                time.sleep(given.seconds)
            found = results[name] = measure(server, probe, some, given.seconds)
            print(
                f"{name:22} {found['pings']:6} {found['p50']:7} {found['p99']:7} {found['p99.9']:7} {found['max']:8} "
                f"{found['worked_max']:7} {found['cpu']:6} {found['peak_mib']:8}",
                flush=True,
            )
            for line in found["said"]:
                print("   ", line)
            if not server.alive:
                print(server.log_path.read_text()[-3000:])
                return 1
    line = json.dumps(results)
    print(line)
    if given.json:
        given.json.write_text(line)
    worst = max(found["p99.9"] for name, found in results.items() if name != "together")
    return int(worst > GOAL * 1000)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt, socket.timeout):
        sys.exit(main())
