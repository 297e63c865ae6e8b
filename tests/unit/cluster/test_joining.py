"""A node that asks to be counted in (cluster/joining.py)."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from jetcluster.cluster.joining import Joining
from jetcluster.mesh.api import MeshError
from tests.unit.cluster.virtual_loop import virtual_time


class Mesh:
    """Many peers say nothing; the last one counts the node in."""

    def __init__(self, group: Any) -> None:
        self.peers = {f"x{n}": None for n in range(50)} | {"leader": None}
        self.group = group

    async def call(self, peer: str, method: str, payload: bytes, timeout: float) -> bytes:
        if peer != "leader":
            await asyncio.sleep(timeout)
            raise MeshError("timed out")
        self.group.peers, self.group.leader = ("me", "leader"), "leader"
        return b""


@virtual_time
async def test_peers_that_say_nothing_do_not_delay_who_asks_to_be_counted_in() -> None:
    group = SimpleNamespace(peers=("leader",), leader=None)
    joining = object.__new__(Joining)
    joining._meta = SimpleNamespace(group=group)  # type: ignore[assignment]
    joining._context = SimpleNamespace(mesh=Mesh(group), me="me")  # type: ignore[assignment]
    loop = asyncio.get_running_loop()
    began = loop.time()
    await joining._join()
    assert loop.time() - began < 5
