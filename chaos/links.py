"""The links between local nodes, one toxiproxy proxy per ordered pair: `a>b` is where `a` finds `b`.

Two nodes have one TCP connection (jetcluster/mesh/mesh.py), dialled by either, so what `a` sends to `b` goes upstream
through `a>b` or downstream through `b>a`. Faults are put on both, and hold whichever end has dialled. What a cut link
is sent disappears and the connection stays open, as behind a dead switch; healing closes it, for its bytes are gone.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from testkit.forks import die_with_parent
from testkit.harness import TOP, HarnessError, free_ports

try:
    import toxiproxy
except ImportError:  # a development dependency
    toxiproxy = None

START_TIMEOUT = 10.0


def find_toxiproxy() -> str | None:
    local = TOP / ".tools/bin/toxiproxy-server"
    return str(local) if local.is_file() else shutil.which("toxiproxy-server")


def why_not() -> str:
    if toxiproxy is None:
        return "needs toxiproxy-python (pip install)"
    return "" if find_toxiproxy() else "needs toxiproxy-server (make tools, or PATH)"


class Links:
    """Starts toxiproxy with all proxies. One at a time per process: the client library has one address."""

    def __init__(self, ports: dict[str, int], log: Path) -> None:
        """`ports`: node -> the cluster port it listens on."""
        self.names = sorted(ports)
        self._ports = ports
        self._log = log
        pairs = list(itertools.permutations(self.names, 2))
        found = free_ports(len(pairs) + 1)
        self._api_port = found.pop()
        self._listen = dict(zip(pairs, found, strict=True))
        self._process: subprocess.Popen[bytes] | None = None
        self._proxies: dict[tuple[str, str], Any] = {}
        self._toxics = itertools.count(1)

    def routes(self, name: str) -> list[str]:
        """Routes to the other nodes for `name`."""
        return [f"nats://127.0.0.1:{port}" for (a, _), port in self._listen.items() if a == name]

    async def start(self) -> None:
        binary = find_toxiproxy()
        assert binary is not None, why_not()
        self._process = self._spawn(binary)
        server = toxiproxy.Toxiproxy()
        server.update_api_consumer("127.0.0.1", self._api_port)
        deadline = asyncio.get_running_loop().time() + START_TIMEOUT
        while not await asyncio.to_thread(server.running):
            if self._process.poll() is not None or asyncio.get_running_loop().time() > deadline:
                raise HarnessError(f"toxiproxy-server does not answer: {self._log.read_text()[-500:]}")
            await asyncio.sleep(0.05)
        for (a, b), port in self._listen.items():
            self._proxies[a, b] = await asyncio.to_thread(
                server.create, f"127.0.0.1:{self._ports[b]}", f"{a}>{b}", f"127.0.0.1:{port}"
            )

    async def proxy(self, name: str, port: int) -> tuple[int, Any]:
        """A proxy of its own before a port of this machine: the port it listens on, and toxiproxy's object."""
        listen = free_ports(1)[0]
        create = toxiproxy.Toxiproxy().create
        return listen, await asyncio.to_thread(create, f"127.0.0.1:{port}", name, f"127.0.0.1:{listen}")

    def _spawn(self, binary: str) -> subprocess.Popen[bytes]:
        with self._log.open("wb") as log:
            return subprocess.Popen(
                [binary, "-host", "127.0.0.1", "-port", str(self._api_port)],
                stdout=log, stderr=log, env={**os.environ, "LOG_LEVEL": "error"}, preexec_fn=die_with_parent,
            )  # fmt: skip

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait(10)

    # -- faults

    async def cut(self, a: str, b: str) -> None:
        """Nothing that `a` sends reaches `b`; the other direction goes on."""
        await self._toxic(a, b, "timeout", timeout=0)

    async def partition(self, *sides: Sequence[str]) -> None:
        """Nobody reaches anybody on another side."""
        for one, other in itertools.permutations(sides, 2):
            for a, b in itertools.product(one, other):
                await self.cut(a, b)

    async def majority_ring(self, order: Sequence[str]) -> None:
        """Everybody has links with the next and the previous of the ring only: with five nodes a majority each, and no
        two nodes the same one. (Of three nodes the ends do not see each other: the ring is left open.)"""
        n = len(order)
        near = {1, n - 1} if n > 3 else {1}
        for i, j in itertools.combinations(range(n), 2):
            if j - i not in near:
                await self.partition([order[i]], [order[j]])

    async def slow(self, a: str, b: str, milliseconds: int, jitter: int) -> None:
        """Delays the bytes from `a` to `b`; their order is kept, it is a TCP connection."""
        await self._toxic(a, b, "latency", latency=milliseconds, jitter=jitter)

    async def throttle(self, a: str, b: str, kilobytes: int) -> None:
        """Lets through so many kilobytes a second from `a` to `b`."""
        await self._toxic(a, b, "bandwidth", rate=kilobytes)

    async def drop_connections(self, a: str, b: str) -> None:
        """Resets the connection of two nodes; they may dial again at once."""
        for pair in ((a, b), (b, a)):
            await asyncio.to_thread(self._proxies[pair].disable)
            await asyncio.to_thread(self._proxies[pair].enable)

    async def heal(self) -> None:
        """No fault is left; connections that have lost bytes are closed."""
        await asyncio.to_thread(self._heal, self._proxies.values())

    def _heal(self, proxies: Iterable[Any]) -> None:
        for proxy in proxies:
            for name in proxy.toxics():
                proxy.destroy_toxic(name)

    async def _toxic(self, a: str, b: str, kind: str, **attributes: int) -> None:
        for pair, stream in (((a, b), "upstream"), ((b, a), "downstream")):
            name = f"{kind}-{next(self._toxics)}"
            await asyncio.to_thread(
                self._proxies[pair].add_toxic, type=kind, stream=stream, name=name, attributes=attributes
            )
