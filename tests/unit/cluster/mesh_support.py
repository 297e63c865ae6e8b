"""Helpers of the mesh tests: TCP meshes on loopback, a recording switchboard, a proxy that swallows bytes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from jetcluster.clock import SystemRng
from jetcluster.mesh.api import NodeInfo
from jetcluster.mesh.core import MeshCore, MeshListener
from jetcluster.mesh.identity import new_id
from jetcluster.mesh.info import split_url
from jetcluster.mesh.mesh import NodeMesh
from jetcluster.mesh.options import ConfiguredRoute, MeshOptions
from jetcluster.protocol.bus import Outgoing
from jetcluster.protocol.interest import RemotePeer
from testkit.sim.shared import MeshNetwork, SimMesh, VirtualLoop

_RNG = SystemRng()


def info(name: str, peer_id: str | None = None, boot_id: str | None = None, **more: Any) -> NodeInfo:
    return NodeInfo(peer_id or new_id(_RNG), name, boot_id or new_id(_RNG), "", more.pop("client_url", ""), **more)


def node(
    name: str, *routes: ConfiguredRoute, me: NodeInfo | None = None, cluster: str = "test", **options: Any
) -> NodeMesh:
    return NodeMesh(me or info(name), MeshOptions(cluster, routes=routes, **options))


class Heard(MeshListener):
    """A listener to meshes of callbacks: one for a node that was left out, and one by each kind of URLs."""

    def __init__(self, left_out: Callable[[int, str], object] = lambda age, said: None, **urls: Any) -> None:
        self.left_out = left_out  # type: ignore[method-assign,assignment]
        self.urls = urls

    def urls_changed(self, kind: str, urls: tuple[str, ...]) -> None:
        self.urls.get(kind, lambda urls: None)(urls)


def receive(mesh: MeshCore, on_frame: Any, **others: Any) -> None:
    """Has `on_frame` take the Raft frames of a mesh."""
    mesh.connect(mesh.raft._replace(on_frame=on_frame, **others), mesh.members)


def admit(mesh: MeshCore, **functions: Callable[[str], Any]) -> None:
    """Replaces what a mesh knows of the members of its cluster."""
    mesh.connect(mesh.raft, mesh.members._replace(**functions))


def route_to(mesh: NodeMesh, **more: Any) -> ConfiguredRoute:
    host, port = split_url(mesh.me.cluster_url)
    return ConfiguredRoute(host, port, **more)


async def until(condition: Callable[[], bool], timeout: float = 10.0, what: str = "condition") -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"{what} not reached within {timeout} s"
        await asyncio.sleep(0.002)


def full(*meshes: NodeMesh) -> bool:
    return all(len(mesh.peers) == len(meshes) - 1 for mesh in meshes)


async def stop(*meshes: NodeMesh) -> None:
    """All together. Nobody dials any more when the first one closes its port: asyncio of Python 3.11 forgets to close
    what it has just accepted for a server that is closed in the same turn (gh-109564)."""
    await asyncio.gather(*(mesh.dialer.stop() for mesh in meshes))
    await asyncio.sleep(0.01)
    await asyncio.gather(*(mesh.stop() for mesh in meshes))


class FakeSwitchboard:
    """A router with a plain table: records what the mesh tells it."""

    def __init__(self, *mine: tuple[str, bytes, bytes | None, int]) -> None:
        self.listener: Any = None
        self.mine = list(mine)
        self.remote: dict[str, dict[tuple[str, bytes, bytes | None], int]] = {}
        self.links: dict[str, RemotePeer] = {}
        self.valves: list[tuple[str, bytes, bool]] = []
        self.messages: list[tuple[str, str, bytes, bytes, list[bytes], bytes, bytes]] = []
        self.deliveries: list[tuple[str, str, bytes, list[bytes], list[Outgoing]]] = []
        self.waiting: dict[tuple[str, bytes], int] = {}
        self.log: list[tuple[Any, ...]] = []

    def listen(self, listener: Any) -> None:
        self.listener = listener

    def interests(self) -> Iterator[tuple[str, bytes, bytes | None, int]]:
        return iter(self.mine)

    def change(self, account: str, subject: bytes, queue: bytes | None, count: int) -> None:
        self.mine = [entry for entry in self.mine if entry[:3] != (account, subject, queue)]
        if count:
            self.mine.append((account, subject, queue, count))
        self.listener(account, subject, queue, count)

    def set_remote_interest(
        self, peer: RemotePeer, account: str, subject: bytes, queue: bytes | None, count: int
    ) -> None:
        self.log.append(("interest", peer.peer_id, subject, count))
        self.links[peer.peer_id] = peer
        table = self.remote.setdefault(peer.peer_id, {})
        table[account, subject, queue] = count
        if not count:
            del table[account, subject, queue]

    def drop_peer(self, peer: RemotePeer) -> None:
        self.log.append(("drop", peer.peer_id))
        self.remote.pop(peer.peer_id, None)
        self.links.pop(peer.peer_id, None)

    def deliver_from_peer(
        self,
        peer: RemotePeer,
        account: str,
        subject: bytes,
        reply: bytes,
        queues: list[bytes],
        headers: bytes,
        payload: bytes,
    ) -> None:
        self.messages.append((peer.peer_id, account, subject, reply, queues, headers, payload))

    def deliver_each_from_peer(
        self, peer: RemotePeer, account: str, messages: Sequence[Outgoing], failed: Callable[[], None]
    ) -> None:
        for subject, reply, headers, payload in messages:
            try:
                self.deliver_from_peer(peer, account, subject, reply, [], headers, payload)
            except Exception:
                failed()

    def deliver_many_from_peer(
        self, peer: RemotePeer, account: str, target: bytes, queues: list[bytes], messages: Sequence[Outgoing]
    ) -> None:
        self.deliveries.append((peer.peer_id, account, target, queues, list(messages)))

    def backlog_here(self, account: str, target: bytes) -> int:
        return self.waiting[account, target]

    def valve_told(self, peer: RemotePeer, account: str, subject: bytes, closed: bool) -> None:
        self.valves.append((account, subject, closed))

    def backlog_told(self, peer: RemotePeer, account: str, target: bytes, mark: int, waiting: int) -> None:
        self.log.append(("backlog", peer.peer_id, account, target, mark, waiting))


class Recorder:
    """Logs everything a mesh tells the rooms above it."""

    def __init__(self, mesh: SimMesh) -> None:
        self.log: list[tuple[Any, ...]] = []
        receive(
            mesh,
            lambda peer, gid, frame: self.log.append(("raft", peer, gid, frame)),
            end_of_batch=lambda: self.log.append(("end",)),
        )
        mesh.on_notice("note", lambda peer, payload: self.log.append(("note", peer, payload)))
        mesh.on_peers(
            lambda info: self.log.append(("up", info.peer_id)),
            lambda info: self.log.append(("down", info.peer_id)),
        )


def trio() -> tuple[VirtualLoop, MeshNetwork, list[SimMesh], list[Recorder]]:
    time = VirtualLoop()
    network = MeshNetwork(time)
    meshes = [network.mesh(name, name.upper() * 8) for name in "abc"]
    recorders = [Recorder(mesh) for mesh in meshes]
    for mesh in meshes:
        mesh.start_now()
    time.advance(0.05)
    return time, network, meshes, recorders


class Proxy:
    """Forwards a TCP port; with `swallow` set, bytes vanish in both directions while both connections stay open."""

    def __init__(self, target: ConfiguredRoute) -> None:
        self.target = target
        self.swallow = False
        self.port = 0
        self._writers: list[asyncio.StreamWriter] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._server: asyncio.Server | None = None

    async def start(self) -> ConfiguredRoute:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return ConfiguredRoute("127.0.0.1", self.port)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(self.target.host, self.target.port)
        self._writers += [writer, far_writer]
        loop = asyncio.get_running_loop()
        self._tasks += [
            loop.create_task(self._pump(reader, far_writer)),
            loop.create_task(self._pump(far_reader, writer)),
        ]

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                if not self.swallow:
                    writer.write(data)
        except ConnectionError:
            pass
        if not self.swallow:
            writer.close()

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers:
            writer.transport.abort()
