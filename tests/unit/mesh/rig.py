"""Live meshes on loopback, and strangers that connect to them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from jetcluster.mesh.auth import Handshake, RouteCredentials
from jetcluster.mesh.frames import FrameReader
from jetcluster.mesh.mesh import NodeMesh
from jetcluster.mesh.options import MeshOptions
from tests.unit.cluster.mesh_support import full, node, route_to, stop, until

Start = Callable[..., Awaitable[NodeMesh]]


@contextlib.asynccontextmanager
async def starting() -> AsyncIterator[Start]:
    meshes: list[NodeMesh] = []

    async def start_one(mesh: NodeMesh) -> NodeMesh:
        meshes.append(mesh)
        await mesh.start()
        return mesh

    try:
        yield start_one
    finally:
        await stop(*meshes)


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    async with starting() as start_one:
        yield start_one


async def linked(start: Start, *followers: str, seed: str = "a", **options: Any) -> list[NodeMesh]:
    """Nodes that are linked: all others know the seed's route."""
    first = await start(node(seed, **options))
    meshes = [first, *[await start(node(name, route_to(first), **options)) for name in followers]]
    await until(lambda: full(*meshes))
    return meshes


class Stranger:
    """A raw TCP connection to a mesh's port."""

    def __init__(self, mesh: NodeMesh) -> None:
        self.route = route_to(mesh)
        self.reader_frames = FrameReader()
        self.frames: list[tuple[int, bytes]] = []

    async def __aenter__(self) -> Stranger:
        self.reader, self.writer = await asyncio.open_connection(self.route.host, self.route.port)
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.writer.transport.abort()

    async def until_closed(self) -> list[int]:
        """Kinds of all frames received until the other side closes."""
        kinds = []
        try:
            while data := await asyncio.wait_for(self.reader.read(65536), 3):
                kinds += [kind for kind, _, _ in self.reader_frames.feed(data)]
        except ConnectionError:
            pass
        return kinds

    async def authenticate(self, handshake: Handshake) -> list[tuple[int, bytes]]:
        """Returns frames that came after the handshake in the same read."""
        self.writer.write(handshake.start())
        rest = []
        while not handshake.done:
            for kind, begin, end in self.reader_frames.feed(await self.reader.read(65536)):
                body = self.reader_frames.buffer[begin:end]
                if handshake.done:
                    rest.append((kind, body))
                else:
                    self.writer.write(handshake.receive(kind, body))
        return rest


def greeting_of(me: Any, cluster: str = "test", **more: Any) -> Any:
    mesh = NodeMesh(me, MeshOptions(cluster, **more))
    return mesh.greeting()


SECRET = RouteCredentials("route", "s3cret")


LOW, MIDDLE, HIGH = "00000000", "MMMMMMMM", "zzzzzzzz"
