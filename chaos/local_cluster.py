"""Processes of this machine behind toxiproxy, with the shim where there is a compiler and one small disk for root."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from chaos import drills, links
from chaos.edge import NAME as EDGE
from chaos.edge import Edge
from chaos.plants import Plant
from testkit import shim
from testkit.harness import TOP, HarnessError, Node, ProcessCluster

SMALL_DISK_MIB = 320
"""Room for the server's reserves (64 MiB and a journal segment) and a run's data."""
FEW_FILES = 200
"""File descriptors of each node, where they are to run out."""
NOWHERE = "127.77.0.{}:9"
"""The address that nodes tell the others to dial: nobody is there, so every link goes through its proxy."""
SYSTEM = """
accounts {
  A { jetstream: enabled, users: [{user: a, password: a}] }
  $SYS { users: [{user: s, password: s}] }
}
no_auth_user: a
"""
"""For what only the system account may do; all others are let in as before."""


class LocalCluster:
    """Use as an async context manager. Its folder is kept when `failed` is set or on an exception."""

    def __init__(
        self, nodes: int = 3, server: str = "jetcluster", config: str = "", needs: frozenset[str] = frozenset(),
        plant: Plant | None = None, monitor: bool = False,
    ):  # fmt: skip
        """`needs` of the scenario that can be met are set up: links, edge, shim, drill, few-files, disk. `monitor`:
        with monitoring ports."""
        self.root = Path(tempfile.mkdtemp(prefix="jetcluster-chaos-"))
        self.server = server
        self.failed = False
        self.links: links.Links | None = None
        self.edge: Edge | None = None
        self.small_disk: str | None = None
        self.most_files = 0
        self._shims: dict[str, shim.Shim] = {}
        self._drills: dict[str, drills.Drill] = {}
        ours = self.own_copies = server == "jetcluster"
        other = f"{server} is not started that way"
        self.missing = {
            "links": links.why_not() if ours else other,
            "edge": links.why_not() if ours else other,
            "shim": shim.why_not() if ours else other,
            "disk": "" if os.geteuid() == 0 else "needs root, to mount a small tmpfs",
            "files": "" if ours else "about this server's files",
            "system": "" if ours else other,
            "disconnect": "containers only",
            "few-files": "",
            "drill": "" if ours else other,
            "drill-store": drills.why_not("store.write") if ours else other,
        }
        self.missing = {need: why for need, why in self.missing.items() if why}
        wanted = needs - self.missing.keys()
        self._system = "system" in wanted
        config += SYSTEM if self._system else ""
        self.cluster = ProcessCluster(nodes, server, root=self.root, name="chaos", config=config, monitor=monitor)
        self.names = [node.name for node in self.cluster.nodes]
        if {"links", "edge"} <= wanted:
            self.edge = Edge(self.cluster, self.root)
        if plant is not None:
            for node in [*self.cluster.nodes, *([self.edge.node] if self.edge is not None else [])]:
                node.env |= plant.environment(self.root / "plant", TOP)
        if "links" in wanted:
            self._route_through_proxies()
        if "shim" in wanted:
            library = shim.build(self.root)
            for node in self.cluster.nodes:
                self._shims[node.name] = shim.Shim(library, self.root / f"{node.name}-shim")
                node.env |= self._shims[node.name].env
        if "drill" in wanted:
            for node in self.cluster.nodes:
                self._drills[node.name] = drills.Drill(self.root / f"{node.name}-drill")
                node.env |= self._drills[node.name].env
        if "few-files" in wanted:
            for node in self.cluster.nodes:
                node.limit_files(FEW_FILES)
            self.most_files = FEW_FILES
        if "disk" in wanted:
            self._mount(self.cluster.nodes[-1])

    def _route_through_proxies(self) -> None:
        self.links = links.Links(
            {node.name: node.cluster_port for node in self.cluster.nodes}, self.root / "toxiproxy.log"
        )
        for number, node in enumerate(self.cluster.nodes, 1):
            at = node.args.index("--routes") + 1
            node.args[at] = ",".join(self.links.routes(node.name))
            node.args += ["--cluster_advertise", NOWHERE.format(number)]

    def _mount(self, node: Node) -> None:
        node.store.mkdir(parents=True, exist_ok=True)
        command = ["mount", "-t", "tmpfs", "-o", f"size={SMALL_DISK_MIB}m", "tmpfs", str(node.store)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            self.small_disk = node.name
        else:
            self.missing["disk"] = f"no small tmpfs: {done.stderr.strip()}"

    async def __aenter__(self) -> LocalCluster:
        try:
            if self.links is not None:
                await self.links.start()
            await self.cluster.start()
            if self.edge is not None and self.links is not None:
                await self.edge.start(self.links)
        except BaseException:
            self.failed = True
            self.end()
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.failed |= kind is not None
        self.end()

    def end(self) -> None:
        """Also in place of a run."""
        if self.edge is not None:
            self.edge.node.kill9()
        if self.failed:
            print(f"logs and stores are kept in {self.root}")
            self.cluster.kill9_all()
        else:
            self.cluster.stop_all()
        if self.links is not None:
            self.links.stop()
        if self.small_disk is not None:
            store = self._node(self.small_disk).store
            if self.failed:
                shutil.copytree(store, store.with_name("store-kept"), ignore=shutil.ignore_patterns("filler"))
            subprocess.run(["umount", "-l", str(store)], check=False)
        if not self.failed:
            shutil.rmtree(self.root, ignore_errors=True)

    # -- Target

    def _node(self, name: str) -> Node:
        if name == EDGE and self.edge is not None:
            return self.edge.node
        return self.cluster.node(name)

    def url(self, name: str) -> str:
        return self._node(name).url

    def system_url(self, name: str) -> str:
        return self.url(name).replace("nats://", "nats://s:s@") if self._system else self.url(name)

    def alive(self, name: str) -> bool:
        return self._node(name).alive

    async def start(self, *names: str) -> None:
        for name in names:
            self._node(name).spawn()
        results = await asyncio.gather(*(self._node(name).wait_ready() for name in names), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def kill(self, *names: str) -> None:
        self._signal(names, signal.SIGKILL)
        for name in names:
            self._node(name).kill9()

    async def pause(self, *names: str) -> None:
        self._signal(names, signal.SIGSTOP)

    async def resume(self, *names: str) -> None:
        self._signal(names, signal.SIGCONT)

    def _signal(self, names: Sequence[str], number: int) -> None:
        for name in names:
            if self.alive(name):
                self._node(name).signal(number)

    async def disconnect(self, name: str) -> None:
        raise HarnessError(f"{name}: {self.missing['disconnect']}")

    reconnect = disconnect

    def store(self, name: str) -> Path:
        return self._node(name).store

    def shim(self, name: str) -> shim.Shim:
        return self._shims[name]

    def drill(self, name: str) -> drills.Drill:
        return self._drills[name]

    def log(self, name: str) -> str:
        return self._node(name).log()

    def tail(self, name: str) -> str:
        return self._node(name).tail(15)
