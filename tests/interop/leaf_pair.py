"""A hub and a leaf as processes, of any two kinds of servers, with a relay between them that can be cut."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from types import TracebackType

import nats
from nats.aio.client import Client as NATS

from testkit.harness import Node, eventually, find_server, free_ports

OURS, THEIRS = "jetcluster", "nats-server"


class Relay:
    """Passes bytes from its port to another one until it is cut; what is connected then is reset. Each byte comes
    `delay` seconds later, both ways; as many as you like are under way at a time."""

    def __init__(self, target: int, delay: float = 0.0) -> None:
        self.port = 0
        self.delay = delay
        self._target = target
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def cut(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in list(self._writers):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, far_writer}
        try:
            await asyncio.gather(self._copy(reader, far_writer), self._copy(far_reader, writer))
        finally:
            self._writers -= {writer, far_writer}

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        now = asyncio.get_running_loop().time

        async def read() -> None:
            with contextlib.suppress(OSError):
                while data := await reader.read(65536):
                    under_way.put_nowait((now() + self.delay, data))
            under_way.put_nowait((now() + self.delay, b""))

        async def write() -> None:
            with contextlib.suppress(OSError):
                while True:
                    due, data = await under_way.get()
                    await asyncio.sleep(max(due - now(), 0))
                    if not data:
                        return
                    writer.write(data)
                    await writer.drain()

        async with asyncio.TaskGroup() as group:
            reading = group.create_task(read())
            await group.create_task(write())
            writer.transport.abort()
            reading.cancel()


def server(kind: str, root: Path, name: str, config: str, *, domain: str = "") -> Node:
    """A single server with a monitoring port; `config` is added to its file."""
    command = find_server(kind)
    assert command is not None, f"{kind} is not installed"
    port, http = free_ports(2)
    node = Node(name, command, root / name, port, [])
    node.http_port = http
    node.args = ["-a", "127.0.0.1", "-p", str(port), "-m", str(http), "-n", name, "-c", str(node.root / "server.conf")]
    jetstream = f'jetstream {{ store_dir: "{node.store}", domain: {domain} }}\n' if domain else ""
    (node.root / "server.conf").write_text(jetstream + config)
    return node


async def linked(node: Node, links: int = 1, within: float = 15.0) -> None:
    async def up() -> bool:
        return len((await node.monitor("leafz")).get("leafs") or []) == links

    await eventually(up, within, f"{node.name} has not {links} leaf links", node, every=0.05)


class LeafPair:
    """`hub` accepts, `leaf` connects to it through `relay`; both have clients `at_hub` and `at_leaf`."""

    def __init__(
        self,
        hub: str,
        leaf: str,
        root: Path,
        *,
        hub_config: str = "",
        leaf_config: str = "",
        delay: float = 0.0,
        remote: str = "",
    ) -> None:
        (self.leaf_port,) = free_ports(1)
        self.relay = Relay(self.leaf_port, delay)
        self._kinds, self._root, self._configs = (hub, leaf), root, (hub_config, leaf_config)
        self._remote = remote
        self.hub: Node
        self.leaf: Node
        self.at_hub: NATS
        self.at_leaf: NATS
        self.v2: dict[str, bool] = {}
        """By domain: True where deliveries have reply subjects of version 2."""
        self._clients: list[NATS] = []

    async def __aenter__(self) -> LeafPair:
        await self.relay.open()
        listen = f'leafnodes {{ listen: "127.0.0.1:{self.leaf_port}", no_advertise: true }}\n'
        remote = (
            f'leafnodes {{ reconnect: "500ms", remotes [ {{ url: "nats-leaf://127.0.0.1:{self.relay.port}"'
            f"{self._remote and ', ' + self._remote} }} ] }}\n"
        )
        self.hub = server(self._kinds[0], self._root, "hub", listen + self._configs[0], domain="hub")
        self.leaf = server(self._kinds[1], self._root, "leaf", remote + self._configs[1], domain="edge")
        await self.hub.start()
        await self.leaf.start()
        await linked(self.hub)
        await linked(self.leaf)
        self.at_hub, self.at_leaf = await self.connect(self.hub), await self.connect(self.leaf)
        return self

    async def connect(self, node: Node) -> NATS:
        client = await nats.connect(node.url, max_reconnect_attempts=1)
        self._clients.append(client)
        return client

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for client in self._clients:
            await client.close()
        await self.relay.cut()
        for node in (self.hub, self.leaf):
            if kind is not None:
                print(f"--- {node.name}\n{node.tail(40)}")
            node.kill9()
