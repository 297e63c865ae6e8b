"""Exam of room: what streams reserve on servers by max_bytes, to the last byte, and what goes gives back."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Final

from testkit.sim.deployment import Deployment
from testkit.sim.session import ApiError, Session
from tests.sim.cluster import invariants
from tests.sim.cluster.exam import Exam
from tests.sim.cluster.judges import Exact

ROOM: Final = 64 << 20
"""Bytes of memory that a server may store."""
NO_ROOM: Final = "400 10005 no suitable peers for placement, insufficient storage"
STEPS: Final = 24
NAMES: Final = tuple(f"ROOM{number}" for number in range(7))


@dataclass
class Rooms:
    """The model: what is left at each server."""

    left: dict[str, int]
    streams: dict[str, tuple[int, list[str]]] = field(default_factory=dict)
    """Name -> bytes of a replica, and the servers that have one."""

    def fits(self, size: int, replicas: int) -> bool:
        return sum(left >= size for left in self.left.values()) >= replicas

    def put(self, name: str, size: int, servers: list[str]) -> None:
        self.streams[name] = size, servers
        for server in servers:
            self.left[server] -= size

    def drop(self, name: str) -> None:
        size, servers = self.streams.pop(name)
        for server in servers:
            self.left[server] += size


class RoomExam(Exam):
    name = "exam-rooms"
    weight = 0
    judges = (Exact,)
    promises = (
        "a server's storage is reserved to the last byte, by streams that fit there, and not by one byte more",
        "a stream that is refused reserves nothing, and one that goes or shrinks gives back what it had",
    )

    @classmethod
    def before(cls, deployment: Deployment, rng: Random) -> None:
        """Memory of a size that others do not fill."""
        for name, server in deployment.servers.items():
            if "max_memory_store" not in server.jetstream_options:
                options = f"{server.jetstream_options}, max_memory_store: {ROOM}"
                deployment.servers[name] = replace(server, jetstream_options=options)

    async def check(self) -> None:
        servers = [self.deployment.servers[name] for name in self.members]
        apart = any(server.unique_tag or f"max_memory_store: {ROOM}" not in server.jetstream_options
                    for server in servers)  # fmt: skip
        if len(self.members) >= 3 and not apart:
            await self.examine([self._any_history])

    def _rooms(self) -> Rooms:
        """Room that other streams leave."""
        found = [invariants.jetstream_of(self.deployment.machines[name]) for name in self.members]
        meta = max((one.meta.machine for one in found if one is not None), key=lambda meta: meta.applied_index)
        rooms = {node.name: ROOM - meta.reserved_on(peer, "memory") for peer, node in meta.nodes.items()}
        return Rooms({name: left for name, left in rooms.items() if name in self.members})

    async def _any_history(self, session: Session) -> None:
        """Streams of any number of replicas come, mostly with all that is left somewhere, one byte less or more."""
        rooms = self._rooms()
        for _ in range(STEPS):
            name = self.rng.choice(NAMES)
            if name in rooms.streams:
                await (self._gone if self.rng.random() < 0.6 else self._changed)(session, rooms, name)
            else:
                await self._made(session, rooms, name)
        for name in list(rooms.streams):
            await self._gone(session, rooms, name)
        await self._all_of_it(session, rooms)

    async def _made(self, session: Session, rooms: Rooms, name: str) -> None:
        left = self.rng.choice(sorted(rooms.left.values()))
        size = max(self.rng.choice([left, left, left - 1, left + 1, left // 2, left // 3]), 1)
        await self._reserves(session, rooms, name, size, self.rng.choice([1, 1, 3]))

    async def _reserves(self, session: Session, rooms: Rooms, name: str, size: int, replicas: int) -> None:
        config = {"name": name, "storage": "memory", "num_replicas": replicas, "max_bytes": size}
        wanted = "" if rooms.fits(size, replicas) else NO_ROOM
        what = f"{name}, {size} bytes, {replicas} replicas, of {rooms.left}"
        self.equal(what, await self._says(session, f"STREAM.CREATE.{name}", config), wanted)
        if not wanted:
            servers = await self._servers(session, name)
            self.equal(f"{what}: servers", len(servers), replicas)
            full = [server for server in servers if rooms.left[server] < size]
            self.equal(f"{what}: servers without room", full, [])
            rooms.put(name, size, servers)

    async def _changed(self, session: Session, rooms: Rooms, name: str) -> None:
        """A stream shrinks, and something else gets what it had."""
        size, servers = rooms.streams[name]
        less = self.rng.randint(1, size)
        config = {"name": name, "storage": "memory", "num_replicas": len(servers), "max_bytes": less}
        self.equal(f"{name} shrinks", await self._says(session, f"STREAM.UPDATE.{name}", config), "")
        rooms.drop(name)
        rooms.put(name, less, servers)

    async def _gone(self, session: Session, rooms: Rooms, name: str) -> None:
        await self.ask(session, f"STREAM.DELETE.{name}")
        rooms.drop(name)

    async def _all_of_it(self, session: Session, rooms: Rooms) -> None:
        """One server after the other is filled, and then there is no room for a byte."""
        for number in range(len(rooms.left)):
            await self._reserves(session, rooms, f"ROOM{number}", max(rooms.left.values()), 1)
        self.equal("left", set(rooms.left.values()), {0})
        await self._reserves(session, rooms, "MORE", 1, 1)
        await self._reserves(session, rooms, "MORE", 1, 3)
        await self._gone(session, rooms, "ROOM1")
        await self._reserves(session, rooms, "MORE", max(rooms.left.values()), 1)
        for name in list(rooms.streams):
            await self._gone(session, rooms, name)

    async def _servers(self, session: Session, name: str) -> list[str]:
        cluster = (await self.ask(session, f"STREAM.INFO.{name}"))["cluster"]
        return [cluster["leader"], *(one["name"] for one in cluster.get("replicas") or ())]

    async def _says(self, session: Session, subject: str, body: Any) -> str:
        """The error, "" for none; a leader that is not there is asked again."""
        for _ in range(20):
            try:
                await session.api(subject, body)
            except ApiError as error:
                if error.code != 503:
                    return str(error)
            else:
                return ""
            await asyncio.sleep(0.5)
        return "nobody answers"
