"""A meta leader, for tests of its service (cluster/meta_service.py)."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from jetcluster.cluster.meta_service import MetaService
from jetcluster.meta.machine import MetaMachine
from jetcluster.meta.placement import PlacementRules
from jetcluster.model.stream import StreamConfig
from jetcluster.raft.api import NotLeaderError
from testkit.twins.log import ListLog
from testkit.twins.time import ManualTime

NO_LIMITS = {"max_streams": -1, "max_memory": -1, "max_storage": -1}


class Leader:
    """A meta leader whose commands apply when `commit` is set."""

    def __init__(self, peers: int = 3, *, clustered: bool = True) -> None:
        self.time = ManualTime()
        self.machine = MetaMachine()
        self.online = {f"n{i}" for i in range(1, peers + 1)}
        self.sick: set[str] = set()
        self.commit = asyncio.Event()
        self.commit.set()
        self.barriers = 0
        self.leading = True
        self.led_by: str | None = None
        """The server that leads the streams."""
        self.rules = PlacementRules()
        self.log = ListLog()
        self._requests = 0
        self._index = 0
        for peer in sorted(self.online):
            command = {"kind": "node", "request": peer, "peer": peer, "name": peer, "tags": [], "jetstream": True}
            self.apply(json.dumps(command).encode())
        self.service = MetaService(
            self.machine,
            clock=self.time,
            propose=self._propose,
            barrier=self._barrier,
            online=lambda: self.online,
            well=lambda peer: peer not in self.sick,
            cluster_name="C",
            clustered=clustered,
            leader=lambda gid: self.led_by,
            rules=lambda: self.rules,
            log=self.log,  # type: ignore[arg-type]
        )

    def apply(self, command: bytes) -> dict[str, Any]:
        self._index += 1
        return self.machine.apply(self._index, 1, command)[0]

    async def _propose(self, command: bytes) -> dict[str, Any]:
        await self.commit.wait()
        return self.apply(command)

    async def _barrier(self) -> None:
        self.barriers += 1
        if not self.leading:
            raise NotLeaderError("n2")

    async def create(self, name: str, request: str = "", **fields: Any) -> dict[str, Any]:
        self._requests += 1
        body = {
            "request": request or f"q{self._requests}",
            "account": "A",
            "config": StreamConfig(name=name, **fields).normalised().to_wire(),
            "limits": NO_LIMITS,
        }
        return await self.service.handle("stream_create", body)

    async def update(self, name: str, **fields: Any) -> dict[str, Any]:
        self._requests += 1
        config = StreamConfig(name=name, **fields).normalised().to_wire()
        body = {"request": f"q{self._requests}", "account": "A", "config": config, "limits": NO_LIMITS}
        result = await self.service.handle("stream_update", body)
        assignment: dict[str, Any] = result["assignment"]
        return assignment
