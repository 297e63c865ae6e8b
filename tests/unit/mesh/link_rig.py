"""A link on a transport that a test drains, and behind the mesh whose link it is."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from jetcluster.mesh.link import TcpLink
from jetcluster.mesh.mesh import NodeMesh
from jetcluster.mesh.options import MeshOptions
from jetcluster.protocol.connection_states import ConnectionEvent
from testkit.twins.time import ManualTime
from tests.unit.cluster.mesh_support import info


class FakeTransport:
    """Keeps what is written; full after `HIGH_WATER_BYTES` until `drain`."""

    def __init__(self) -> None:
        self.protocol: TcpLink | None = None
        self.written: list[bytes] = []
        self.buffered = 0
        self.closed = ""
        self.reading = True

    def set_write_buffer_limits(self, high: int, low: int) -> None:
        self.high, self.low = high, low

    def get_extra_info(self, name: str) -> Any:
        return ("127.0.0.9", 999) if name == "peername" else None

    def get_write_buffer_size(self) -> int:
        return self.buffered

    def is_closing(self) -> bool:
        return bool(self.closed)

    def write(self, data: bytes) -> None:
        self.written.append(data)
        self.buffered += len(data)
        assert self.protocol is not None
        if self.buffered > self.high and not self.protocol.congested:
            self.protocol.pause_writing()

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def drain(self) -> None:
        self.buffered = 0
        assert self.protocol is not None
        if self.protocol.congested:
            self.protocol.resume_writing()

    def close(self) -> None:
        self.closed = self.closed or "close"

    def abort(self) -> None:
        self.closed = "abort"


async def up_link(**options: Any) -> tuple[TcpLink, FakeTransport, ManualTime]:
    """A link as it is after handshake and INFO exchange."""
    return (await up_mesh(**options))[1:]


async def up_mesh(*, jetstream: bool = False, **options: Any) -> tuple[NodeMesh, TcpLink, FakeTransport, ManualTime]:
    """The same, behind the mesh whose link it is."""
    time = ManualTime()
    mesh = NodeMesh(info("me", "AAAAAAAA"), MeshOptions("c", **options), clock=time)
    mesh.loop = asyncio.get_running_loop()
    link = mesh.new_link(b"", dialer=False)
    transport = FakeTransport()
    transport.protocol = link
    link.connection_made(cast(asyncio.BaseTransport, transport))
    link.advance(ConnectionEvent.CONNECT)
    link.peer_id = "BBBBBBBB"
    link._reader.max_frame = mesh.max_frame
    mesh._choose(link)
    mesh._came_up(link, info("you", "BBBBBBBB", jetstream=jetstream))
    await asyncio.sleep(0)
    transport.written.clear()
    transport.buffered = 0
    return mesh, link, transport, time
