"""A mirror and a stream with two sources, in the same cluster or at a leaf of it: equal to what they copy."""

from __future__ import annotations

import asyncio

from testkit.sim.session import Msg
from tests.sim.cluster.judges import Copies, Log
from tests.sim.cluster.workload import Workload, together

UPSTREAMS = ("UP1", "UP2")
LAST = 40
"""Messages that each of them gets at once in the end, so that nothing comes after them that would push them on."""


class Mirrors(Workload):
    name = "mirrors"
    judges = (Copies, Log)
    promises = (
        "a mirror has what its upstream has, at the same sequences, also behind a leaf link",
        "a stream with sources has each message of each of them once, in their order",
    )

    async def prepare(self) -> None:
        self.logs = {name: Log() for name in UPSTREAMS}
        self.leaf = [name for name, server in self.deployment.servers.items() if server.leaf_of]
        admin = await self.session("admin")
        for name in UPSTREAMS:
            await self.create(admin, name, subjects=[f"{name}.>"], num_replicas=self.rng.choice([1, 3]))
        there = await self.session("leaf", *self.leaf) if self.leaf else admin
        external = {"external": {"api": "$JS.hub.API"}} if self.leaf else {}
        size = self.rng.choice([1, 3]) if len(self.leaf) != 1 else 1
        await self.create(there, "MIRROR", num_replicas=size, mirror={"name": "UP1"} | external)
        sources = [{"name": name} | external for name in UPSTREAMS]
        await self.create(there, "AGGREGATE", num_replicas=size, sources=sources)

    async def work(self) -> None:
        await together(*(self._write(name) for name in UPSTREAMS))

    async def _write(self, stream: str) -> None:
        session = await self.session(f"write-{stream}")
        log, pace = self.logs[stream], self.rng.choice([3.0, 10.0])
        async for count in self.turns(pace):
            text = f"{stream}-{count}"
            await self.store_logged(log, session, f"{stream}.x", text)
        texts = [f"{stream}-last-{number}-{'.' * 80}" for number in range(LAST)]
        await asyncio.gather(*(self.store_logged(log, session, f"{stream}.x", text) for text in texts))

    async def check(self) -> None:
        wanted = self.logs["UP1"].acked
        total = sum(len(log.acked) for log in self.logs.values())
        nodes = tuple(self.leaf)

        def mirror(where: str, contents: dict[int, Msg]) -> None:
            Copies.mirrored(where, wanted, {seq: msg.payload.decode() for seq, msg in contents.items()})

        def aggregate(where: str, contents: dict[int, Msg]) -> None:
            texts = [contents[seq].payload.decode() for seq in sorted(contents)]
            Copies.sourced(where, [log.acked for log in self.logs.values()], texts)

        await self.everywhere("MIRROR", max(wanted, default=0), mirror, nodes=nodes)
        await self.everywhere("AGGREGATE", total, aggregate, nodes=nodes)
        for stream, log in self.logs.items():

            def look(where: str, contents: dict[int, Msg], log: Log = log) -> None:
                self.stored(log, where, contents)

            await self.everywhere(stream, max(log.acked, default=0), look)
