"""The nodes of compose.yaml, in a project of its own on free ports, killed, paused and unplugged by the docker SDK."""

from __future__ import annotations

import asyncio
import functools
import os
import subprocess
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import docker
import docker.errors

from chaos.drills import Drill
from chaos.edge import Edge
from chaos.links import Links
from testkit.harness import TOP, HarnessError, eventually, free_ports
from testkit.shim import Shim

NODES = 3
LOCAL_ONLY = ("links", "shim", "disk", "files", "system", "drill", "drill-store", "few-files", "edge")
START_WITHIN = 90.0
CONTAINERS_ONLY = "local processes only (not for containers)"


class DockerCluster:
    """Use as an async context manager: `up`, at the end `down -v`. Raises HarnessError where docker does not run."""

    links: Links | None = None
    edge: Edge | None = None
    small_disk: str | None = None
    most_files = 0
    own_copies = True

    def __init__(self, folder: Path) -> None:
        self.names = [f"node-{n}" for n in range(NODES)]
        self.missing = dict.fromkeys(LOCAL_ONLY, CONTAINERS_ONLY)
        self._project = f"jc-chaos-{uuid.uuid4().hex[:6]}"
        self._folder = folder
        ports = free_ports(2 * NODES)
        self._ports = dict(zip(self.names, ports, strict=False))
        self._env = dict(os.environ)
        for n in range(NODES):
            self._env |= {f"CLIENT_PORT_{n}": str(ports[n]), f"MONITOR_PORT_{n}": str(ports[NODES + n])}
        self._engine: Any = None
        self._containers: dict[str, Any] = {}
        self._running: set[str] = set()

    async def __aenter__(self) -> DockerCluster:
        try:
            self._engine = await asyncio.to_thread(docker.from_env)
            await asyncio.to_thread(self._engine.ping)
        except docker.errors.DockerException as error:
            raise HarnessError(f"no docker daemon: {error}") from error
        try:
            await asyncio.to_thread(self._compose, "up", "--detach", "--no-build")
            await asyncio.to_thread(self._find)
            await self._ready(*self.names)
        except BaseException:
            await asyncio.to_thread(self._down)
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self._down)

    def _compose(self, *command: str) -> None:
        done = subprocess.run(
            ["docker", "compose", "-p", self._project, "-f", str(TOP / "compose.yaml"), *command],
            env=self._env, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        if done.returncode:
            raise HarnessError(f"docker compose {' '.join(command)}: {done.stderr.strip()[-500:]}")

    def _find(self) -> None:
        label = {"label": f"com.docker.compose.project={self._project}"}
        for container in self._engine.containers.list(all=True, filters=label):
            self._containers[container.labels["com.docker.compose.service"]] = container
        if sorted(self._containers) != self.names:
            raise HarnessError(f"compose started {sorted(self._containers)}")
        self._running = set(self.names)

    def _down(self) -> None:
        for name, container in self._containers.items():
            (self._folder / f"docker-{name}.log").write_bytes(container.logs())
        self._compose("down", "--volumes", "--timeout", "5")
        self._engine.close()

    async def _ready(self, *names: str) -> None:
        for name in names:
            check = functools.partial(self._healthy, name)
            await eventually(check, START_WITHIN, f"{name} is not healthy", every=0.2)

    async def _healthy(self, name: str) -> bool:
        done = await asyncio.to_thread(self._containers[name].exec_run, ["probe.py", "/healthz"])
        return bool(done.exit_code == 0)

    # -- Target

    def url(self, name: str) -> str:
        return f"nats://127.0.0.1:{self._ports[name]}"

    def system_url(self, name: str) -> str:
        return self.url(name)

    def alive(self, name: str) -> bool:
        return name in self._running

    async def start(self, *names: str) -> None:
        await self._each(names, lambda container: container.start())
        self._running |= set(names)
        await self._ready(*names)

    async def kill(self, *names: str) -> None:
        self._running -= set(names)
        await self._each(names, lambda container: container.kill("SIGKILL"))

    async def pause(self, *names: str) -> None:
        await self._each(names, lambda container: container.pause())

    async def resume(self, *names: str) -> None:
        await self._each(names, lambda container: container.unpause())

    async def _each(self, names: tuple[str, ...], what: Callable[[Any], None]) -> None:
        await asyncio.gather(*(asyncio.to_thread(what, self._containers[name]) for name in names))

    async def disconnect(self, name: str) -> None:
        await asyncio.to_thread(self._network().disconnect, self._containers[name], True)

    async def reconnect(self, name: str) -> None:
        """Under the names that the others look it up by, which disconnecting takes away."""
        await asyncio.to_thread(self._connect, name)

    def _connect(self, name: str) -> None:
        self._network().connect(self._containers[name], aliases=[name])

    def _network(self) -> Any:
        return self._engine.networks.get(f"{self._project}_nodes")

    def store(self, name: str) -> Path:
        raise HarnessError(f"{name}: {CONTAINERS_ONLY}")

    def shim(self, name: str) -> Shim:
        raise HarnessError(f"{name}: {CONTAINERS_ONLY}")

    def drill(self, name: str) -> Drill:
        raise HarnessError(f"{name}: {CONTAINERS_ONLY}")

    def log(self, name: str) -> str:
        return str(self._containers[name].logs().decode(errors="replace"))

    def tail(self, name: str) -> str:
        return str(self._containers[name].logs(tail=15).decode(errors="replace"))
