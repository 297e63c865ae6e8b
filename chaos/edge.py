"""`Edge`: a server behind a leaf link of a cluster of this machine, through toxiproxy."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from chaos.links import Links
from testkit.harness import Node, ProcessCluster, eventually, find_server, free_ports

NAME = "edge"
DOMAIN = "hub"
"""JetStream's domain of the cluster; the edge has NAME."""
LINKED_WITHIN = 30.0


class Edge:
    """Its leaf link goes to one of the cluster's nodes at a time, to another one when that is gone."""

    def __init__(self, cluster: ProcessCluster, root: Path) -> None:
        """Before the nodes start: they get ports for leaf links, and a domain."""
        command = find_server(cluster.server)
        assert command is not None, "the cluster was found"
        *self._ports, port, http = free_ports(len(cluster.nodes) + 2)
        for node, listen in zip(cluster.nodes, self._ports, strict=True):
            config = node.root / "server.conf"
            text = config.read_text() if config.exists() else ""
            if not text:
                node.args += ["-c", str(config)]
            leaf = f'leafnodes {{ listen: "127.0.0.1:{listen}", no_advertise: true }}\n'
            config.write_text(f"{text}jetstream {{ domain: {DOMAIN} }}\n{leaf}")
        self.node = Node(NAME, command, root / NAME, port, [])
        self.node.http_port = http
        self.node.args = ["-a", "127.0.0.1", "-p", str(port), "-m", str(http), "-n", NAME, "-js", "-sd",
                          str(self.node.store), "-c", str(self.node.root / "server.conf")]  # fmt: skip
        self._proxies: list[Any] = []

    async def start(self, links: Links) -> None:
        """After the cluster and its links."""
        urls = []
        for at, port in enumerate(self._ports):
            listen, proxy = await links.proxy(f"{NAME}>{at}", port)
            urls.append(f'"nats-leaf://127.0.0.1:{listen}"')
            self._proxies.append(proxy)
        remote = f'leafnodes {{ reconnect: "500ms", remotes [ {{ urls: [{", ".join(urls)}] }} ] }}\n'
        (self.node.root / "server.conf").write_text(f"jetstream {{ domain: {NAME} }}\n{remote}")
        await self.node.start()

        async def linked() -> bool:
            return bool((await self.node.monitor("leafz")).get("leafs"))

        await eventually(linked, LINKED_WITHIN, "the edge has no leaf link", self.node, every=0.05)

    async def cut(self) -> None:
        """Nothing gets through, and the connection stays open."""
        for proxy in self._proxies:
            for stream in ("upstream", "downstream"):
                await asyncio.to_thread(
                    proxy.add_toxic, type="timeout", stream=stream, name=f"cut-{stream}", attributes={"timeout": 0}
                )

    async def heal(self) -> None:
        for proxy in self._proxies:
            for name in await asyncio.to_thread(proxy.toxics):
                await asyncio.to_thread(proxy.destroy_toxic, name)
