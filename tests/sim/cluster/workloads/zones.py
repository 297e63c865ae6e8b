"""Streams that are placed by the tags of servers, one replica per zone: moved, moved back, replicas removed."""

from __future__ import annotations

import asyncio
from typing import Any

from testkit.sim.session import Msg, Session
from tests.sim.cluster.judges import Log, Places
from tests.sim.cluster.workload import PASSING, Workload, together

STREAMS = ("ZONE_1", "ZONE_2")
KINDS = ("disk:ssd", "disk:hdd")
"""Tags of which each is on one server of each zone (`layout.ZONES`)."""
ZONE = "az:"


class Moves:
    """The placements that a move of a stream which is cancelled may go back to."""

    def __init__(self) -> None:
        self.before: list[Any] = []
        self._of_this: list[Any] = []
        """Those of the last request alone, if it is carried out; empty when an earlier move may be cancelled too."""
        self.answered = True
        """False while the last request to move may still be carried out, or was refused: then it may be an earlier
        move that is cancelled."""

    def begin(self, old: object, new: object) -> None:
        """A client that scales the stream meanwhile moves it from the new placement. A request for the placement that
        the stream has is no move, and an earlier one may still be under way."""
        self._of_this = [old, new] if self.answered and tags_of(old) != tags_of(new) else []
        self.before += [one for one in (old, new) if one not in self.before]
        self.answered = False

    def done(self) -> None:
        """Note that the last request was carried out. One that was refused, as a move is under way, changes nothing."""
        self.answered = True
        self.before = self._of_this or self.before


def tags_of(placement: Any) -> list[str]:
    return list((placement or {}).get("tags") or ())


class Zones(Workload):
    name = "zones"
    layout = "zones"
    weight = 2
    judges = (Log, Places)
    promises = (
        "a stream that moves by placement is on servers with its tags, and keeps what was acknowledged",
        "a move that is cancelled is taken back: to the placement of before, and the servers that it allows",
        "no two replicas of a stream are on servers with the same unique_tag",
    )

    async def prepare(self) -> None:
        self.logs = {name: Log() for name in STREAMS}
        self.moves = {name: Moves() for name in STREAMS}
        session = await self.session("admin")
        for name in STREAMS:
            placement = {"placement": {"tags": [self.rng.choice(KINDS)]}} if self.rng.random() < 0.5 else {}
            await self.create(session, name, subjects=[f"{name}.>"], **placement)
        await session.close()

    async def work(self) -> None:
        await together(*(self._write(name) for name in STREAMS), *(self._move(name) for name in STREAMS))

    async def _write(self, stream: str) -> None:
        session = await self.session(f"write-{stream}")
        async for count in self.turns(6.0):
            await self.store_logged(self.logs[stream], session, f"{stream}.x", str(count))

    async def _move(self, stream: str) -> None:
        session = await self.session(f"move-{stream}")
        async for _ in self.turns(0.5):
            try:
                await self._change(session, stream)
                if self.rng.random() < 0.5:
                    await asyncio.sleep(self.rng.choice([0.0, 0.05, 0.5]))
                    await self._cancel(session, stream)
                elif self.rng.random() < 0.3:
                    peer = self.rng.choice(self.members)
                    await session.api(f"STREAM.PEER.REMOVE.{stream}", {"peer": peer})
                    self.count("peers removed")
            except PASSING as error:
                self.note(f"{stream} does not move: {error!r}")
                self.count("uncertain")

    async def _change(self, session: Session, stream: str) -> None:
        tags = self.rng.choice([[], [KINDS[0]], [KINDS[1]]])
        config = (await session.api(f"STREAM.INFO.{stream}"))["config"]
        self.moves[stream].begin(config.get("placement"), {"tags": tags})
        await session.api(f"STREAM.UPDATE.{stream}", config | {"placement": {"tags": tags}})
        self.moves[stream].done()
        self.count("moved")

    async def _cancel(self, session: Session, stream: str) -> None:
        found = await self.cancelled(session, stream)
        if found is None:
            return
        self.count("cancelled")
        placement, before = found["config"].get("placement"), self.moves[stream].before
        # The faults send configurations of before as well, in which no tags at all are no placement.
        back = tags_of(placement) in map(tags_of, before)
        self.require(back, f"{stream}: a cancelled move goes back to {placement}, and not to {before}")

    async def check(self) -> None:
        tags = {name: server.tags for name, server in self.deployment.servers.items()}
        session = await self.session("check")
        for stream in STREAMS:
            info = await self.insist(stream, lambda stream=stream: session.api(f"STREAM.INFO.{stream}"))
            cluster, config = info["cluster"], info["config"]
            here = [cluster["leader"], *(one["name"] for one in cluster.get("replicas", ()))]
            wanted = (config.get("placement") or {}).get("tags", ())
            Places.placed(stream, {name: tags[name] for name in here}, config["num_replicas"], wanted, ZONE)
            log = self.logs[stream]

            def look(where: str, contents: dict[int, Msg], log: Log = log) -> None:
                self.stored(log, where, contents)

            await self.everywhere(stream, max(log.acked, default=0), look)
